"""E[log Φ(x)] by a mixture of normals, against quadrature and the function itself."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from problems import value_and_derivatives

from gpflow_ext.numerics import probit
from gpflow_ext.numerics.probit import log_flipped_ndtr
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


@pytest.mark.parametrize("share", [1e-12, 0.05, 0.4])
def test_flipped_labels_have_their_density_and_derivatives(share: float) -> None:
    """The second derivative cancels where Φ is above ρ, the more the farther to the left that is."""
    x = tf.constant(np.linspace(-36.0, 40.0, 305))
    with tf.GradientTape() as outer, tf.GradientTape() as inner:
        for tape in (outer, inner):
            tape.watch(x)
        value, by_share = log_flipped_ndtr(x, share)
        first = inner.gradient(value, x)
    second = outer.gradient(first, x)
    below, density = scipy.stats.norm.cdf(x), scipy.stats.norm.pdf(x)
    p = share + (1.0 - 2.0 * share) * below
    log_p = np.where(x < 0.0, np.log(p), np.log1p(-share - (1.0 - 2.0 * share) * scipy.stats.norm.sf(x)))
    np.testing.assert_allclose(value, log_p, rtol=1e-13)
    np.testing.assert_allclose(by_share, (1.0 - 2.0 * below) / p, rtol=1e-12)
    h = (1.0 - 2.0 * share) * density / p
    np.testing.assert_allclose(first, h, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(second, -h * (x + h), rtol=1e-9, atol=1e-300)
