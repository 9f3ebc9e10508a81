"""Attributes that a graph does not hold: those apart from an owner's structure, and numbers left open."""

from __future__ import annotations

from collections.abc import Iterable


class Apart:
    """The base of attributes that do not belong to the structure of their owner."""


class Sizes:
    """Whole numbers that decide shapes: in a graph that leaves numbers of rows open, a tensor in their place.

    That is of 32 bits, [n]. Where shapes are static, as for XLA, they belong to the owner's structure.

    Parameters
    ----------
    values
        The numbers, n of them.
    """

    def __init__(self, values: Iterable[int]) -> None:
        self.values = tuple(map(int, values))
