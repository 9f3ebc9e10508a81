"""Notes on columns that are read as they stand, and may be meant as something else."""

from __future__ import annotations

import numpy as np

from gpflow_ext.data.reading import cells, dates
from gpflow_ext.data.reading.cells import Floats
from gpflow_ext.data.reading.problems import listed
from gpflow_ext.data.reading.table import Cells
from gpflow_ext.data.reading.treatment import Column

_FEWEST = 10  # rows in which it is no chance that whole numbers count them, or all are days
_IDS = frozenset(("id", "_id", "row", "rowid", "row_id", "index", "key", "no", "no.", "nr", "nr.", "number"))
_CENTURIES = (19_000_101, 21_001_231)  # the first and the last day that numbers are taken for


def of_errors(where: str, column: Cells) -> list[str]:
    """Return a note on the errors of a spreadsheet in a column."""
    found = [] if isinstance(column, np.ndarray) else cells.errors(column)
    what = f"{where} holds errors of a spreadsheet, {listed(found)}: they are missing values"
    return [what] if found else []


def like_an_id(column: Column, values: Floats) -> str:
    """Return a note on a column of whole numbers that count the rows, or differ and are named as IDs are."""
    own = values[:, 0]
    if column.kind != "number" or column.unit or len(own) < _FEWEST or not (own == np.round(own)).all():
        return ""
    named = column.name.strip().lower().replace(" ", "_") in _IDS
    counted = own[0] in (0.0, 1.0) and bool((np.diff(own) == 1.0).all())
    if not counted and not (named and len(np.unique(own)) == len(own)):
        return ""
    what = "counts the rows" if counted else "has another number in each row, as an ID has"
    return (
        f"column {column.name} {what}: if that says nothing of them, leave it out by drop=['{column.name}']"
    )


def like_days(name: str, values: Floats) -> list[str]:
    """Return a note on numbers [N] that are days without marks between year, month and day."""
    own = values[~np.isnan(values)]
    first, last = _CENTURIES
    if len(own) < _FEWEST or not ((own == np.round(own)) & (own >= first) & (own <= last)).all():
        return []
    whole = own.astype(np.int64)
    nothing = np.zeros_like(whole)
    midnight = (nothing, nothing, nothing, nothing)
    if not dates.is_valid(whole // 10_000, whole // 100 % 100, whole % 100, midnight, midnight[:2]).all():
        return []
    shown = f"{whole[0] // 10_000}-{whole[0] // 100 % 100:02d}-{whole[0] % 100:02d}"
    return [f"column {name} was read as numbers: if {whole[0]} is a date, write it as {shown}"]
