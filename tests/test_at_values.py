"""An objective that is told where to evaluate is, to the last digit, that of variables written one by one."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.gprn.updates import Updates, node_variables
from gpflow_ext.models import GPRNTensor
from gpflow_ext.training import lbfgs
from gpflow_ext.training.log_space import LogSpace, inducing_inputs

X = np.random.default_rng(0).uniform(-2.0, 2.0, (20, 2))
Y = np.sin(3.0 * X[:, :1])


def _model(dtype: type = np.float64) -> gpflow.models.SGPR:
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.ones(2))
    return gpflow.models.SGPR((X.astype(dtype), Y.astype(dtype)), kernel, X[:4].astype(dtype))


def _run(model: gpflow.models.SGPR, one_by_one: bool) -> lbfgs.Run:
    variables = model.trainable_variables
    space = LogSpace(variables, model.trainable_parameters, inducing_inputs(model))
    objective = lbfgs.Evaluation(model.training_loss, variables)
    return lbfgs.Run(space, (lambda: objective()) if one_by_one else objective, 1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_run_is_the_same_to_the_last_digit_and_writes_variables_at_its_end_alone(
    dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, assign = [], LogSpace.assign_values
    monkeypatch.setattr(
        LogSpace, "assign_values", lambda self, raw: (written.append(1), assign(self, raw))[1]
    )
    with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=1e-4)):
        model, other = _model(dtype), _model(dtype)
        run, plain = _run(model, False), _run(other, True)
        for part in (3, 5):
            written.clear()
            run.climb(part)
            assert len(written) == 1
            plain.climb(part)
            assert len(written) > part + 1
    np.testing.assert_array_equal(run.record, plain.record)
    for mine, its in zip(model.variables, other.variables, strict=True):
        np.testing.assert_array_equal(mine, its)


def test_variables_that_do_not_move_stay_as_they_are() -> None:
    """Those of another run in between included; the gradient is in those that move, in their order."""
    kernels = (gpflow.kernels.SquaredExponential() for _ in range(2))
    model = GPRNTensor((X, np.hstack([Y, Y**2])), *kernels, 2)
    variables = model.trainable_variables
    updates, some = Updates(model, variables), node_variables(model)[::-1]
    for shift in (0.0, 0.5):
        variables[-1].assign_add(tf.ones_like(variables[-1]) * shift)
        before = [variable.numpy() for variable in variables]
        value, gradient = updates.evaluate()
        own = {id(variable): part.numpy() for variable, part in zip(variables, gradient, strict=True)}
        at = np.concatenate([np.ravel(variable) for variable in some])
        found, slopes = updates.evaluate.of(some)(at)
        assert found == value
        np.testing.assert_array_equal(slopes, np.concatenate([np.ravel(own[id(v)]) for v in some]))
        for variable, kept in zip(variables, before, strict=True):
            np.testing.assert_array_equal(variable, kept)
        moved, _ = updates.evaluate.of(some)(at + 0.1)
        assert moved != value
        np.testing.assert_array_equal(np.concatenate([np.ravel(v) for v in some]), at + 0.1)
        for variable, kept in zip(variables, before, strict=True):
            variable.assign(kept)


class Squares(tf.Module):
    """What has a variable of any length."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.x = tf.Variable(np.arange(1.0, 1.0 + number), shape=[None])

    def loss(self) -> tf.Tensor:
        return tf.reduce_sum(self.x**2)


def test_one_function_serves_variables_of_any_length() -> None:
    before = gpx.trace_count()
    for number in (3, 5):
        squares = Squares(number)
        value, (gradient,) = lbfgs.Evaluation(squares.loss, [squares.x])()
        assert value == -np.sum(np.arange(1.0, 1.0 + number) ** 2)
        np.testing.assert_array_equal(gradient, -2.0 * squares.x)
    assert gpx.trace_count() == before + 1


def test_without_variables_there_is_a_value_alone() -> None:
    assert lbfgs.Evaluation(Squares(3).loss, [])() == (-14.0, [])
