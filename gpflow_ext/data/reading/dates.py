"""Dates and times as days. The arithmetic is for arrays of NumPy and tensors of TensorFlow alike."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading import clock
from gpflow_ext.data.reading.cells import Floats
from gpflow_ext.data.reading.marks import IN_DATES, SPACE

MONTHS = {
    stem: month
    for month, stem in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
} | {"q1": 1, "q2": 4, "q3": 7, "q4": 10}
"""The beginnings of the names of months, and quarters, with the number of the (first) month."""
MONTH_NAMES = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|"
    "oct(?:ober)?|nov(?:ember)?|dec(?:ember)?"
)
_YEAR, _NUMBER, _NAME = "([0-9]{4})", "([0-9]{1,2})", rf"({MONTH_NAMES}|q[1-4])"
_FIELDS = {
    "ymd": rf"{_YEAR}(?:[-/.]{_NUMBER}|[-/. ]?{_NAME})(?:[-/. ]{_NUMBER})?",
    "dmy": rf"{_NUMBER}(?:st|nd|rd|th)?(?:[-/.]{_NUMBER}[-/.]|[-/. ]*{_NAME}[-/., ]*){_YEAR}",
    "mdy": rf"(?:{_NUMBER}[-/.]|{_NAME}[-/., ]*)(?:{_NUMBER}(?:st|nd|rd|th)?[-/., ]+)?{_YEAR}",
}  # a day may be left out where it is between the others or at the end
_GROUPS = {"ymd": (1, 2, 3, 4), "dmy": (4, 2, 3, 1), "mdy": (4, 1, 2, 3)}
_DAY_OF_WEEK = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]{0,6}[.,]* )?"
_OFFSET = r"(?: ?(?:Z|UTC|GMT)| ?(?:UTC|GMT)?[+-]([0-9]{2}):?([0-9]{2})?)?"  # of local time from UTC
_CLOCK = rf"([0-9]{{1,2}}):([0-9]{{2}})(?::([0-9]{{2}}(?:\.[0-9]{{1,9}})?))?(?: ?[ap]\.?m\.?)?{_OFFSET}"
ORDERS = ("ymd", "dmy", "mdy")
PATTERNS = {order: f"(?i)^(?:{_DAY_OF_WEEK}{_FIELDS[order]}(?:(?:T|,? ){_CLOCK}|Z)?)$" for order in ORDERS}
"""Of a stripped cell, for Python and for RE2, which has nine groups at most. Four hold the year, the number
of the month, its name and the day, see `groups`; then come hour, minute, second, and hours and minutes of an
offset from UTC."""
HALVES = ("(?i)^.*[0-9] ?a[.]?m.*$", "(?i)^.*[0-9] ?p[.]?m.*$")
"""Of a cell that fits: a time before noon and one after it, by a clock of twelve hours."""
BEHIND = "^.*:.*-.*$"
"""Of a cell that fits: an offset of local time behind UTC."""
_COMPILED = {order: re.compile(pattern) for order, pattern in PATTERNS.items()}
_HALVES = tuple(map(re.compile, HALVES))
_BEHIND = re.compile(BEHIND)
_NTH = f"{_NUMBER}(?:st|nd|rd|th)?"
_PLAIN = (
    ("ymd", rf"{_YEAR}[-/.]{_NUMBER}[-/. ]{_NUMBER}"),
    ("ym", rf"{_YEAR}[-/.]{_NUMBER}"),
    ("ymd", rf"{_YEAR}[-/. ]?{_NAME}[-/. ]{_NUMBER}"),
    ("ym", rf"{_YEAR}[-/. ]?{_NAME}"),
    ("dmy", rf"{_NTH}[-/. ]*{_NAME}[-/., ]*{_YEAR}"),
    ("mdy", rf"{_NAME}[-/., ]*{_NTH}[-/., ]+{_YEAR}"),
    ("my", rf"{_NAME}[-/., ]*{_YEAR}"),
)  # which no order of day and month can change: the year stands in front, or the month has its name

_OWN = {"ymd": ("ymd", "ym"), "dmy": ("dmy",), "mdy": ("mdy", "my")}  # of these, what each order has


def _rewritten(order: str) -> list[tuple[str, str]]:
    """Return patterns of plain dates in the other orders, and by which texts they are written in this one."""
    found = []
    for fields, pattern in _PLAIN:
        if fields not in _OWN[order]:
            place = {"d": "1"} | {field: rf"\{n}" for n, field in enumerate(fields, 1)}
            text = IN_DATES[order].join(place[field] for field in order)
            found.append((rf"(?i)^{_DAY_OF_WEEK}{pattern}((?:T|,? |Z).*)?$", rf"{text}\{len(fields) + 1}"))
    return found


REWRITTEN = {order: _rewritten(order) for order in ORDERS}
"""For each order, patterns of stripped cells that are plain dates in another one, such as ``Mar 2020`` or
``2020-03-01``, and what stands for them in this one, for Python and for RE2. No cell that fits fits them."""


def groups(order: str) -> tuple[int, int, int, int]:
    """Return which groups of the pattern hold year, number of the month, name of the month, and day."""
    return _GROUPS[order]


def julian_day(year: Any, month: Any, day: Any) -> Any:
    """Return the number of a day in the Gregorian calendar, from whole numbers of any one kind of array."""
    before_march = (14 - month) // 12
    y, m = year + 4800 - before_march, month + 12 * before_march - 3
    return day + (153 * m + 2) // 5 + 365 * y + y // 4 - y // 100 + y // 400 - 32045


def is_valid(year: Any, month: Any, day: Any, time: Sequence[Any], offset: Sequence[Any]) -> Any:
    """Tell which fields make a date, a time of day (see `clock.is_valid`) and an offset (hours, minutes)."""
    over = month // 12  # of December: the month after it is that of another year
    length = julian_day(year + over, month + 1 - 12 * over, 1 + 0 * day) - julian_day(
        year, month, 1 + 0 * day
    )
    in_calendar = (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= length)
    return in_calendar & clock.is_valid(*time) & (offset[0] < 24) & (offset[1] < 60)


def minutes(hour: Any, minute: Any, sign: Any, offset: Sequence[Any]) -> Any:
    """Return the minutes since midnight in UTC of a time with an offset (hours, minutes) of sign 1 or -1."""
    return 60 * hour + minute - sign * (60 * offset[0] + offset[1])


def parse(cells: Sequence[str], order: str) -> tuple[NDArray[np.int64], Floats, NDArray[np.bool_]]:
    """Return the day, the seconds from its midnight in UTC, and whether each cell is a date, [N] each.

    An offset from UTC may put the seconds before or after the day; times without one are taken for UTC.
    Months and quarters are their first day.
    """
    fields, seconds = np.zeros((len(cells), 9), np.int64), np.zeros(len(cells))
    fits, sign = np.zeros(len(cells), bool), np.ones(len(cells), np.int64)
    places = (*groups(order), 5, 6, 8, 9)
    for row, cell in enumerate(cells):
        bare = cell.strip(SPACE)
        found = _COMPILED[order].match(bare)
        if found:
            year, number, name, day, *time = found.group(*places)
            month = MONTHS[name.casefold()[:3]] if name else int(number)
            fields[row, :3] = int(year), month, int(day or 1)
            fits[row] = True
            if ":" in bare:
                morning, afternoon = (half.match(bare) is not None for half in _HALVES)
                fields[row, 3:] = *(int(part or 0) for part in time), morning or afternoon, afternoon
                sign[row] = -1 if _BEHIND.match(bare) else 1
                seconds[row] = float(found[7] or 0)
    y, m, d, hour, minute, *offset, halved, afternoon = fields.T
    valid = fits & is_valid(y, m, d, (hour, minute, seconds, halved), offset)
    since = 60.0 * minutes(clock.of_day(hour, halved, afternoon), minute, sign, offset) + seconds
    return julian_day(y, m, d), since, valid


def days_since(cells: Sequence[str], order: str, origin: int) -> Floats:
    """Return the days from midnight of the day ``origin`` on, [N], NaN where a cell is not a date.

    Cells that fit another order alone are read in that, if a year stands in front or a month has its name.
    """
    day, seconds, valid = parse(cells, order)
    if (others := np.flatnonzero(~valid)).size:
        plain = [_in_order(cells[row].strip(SPACE), order) for row in others]
        day[others], seconds[others], valid[others] = parse(plain, order)
    return np.where(valid, (day - origin).astype(np.float64) + seconds / 86400.0, np.nan)


def _in_order(bare: str, order: str) -> str:
    for pattern, text in REWRITTEN[order]:
        bare = re.sub(pattern, text, bare)
    return bare


def written(value: Any, order: str) -> str:
    """Return a date or time of Python, NumPy or pandas as a cell; zones become UTC, periods their start."""
    if hasattr(value, "to_timestamp"):
        value = value.to_timestamp()
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if getattr(value, "tzinfo", None) is not None:
        value = value.astimezone(datetime.timezone.utc)
    fields = {"y": f"{value.year:04d}", "m": f"{value.month:02d}", "d": f"{value.day:02d}"}
    date = IN_DATES[order].join(fields[part] for part in order)
    return f"{date}T{value.strftime('%H:%M:%S.%f')}" if hasattr(value, "hour") else date


def is_date(value: Any) -> bool:
    """Tell whether a value is a date or time of Python, NumPy or pandas."""
    return hasattr(value, "year") or isinstance(value, np.datetime64)


def text_of_day(day: int) -> str:
    """Return the date of a Julian day number."""
    return str(np.datetime64("1970-01-01") + (day - julian_day(1970, 1, 1)))
