"""Mean functions are trained whatever the units of targets and inputs."""

from __future__ import annotations

import functools

import gpflow
import numpy as np
import pytest

import gpflow_ext as gpx
from gpflow_ext import models
from gpflow_ext.training.mean_units import mean_units

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (60, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.7 * X[:, 1:] + 2.0 + 0.2 * rng.normal(size=(60, 1))


def _mean(name: str) -> gpflow.functions.MeanFunction:
    if name == "constant":
        return gpflow.functions.Constant(0.0)
    return gpflow.functions.Linear(np.zeros((2, 1)), np.zeros(1))


def _model(kind: str, inputs: np.ndarray, targets: np.ndarray, mean: str, scale: float = 1.0):
    kernel = gpflow.kernels.SquaredExponential(scale**2, lengthscales=inputs.std(axis=0))
    noise = gpflow.likelihoods.Gaussian(scale**2)
    if kind == "GPR":
        return gpflow.models.GPR((inputs, targets), kernel, _mean(mean), noise_variance=scale**2)
    if kind == "SVGP":
        return gpflow.models.SVGP(
            kernel, noise, inputs[::4].copy(), mean_function=_mean(mean), num_data=len(targets)
        )
    return models.VGPKMM((inputs, targets), kernel, noise, _mean(mean))


def _end(kind: str, inputs: np.ndarray, targets: np.ndarray, mean: str, scale: float = 1.0) -> float:
    model = _model(kind, inputs, targets, mean, scale)
    if kind == "SVGP":
        gpflow.set_trainable(model.inducing_variable, False)
    result = gpx.fit(model, (inputs, targets) if kind == "SVGP" else None, starts=1)
    assert result.status is gpx.Status.CONVERGED
    return float(result.objective[-1])


@functools.cache
def _standard(kind: str, mean: str) -> float:
    return _end(kind, X, Y, mean)


@pytest.mark.parametrize("kind", ["GPR", "VGPKMM", "SVGP"])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_mean_of_targets_in_thousands_is_found(kind: str, scale: float) -> None:
    """From a kernel of variance one as from that of the targets: but for the Jacobian the end is the same.

    With the mean left at zero it is 2 nats less. With inducing inputs the jitter is less beside such a kernel.
    """
    standard = _standard(kind, "constant")
    found = _end(kind, X, 1e4 * Y, "constant", scale) + len(Y) * np.log(1e4)
    assert -0.02 < found - standard < (1.0 if kind == "SVGP" else 0.02)


def test_a_trend_of_targets_far_from_zero_is_found() -> None:
    standard = _end("GPR", X, Y - Y.mean(), "linear")
    np.testing.assert_allclose(_end("GPR", X, Y + 1e4, "linear"), standard, atol=0.02)


def test_a_trend_in_inputs_of_large_numbers_is_found() -> None:
    standard = _standard("VGPKMM", "linear")
    scales = np.array([1e4, 1e-3])
    np.testing.assert_allclose(_end("VGPKMM", X * scales, Y, "linear"), standard, atol=0.02)


def test_coefficients_have_the_units_of_targets_over_inputs() -> None:
    """Slopes those of the deviation, constants those of the size; and one where a likelihood has a link."""
    inputs = np.column_stack([np.tile([-1024.0, 1024.0], 4), np.repeat([-0.25, 0.25], 4), np.full(8, 7.0)])
    targets = 512.0 + np.tile([-1.0, 1.0], 4)[:, None]
    mean = gpflow.functions.Linear(np.zeros((3, 1)), np.zeros(1)) + gpflow.functions.Polynomial(2, 3)
    kernel = gpflow.kernels.SquaredExponential()
    model = gpflow.models.GPR((inputs, targets), kernel, mean)
    slopes, constant, powers, other = mean_units(
        model,
        [
            mean.add_1.A.unconstrained_variable,
            mean.add_1.b.unconstrained_variable,
            mean.add_2.w.unconstrained_variable,
            kernel.variance.unconstrained_variable,
        ],
        model.data,
    )
    np.testing.assert_array_equal(slopes, [[2.0**-10], [4.0], [64.0]])  # the last one is a constant: 512 / 7
    assert constant == 512.0
    assert other == 1.0
    assert powers.shape == (10,)
    assert powers[0] == 512.0
    linked = models.VGPKMM((inputs, targets), kernel, gpflow.likelihoods.Poisson(), mean.add_1)
    variable = mean.add_1.A.unconstrained_variable
    np.testing.assert_array_equal(
        mean_units(linked, [variable], linked.data)[0], [[2.0**-10], [4.0], [2.0**-3]]
    )
    assert mean_units(linked, [variable], None) == [1.0]
