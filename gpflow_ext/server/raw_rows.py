"""Reads the raw rows of a predict call: cells of numbers and of text by the tensors of their columns."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.data.reading.marks import IN_DATES, MISSING, SPACE

from .limits import ERRORS, SAID, Limits, RefusedError, shown

Array = npt.NDArray[Any]
RAW = "predict_raw"
RAW_COUNTS = "predict_raw_counts"
_ORDINAL = 1_721_425  # Julian day numbers are so much above the ordinals of Python
_LAST_MINUTE = 24 * 60 - 1  # of a day
_LARGEST = int(np.finfo(np.float64).max)


def read_raw(
    request: Mapping[str, Any],
    inputs: Mapping[str, Any],
    limits: Limits,
    table: Sequence[Mapping[str, Any]] = (),
    with_exposure: str | None = None,
) -> dict[str, Array]:
    """Return the columns of a request, [N] each, exposures [N, 1]; ``null`` is a cell that is missing.

    ``true``, ``false`` and numbers are the levels that they spell, as True or 8001.

    Parameters
    ----------
    request
        With ``instances``, a list of objects of cells, or ``inputs``, an object of lists of cells.
    inputs
        The ``dtype`` of each column, of a manifest.
    limits
        How many rows there may be.
    table
        Columns, as a manifest has them, with their levels.
    with_exposure
        The signature that takes the same columns and exposures, if there is one.

    Raises
    ------
    RefusedError
        422, for other columns, columns that are not equally long, and cells of another type.
    """
    hint = f'; counts at an "exposure" go with "signature_name": "{with_exposure}"' if with_exposure else ""
    columns = (
        _by_column(request["inputs"], inputs, hint)
        if "inputs" in request
        else _by_row(request, inputs, limits, hint)
    )
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RefusedError(422, f"all columns must have as many rows; found {lengths}")
    rows = next(iter(lengths.values()))
    if not 0 < rows <= limits.rows:
        raise RefusedError(422, f"there are {rows} rows; the server takes 1 to {limits.rows} in a call")
    levels = {column["tensor"]: column["levels"] for column in table}
    spelt = {key: [_spelt(cell, levels.get(key)) for cell in column] for key, column in columns.items()}
    found = {key: _array(key, spelt[key], spec["dtype"] == "string") for key, spec in inputs.items()}
    for key, spec in inputs.items():
        if len(spec["shape"]) == 2:  # of exposures, which go with the columns
            found[key] = found[key].astype(spec["dtype"])[:, None]
    return found


def misnamed(value: Any, names: Mapping[str, Any]) -> str:
    """Return what is wrong with an object that must have some keys and no others; nothing if it has them."""
    if isinstance(value, dict) and value.keys() == names.keys():
        return ""
    must = f"must be an object with {', '.join(names)}"
    if not isinstance(value, dict):
        return f"{must}; found {shown(value)}"
    missing, unknown = sorted(names.keys() - value.keys()), sorted(value.keys() - names.keys())
    return f"{must}; missing: {shown(missing)}; unknown: {shown(unknown)}"


def _by_column(value: Any, inputs: Mapping[str, Any], hint: str) -> dict[str, list[Any]]:
    if why := misnamed(value, inputs):
        raise RefusedError(422, f"inputs {why}{hint}")
    wrong = [f"{key} is not a list of cells" for key, column in value.items() if not isinstance(column, list)]
    if wrong:
        raise RefusedError(422, *wrong)
    return value


def _by_row(
    request: Mapping[str, Any], inputs: Mapping[str, Any], limits: Limits, hint: str
) -> dict[str, list[Any]]:
    rows = request["instances"]
    if not isinstance(rows, list) or len(rows) > limits.rows:
        raise RefusedError(422, f"instances must be a list of 1 to {limits.rows} rows")
    wrong = (f"row {i} {why}{hint}" for i, row in enumerate(rows) if (why := misnamed(row, inputs)))
    if reasons := list(itertools.islice(wrong, ERRORS)):
        raise RefusedError(422, *reasons)
    return {key: [row[key] for row in rows] for key in inputs}


def _array(name: str, cells: list[Any], is_text: bool) -> Array:
    what, fits = ("text: write it as the table does", _is_text) if is_text else ("a number", _is_number)
    places = ((row, cell) for row, cell in enumerate(cells) if cell is not None and not fits(cell))
    wrong = [
        f"row {row}, {name}: {shown(cell)} is not {what}" for row, cell in itertools.islice(places, ERRORS)
    ]
    if wrong:
        raise RefusedError(422, *wrong)
    if is_text:
        return np.array(["" if cell is None else cell for cell in cells], dtype=object)
    return np.array([np.nan if cell is None else cell for cell in cells], np.float64)


def unseen(columns: Sequence[Mapping[str, Any]], cells: Mapping[str, Array]) -> dict[str, list[str]]:
    """Return words that no training row had, by the columns that have inputs of 0 and 1, up to ten of each.

    They are 0 in all inputs of their column.

    Parameters
    ----------
    columns
        Columns, as a manifest has them.
    cells
        Those of `read_raw`.
    """
    found: dict[str, list[str]] = {}
    for column in columns:
        if column["kind"] == "one-hot":
            words = {cell.strip(SPACE) for cell in cells[column["tensor"]]} - {*column["levels"]}
            strange = sorted(word[:SAID] for word in words if word.lower() not in MISSING)
            found |= {column["name"]: strange[:ERRORS]} if strange else {}
    return found


def _spelt(cell: Any, levels: Sequence[str] | None) -> Any:
    """Return the one level that a truth value or a number of JSON spells, and any other cell as it is."""
    if not levels or isinstance(cell, str) or cell is None:
        return cell
    if isinstance(cell, bool):
        same = [level for level in levels if level.lower() == str(cell).lower()]
    else:
        same = [level for level in levels if _is_number(cell) and _is_equal(level, cell)]
    return same[0] if len(same) == 1 else cell


def _is_equal(level: str, number: float) -> bool:
    """Tell whether a level is a number as text, such as 01 or 2.0, and this one."""
    try:
        return "_" not in level and float(level) == number
    except ValueError:
        return False


def _is_text(cell: Any) -> bool:
    """Tell whether a cell is text that has bytes: half of a surrogate pair has none."""
    try:
        return isinstance(cell, str) and cell.encode() is not None
    except UnicodeEncodeError:
        return False


def _is_number(cell: Any) -> bool:
    return (type(cell) is float and math.isfinite(cell)) or (type(cell) is int and abs(cell) <= _LARGEST)


def example_row(
    columns: Sequence[Mapping[str, Any]], names: Sequence[str], row: Sequence[float]
) -> dict[str, Any]:
    """Return a raw row by its tensors that makes about the inputs of an example.

    Parameters
    ----------
    columns
        Columns, as a manifest has them.
    names, row
        Names of the inputs, and their values.
    """
    values = dict(zip(names, row, strict=True))
    return {column["tensor"]: _cell(column, values) for column in columns}


def _cell(column: Mapping[str, Any], values: Mapping[str, float]) -> Any:
    name, levels = column["name"], column["levels"]
    if column["kind"] == "one-hot":
        return max(levels, key=lambda level: values[f"{name}={level}"])
    if column["kind"] == "ordinal":
        return levels[min(max(round(values[name]), 0), len(levels) - 1)]
    if column["kind"] == "number":
        return float(f"{values[name]:.6g}")
    if column["kind"] == "time":
        minutes = min(max(round(60.0 * values[name]), 0), _LAST_MINUTE)
        return f"{minutes // 60}:{minutes % 60:02d}"
    day = column["origin"] - _ORDINAL + round(values[name])
    date = datetime.date.fromordinal(min(max(day, 1), datetime.date.max.toordinal()))
    fields = {"y": f"{date.year:04d}", "m": f"{date.month:02d}", "d": f"{date.day:02d}"}
    return IN_DATES[column["date_order"]].join(fields[part] for part in column["date_order"])
