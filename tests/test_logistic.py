"""E[log(1 + eˣ)] by the logistic's mixture of normals, against quadrature and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from problems import value_and_derivatives

from gpflow_ext.numerics import logistic
from gpflow_ext.numerics.special import gaussian_expectation

MEANS = np.array([-12.0, -8.0, -3.0, -0.5, 0.0, 0.4, 2.0, 7.0, 12.0])
VARIANCES = np.array([0.0, 1e-3, 0.1, 1.0, 5.0, 30.0, 1e3, 1e6])


def test_value_and_derivatives_are_those_of_the_integral() -> None:
    """The reference holds 5e-12 relative, which is the tolerance."""
    mean, var = (grid.ravel() for grid in np.meshgrid(MEANS, VARIANCES))
    ours = value_and_derivatives(logistic.expected_llp, mean, var)
    integral = value_and_derivatives(lambda m, v: gaussian_expectation(tf.math.softplus, m, v), mean, var)
    for got, expected in zip(ours, integral, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(got, expected, rtol=5e-12, atol=2e-14)


def test_zero_variance_is_the_function_itself() -> None:
    x = np.linspace(-40.0, 40.0, 401)
    value = logistic.expected_llp(x, np.zeros_like(x)).numpy()
    np.testing.assert_allclose(value, np.logaddexp(0.0, x), rtol=0, atol=2e-14)
    np.testing.assert_allclose(value, np.logaddexp(0.0, x), rtol=1e-2)  # in the tail too


def test_price_and_reflection_hold_exactly() -> None:
    """∂²/∂m² = 2 ∂/∂v, and log(1 + eˣ) − log(1 + e⁻ˣ) = x."""
    mean, var = (grid.ravel() for grid in np.meshgrid(MEANS, VARIANCES))
    value, _, by_var, by_mean2 = value_and_derivatives(logistic.expected_llp, mean, var)
    np.testing.assert_allclose(by_mean2, 2.0 * by_var, rtol=1e-13, atol=1e-300)
    np.testing.assert_allclose(value - logistic.expected_llp(-mean, var), mean, rtol=0, atol=1e-12)


def test_mixing_density_is_kolmogorovs() -> None:
    k = np.linspace(0.2, 3.0, 57)
    np.testing.assert_allclose(
        logistic.kolmogorov_density(k), scipy.stats.kstwobign.pdf(k), rtol=1e-8, atol=1e-14
    )
    variances, weights = logistic.scale_mixture()
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)
    assert weights @ variances == pytest.approx(np.pi**2 / 3.0, rel=1e-13)  # the logistic's variance


def test_float32() -> None:
    mean, var = (grid.ravel() for grid in np.meshgrid(MEANS, VARIANCES))
    single = logistic.expected_llp(mean.astype(np.float32), var.astype(np.float32))
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, logistic.expected_llp(mean, var), rtol=2e-6, atol=2e-7)
