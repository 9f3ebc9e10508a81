"""log Ẑ of likelihoods that have none of their own, against sums over fine grids, and fits by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.numerics.target_moments import target_moments
from gpflow_ext.persistence.exported import load_exported

rng = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("likelihood", "targets"),
    [
        (gpflow.likelihoods.Gamma(shape=40.0), [1e-6, 1.0, 1e6]),
        (gpflow.likelihoods.Beta(scale=500.0), [1e-6, 0.3, 1.0 - 1e-6]),
        (gpflow.likelihoods.StudentT(scale=0.05), [0.0, 3.0, 9.0]),
    ],
)
@pytest.mark.parametrize(("mean", "var"), [(0.0, 1.0), (2.0, 100.0), (-3.0, 1e-3)])
def test_moments_are_those_of_a_fine_grid(
    likelihood: Any, targets: list[float], mean: float, var: float
) -> None:
    Y, at = np.array(targets)[:, None], tf.fill([3, 1], tf.constant(mean, tf.float64))
    with tf.GradientTape() as outer:
        outer.watch(at)
        with tf.GradientTape() as inner:
            inner.watch(at)
            value = log_predictive(likelihood, tf.zeros([3, 1], at.dtype), at, var + 0.0 * at, Y)
        slope = inner.gradient(value, at)
    bend = outer.gradient(slope, at)
    z = np.sinh(np.linspace(-8.0, 8.0, 400_001))
    for n, y in enumerate(targets):
        nodes = tf.constant(mean + np.sqrt(var) * z)[:, None]
        height = likelihood._scalar_log_prob(np.zeros((1, 1)), nodes, tf.constant([[y]], at.dtype))
        height = np.nan_to_num(np.ravel(height), nan=-np.inf) - 0.5 * z**2 + 0.5 * np.log1p(z**2)
        weights = np.exp(height - height.max())
        total, centre = weights.sum(), (weights * z).sum() / weights.sum()
        spread = (weights * (z - centre) ** 2).sum() / total
        log_mean = height.max() + np.log(total * 16.0 / 400_000) - 0.5 * np.log(2.0 * np.pi)
        np.testing.assert_allclose(value[n], log_mean, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(slope[n, 0] * np.sqrt(var), centre, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(1.0 + bend[n, 0] * var, spread, atol=1e-5)


def test_expectation_propagation_takes_targets_in_millions() -> None:
    """Twenty nodes of Gauss and Hermite missed these likelihoods, and the first step failed."""
    X = rng.uniform(-2.0, 2.0, (60, 1))
    Y = 1e6 * np.exp(np.sin(2.0 * X)) * rng.gamma(3.0, 1.0 / 3.0, (60, 1))
    model = gpx.models.VGPKMM((X, Y), gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gamma())
    result = gpx.fit(model, recipe="ep")
    assert result.status is gpx.Status.CONVERGED
    bound = gpx.models.VGPKMM((X, Y), gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gamma())
    assert result.objective[-1] == pytest.approx(gpx.fit(bound).objective[-1], abs=0.5)


def test_scores_and_exports_use_it(tmp_path: Path) -> None:
    """Far from the data f is as uncertain as the prior, and 20 nodes are further apart than Gamma(100) is wide."""
    X, Y = rng.uniform(-2.0, 2.0, (8, 1)), rng.gamma(100.0, 0.01, (8, 1))
    kernel = gpflow.kernels.Matern32(variance=9.0)
    model = gpx.models.VGPKMM(
        (X, Y), kernel, gpflow.likelihoods.Gamma(shape=100.0)
    )  # sites of zero: the prior
    f = np.linspace(-30.0, 30.0, 600_001)[:, None]
    log_densities = scipy.stats.gamma.logpdf(Y.T, 100.0, scale=np.exp(f))  # [nodes, N]
    weights = np.exp(-(f**2) / 18.0) / np.sqrt(18.0 * np.pi) * 1e-4
    expected = np.log(np.sum(np.exp(log_densities) * weights, axis=0))
    found, rows = gpx.metrics.evaluated_rows(model, (X, Y))
    np.testing.assert_allclose(rows, expected, rtol=1e-7)
    np.testing.assert_allclose(model.predict_log_density((X, Y)), expected, rtol=1e-7)
    np.testing.assert_allclose(model.predict_log_density((X[None], Y[None])), expected[None], rtol=1e-7)
    assert found["nlpd"] == pytest.approx(-expected.mean(), rel=1e-7)
    served = load_exported(gpx.export(model, tmp_path / "served"))
    np.testing.assert_allclose(served.predict_log_density(X, Y), expected, rtol=1e-7)
    assert np.abs(model.likelihood.predict_log_density(X, 0.0 * Y, 9.0 + 0.0 * Y, Y) - expected).max() > 1.0


@pytest.mark.parametrize(("mean", "var"), [(0.0, 9.0), (-2.0, 25.0), (3.0, 1e-4), (900.0, 400.0)])
@pytest.mark.parametrize(
    "likelihood",
    [
        gpflow.likelihoods.Exponential(),
        gpflow.likelihoods.Beta(scale=10.0),
        gpflow.likelihoods.Poisson(invlink=tf.nn.softplus, binsize=3.0),
        gpflow.likelihoods.StudentT(scale=0.05, df=4.0),
    ],
)
@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_targets_are_those_of_a_fine_grid(
    likelihood: Any, mean: float, var: float, weighted: bool
) -> None:
    if mean == 900.0 and isinstance(likelihood, gpflow.likelihoods.Exponential):
        pytest.skip("Their mean is too large for a number.")
    z = np.linspace(-20.0, 20.0, 400_001)[:, None]
    weights = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi) * 1e-4
    F = tf.constant(mean + np.sqrt(var) * z)
    means, variances = (
        np.asarray(each(0.0 * F, F))
        for each in (likelihood.conditional_mean, likelihood.conditional_variance)
    )
    centre = np.sum(weights * means)
    spread = np.sum(weights * (variances + (means - centre) ** 2))
    at = tf.fill([2, 3, 1], tf.constant(mean, tf.float64))
    found = target_moments(
        gpx.likelihoods.Weighted(likelihood) if weighted else likelihood, 0.0 * at, at, var + 0.0 * at
    )
    np.testing.assert_allclose(found[0], tf.fill([2, 3, 1], centre), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found[1], tf.fill([2, 3, 1], spread), rtol=1e-7)


def test_a_variance_below_zero_by_rounding_is_zero() -> None:
    """As GPflow's ``GPR`` in single precision has them: the density was NaN."""
    mean, Y = tf.constant([[0.1]], tf.float64), tf.constant([[0.0]], tf.float64)
    likelihood = gpflow.likelihoods.Gaussian(1e-4)
    found, exact = (log_predictive(likelihood, Y, mean, var + 0.0 * Y, Y) for var in (-1e-3, 0.0))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_rows_of_switched_likelihoods_are_scored_by_their_own() -> None:
    """Errors were those of [mean by the first, mean by the second] against [target, number of the likelihood]."""
    parts = [gpflow.likelihoods.Gamma(shape=100.0), gpflow.likelihoods.Poisson()]
    X, which = rng.uniform(-2.0, 2.0, (8, 1)), np.arange(8)[:, None] % 2
    Y = np.where(which == 0, rng.gamma(100.0, 0.01, (8, 1)), rng.poisson(3.0, (8, 1)))
    kernel, switched = gpflow.kernels.Matern32(variance=9.0), gpflow.likelihoods.SwitchedLikelihood(parts)
    model = gpx.models.VGPKMM((X, np.c_[Y, which]), kernel, switched)
    found, rows = gpx.metrics.evaluated_rows(model, (X, np.c_[Y, which]))
    for number, part in enumerate(parts):
        each = which[:, 0] == number
        moments = model.predict_f(X[each])
        np.testing.assert_allclose(rows[each], log_predictive(part, X[each], *moments, Y[each]), rtol=1e-10)
    means = np.exp(4.5) * np.where(which == 0, 100.0, 1.0)
    assert found["rmse"] == pytest.approx(gpx.metrics.rmse(means, Y), rel=1e-6)
