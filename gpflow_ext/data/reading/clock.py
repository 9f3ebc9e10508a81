"""Times of day as hours. The arithmetic is for arrays of NumPy and tensors of TensorFlow alike."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpflow_ext.data.reading.cells import Floats, is_missing
from gpflow_ext.data.reading.marks import SPACE

_MINUTES = r":([0-9]{2})(?::([0-9]{2}(?:\.[0-9]{1,9})?))?"
PATTERN = rf"^(?:([0-9]{{1,2}}){_MINUTES}(?: ?([AaPp])\.?[Mm]\.?)?|([0-9]{{1,2}}) ?([AaPp])\.?[Mm]\.?)$"
"""Of a stripped cell, for Python and for RE2: hour, minute, second, and A or P of a clock of twelve hours; or
hour and A or P alone."""
_HOURS = 1.0 / 3600.0  # of a second
_COMPILED = re.compile(PATTERN)
_DURATION = re.compile(
    r"(?i)[+-]?[0-9]+ days?(?:,? [+-]?[0-9]{1,2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?)?"
    r"|[+-]?[0-9]+:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?|-?P(?=.*[0-9])(?:[0-9]+D)?(?:T(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9.]+S)?)?"
)
_LOOKED_AT = 1000  # different cells


def is_valid(hour: Any, minute: Any, second: Any, halved: Any) -> Any:
    """Tell which fields make a time of day, by a clock of twelve hours where ``halved`` is 1, else 0."""
    by_twelve = (halved == 1) & (hour >= 1) & (hour <= 12)
    return ((halved == 0) & (hour < 24) | by_twelve) & (minute < 60) & (second < 60)


def of_day(hour: Any, halved: Any, afternoon: Any) -> Any:
    """Return the hour from 0 to 23; ``halved`` and ``afternoon`` are 0 or 1."""
    return hour - halved * (hour - hour % 12) + 12 * afternoon


def share_of_an_hour(minute: Any, second: Any) -> Any:
    """Return minutes and seconds as hours. TensorFlow would multiply where NumPy divides: both multiply."""
    return (60.0 * minute + second) * _HOURS


def hours(cells: Sequence[str]) -> Floats:
    """Return the hours since midnight, [N], NaN where a cell is not a time of day."""
    fields, seconds = np.zeros((len(cells), 4), np.int64), np.zeros(len(cells))
    fits = np.zeros(len(cells), bool)
    for row, cell in enumerate(cells):
        found = _COMPILED.match(cell.strip(SPACE))
        if found:
            half = (found[4] or found[6] or "").lower()
            fields[row] = int(found[1] or found[5]), int(found[2] or 0), half != "", half == "p"
            seconds[row] = float(found[3] or 0)
            fits[row] = True
    hour, minute, halved, afternoon = fields.T
    valid = fits & is_valid(hour, minute, seconds, halved)
    since = of_day(hour, halved, afternoon) + share_of_an_hour(minute, seconds)
    return np.where(valid, since, np.nan)


def most_are_times(cells: Sequence[str]) -> bool:
    """Tell whether more than half of the different cells that are there are times of day."""
    seen = list(itertools.islice((cell for cell in dict.fromkeys(cells) if not is_missing(cell)), _LOOKED_AT))
    return bool(seen) and float(np.isnan(hours(seen)).mean()) < 0.5


def are_durations(cells: Sequence[str]) -> bool:
    """Tell whether every cell that is there is a duration, as 1 days 02:30:00, 26:30:00 or PT15M."""
    present = (cell.strip(SPACE) for cell in cells if not is_missing(cell))
    first = next(present, "")
    return bool(_DURATION.fullmatch(first)) and all(map(_DURATION.fullmatch, present))


def are_times(cells: Sequence[str]) -> bool:
    """Tell whether every cell that is there is a time of day."""
    present = [cell for cell in cells if not is_missing(cell)]
    if not present or not _COMPILED.match(present[0].strip(SPACE)):
        return False
    return not np.isnan(hours(present)).any()
