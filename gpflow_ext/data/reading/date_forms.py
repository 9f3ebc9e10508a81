"""Tell which columns of text hold dates, in which order of day and month, and which what looks like them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from gpflow_ext.data.reading.cells import is_missing
from gpflow_ext.data.reading.dates import MONTH_NAMES, ORDERS, PATTERNS, groups, parse
from gpflow_ext.data.reading.marks import SPACE

_LOOKED_AT = 1000  # different cells
_YEARS = range(1500, 2200)  # of months that are written as two numbers
_COMPILED = {order: re.compile(pattern) for order, pattern in PATTERNS.items()}
_PAIR = re.compile(r"([0-9]{4})[-/.]([0-9]{1,2})|([0-9]{1,2})[-/.]([0-9]{4})")
_DATE = r"(?:[0-9]{4}[-/.][0-9]{1,2}[-/.][0-9]{1,2}|[0-9]{1,2}[-/.][0-9]{1,2}[-/.][0-9]{4})"
_WEEK = r"[0-9]{4}-?w[0-9]{2}(?:-?[1-7])?"
_NAMED = rf"(?:.*[^a-z])?(?:{MONTH_NAMES})(?:[^a-z].*)?"
_FOREIGN = r"[0-9]{1,2}[-./ ]+[^\W\d]{3,10}[-./ ]+(?:1[89]|20)[0-9]{2}"  # a month in another language
_UNREAD = re.compile(rf"(?i){_DATE}(?:[^0-9].*)?|{_WEEK}|{_FOREIGN}|(?=.*[0-9]){_NAMED}")
_SHORT = re.compile(
    r"([0-9]{1,2})([-/])([0-9]{1,2})\2([0-9]{2})(?![0-9:]).*|([0-9]{2})(\.)([0-9]{2})\.([0-9]{2})(?![0-9:]).*"
)


def orders_of(cells: Sequence[str]) -> list[str]:
    """Return in which orders every cell that is there is a date."""
    present = [cell.strip(SPACE) for cell in cells if not is_missing(cell)]
    if not present:
        return []
    first = [order for order in ORDERS if _COMPILED[order].match(present[0])]
    found = [order for order in first if parse(present, order)[2].all()]
    return [] if found and _PAIR.fullmatch(present[0]) and _are_other_pairs(present) else found


def most_likely(cells: Sequence[str]) -> str | None:
    """Return the order in which most cells that are there are dates, if there is one."""
    seen = _different(cells)
    shares = {order: parse(seen, order)[2].mean() for order in ORDERS if seen}
    best = max(shares, key=lambda order: shares[order], default=None)
    return best if best is not None and shares[best] > 0.5 and not _are_other_pairs(seen) else None


def resemble(cells: Sequence[str]) -> bool:
    """Tell whether every cell that is there looks like a date, though in no form that is read.

    These are years of two digits, weeks, days without a year, and dates with something behind them.
    """
    seen = _different(cells)
    return bool(seen) and all(_UNREAD.fullmatch(cell) or _has_short_year(cell) for cell in seen)


def are_longer_than_a_day(cells: Sequence[str], order: str) -> bool:
    """Tell whether there are months or quarters among the dates of an order."""
    day = groups(order)[3]
    found = map(_COMPILED[order].match, _different(cells))
    return any(each is not None and not each[day] for each in found)


def _different(cells: Sequence[str]) -> list[str]:
    """Return the first cells that are there and differ."""
    present = (cell.strip(SPACE) for cell in dict.fromkeys(cells) if not is_missing(cell))
    return list(itertools.islice(dict.fromkeys(present), _LOOKED_AT))


def _are_other_pairs(present: Sequence[str]) -> bool:
    """Tell whether all cells are two numbers that are no month: codes, or seasons such as 2010/11."""
    pairs = [_PAIR.fullmatch(cell) for cell in present]
    found = [(int(pair[1] or pair[4]), int(pair[2] or pair[3])) for pair in pairs if pair]
    if len(found) < len(pairs):
        return False
    seasons = all((year + 1) % 100 == month for year, month in found)
    return seasons or any(year not in _YEARS for year, _ in found)


def _has_short_year(cell: str) -> bool:
    found = _SHORT.fullmatch(cell)
    if not found:
        return False
    first, _, second, last = (part for part in found.groups() if part is not None)
    written = [f"{first}/{second}/20{last}", f"20{first}-{second}-{last}"]
    return any(parse(written, order)[2].any() for order in ORDERS)
