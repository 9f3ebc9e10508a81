"""Covariances of centred inputs: those of the kernel, with the digits of the distances."""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels as gk

from gpflow_ext.numerics.centred import covariance, keeps_digits
from gpflow_ext.numerics.stacked import _squared_distances

X = np.random.default_rng(0).normal(size=(20, 3))
WIDE = np.random.default_rng(1).normal(size=(20, 40))
KERNELS = {
    "stationary": lambda: gk.SquaredExponential(2.0, [0.8, 1.5, 1.0]),
    "sum": lambda: (
        gk.Matern32(active_dims=[0]) * gk.Matern52(active_dims=[1, 2]) + gk.White(0.1) + gk.Constant()
    ),
}


class _Mine(gk.SquaredExponential):
    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        return super().K(X, X2) * (1.0 + X[:, :1])


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shift", [1e2, 1e3, 1e4])
def test_single_precision_keeps_the_digits_of_shifted_inputs(name: str, shift: float) -> None:
    """But for the rounding of the inputs themselves, which double precision is given too."""
    rounded = (X + shift).astype(np.float32)
    for pair in ((rounded,), (rounded[:7], rounded[7:])):
        with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
            single = covariance(KERNELS[name](), *map(tf.constant, pair)).numpy()
        double = KERNELS[name]()(*(part.astype(np.float64) - shift for part in pair)).numpy()
        np.testing.assert_allclose(single, double, atol=2e-6)


def test_batches_and_rows_that_are_not_finite() -> None:
    kernel, rows, batch = KERNELS["stationary"](), tf.constant(X), tf.constant(np.stack([X, X + 5.0]))
    np.testing.assert_allclose(covariance(kernel, batch), kernel(batch), atol=1e-14)
    np.testing.assert_allclose(covariance(kernel, batch, rows), kernel(batch, rows), atol=1e-14)
    np.testing.assert_allclose(covariance(kernel, rows, batch), kernel(rows, batch), atol=1e-14)
    for missing in (np.nan, np.inf):
        held = tf.constant(np.where(np.arange(20)[:, None] == 3, missing, X))
        found = covariance(kernel, held).numpy()
        others = np.delete(X, 3, 0)
        np.testing.assert_allclose(np.delete(np.delete(found, 3, 0), 3, 1), kernel(others), atol=1e-14)


def test_gradients_are_those_of_the_kernel() -> None:
    kernel, at = KERNELS["stationary"](), tf.constant(X)
    sources = [at, kernel.lengthscales.unconstrained_variable]
    found = []
    for of in (covariance, gk.SquaredExponential.__call__):
        with tf.GradientTape() as tape:
            tape.watch(at)
            value = tf.reduce_sum(of(kernel, at) ** 2)
        found.append(tape.gradient(value, sources))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize(
    "kernel", [gk.Matern52(2.0, 8.0), gk.Exponential() * gk.RationalQuadratic(0.7, 13.0)]
)
def test_one_length_scale_takes_no_product_of_wide_inputs_for_its_gradient(kernel: gk.Kernel) -> None:
    """As many products as the covariances by themselves, of one part or two."""
    points, variables = tf.constant(WIDE), [each for each in kernel.trainable_variables if each.shape == ()]

    def gradient(points: tf.Tensor, of: Callable[..., tf.Tensor] = covariance) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(of(kernel, points[5:], points[:5]) ** 2)
        return tape.gradient(value, variables)

    graph = tf.function(gradient, autograph=False).get_concrete_function(points).graph
    products = sum(each.type == "MatMul" for each in graph.get_operations())
    assert products == len(getattr(kernel, "kernels", [kernel]))
    np.testing.assert_allclose(gradient(points), gradient(points, type(kernel).__call__), rtol=1e-12)


def test_inputs_may_have_any_unit() -> None:
    """In single precision too, where their squares would be zero or infinite."""
    expected = gk.Matern32(lengthscales=7.0)(WIDE).numpy()
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        for unit in (1e-27, 1e25):
            kernel = gk.Matern32()
            kernel.lengthscales = gpflow.Parameter(7.0 * unit)
            found = covariance(kernel, tf.constant(unit * WIDE, tf.float32))
            np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_what_is_not_known_to_be_stationary_is_called_as_it_is() -> None:
    for kernel in (gk.Linear(), _Mine(), gk.SquaredExponential() + gk.Linear(), gk.ArcCosine()):
        assert not keeps_digits(kernel)
        np.testing.assert_array_equal(covariance(kernel, tf.constant(X)), kernel(X))


def test_distances_of_stacked_kernels_keep_their_digits() -> None:
    far = (X + 1e3).astype(np.float32)
    double = far.astype(np.float64)
    exact = ((double[:, None] - double) ** 2).sum(-1)
    np.testing.assert_allclose(_squared_distances(tf.constant(far), tf.constant(far)), exact, atol=1e-5)
