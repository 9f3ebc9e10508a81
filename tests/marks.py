"""Which of many cases every run tries."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
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


def every_pair(*axes: Sequence[Any]) -> list[Any]:
    """Return all combinations of the axes' values; quick are as many as hold each pair of two axes' values."""

    def pairs(case: Sequence[int]) -> set[Any]:
        return set(itertools.combinations(enumerate(case), 2))

    cases = list(itertools.product(*(range(len(axis)) for axis in axes)))
    missing, quick = set[Any]().union(*map(pairs, cases)), []
    while missing:
        quick.append(max(cases, key=lambda case: len(pairs(case) & missing)))
        missing -= pairs(quick[-1])
    combinations = {case: tuple(axis[i] for axis, i in zip(axes, case, strict=True)) for case in cases}
    return [
        pytest.param(*values, marks=[] if case in quick else SLOW) for case, values in combinations.items()
    ]
