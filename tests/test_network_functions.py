"""Functions drawn from regression networks: products of those of nodes and weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, [12, 2])
AT = np.concatenate([X[:3], X[3:5] + 0.2, [[3.0, 3.0]]])
Y = np.stack([np.sin(X[:, 0]), np.cos(X[:, 1]) * X[:, 0], X[:, 1]], axis=1)
Y += 0.1 * RNG.standard_normal(Y.shape)
MISSING = np.where(np.arange(36).reshape(12, 3) % 7 == 0, np.nan, Y)
SMALL = {"nugget": 1e-5, "noise_variance": 0.3}  # functions leave out the nugget

NETWORKS: dict[str, dict[str, Any]] = {
    "collapsed": {"output_scales": False},
    "missing": {"output_scales": True},
    "inducing": {"inducing_variable": X[:6], "output_scales": False},
    "tensor": {"posterior": "tensor"},
    "tensor of shared rows": {"posterior": "tensor", "separate_rows": False},
}


def _network(name: str) -> Any:
    nodes: Any = gk.Matern52(1.0, 1.5)
    if name == "missing":
        nodes = [nodes, gk.SquaredExponential(0.7, 1.0)]
    data = X, MISSING if name == "missing" else Y
    model = gpx.models.GPRNTensor(
        data, nodes, gk.SquaredExponential(0.5, [1.2, 2.0]), num_latent=2, **SMALL, **NETWORKS[name]
    )
    if model.output_amplitude is not None:
        model.output_amplitude.assign([0.7, 1.0, 1.4])
    if NETWORKS[name].get("posterior") == "tensor":
        for parameter in (*model.q.node_factors, *model.q.weight_factors):
            size = int(parameter.shape[-1])
            parameter.assign(parameter + 0.1 * np.tril(RNG.standard_normal([size, size])) ** 2)
        for parameter in (model.q.node_factors[-1], model.q.weight_factors[-1]):
            parameter.assign([[1.5, 0.0], [1.4, 0.5]])
    else:
        for _ in range(3):
            model.q.sweep(model.prior())
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_moments_are_those_of_the_posterior(name: str) -> None:
    """Of 2,000 draws in ten groups; products of two normal numbers have up to three times the kurtosis of one."""
    model = _network(name)
    mean, cov = (part.numpy() for part in model.predict_f(AT, full_cov=True))
    values = gpx.sample_functions(model, 2000, 3, num_features=128, groups=10)(AT).numpy()
    chance = {"num_features": 128 / 4, "groups": 10, "heavy": 1.7}  # features of both factors
    for output in range(3):
        assert excess(values[:, :, output], mean[:, output], cov[output], **chance) < 1.0


def test_they_are_functions() -> None:
    """One row gives what many give; gradients in x are those of differences; another model leaves them alone."""
    model = _network("missing")
    draws = model.posterior().sample_functions(3, 7, num_features=64)
    values, inner, step = draws(AT).numpy(), tf.constant(AT), 1e-6
    assert values.shape == (3, len(AT), 3)
    np.testing.assert_allclose(draws(AT[4:5]).numpy()[:, 0], values[:, 4], atol=1e-12)
    with tf.GradientTape() as tape:
        tape.watch(inner)
        value = tf.reduce_sum(draws(inner)[1, :, 2])
    ahead, behind = (draws(AT + sign * step * np.eye(2)[0]).numpy()[1, :, 2] for sign in (1, -1))
    slope = tape.gradient(value, inner)[:, 0]
    np.testing.assert_allclose(slope, (ahead - behind) / (2.0 * step), rtol=1e-5, atol=1e-6)
    model.weight_kernel.variance.assign(2.0)
    np.testing.assert_array_equal(draws(AT), values)
    single = gpx.sample_functions(_network("missing"), 3, 7, num_features=64, dtype=tf.float32)(AT)
    np.testing.assert_allclose(single, values, atol=1e-3)


def test_functions_of_draws_are_refused() -> None:
    model = _network("collapsed")
    model.assign_draws(SimpleNamespace(flat=lambda _: {"V": tf.zeros([2, 12, 2], tf.float64)}))
    with pytest.raises(NotImplementedError, match="DrawsPosterior"):
        gpx.sample_functions(model, 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing", "tensor"])
def test_exported_functions_are_the_live_ones(name: str, tmp_path: Any) -> None:
    model = _network(name)
    gpx.export(model, tmp_path / "model", num_samples=3)
    served = gpx.load_exported(tmp_path / "model")
    np.testing.assert_allclose(served.sample(AT, 5), gpx.sample_functions(model, 3, 5)(AT), atol=1e-9)
