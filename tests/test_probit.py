"""E[log Φ(x)] by a mixture of normals, against quadrature and the function itself."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from problems import value_and_derivatives

from gpflow_ext.numerics import probit
from gpflow_ext.numerics.special import gaussian_expectation, log_ndtr

MEANS = np.array([-1e5, -1e3, -40.0, -12.0, -3.0, -0.5, 0.0, 0.4, 2.0, 7.0, 12.0])
VARIANCES = np.array([0.0, 1e-3, 0.1, 1.0, 5.0, 30.0, 1e3, 1e6])
GRID = tuple(part.ravel() for part in np.meshgrid(MEANS, VARIANCES))


def test_value_and_derivatives_are_those_of_the_integral() -> None:
    ours = value_and_derivatives(probit.expected_log_ndtr, *GRID)
    integral = value_and_derivatives(lambda m, v: gaussian_expectation(log_ndtr, m, v), *GRID)
    size = np.abs(GRID[0]) + np.sqrt(GRID[1])
    scales = 2e-9 * (1.0 + size**2), 3e-9 * (1.0 + size), 1e-8, 1e-8
    for got, expected, scale in zip(ours, integral, scales, strict=True):
        assert (np.abs(got - expected) <= scale).all()


def test_price_holds_exactly_and_the_expectation_is_concave() -> None:
    _, _, by_var, by_mean2 = value_and_derivatives(probit.expected_log_ndtr, *GRID)
    np.testing.assert_allclose(by_mean2, 2.0 * by_var, rtol=1e-12, atol=1e-15)
    assert (by_var <= 0.0).all()


def test_no_weight_is_negative_and_they_sum_to_one() -> None:
    _, variances, weights = probit.mixture()
    assert (weights >= 0.0).all()
    assert abs(weights.sum() - 1.0) < 1e-8
    assert (variances > 0.0).all()


def test_float32() -> None:
    single = probit.expected_log_ndtr(*(part.astype(np.float32) for part in GRID))
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, probit.expected_log_ndtr(*GRID), rtol=2e-6, atol=2e-7)
