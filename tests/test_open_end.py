"""Runs by small steps without a number of them: they go on while the objective rises."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest


import gpflow_ext as gpx
from gpflow_ext.training import open_end
from gpflow_ext.training.line import Line


def test_the_line_through_sums_is_that_of_least_squares() -> None:
    rng = np.random.default_rng(0)
    values = -2e6 + 0.5 * np.arange(200.0) + rng.normal(size=200)
    slope = np.polyfit(np.arange(200), values, 1)[0]
    assert Line.through(values - values[0] + 1.0).rise == pytest.approx(200 * slope, rel=1e-6)
    assert Line.through(values).rise is None  # under 1e-4 of the objective


