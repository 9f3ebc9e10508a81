"""Functions drawn from models in time, of neighbours, and on features of the inputs."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk
from moments import excess

import gpflow_ext as gpx
from gpflow_ext.numerics import grids
from gpflow_ext.sites import Sites

RNG = np.random.default_rng(0)
TIMES = RNG.uniform(0.0, 4.0, [70, 1])  # two chunks, unsorted
TIMES[5] = TIMES[6]
AT_TIMES = np.concatenate([[[-1.0]], TIMES[:3], TIMES[3:6] + 0.01, [[2.0], [4.5]]])
PLACES = RNG.uniform(-2.0, 2.0, [30, 2])
AT_PLACES = np.concatenate([PLACES[:3], PLACES[3:6] + 0.1, RNG.uniform(-4.0, 4.0, [3, 2])])


CELLS = grids.grid(np.linspace(-2.0, 2.0, 5), np.array([-1.0, 0.0, 0.2, 1.0, 2.0, 2.5]))
SOME_CELLS = np.concatenate([CELLS[RNG.permutation(30)[:24]], CELLS[:3]])  # missing, and repeated ones
AT_CELLS = np.concatenate([CELLS[:2], CELLS[3:6] + 0.1, CELLS[-2:], AT_PLACES[-2:]])


def _kernel(X: Any) -> gk.Kernel:
    if X is SOME_CELLS:
        return gk.Matern32(2.0, 1.5, active_dims=[0]) * gk.Matern52(1.0, 0.9, active_dims=[1])
    smooth = gk.Matern32(2.0, 0.7) if X is TIMES else gk.Matern52(2.0, [0.8, 1.5])
    return smooth + gk.White(0.1)


def _model(X: Any, prior: Any, kernel: gk.Kernel | None = None) -> Any:
    """A model with any sites, as they need not be at their fixed point."""
    columns = 1 if kernel is None else 2
    likelihood, mean = gpflow.likelihoods.Poisson(), gpflow.functions.Constant(0.3)
    kernel = kernel or _kernel(X)
    model = gpx.models.VGPKMM((X, np.ones([len(X), columns])), kernel, likelihood, mean, prior=prior)
    prec = np.random.default_rng(1).uniform(0.0, 3.0, [len(X), columns])
    prec[3] = 0.0
    model.assign_sites(Sites(tf.constant(prec * (0.5 + np.sin(2.0 * X[:, :1]))), tf.constant(prec)))
    return model


def _check_moments(draws: Any, dense: Any, at: Any, whites: tuple[float, ...]) -> None:
    """Of 4,000 draws in 20 groups."""
    mean, cov = (part.numpy() for part in dense.predict_f(tf.constant(at), full_cov=True))
    values = draws(at).numpy()
    for latent, white in enumerate(whites):
        own = cov[latent] - white * np.eye(len(at))
        assert excess(values[:, :, latent], mean[:, latent], own) < 1.0


PRIORS = {
    "markov": (TIMES, AT_TIMES, "markov"),
    "vecchia": (PLACES, AT_PLACES, gpx.VecchiaOptions(neighbours=30)),  # all before: exact
    "full scale": (PLACES, AT_PLACES, gpx.VecchiaOptions(neighbours=30, inducing=5)),
    "grid": (SOME_CELLS, AT_CELLS, gpx.GridOptions(probes=2)),
}
WHITES = {"grid": 0.0}  # where it is not 0.1


@pytest.fixture(scope="module", params=PRIORS)
def structured(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """A model with a structured prior, the dense one with its sites, and where to look."""
    X, at, prior = PRIORS[request.param]
    return _model(X, prior), _model(X, None), at


def test_moments_are_those_of_the_dense_model(structured: tuple[Any, Any, Any]) -> None:
    model, dense, at = structured
    draws = model.posterior().sample_functions(4000, 3, num_features=256, groups=20)
    _check_moments(draws, dense, at, (WHITES.get(model.prior_name, 0.1),))


@pytest.mark.parametrize(
    "prior",
    [
        "markov",
        "vecchia",
        *(pytest.param(p, marks=pytest.mark.slow) for p in PRIORS if p not in ("markov", "vecchia")),
    ],
)
def test_latent_functions_have_kernels_of_their_own(prior: str) -> None:
    X, at, options = PRIORS[prior]
    first, white = gk.Matern12(1.0, 2.0) if X is TIMES else gk.SquaredExponential(1.0, 2.0), 0.0
    if prior != "grid":
        first, white = first + gk.White(0.05), 0.05
    model, dense = (_model(X, each, gk.SeparateIndependent([first, _kernel(X)])) for each in (options, None))
    draws = gpx.sample_functions(model, 4000, 4, num_features=256, groups=20)
    _check_moments(draws, dense, at, (white, WHITES.get(prior, 0.1)))


def test_they_are_functions(structured: tuple[Any, Any, Any]) -> None:
    model, _, at = structured
    draws = gpx.sample_functions(model, 3, 7, num_features=64)
    values = draws(at).numpy()
    np.testing.assert_allclose(draws(at[4:5]).numpy()[:, 0], values[:, 4], atol=1e-12)
    np.testing.assert_allclose(draws.numpy(at), values, atol=1e-12)
    again = gpx.sample_functions(model, 3, 7, num_features=64, groups=3)
    np.testing.assert_allclose(again(at[::-1]).numpy()[0, ::-1], again(at).numpy()[0], atol=1e-12)
    single = gpx.sample_functions(model, 3, 7, num_features=64, dtype=tf.float32)(at)
    assert single.dtype == tf.float32
    np.testing.assert_allclose(single, values, atol=1e-3)


def test_gradients_in_x(structured: tuple[Any, Any, Any]) -> None:
    model, _, at = structured
    draws, inner = gpx.sample_functions(model, 2, 0, num_features=64), tf.constant(at[4:])
    with tf.GradientTape() as tape:
        tape.watch(inner)
        value = tf.reduce_sum(draws(inner)[1])
    found, step = tape.gradient(value, inner).numpy(), 1e-6
    ahead, behind = (
        draws(at[4:] + sign * step * np.eye(at.shape[1])[0]).numpy()[1, :, 0] for sign in (1, -1)
    )
    np.testing.assert_allclose(found[:, 0], (ahead - behind) / (2.0 * step), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_exported_functions_are_the_live_ones(structured: tuple[Any, Any, Any], tmp_path: Any) -> None:
    model, _, at = structured
    gpx.export(model, tmp_path / "model", num_samples=3)
    served = gpx.load_exported(tmp_path / "model")
    np.testing.assert_allclose(served.sample(at, 5), gpx.sample_functions(model, 3, 5)(at), atol=1e-9)


@pytest.mark.parametrize("inducing", [0, 5])
def test_few_neighbours_give_the_moments_of_the_data(inducing: int) -> None:
    """At the data themselves those are exact; 4,000 draws, within 4.5 standard errors and the features'."""
    model = _model(PLACES, gpx.VecchiaOptions(neighbours=5, inducing=inducing), None)
    mean, var = model.predict_f(PLACES)
    found = gpx.sample_functions(model, 4000, 1, num_features=256, groups=20)(PLACES).numpy()[:, :, 0]
    own = var.numpy()[:, 0] - 0.1
    assert (np.abs(found.mean(0) - mean[:, 0]) / np.sqrt(own / 4000)).max() < 4.5
    assert (np.abs(found.var(0) / own - 1.0)).max() < 4.5 * np.sqrt(2.0 / 4000) + np.sqrt(2.0 / 256 / 20)


def test_functions_on_a_grid_may_be_computed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    X, at, options = PRIORS["grid"]
    model = _model(X, options)
    at_once = gpx.sample_functions(model, 7, 2, num_features=64)(at)
    monkeypatch.setattr("gpflow_ext.sites.grid.posterior.CELLS", 150)
    in_turn = gpx.sample_functions(model, 7, 2, num_features=64)(at)
    np.testing.assert_allclose(in_turn, at_once, atol=1e-9)


def test_negative_precisions_are_refused() -> None:
    model = _model(TIMES, "markov")
    model.prec.assign(tf.tensor_scatter_nd_update(model.prec, [[3, 0]], [-0.01]))
    with pytest.raises(NotImplementedError, match="non-negative precision"):
        gpx.sample_functions(model, 2, 0)


SIDE = 8


@pytest.fixture(scope="module")
def images() -> tuple[Any, gpx.features.Scattering]:
    X = np.random.default_rng(2).uniform(size=[40, SIDE**2])
    return X, gpx.features.Scattering((SIDE, SIDE), angles=4, dims=6).fit(X)


def _on_images(features: Any) -> gk.Kernel:
    return gpx.kernels.Feature(gk.SquaredExponential(2.0, 1.2), features) + gk.White(0.1)


@pytest.mark.parametrize("kind", ["inducing features", "inducing images", "dense", "GPR"])
def test_functions_of_images_are_those_of_their_features(kind: str, images: Any) -> None:
    X, features = images
    Y = np.sin(5.0 * X[:, :1])
    models = []
    alone = gk.SquaredExponential(2.0, 1.2) + gk.White(0.1)
    for inputs, kernel in ((X, _on_images(features)), (features(X).numpy(), alone)):
        if kind == "GPR":
            models.append(gpflow.models.GPR((inputs, Y), kernel, noise_variance=0.1))
        elif kind == "dense":
            data = inputs, (Y > 0).astype(float)
            model = gpx.models.VGPKMM(data, kernel, gpx.likelihoods.BernoulliLogit())
            model.assign_sites(Sites(tf.constant(Y), tf.ones_like(Y)))
            models.append(model)
        else:
            points = inputs[:7] if kind == "inducing images" else features(X[:7]).numpy()
            if kind == "inducing features" and inputs is X:
                points = gpx.InducingFeatures(points)
            q = {"q_mu": np.ones([7, 3]), "q_sqrt": 0.3 * np.tile(np.eye(7), [3, 1, 1])}
            models.append(gpx.models.SVGPRobustMax(kernel, 3, points, num_data=40, **q))
    new = np.random.default_rng(3).uniform(size=[600, SIDE**2])  # two blocks
    found = gpx.sample_functions(models[0], 4, 1, num_features=64)(new)
    np.testing.assert_allclose(
        found, gpx.sample_functions(models[1], 4, 1, num_features=64)(features(new)), atol=1e-6
    )
    assert np.ptp(found, axis=1).min() > 0.1


@pytest.mark.slow
def test_functions_of_images_are_exported(images: Any, tmp_path: Any) -> None:
    X, features = images
    model = gpx.models.SVGPRobustMax(
        _on_images(features), 3, gpx.InducingFeatures(features(X[:5])), num_data=40
    )
    gpx.export(model, tmp_path / "model", num_samples=2)
    served = gpx.load_exported(tmp_path / "model")
    np.testing.assert_allclose(served.sample(X[:4], 2), gpx.sample_functions(model, 2, 2)(X[:4]), atol=1e-6)


def test_kernels_that_are_on_features_in_part_are_refused(images: Any) -> None:
    X, features = images
    model = gpflow.models.GPR((X, X[:, :1]), _on_images(features) + gk.Linear())
    with pytest.raises(NotImplementedError, match="same features: Linear looks at the inputs"):
        gpx.sample_functions(model, 2, 0)
