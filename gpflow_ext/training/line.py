"""A straight line through noisy objectives, from sums that each step extends: whether they rise."""

from __future__ import annotations

import math
from typing import NamedTuple

from gpflow_ext.data.checks import Array

_RISE = 1e-4  # relative: a smaller rise is none
_ERRORS = 3.0  # standard errors of a rise that is not noise
_UNSEEN = 1e-3  # relative: a rise that noise must not hide
_DOUBT = 2.0  # standard errors within which it may be
_BLOCKS = 5  # at least


class Line(NamedTuple):
    """The sums of the line of least squares through the means y₁ … yₙ of blocks of values.

    They are of dₖ = yₖ − y₁, which keeps the digits of values that hardly differ. Objectives of minibatches
    are averaged over a pass through the data: that has each row once, so their noise cancels.
    """

    number: float = 0.0  # n
    first: float = 0.0  # y₁
    total: float = 0.0  # Σ dₖ
    moment: float = 0.0  # Σ k dₖ
    square: float = 0.0  # Σ dₖ²
    begun: float = 0.0  # values of a block that is not complete
    part: float = 0.0  # their sum

    @classmethod
    def through(cls, values: Array, block: int = 1) -> Line:
        """Return the line through values [N], of blocks of so many, or of fewer where they were few."""
        line, block = cls(), most(block, len(values))
        for value in values:
            line = line.extended(float(value), block)
        return line

    def extended(self, value: float, block: int = 1) -> Line:
        """Return the line with one more value, in blocks of so many."""
        begun, part = self.begun + 1.0, self.part + value
        if begun < block:
            return self._replace(begun=begun, part=part)
        k, y = self.number + 1.0, part / begun
        first = self.first if self.number else y
        d = y - first
        return Line(k, first, self.total + d, self.moment + k * d, self.square + d * d)

    @property
    def rise(self) -> float | None:
        """By how much the line rises over its blocks; ``None`` where that is nothing, or noise."""
        rise, error = self._rise_and_error
        return rise if rise > max(_RISE * self._size, _ERRORS * error) else None

    @property
    def may_rise(self) -> bool:
        """Whether the line rises, or may do so unseen: by a thousandth, within two standard errors."""
        rise, error = self._rise_and_error
        return self.rise is not None or rise + _DOUBT * error > _UNSEEN * self._size

    @property
    def _size(self) -> float:
        return max(1.0, abs(self.first + self.total / max(1.0, self.number)))

    @property
    def _rise_and_error(self) -> tuple[float, float]:
        """The rise over the blocks, and its standard error."""
        n = self.number
        if n < 2.0:
            return 0.0, 0.0
        spread = n * (n * n - 1.0) / 12.0  # Σ (k − k̄)²
        slope = (self.moment - 0.5 * (n + 1.0) * self.total) / spread
        left = max(0.0, self.square - self.total**2 / n - slope**2 * spread)
        return slope * n, n * math.sqrt(left / max(1.0, n - 2.0) / spread)


def most(block: int, values: int) -> int:
    """Return the size of blocks of so many values, smaller where there would be too few."""
    return max(1, min(block, values // _BLOCKS))
