"""Sites of functions in units of the targets: whether they have settled does not depend on the unit."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.sites import Sites, units

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, (30, 1)), axis=0)
Y = np.sin(X) + 0.1 * rng.standard_t(3.0, (30, 1))


def _model(targets: np.ndarray, likelihood: Any, unit: float = 1.0) -> Any:
    model = gpx.models.VGPKMM((X, targets), gpflow.kernels.Matern52(unit**2), likelihood)
    gpflow.set_trainable(model, False)
    return model


@pytest.mark.parametrize("recipe", ["kmm", "laplace", "ep"])
def test_sites_settle_whatever_the_unit_of_targets(recipe: str) -> None:
    """Beside targets in hundreds of millions all sites are small: none had moved."""
    reached, means = [], []
    for unit in (1.0, 1e8):
        model = _model(unit * Y, gpx.likelihoods.StudentT(0.3 * unit), unit)
        result = gpx.fit(model, recipe=recipe)
        assert result.status is gpx.Status.CONVERGED
        reached.append(result.objective[-1] + len(Y) * np.log(unit))
        means.append(model.predict_f(X)[0] / unit)
    np.testing.assert_allclose(reached[1], reached[0], atol=1e-4)  # with jitter, and without
    np.testing.assert_allclose(means[1], means[0], atol=1e-4)


@pytest.mark.parametrize("recipe", ["kmm", "laplace", "ep"])
def test_raw_targets_far_from_zero_are_fitted_as_standardised_ones(recipe: str) -> None:
    """K of variance 10¹¹ lost its Cholesky factor to rounding, and fits ended where the kernel was off."""
    inputs = np.random.default_rng(2).uniform(-2.0, 2.0, (100, 2))
    targets = 4.0 + np.sin(2.0 * inputs[:, :1]) + 0.1 * np.random.default_rng(3).standard_t(3.0, (100, 1))
    reached = []
    for unit in (1.0, 1e5):
        kernel = gpflow.kernels.SquaredExponential()
        model = gpx.models.VGPKMM((inputs, unit * targets), kernel, gpx.likelihoods.StudentT())
        reached.append(gpx.fit(model, recipe=recipe).objective[-1] + len(targets) * np.log(unit))
    assert reached[1] == pytest.approx(reached[0], abs=0.05)  # with jitter, and without


def test_unit_is_the_deviation_of_the_targets_that_there_are() -> None:
    student, logit = gpflow.likelihoods.StudentT(), gpx.likelihoods.BernoulliLogit()
    missing = np.concatenate([1e3 * Y, [[np.nan]]])
    weighted = np.concatenate([1e3 * Y, np.full_like(Y, 1e9)], axis=1)
    weighing = _model(weighted, gpx.likelihoods.Weighted(gpflow.likelihoods.StudentT()))
    found = [
        units.unit_of(_model(Y, student), tf.constant(missing), tf.float64),
        units.unit_of(weighing, tf.constant(weighted), tf.float64),
    ]
    np.testing.assert_allclose(found, 1e3 * Y.std())
    assert units.unit_of(_model(np.zeros_like(Y), student), tf.zeros([3, 1]), tf.float64) == 1.0
    assert units.unit_of(_model(np.ones_like(Y), logit), tf.constant(missing), tf.float64) == 1.0
    for given in (weighted, weighted.tolist()):
        assert units.squares(weighing, given) == pytest.approx((1e6 * np.mean(Y**2), 1e6 * Y.var()))


def test_violation_is_that_of_standardised_sites() -> None:
    change, prec = (
        Sites(rng.normal(size=(5, 2)), rng.normal(size=(5, 2))),
        tf.constant(rng.normal(size=(5, 2))),
    )
    unit, one = tf.constant(1e5, tf.float64), tf.constant(1.0, tf.float64)
    raw = Sites(change.nat1 / unit, change.prec / unit**2)
    expected = units.violation(change, prec, one)
    np.testing.assert_allclose(units.violation(raw, prec / unit**2, unit), expected, rtol=1e-12)
    largest = np.maximum(*map(np.abs, change)) / (1.0 + np.abs(prec))
    np.testing.assert_allclose(expected, largest.max(), rtol=1e-12)
