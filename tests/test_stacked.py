"""Kernels, means and likelihoods with a leading axis of parameters equal one member at a time."""

from __future__ import annotations

import itertools

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow import kernels

from gpflow_ext import likelihoods
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


LEARNT = {
    "wrong labels, probit": (lambda: likelihoods.BernoulliProbit(flip=0.1, learn_flip=True), 1, 2),
    "wrong labels, logit": (lambda: likelihoods.BernoulliLogit(flip=0.1, learn_flip=True), 1, 2),
    "wrong labels, classes": (lambda: likelihoods.MultinomialLogit(3, flip=0.1, learn_flip=True), 3, 3),
    "the largest function": (lambda: likelihoods.RobustMax(3, 0.1, learn_epsilon=True), 3, 3),
    "overdispersed counts": (likelihoods.NegativeBinomialLog, 1, 9),
}


@pytest.mark.parametrize("in_turn", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in ("wrong labels, classes", "wrong labels, probit")
        else name
        for name in LEARNT
    ],
)
def test_custom_gradients_of_likelihoods(name: str, in_turn: bool) -> None:
    """`tf.vectorized_map` drops them: then the gradients of these expectations were zero, or others'."""
    if in_turn is False and name == "the largest function":
        pytest.skip("the same, after ten seconds of tracing")
    make, width, levels = LEARNT[name]
    likelihood = make()
    [parameter] = likelihood.trainable_parameters
    values = tf.constant([0.05, 0.1, 0.2], tf.float64)
    mean, var = (
        tf.constant(rng.standard_normal((C, N, width))),
        tf.constant(rng.uniform(0.1, 2.0, (C, N, width))),
    )
    Y = rng.integers(0, levels, (N, 1)).astype(float)

    @tf.function(autograph=False)
    def many(values, mean, var):
        with tf.GradientTape() as tape:
            tape.watch([values, mean, var])
            found = stacked.per_datum(
                likelihood.variational_expectations, likelihood, Stack([(parameter, values)]), X, mean, var, Y,
                in_turn=in_turn,
            )  # fmt: skip
        return found, *tape.gradient(found, [values, mean, var])

    found, by_value, by_mean, by_var = many(values, mean, var)
    step = 1e-6
    for c in range(C):
        m, v = mean[c], var[c]
        ends = []
        for value in (values[c] - step, values[c] + step):
            with stacked.substituted([(parameter, value)]):
                ends.append(float(tf.reduce_sum(likelihood.variational_expectations(X, m, v, Y))))
        with stacked.substituted([(parameter, values[c])]), tf.GradientTape() as tape:
            tape.watch([m, v])
            alone = likelihood.variational_expectations(X, m, v, Y)
            slopes = tape.gradient(alone, [m, v])  # here, as derivatives may read the share of wrong labels
        np.testing.assert_allclose(by_value[c], (ends[1] - ends[0]) / (2.0 * step), rtol=1e-5)
        for ours, expected in zip((found, by_mean, by_var), (alone, *slopes), strict=True):
            np.testing.assert_allclose(ours[c], expected, rtol=1e-9, atol=1e-11)


def test_derivatives_in_variables_and_of_second_order() -> None:
    """Those of x³wv for a stacked v and a variable w."""
    module = gpflow.kernels.Constant(1.0)
    weight = tf.Variable(2.0, dtype=tf.float64)
    x, values = tf.constant([[1.0], [2.0], [3.0]], tf.float64), tf.constant([1.0, 10.0, 100.0], tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as tape:
            tape.watch([x, values])
            stack = Stack([(module.variance, values)])
            found = stacked.each(lambda one: one[0] ** 3 * weight * module.variance, stack, x)
        by_x, by_values, by_weight = tape.gradient(found, [x, values, weight])
    np.testing.assert_allclose(by_x[:, 0], 3.0 * x[:, 0] ** 2 * 2.0 * values, rtol=1e-12)
    np.testing.assert_allclose(by_values, x[:, 0] ** 3 * 2.0, rtol=1e-12)
    np.testing.assert_allclose(by_weight, tf.reduce_sum(x[:, 0] ** 3 * values), rtol=1e-12)
    np.testing.assert_allclose(outer.gradient(by_x, x)[:, 0], 6.0 * x[:, 0] * 2.0 * values, rtol=1e-12)


def test_slopes_beside_values_are_those_of_each_member() -> None:
    """Also where a gradient reads the parameter itself, when the slopes are taken."""
    module = gpflow.kernels.Constant(1.0)
    other = gpflow.kernels.Constant(1.0)

    @tf.custom_gradient
    def doubled(x):
        return 2.0 * x, lambda upstream: 2.0 * upstream * module.variance / tf.stop_gradient(x)

    stack = Stack([(p, tf.constant([1.0, 2.0, 3.0], tf.float64)) for p in (module.variance, other.variance)])

    @tf.function(autograph=False)
    def many(*values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            moved = Stack(zip((module.variance, other.variance), values, strict=True))
            found = stacked.each_with_slopes(
                lambda: doubled(tf.convert_to_tensor(module.variance)) * other.variance**2, moved
            )
        return found, *tape.gradient(found, values)

    found, by_own, by_other = many(*(value for _, value in stack.values))
    np.testing.assert_allclose(found, [2.0, 16.0, 54.0], rtol=1e-12)
    np.testing.assert_allclose(by_own, [2.0, 8.0, 18.0], rtol=1e-12)
    np.testing.assert_allclose(by_other, [4.0, 16.0, 36.0], rtol=1e-12)


@pytest.mark.parametrize("in_turn", [True, False])
def test_a_gradient_that_reads_a_parameter_later_has_its_value_in_the_stack(in_turn: bool) -> None:
    module = gpflow.kernels.Constant(1.0)
    values, x = tf.constant([1.0, 10.0, 100.0], tf.float64), tf.constant([2.0, 3.0, 4.0], tf.float64)

    @tf.custom_gradient
    def scaled(x):
        return x * module.variance, lambda upstream: upstream * tf.convert_to_tensor(module.variance)

    with tf.GradientTape() as tape:
        tape.watch(x)
        found = stacked.each(scaled, Stack([(module.variance, values)]), x, in_turn=in_turn)
    np.testing.assert_allclose(found, x * values, rtol=1e-14)
    np.testing.assert_allclose(tape.gradient(found, x), values, rtol=1e-14)
