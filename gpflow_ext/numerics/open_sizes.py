"""Whole numbers that a compiled graph leaves open, as it does numbers of rows."""

from __future__ import annotations

from collections.abc import Iterable


class Sizes:
    """Numbers that decide shapes; in a graph that leaves numbers of rows open, a tensor takes their place.

    The tensor is of 32 bits, [n]. Where shapes are static, as for XLA, the numbers decide the graph.

    Parameters
    ----------
    values
        The numbers, n of them.
    """

    def __init__(self, values: Iterable[int]) -> None:
        self.values = tuple(map(int, values))
