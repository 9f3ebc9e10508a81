"""Which of many cases every run tries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

SLOW = pytest.mark.slow


def others_slow(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return the cases for `pytest.mark.parametrize`, slow where they are not among the quick ones."""
    cases = list(cases)
    assert all(case in cases for case in quick), quick
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[] if case in quick else SLOW)
        for case in cases
    ]
