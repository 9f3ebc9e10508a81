"""Counts at exposures other than one; without GPflow, so that what is served needs none."""

from __future__ import annotations

from typing import Any


def at_exposures(mean: Any, variance: Any, exposure: Any) -> tuple[Any, Any]:
    """Return mean and variance of counts at exposures, from those at exposure one; arrays or tensors.

    With E[λ] = m and Var[y] = v at exposure one, the count at exposure e has the mean e m and the variance
    e m + e² (v − m): the excess over the Poisson variance is that of the rate, times e².
    """
    expected = exposure * mean
    return expected, expected + exposure * exposure * (variance - mean)
