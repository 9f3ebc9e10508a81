"""Coordinates of optimisers: positive parameters in log space, inducing inputs in units of their spread."""

from __future__ import annotations

from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext import likelihoods, models
from gpflow_ext.training.log_space import LogSpace, inducing_inputs, spread
from gpflow_ext.training.optimizers import LogSpaceAdam

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (80, 2))
Y = (np.sin(2.0 * X[:, :1]) + 0.7 * X[:, 1:] + 0.2 * rng.normal(size=(80, 1)) > 0.0).astype(float)


def _space(scale: float, shift: float = 0.0) -> tuple[LogSpace, list[tf.Variable]]:
    kernel = gpflow.kernels.SquaredExponential()
    model = gpflow.models.SVGP(kernel, gpflow.likelihoods.Bernoulli(), scale * (X[:9] + shift))
    variables = [model.inducing_variable.Z.unconstrained_variable, kernel.variance.unconstrained_variable]
    return LogSpace(variables, model.trainable_parameters, inducing_inputs(model)), variables


@pytest.mark.parametrize("scale", [2.0**-10, 2.0**10])
def test_inducing_inputs_have_the_coordinates_of_their_shape(scale: float) -> None:
    """To the last digit, as the units are powers of two."""
    space, _ = _space(scale)
    one, _ = _space(1.0)
    np.testing.assert_array_equal(space.vector(), one.vector())
    assert np.std(space.vector()[:18:2]) < 1.5


def test_standardised_inputs_are_their_own_coordinates() -> None:
    variable = tf.Variable((X - X.mean(axis=0)) / X.std(axis=0))
    np.testing.assert_array_equal(LogSpace([variable], (), [variable]).vector(), np.ravel(variable))


def test_inputs_that_do_not_vary_but_by_rounding_are_left_as_they_are() -> None:
    points = gpflow.inducing_variables.InducingPoints(np.array([[0.7, 0.1], [0.7, 0.1], [0.7, 0.1 + 1e-17]]))
    variable = points.Z.unconstrained_variable
    np.testing.assert_array_equal(LogSpace([variable], (), [variable]).vector(), np.ravel(variable))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_gradient_is_that_of_what_is_assigned(scale: float) -> None:
    """Against central differences; and the same by tensors alone."""
    space, variables = _space(scale, 3.0)
    x = space.vector()

    def value(at: np.ndarray) -> float:
        space.assign(at)
        return float(tf.reduce_sum(tf.sin(variables[0] / scale)) + tf.reduce_sum(variables[1] ** 2))

    space.assign(x)
    by_variable = [tf.cos(variables[0] / scale) / scale, 2.0 * variables[1]]
    found = space.gradient(x, by_variable)
    np.testing.assert_allclose(space.gradient_in_graph(tf.constant(x), by_variable), found, rtol=1e-12)
    steps = 1e-5 * np.eye(len(x))
    differences = [(value(x + step) - value(x - step)) / 2e-5 for step in steps]
    np.testing.assert_allclose(found, differences, rtol=1e-6, atol=1e-8)
    space.assign_in_graph(tf.constant(x))
    np.testing.assert_allclose(space.vector(), x, rtol=1e-12)


def test_units_scale_coordinates_and_gradients() -> None:
    """Of numbers, of inducing inputs on top of their spread, and of logarithms, on the host and in the graph."""
    plain = tf.Variable([2.0, 4.0], dtype=tf.float64)
    points = tf.Variable(64.0 * (X - X.mean(axis=0)) / X.std(axis=0))
    positive = gpflow.Parameter(9.0, transform=gpflow.utilities.positive())
    variables = [plain, points, positive.unconstrained_variable]
    space = LogSpace(variables, [positive], [points], units=[0.5, 4.0, 3.0])
    x = space.vector()
    np.testing.assert_array_equal(x[:2], [4.0, 8.0])
    np.testing.assert_array_equal(x[2:-1], np.ravel(points) / 256.0)
    np.testing.assert_allclose(x[-1], np.log(9.0) / 3.0, rtol=1e-14)
    gradient = [tf.constant([1.0, 2.0], tf.float64), tf.ones_like(points), tf.constant(1.0, tf.float64)]
    found = space.gradient(x, gradient)
    np.testing.assert_array_equal(found[:-1], [0.5, 1.0, *[256.0] * X.size])
    np.testing.assert_allclose(found[-1], 3.0 * 9.0 / -np.expm1(-9.0), rtol=1e-12)
    np.testing.assert_allclose(space.gradient_in_graph(tf.constant(x), gradient), found, rtol=1e-14)
    space.assign(x + 1.0)
    on_host = [variable.numpy() for variable in variables]
    np.testing.assert_allclose(positive, 9.0 * np.exp(3.0), rtol=1e-12)
    np.testing.assert_array_equal(plain, [2.5, 4.5])
    space.assign_in_graph(tf.constant(x + 1.0))
    for variable, value in zip(variables, on_host, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-12)


def _robust_max(at: np.ndarray) -> tuple[float, gpx.Status]:
    model = models.SVGPRobustMax(gpflow.kernels.SquaredExponential(), 2, at[:12].copy(), num_data=len(at))
    return _end(model, (at, Y))


def _svgp(at: np.ndarray) -> tuple[float, gpx.Status]:
    kernel = gpflow.kernels.SquaredExponential()
    model = gpflow.models.SVGP(kernel, likelihoods.BernoulliLogit(), at[:12].copy(), num_data=len(at))
    return _end(model, (at, Y))


def _sparse_ep(at: np.ndarray) -> tuple[float, gpx.Status]:
    kernel = gpflow.kernels.SquaredExponential()
    return _end(
        models.SparseEP((at, Y), kernel, likelihoods.BernoulliProbit(), inducing_variable=at[:12].copy()),
        None,
    )


def _end(model: gpflow.models.BayesianModel, data: object) -> tuple[float, gpx.Status]:
    result = gpx.fit(model, data, progress=False, seed=1)
    return float(result.objective[-1]), result.status


@pytest.mark.parametrize(("scale", "shift"), [(1e3, 1.0), (1e-3, 1e3)])
@pytest.mark.parametrize("fit", [_robust_max, _svgp, _sparse_ep])
def test_fits_do_not_depend_on_the_scale_of_the_inputs_or_their_distance_from_zero(
    fit: object, scale: float, shift: float
) -> None:
    """The kernel starts at a length scale of one whatever the inputs; objectives are of 30 to 50 nats."""
    value, status = fit(scale * X + shift)
    expected, _ = fit(X)
    assert status is gpx.Status.CONVERGED
    assert abs(value - expected) < 5e-3


def _kernel(scale: float) -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=0.7 * scale)


def _network(scale: float) -> tuple[models.GPRNTensor, None, dict]:
    both = np.concatenate([Y, X[:, :1] - Y], axis=1)
    model = models.GPRNTensor(
        (scale * X, both), _kernel(scale), _kernel(scale), 1, inducing_variable=scale * X[:9]
    )
    return model, None, {}


def _of_gpflow(scale: float) -> tuple[gpflow.models.SVGP, tuple, dict]:
    likelihood = likelihoods.BernoulliLogit()
    model = gpflow.models.SVGP(_kernel(scale), likelihood, scale * X[:9], num_data=len(X))
    return model, (scale * X, Y), {"minibatch_size": 20}


def _sgpr(scale: float) -> tuple[gpflow.models.SGPR, None, dict]:
    return gpflow.models.SGPR((scale * X, Y), _kernel(scale), scale * X[:9]), None, {"recipe": "adam"}


def _ep(scale: float) -> tuple[models.SparseEP, None, dict]:
    data, likelihood = (scale * X, Y), likelihoods.BernoulliProbit()
    model = models.SparseEP(data, _kernel(scale), likelihood, inducing_variable=scale * X[:9])
    return model, None, {"minibatch_size": 20}


def _classes(scale: float) -> tuple[models.SVGPRobustMax, tuple, dict]:
    model = models.SVGPRobustMax(_kernel(scale), 2, scale * X[:9], num_data=len(X))
    return model, (scale * X, Y), {"minibatch_size": 20}


FITS = {
    "network": (_network, {"hyper_updates": 2, "independent_start": False}),
    "svgp": (_of_gpflow, {}),
    "dual": (_of_gpflow, {"recipe": "dual"}),
    "adam": (_sgpr, {}),
    "ep": (_ep, {}),
    "sign_agreement": (_ep, {"minibatch_size": None, "optimizer": "sign_agreement"}),
    "robust_max": (_classes, {}),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "adam" else pytest.param(name, marks=pytest.mark.slow) for name in FITS],
)
def test_every_recipe_moves_inducing_inputs_in_units_of_their_spread(name: str) -> None:
    """By the same steps where inputs and length scales are 1,024 times as large, to rounding."""
    build, options = FITS[name]
    traces, moved = [], []
    for scale in (1.0, 1024.0):
        model, data, own = build(scale)
        result = gpx.fit(model, data, steps=6, progress=False, **{**own, **options})
        traces.append(result.objective)
        moved.append(model.inducing_variable.Z.numpy() / scale - X[:9])
    np.testing.assert_allclose(traces[1], traces[0], rtol=1e-5)
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-3, atol=1e-7)
    assert np.abs(moved[0]).max() > 1e-3


def test_units_are_kept_from_where_a_run_has_begun(tmp_path: Path) -> None:
    """Not those of inputs that have moved: a run that goes on from a checkpoint takes the same steps."""
    variable = tf.Variable(X[:9])
    optimizer = LogSpaceAdam(0.01, inputs=[variable])
    optimizer.build([variable])
    path = tf.train.Checkpoint(optimizer=optimizer).save(str(tmp_path / "run"))
    wide = tf.Variable(100.0 * X[:9])
    other = LogSpaceAdam(0.01, inputs=[wide])
    other.build([wide])
    tf.train.Checkpoint(optimizer=other).restore(path).assert_consumed()
    before = wide.numpy()
    assert np.all(spread(wide) > 50.0 * spread(variable))
    other.apply_gradients([(tf.ones_like(wide), wide)])
    np.testing.assert_allclose(before - wide.numpy(), 0.01 * spread(variable), rtol=1e-4)
