"""Dates and times as days. The arithmetic is for arrays of NumPy and tensors of TensorFlow alike."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading.cells import SPACE, Floats, is_missing

_FIELD = {"y": "([0-9]{4})", "m": "([0-9]{1,2})", "d": "([0-9]{1,2})"}
_OFFSET = r"(?:Z| ?([+-])([0-9]{2}):?([0-9]{2})?)?"  # of local time from UTC
_TIME = rf"(?:[T ]([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}}(?:\.[0-9]{{1,9}})?))?{_OFFSET}|Z)?"
ORDERS = ("ymd", "dmy", "mdy")
PATTERNS = {order: "^(?:" + "[-/.]".join(_FIELD[part] for part in order) + _TIME + ")$" for order in ORDERS}
"""Of a stripped cell, for Python and for RE2; year, month and day in the order of the name, then hour,
minute, second, and sign, hours and minutes of an offset from UTC."""
_COMPILED = {order: re.compile(pattern) for order, pattern in PATTERNS.items()}
_MARKS = {"ymd": "-", "dmy": ".", "mdy": "/"}


def groups(order: str) -> tuple[int, int, int]:
    """Return which groups of the pattern hold year, month and day."""
    year, month, day = (order.index(part) + 1 for part in "ymd")
    return year, month, day


def julian_day(year: Any, month: Any, day: Any) -> Any:
    """Return the number of a day in the Gregorian calendar, from whole numbers of any one kind of array."""
    before_march = (14 - month) // 12
    y, m = year + 4800 - before_march, month + 12 * before_march - 3
    return day + (153 * m + 2) // 5 + 365 * y + y // 4 - y // 100 + y // 400 - 32045


def is_valid(year: Any, month: Any, day: Any, time: Sequence[Any], offset: Sequence[Any]) -> Any:
    """Tell which fields make a date, a time of day (hour, minute, second) and an offset (hours, minutes)."""
    hour, minute, second = time
    over = month // 12  # of December: the month after it is that of another year
    length = julian_day(year + over, month + 1 - 12 * over, 1 + 0 * day) - julian_day(
        year, month, 1 + 0 * day
    )
    in_calendar = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    of_day = (hour < 24) & (minute < 60) & (second < 60)
    return in_calendar & of_day & (offset[0] < 24) & (offset[1] < 60)


def minutes(hour: Any, minute: Any, sign: Any, offset: Sequence[Any]) -> Any:
    """Return the minutes since midnight in UTC of a time with an offset (hours, minutes) of sign 1 or -1."""
    return 60 * hour + minute - sign * (60 * offset[0] + offset[1])


def parse(cells: Sequence[str], order: str) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """Return the day, the seconds from its midnight in UTC, and whether each cell is a date, [N] each.

    An offset from UTC may put the seconds before or after the day; times without one are taken for UTC.
    """
    fields, seconds = np.ones((len(cells), 7), np.int64), np.zeros(len(cells))
    fits, sign = np.zeros(len(cells), bool), np.ones(len(cells), np.int64)
    year, month, day = groups(order)
    for row, cell in enumerate(cells):
        found = _COMPILED[order].match(cell.strip(SPACE))
        if found:
            parts = found.group(year, month, day, 4, 5, 8, 9)
            fields[row] = [int(part or 0) for part in parts]
            sign[row] = -1 if found[7] == "-" else 1
            seconds[row] = float(found[6] or 0)
            fits[row] = True
    y, m, d, hour, minute, *offset = fields.T
    valid = fits & is_valid(y, m, d, (hour, minute, seconds), offset)
    return julian_day(y, m, d), 60.0 * minutes(hour, minute, sign, offset) + seconds, valid


def days_since(cells: Sequence[str], order: str, origin: int) -> Floats:
    """Return the days from midnight of the day ``origin`` on, [N], NaN where a cell is not a date."""
    day, seconds, valid = parse(cells, order)
    return np.where(valid, (day - origin).astype(np.float64) + seconds / 86400.0, np.nan)


def orders_of(cells: Sequence[str]) -> list[str]:
    """Return in which orders every cell that is there is a date."""
    present = [cell for cell in cells if not is_missing(cell)]
    if not present:
        return []
    first = [order for order in ORDERS if _COMPILED[order].match(present[0].strip(SPACE))]
    return [order for order in first if parse(present, order)[2].all()]


def written(value: Any, order: str) -> str:
    """Return a date or time of Python, NumPy or pandas as a cell; zones become UTC, periods their start."""
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.timezone.utc)
    fields = {"y": f"{value.year:04d}", "m": f"{value.month:02d}", "d": f"{value.day:02d}"}
    date = _MARKS[order].join(fields[part] for part in order)
    return f"{date}T{value.strftime('%H:%M:%S.%f')}" if hasattr(value, "hour") else date


def is_date(value: Any) -> bool:
    """Tell whether a value is a date or time of Python, NumPy or pandas."""
    return hasattr(value, "year") or isinstance(value, np.datetime64)


def text_of_day(day: int) -> str:
    """Return the date of a Julian day number."""
    return str(np.datetime64("1970-01-01") + (day - julian_day(1970, 1, 1)))
