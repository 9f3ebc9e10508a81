"""Moments of drawn functions for each kernel with random features, and in limits that are known exactly."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from drawn_kernels import KERNELS
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx
from gpflow_ext.functions.features import white_variance
from gpflow_ext.sites import Sites

RNG = np.random.default_rng(0)
X = RNG.uniform(-3.0, 3.0, [60, 2])
F = np.sin(2.0 * X[:, :1]) + X[:, 1:]
Y = (F + RNG.normal(size=F.shape) > 0.0).astype(float)
AT = np.concatenate([X[:20] + 0.1, RNG.uniform(-5.0, 5.0, [20, 2])])
STATIONARY = (
    "SquaredExponential", "Matern12", "Matern32", "Matern52", "Exponential", "RationalQuadratic", "product", "sum",
)  # fmt: skip

logit, probit = gpx.likelihoods.BernoulliLogit, gpx.likelihoods.BernoulliProbit


def _sparse(kernel: gk.Kernel, number: int) -> Any:
    return gpx.models.SparseEP((X, Y), kernel, probit(), inducing_variable=X[:number].copy())


def _worst(model: Any, of: Any, samples: int = 4000, num_features: float = 256) -> float:
    """Return by how much moments of draws of a model exceed their allowance, against the predictions of another."""
    mean, cov = (part.numpy() for part in of.predict_f(tf.constant(AT), full_cov=True))
    used = 64 if math.isinf(num_features) else int(num_features)
    draws = gpx.sample_functions(model, samples, 3, num_features=used, groups=20)(AT).numpy()
    own = cov[0] - white_variance(of.kernel) * np.eye(len(AT))
    return excess(draws[:, :, 0], mean[:, 0], own, num_features=num_features)


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, 30, 5], ids=lambda number: f"{number or 'all'} points")
@pytest.mark.parametrize("name", STATIONARY)
def test_moments_for_each_kernel(name: str, number: int | None) -> None:
    """Of 10,000 draws at 40 inputs, dense and with inducing points; few of these show a wrong correction."""
    kernel = KERNELS[name]()
    model = gpx.models.VGPKMM((X, Y), kernel, logit()) if number is None else _sparse(kernel, number)
    model.settle_sites()
    assert _worst(model, model, 10_000, 2048) < 1.0


@pytest.mark.slow
def test_the_routes_by_data_and_by_points_agree() -> None:
    """Where the inducing points are the data, α by the factor of K_uu has the moments of α by that of I + ΛK."""
    kernel = gk.SquaredExponential(2.0, [0.8, 1.5]) + gk.White(0.1)
    dense = gpx.models.VGPKMM((X, Y), kernel, logit())
    dense.settle_sites()
    sparse = gpx.models.VGPKMM((X, Y), kernel, logit(), inducing_variable=X.copy())
    sparse.assign_sites(Sites(dense.nat1, dense.prec))
    assert _worst(dense, dense) < 1.0
    assert _worst(sparse, dense) < 1.0


def test_moments_where_a_site_has_a_negative_precision() -> None:
    """It takes information away: the variance of q is greater than without it."""
    model = _sparse(gk.SquaredExponential(2.0, [0.8, 1.5]), 8)
    prec = np.where(np.arange(60)[:, None] % 3 == 0, -0.1, 0.8)
    model.assign_sites(Sites(tf.constant(prec * (2.0 * Y - 1.0)), tf.constant(prec)))
    var = model.predict_f(AT)[1]
    assert _worst(model, model) < 1.0
    model.assign_sites(Sites(tf.constant(prec * Y), tf.constant(np.maximum(prec, 0.0))))
    assert (model.predict_f(AT)[1] < var).numpy().any()


def test_features_of_a_linear_kernel_are_exact() -> None:
    """Moments have the error of the number of draws alone, and draws are planes."""
    model = gpx.models.VGPKMM((X, Y), gk.Linear([0.3, 0.6]) + gk.Constant(), logit())
    model.settle_sites()
    assert _worst(model, model, num_features=math.inf) < 1.0
    line = np.array([[0.0, 1.0], [1.0, 1.5], [2.0, 2.0]])
    values = gpx.sample_functions(model, 10, 0)(line).numpy()[:, :, 0]
    np.testing.assert_allclose(values[:, 0] - 2.0 * values[:, 1] + values[:, 2], 0.0, atol=1e-10)


def test_draws_pass_through_data_without_noise() -> None:
    """Whose standard deviation is 1e-4: ten of these."""
    likelihood = gpflow.likelihoods.Gaussian(1e-8, variance_lower_bound=1e-9)
    model = gpflow.models.GPR((X, F), gk.SquaredExponential(2.0, [0.8, 1.5]), likelihood=likelihood)
    values = gpx.sample_functions(model, 20, 0)(X).numpy()
    assert np.abs(values - F).max() < 1e-3
