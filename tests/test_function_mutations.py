"""Mistakes that are easily made in drawing functions are seen in the moments; and a seed gives one function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx
from gpflow_ext.functions import frequencies, paths
from gpflow_ext.functions.features import features_of
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.sites import Sites

X = np.random.default_rng(0).uniform(-3.0, 3.0, [40, 2])
Y = (np.sin(2.0 * X[:, :1]) + X[:, 1:] > 0.0).astype(float)
AT = np.concatenate([X[:5] + 0.1, np.random.default_rng(1).uniform(-5.0, 5.0, [5, 2])])


def _sparse() -> Any:
    kernel = gk.SquaredExponential(2.0, [0.8, 1.5]) + gk.White(0.5)
    model = gpx.models.SparseEP(
        (X, Y), kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=X[:5].copy()
    )
    model.settle_sites()
    return model


def _dense() -> Any:
    """With data that say nothing, of precision zero."""
    model = gpx.models.VGPKMM((X, Y), gk.Matern52(2.0, 1.2), gpx.likelihoods.BernoulliLogit())
    prec = np.where(np.arange(40)[:, None] % 3 == 0, 0.0, 2.0)
    model.assign_sites(Sites(tf.constant(prec * (2.0 * Y - 1.0)), tf.constant(prec)))
    return model


def _worst(model: Any, posterior: Any, white: float) -> float:
    mean, cov = (part.numpy() for part in model.predict_f(tf.constant(AT), full_cov=True))
    draws = posterior.sample_functions(4000, 3, num_features=256, groups=20)(AT).numpy()
    return excess(draws[:, :, 0], mean[:, 0], cov[0] - white * np.eye(len(AT)))


def _no_noise_at_points(patch: pytest.MonkeyPatch, posterior: Any) -> None:
    patch.setattr(paths, "white_variance", lambda kernel: 0.0)


def _factor_without_white(patch: pytest.MonkeyPatch, posterior: Any) -> None:
    points = posterior._model.inducing_variable.Z
    gram = posterior.kernel.kernels[0](points) + 1e-6 * tf.eye(5, dtype=tf.float64)
    posterior.cache = (tf.linalg.cholesky(gram)[None], *posterior.cache[1:])


def _as_it_is(patch: pytest.MonkeyPatch, posterior: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("mistake", "is_right"),
    [(_as_it_is, True), (_no_noise_at_points, False), (_factor_without_white, False)],
)
def test_white_belongs_to_the_points(
    mistake: Callable[..., None], is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _sparse()
    posterior = model.posterior(precompute_cache=gpflow.posteriors.PrecomputeCacheType.TENSOR)
    mistake(monkeypatch, posterior)
    assert (_worst(model, posterior, 0.5) < 1.0) is is_right


def test_data_that_say_nothing_have_no_pseudo_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """1/prec of them is infinite."""
    model = _dense()
    posterior = model.posterior()
    assert _worst(model, posterior, 0.0) < 1.0
    monkeypatch.setattr(tf.math, "divide_no_nan", tf.divide)
    assert _worst(model, posterior, 0.0) == np.inf


def _error(kernel: gk.Kernel) -> float:
    """Return the largest error of φᵀφ with 2¹⁶ features, of which √(2/F) is 0.006 of the variance."""
    features = features_of(kernel)
    phi = features.at(features.draw(Numbers(1, 0, tf.float64), 2**16, 2), tf.constant(AT))
    return float(tf.reduce_max(tf.abs(tf.matmul(phi, phi, transpose_b=True) - kernel(AT))))


def _t_in_each_dimension(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    chi2 = 2.0 * numbers.gamma([count, dims], 1.5)
    return numbers.normal([count, dims]) / tf.sqrt(chi2 / 3.0) / kernel.lengthscales


@pytest.mark.parametrize(
    ("kernel", "mistake"),
    [
        (gk.Exponential(1.0, 2.0), frequencies.FREQUENCIES[gk.Matern12]),  # forgets the ½
        (gk.Matern32(1.0, [1.5, 3.0]), _t_in_each_dimension),  # one χ² is for all
    ],
)
def test_spectral_densities_are_gpflows(
    kernel: gk.Kernel, mistake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _error(kernel) < 0.025
    monkeypatch.setitem(frequencies.FREQUENCIES, type(kernel), mistake)
    assert _error(kernel) > 0.04


_PROGRAM = """
import sys
import gpflow, numpy as np
import gpflow_ext as gpx
X = np.linspace(0.0, 1.0, 5)[:, None]
model = gpflow.models.GPR((X, np.sin(X)), gpflow.kernels.Matern52())
np.save(sys.argv[1], gpx.sample_functions(model, 3, 11)(X + 0.1).numpy())
"""


@pytest.mark.slow
def test_a_seed_gives_the_same_functions_in_another_process(tmp_path: Any) -> None:
    found = []
    for name in ("one", "two"):
        subprocess.run([sys.executable, "-c", _PROGRAM, tmp_path / name], check=True)
        found.append(np.load(tmp_path / f"{name}.npy"))
    np.testing.assert_array_equal(*found)
