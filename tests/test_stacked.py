"""Kernels, means and likelihoods with a leading axis of parameters equal one member at a time."""

from __future__ import annotations

import itertools

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels

from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.stacked import Stack

C, N, N2, D = 3, 5, 4, 2


class Amplified(kernels.SquaredExponential):
    """A kernel of a user whose amplitude moves with the inputs."""

    def K(self, X, X2=None):
        left, right = (1.0 + tf.square(part[..., :1]) for part in (X, X if X2 is None else X2))
        return left * super().K(X, X2) * tf.linalg.matrix_transpose(right)

    def K_diag(self, X):
        return super().K_diag(X) * tf.square(1.0 + tf.square(X[..., 0]))


class Warped(kernels.Matern52):
    """One whose inputs are scaled in another way."""

    def scale(self, X):
        return X if X is None else tf.tanh(X) / self.lengthscales


class Mixed(kernels.IsotropicStationary):
    """One with a vector of weights, and another kernel whose parameters are stacked too."""

    def __init__(self):
        super().__init__()
        self.weights = gpflow.Parameter([0.3, 0.7], transform=gpflow.utilities.positive())
        self.other = kernels.RationalQuadratic()

    def K_r2(self, r2):
        total = self.weights[0] * tf.exp(-0.5 * r2) + self.weights[1] * self.other.K_r2(r2)
        return self.variance * total

    def K_diag(self, X):
        return super().K_diag(X) * (self.weights[0] + self.weights[1] * self.other.variance)


class Doubled(kernels.Constant):
    """One that changes a kernel of one number."""

    def K(self, X, X2=None):
        return 2.0 * super().K(X, X2)

    def K_diag(self, X):
        return 2.0 * super().K_diag(X)


rng = np.random.default_rng(0)
X, X2 = rng.standard_normal((N, D)), rng.standard_normal((N2, D))
BATCH = np.random.default_rng(1).standard_normal((2, 3, N, D))

KERNELS = {
    "isotropic": lambda: kernels.SquaredExponential(),
    "one for each dimension": lambda: kernels.Matern32(lengthscales=np.ones(D)),
    "rational quadratic": lambda: kernels.RationalQuadratic(),
    "one dimension": lambda: kernels.Matern52(active_dims=[1]),
    "sum and product": lambda: kernels.Matern12() * kernels.Constant() + kernels.White(0.1),
    "mapped": lambda: kernels.Linear() + kernels.Periodic(kernels.SquaredExponential()),
    "nested": lambda: (
        (kernels.Linear() + kernels.SquaredExponential(active_dims=[0])) * kernels.Constant(2.0)
    ),
    "a user's, of another diagonal": Amplified,
    "a user's, of other distances": Warped,
    "a user's, with a vector and a kernel": Mixed,
    "a user's constant": Doubled,
}


def stack_of(module: tf.Module, members: int = C) -> Stack:
    found = gpflow.utilities.parameter_dict(module).values()
    return Stack((p, tf.constant(rng.uniform(0.5, 2.0, [members, *p.shape]))) for p in found)


def one(stack: Stack, member: int):
    return stacked.substituted([(p, value[member]) for p, value in stack.values])


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    kernel = KERNELS[name]()
    before = [p.numpy() for p in kernel.trainable_parameters]
    stack = stack_of(kernel)
    # Of r² = 0 on the diagonal Matérn 1/2 sees the root of the rounding, and inputs are centred here.
    atol = 1e-6 if name == "sum and product" else 1e-12
    many = (
        stacked.gram(kernel, stack, X, X2),
        stacked.gram(kernel, stack, X),
        stacked.variances(kernel, stack, X),
    )
    for member in range(C):
        with one(stack, member):
            single = kernel(X, X2), kernel(X), kernel(X, full_cov=False)
        for ours, expected in zip(many, single, strict=True):
            np.testing.assert_allclose(ours[member if ours.shape[0] > 1 else 0], expected, rtol=0, atol=atol)
    batched = tf.broadcast_to(stacked.gram(kernel, stack, BATCH), [C, 2, 3, N, N])
    for member, number in itertools.product(range(C), np.ndindex(2, 3)):
        with one(stack, member):
            expected = kernel(BATCH[number])
        np.testing.assert_allclose(batched[(member, *number)], expected, rtol=0, atol=atol)
    for p, value in zip(kernel.trainable_parameters, before, strict=True):
        np.testing.assert_array_equal(p, value)  # no variable was touched


def test_what_is_not_stacked_has_one_member() -> None:
    kernel = kernels.SquaredExponential() + kernels.Matern32()
    stack = Stack([(kernel.kernels[0].variance, tf.constant([1.0, 2.0], tf.float64))])
    K = stacked.gram(kernel, stack, X, X2)
    np.testing.assert_allclose(K[1] - K[0], kernel.kernels[0](X, X2), rtol=0, atol=1e-14)
    assert stacked.gram(kernel, Stack([]), X).shape == (1, N, N)
    assert stacked.mean(gpflow.functions.Constant(1.0), stack, X).shape[0] == 1


@pytest.mark.parametrize("method", ["variational_expectations", "predict_mean_and_var"])
@pytest.mark.parametrize("sampled", [True, False])
def test_likelihoods(method: str, sampled: bool) -> None:
    likelihood = gpflow.likelihoods.StudentT(scale=0.7)
    stack = stack_of(likelihood) if sampled else Stack([])
    mean, var = tf.constant(rng.standard_normal((C, N, 1))), tf.constant(rng.uniform(0.1, 2.0, (C, N, 1)))
    targets = () if method == "predict_mean_and_var" else (rng.standard_normal((N, 1)),)
    function = getattr(likelihood, method)
    many = tf.nest.flatten(stacked.per_datum(function, likelihood, stack, X, mean, var, *targets))
    for member in range(C):
        with one(stack, member):
            single = tf.nest.flatten(function(X, mean[member], var[member], *targets))
        for ours, expected in zip(many, single, strict=True):
            np.testing.assert_allclose(ours[member], expected, rtol=1e-12)
