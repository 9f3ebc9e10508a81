"""Functions drawn from regression networks: products of those of nodes and weights."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx
from gpflow_ext.functions.product import ProductPaths
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.tuning import Setting

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


def _holding_draws(name: str) -> Any:
    """Return a network that holds six draws, whose nodes and hyperparameters differ widely."""
    model, rng = _network(name), np.random.default_rng(5)
    paths = gpflow.utilities.parameter_dict(model)
    lengthscales = next(key for key in paths if key.endswith("weight_kernel.lengthscales"))
    drawn = {
        "V": rng.standard_normal([6, 12, 2]) * [[[3.0, 0.3]]],
        lengthscales.lstrip("."): rng.uniform(0.5, 3.0, [6, 2]),
        "likelihood.variance": np.geomspace(0.05, 1.0, 6),
    }
    one_chain = {key: value[None] for key, value in drawn.items()}
    model.assign_draws(Draws(one_chain, {"log_density": np.zeros([1, 6])}, Setting(0.1, 1), 0.0))
    return model


@pytest.mark.parametrize("name", ["collapsed", "missing"])
def test_moments_are_those_of_draws_of_a_sampler(name: str) -> None:
    """Of 4,000 functions, each of one of six draws and with features of its own, jointly over inputs and outputs."""
    model = _holding_draws(name)
    values = gpx.sample_functions(model, 4000, 3, num_features=64)(AT).numpy()
    chance = {"num_features": 64, "groups": 4000, "heavy": 3.0}  # mixtures of products
    mean, cov = (part.numpy() for part in model.predict_f(AT, full_cov=True))
    for output in range(3):
        assert excess(values[:, :, output], mean[:, output], cov[output], **chance) < 1.0
    mean, cov = (part.numpy() for part in model.predict_f(AT, full_output_cov=True))
    for row in range(len(AT)):
        assert excess(values[:, row], mean[row], cov[row], **chance) < 1.0


@pytest.mark.parametrize("draws", [False, True])
def test_no_two_draws_share_a_stream_of_numbers(draws: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes, weights, and the choice of a sampler's draws, in three groups or three functions."""
    model = _holding_draws("collapsed") if draws else _network("tensor")
    given, own, asked = model.posterior().functions(), Numbers._key, []

    def key(numbers: Numbers) -> tf.Tensor:
        found = own(numbers)
        if tf.executing_eagerly():
            asked.append(tuple(found.numpy()))
        return found

    monkeypatch.setattr(Numbers, "_key", key)
    ProductPaths(given, 3, 4, 3).state(7, given)
    choices = [chosen for chosen in asked if asked.count(chosen) == 2]
    assert len(asked) >= 2 * 3 * 3  # features, their weights and the data's part, of both factors
    assert len(set(choices)) == draws  # nodes and weights choose alike, by numbers that nothing else has
    assert len(set(asked)) == len(asked) - draws


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing", "tensor", "draws"])
def test_exported_functions_are_the_live_ones(name: str, tmp_path: Any) -> None:
    model = _holding_draws("collapsed") if name == "draws" else _network(name)
    gpx.export(model, tmp_path / "model", num_samples=3)
    served = gpx.load_exported(tmp_path / "model")
    np.testing.assert_allclose(served.sample(AT, 5), gpx.sample_functions(model, 3, 5)(AT), atol=1e-9)
