"""Graphs that return the same at each call are told from those that may not."""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import problems
import pytest
import tensorflow as tf

from gpflow_ext.compiled.functions import Entry
from gpflow_ext.compiled.purity import OF_ARGUMENTS, is_pure
from gpflow_ext.training import lbfgs_recipe
from gpflow_ext.training.recipe import Run

SPEC = tf.TensorSpec([3], tf.float64)


def _looped(step: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.while_loop(lambda k, _: k < 3, lambda k, y: (k + 1, step(y)), (0, x))[1]


def _branched(step: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda x: tf.cond(tf.reduce_any(x > 0.0), lambda: step(x), lambda: x)


def _called(step: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    function = tf.function(step, autograph=False)
    return lambda x: function(x)


def _plain(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_all_finite(x, "")
    with tf.control_dependencies([tf.debugging.assert_less(x, tf.constant(1e3, x.dtype))]):
        return 2.0 * x + tf.random.stateless_normal([3], [1, 2], dtype=x.dtype)


def _drawn(x: tf.Tensor) -> tf.Tensor:
    return x + tf.random.normal([3], dtype=x.dtype)


@pytest.mark.parametrize("within", [lambda step: step, _looped, _branched, _called])
def test_random_numbers_are_seen_wherever_they_are(
    within: Callable[[Callable[[tf.Tensor], tf.Tensor]], Callable[[tf.Tensor], tf.Tensor]],
) -> None:
    for step, pure in ((_plain, True), (_drawn, False)):
        function = tf.function(within(step), autograph=False).get_concrete_function(SPEC)
        assert is_pure(function.graph) == pure


def test_variables_may_be_read_and_not_assigned() -> None:
    variable = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64)
    for step, pure in ((lambda x: x * variable, True), (variable.assign_add, False)):
        assert is_pure(tf.function(step, autograph=False).get_concrete_function(SPEC).graph) == pure


def test_variables_may_be_given_values_out_of_arguments() -> None:
    variable = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64)

    def told(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope(OF_ARGUMENTS):
            variable.assign(x)
        return 2.0 * variable

    def moved(x: tf.Tensor) -> tf.Tensor:
        return told(x) + variable.assign_add(x)

    for step, pure in ((told, True), (moved, False)):
        assert is_pure(tf.function(step, autograph=False).get_concrete_function(SPEC).graph) == pure


def test_python_may_do_anything() -> None:
    called = tf.function(lambda x: tf.py_function(lambda y: y, [x], x.dtype), autograph=False)
    assert not is_pure(called.get_concrete_function(SPEC).graph)


def test_a_loss_that_is_a_function_is_not_evaluated_to_find_out(monkeypatch: pytest.MonkeyPatch) -> None:
    X = problems.inputs(20, 0, 2)
    calls: list[bool] = []
    call = Entry.__call__
    monkeypatch.setattr(Entry, "__call__", lambda self, *flat: (calls.append(True), call(self, *flat))[1])
    model = gpflow.models.GPR((X, X[:, :1]), gpflow.kernels.SquaredExponential())
    assert not lbfgs_recipe.is_an_estimate(model, (), Run())
    assert not calls
    drawn = gpflow.models.SVGP(gpflow.kernels.SquaredExponential(), gpflow.likelihoods.GaussianMC(), X[:4])
    assert lbfgs_recipe.is_an_estimate(drawn, lbfgs_recipe.constants((X, X[:, :1])), Run())
    assert calls
