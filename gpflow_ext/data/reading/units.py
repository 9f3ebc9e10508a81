"""Numbers with a unit: €101.89, 45 kg, 12.5 %."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpflow_ext.data.reading.cells import is_missing, readings

_CURRENCY = "$\u00a2-\u00a5\u0e3f\u20a0-\u20c0"  # the signs of currencies in Unicode's most used blocks
_BEFORE = re.compile(rf"[+-]?([A-Z]{{0,3}}[{_CURRENCY}])\s?[+-]?[.,]?\d.*")
_AFTER = re.compile(r"[+-]?[.,]?\d(?:.*\d)?[.,]?\s?([^\s\d.,+-]\D{0,9})")


def measured(cells: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return cells without their unit, and it: a currency before the number, or anything short after it.

    Cells that are not numbers with the same unit, but for missing ones, are returned as they are, with "".
    """
    present = [cell for cell in cells if not is_missing(cell)]
    unit = _unit(present[0]) if present else ""
    if not unit or any(_unit(cell) != unit for cell in present):
        return cells, ""
    bare = [without(cell, unit) for cell in cells]
    return (bare, unit) if readings(bare) else (cells, "")


def without(cell: str, unit: str) -> str:
    """Return a cell without its unit; one that does not have it as it is."""
    if not unit or unit not in cell:
        return cell
    before, _, after = cell.strip().partition(unit)
    if before in ("", "+", "-"):
        return before + after.strip()
    return cell if after else before.strip()


def _unit(cell: str) -> str:
    bare = cell.strip()
    found = _BEFORE.fullmatch(bare) or _AFTER.fullmatch(bare)
    return found[1].strip() if found else ""
