"""Read a cell of text: nothing, a number, or words. TensorFlow reads served cells by the same rules."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading import marks
from gpflow_ext.data.reading.marks import SPACE

Floats = NDArray[np.float64]

MISSING = f"(?i)(?:{'|'.join(map(re.escape, sorted(marks.MISSING)))})"
"""Of a stripped cell that is a missing value, for Python and for RE2."""
_WHOLE = 1e15  # beyond, whole numbers are written as floats
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?")  # 1,234.5, and not 0,123
_POINTS = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:\.[0-9]{3})+")  # 1.234: it may be a thousand, and 0.123 not
_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:[ \u00a0\u202f'\u2019][0-9]{3})+(?:[.,][0-9]+)?")  # 1 234.5
_COMMA = re.compile(r"[+-]?(?:[0-9]{1,3}(?:\.[0-9]{3})+|[0-9]+)?(?:,[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty or holds one of the usual marks of a missing value."""
    return cell.strip(SPACE).lower() in marks.MISSING


def errors(cells: Iterable[str]) -> list[str]:
    """Return the errors of spreadsheets among cells, which are missing values, each once."""
    marked = dict.fromkeys(cell.strip(SPACE) for cell in cells if "#" in cell)
    return [cell for cell in marked if cell.lower() in marks.ERRORS]


def to_number(cell: str, decimal: str = ".") -> float:
    """Return the number that a cell holds, infinities included; what is one in Python alone, as 1_0, is none.

    Parameters
    ----------
    cell
        The text.
    decimal
        ".", the point before decimals; ",", the comma, with points between thousands; or ",.": the point,
        with commas between thousands.

    Raises
    ------
    ValueError
        If it is not a number.
    """
    if "_" in cell or not cell.isascii():
        raise ValueError(f"{cell!r} is not a number")
    if decimal == ".":
        return float(cell)
    bare = cell.strip(SPACE)
    if decimal == ",":
        if _COMMA.fullmatch(bare):
            return float(bare.replace(".", "").replace(",", "."))
        if "." in bare:
            raise ValueError(f"{cell!r} has a point that does not separate thousands")
    elif _THOUSANDS.fullmatch(bare):
        return float(bare.replace(",", ""))
    return float(bare)


def is_number(cell: str, decimal: str = ".") -> bool:
    """Tell whether a cell reads as a number."""
    try:
        to_number(cell, decimal)
    except ValueError:
        return False
    return True


def numbers(cells: Sequence[str], decimal: str = ".") -> tuple[Floats, list[int]]:
    """Return the numbers of cells [N], NaN where they are missing, and the rows that hold something else."""
    if decimal == ".":
        try:  # quick, where every cell is a plain number
            return np.fromiter(map(_plain, cells), np.float64, len(cells)), []
        except ValueError:
            pass
    values, others = np.full(len(cells), np.nan), []
    for row, cell in enumerate(cells):
        try:
            values[row] = to_number(cell, decimal)
        except ValueError:
            if not is_missing(cell):
                others.append(row)
    return values, others


def _plain(cell: str) -> float:
    if "_" in cell or not cell.isascii():
        raise ValueError
    return float(cell)


def readings(cells: Sequence[str]) -> tuple[str, ...]:
    """Return by which ``decimal`` all cells that are there are numbers; the plain one goes first."""
    present = [cell for cell in cells if not is_missing(cell)]
    fit = (mark for mark in (".", ",", ",.") if all(is_number(cell, mark) for cell in present))
    found = tuple(fit) if present else ()
    return (".",) if "." in found else found


def may_be_thousands(cells: Sequence[str]) -> bool:
    """Tell whether there are points in cells that are numbers, each of which may stand between thousands."""
    pointed = [cell.strip(SPACE) for cell in cells if "." in cell]
    return bool(pointed) and all(map(_POINTS.fullmatch, pointed))


def grouped(cells: Sequence[str]) -> int | None:
    """Return a row with a space or an apostrophe between thousands, where all cells are otherwise numbers."""
    marked = [_GROUPED.fullmatch(cell.strip(SPACE)) is not None for cell in cells]
    if True not in marked:
        return None
    others = (cell for cell, is_marked in zip(cells, marked, strict=True) if not is_marked)
    plain = all(is_missing(cell) or is_number(cell) or is_number(cell, ",") for cell in others)
    return marked.index(True) if plain else None


def in_seconds(value: Any) -> Any:
    """Return a duration of Python, NumPy or pandas in seconds, and anything else as it is."""
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value / np.timedelta64(1, "s") if isinstance(value, np.timedelta64) else value


def text_of(value: Any) -> str:
    """Return what a value of a data frame or of JSON is as a cell: whole numbers without a fraction.

    Durations are in seconds.
    """
    if isinstance(value, str):
        return str(value)
    value = in_seconds(value)
    if value is None or str(value) in ("<NA>", "NaT") or (np.ndim(value) == 0 and value != value):
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        return str(int(number)) if number.is_integer() and abs(number) < _WHOLE else repr(number)
    return str(value)
