"""The optimiser that a recipe is given, ready to be checkpointed; by default Adam in log space."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import BayesianModel

from gpflow_ext.data.on_host import is_softplus
from gpflow_ext.training.log_space import TAIL, inducing_inputs, spread

RATE = 0.01


class InLogSpace:
    """Mixin of optimisers, to be the first base: the coordinates of `LogSpace`, to which it moves variables.

    For a tf_keras optimiser whose step does not depend on the value of a variable. A step of 0.01 is then one
    of a hundredth of a positive parameter, whatever its size, or of the spread of inducing inputs.

    Parameters
    ----------
    parameters, inputs
        As for `LogSpace`.
    """

    def __init__(
        self,
        *arguments: Any,
        parameters: Sequence[gpflow.Parameter] = (),
        inputs: Sequence[tf.Variable] = (),
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        positive = (p for p in parameters if is_softplus(p.transform))
        self._positive = tuple(id(parameter.unconstrained_variable) for parameter in positive)
        self._inputs = tuple(map(id, inputs))
        self._logs: tuple[bool, ...] | None = None
        self._units: tuple[tf.Variable | None, ...] = ()

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Make the slots, one of them for the units of inducing inputs, and note which are logarithms."""
        super().build(var_list)  # type: ignore[misc]
        if self._logs is None:
            self._logs = tuple(id(variable) in self._positive for variable in var_list)
            self._units = tuple(self._unit(v) if id(v) in self._inputs else None for v in var_list)
            self._positive = self._inputs = ()

    def _unit(self, variable: tf.Variable) -> tf.Variable:
        first = tf.constant(spread(variable), variable.dtype)
        return self.add_variable_from_reference(variable, "unit", variable.shape, first)  # type: ignore[attr-defined]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Take one step down the gradient in the variable."""
        place = self._index_dict[self._var_key(variable)]  # type: ignore[attr-defined]
        assert self._logs is not None
        if self._logs[place]:
            self._move_logarithm(gradient, variable)
        elif self._units[place] is not None:
            self._move_in_units(gradient, variable, self._units[place])
        else:
            super().update_step(gradient, variable)  # type: ignore[misc]

    def _move_in_units(self, gradient: tf.Tensor, variable: tf.Variable, unit: tf.Variable) -> None:
        raw = tf.identity(variable.read_value())
        super().update_step(gradient * unit, variable)  # type: ignore[misc]
        variable.assign(raw + unit * (variable - raw))

    def _move_logarithm(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        descend = super().update_step  # type: ignore[misc]
        raw = tf.identity(variable.read_value())
        is_tail = raw < -TAIL  # where the softplus is the exponential
        near = tf.where(is_tail, tf.zeros_like(raw), raw)
        value = tf.nn.softplus(near)
        descend(gradient * tf.where(is_tail, tf.ones_like(raw), value / tf.sigmoid(near)), variable)
        x = tf.where(is_tail, raw, tf.math.log(value)) + (variable - raw)
        value = tf.exp(tf.maximum(x, -TAIL))
        variable.assign(tf.where(x < -TAIL, x, value + tf.math.log(-tf.math.expm1(-value))))


class LogSpaceAdam(InLogSpace, tf_keras.optimizers.Adam):
    """Adam in log space."""


def coordinates(model: BayesianModel | None) -> dict[str, Any]:
    """Return the arguments of `InLogSpace` for the variables of a model."""
    if model is None:
        return {}
    return {"parameters": model.trainable_parameters, "inputs": inducing_inputs(model)}


def built(
    optimizer: Any | None,
    variables: Sequence[tf.Variable],
    rate: Any = RATE,
    otherwise: str = "",
    model: BayesianModel | None = None,
) -> Any:
    """Return a tf_keras optimiser with its slots made.

    It belongs to the ``tf.distribute`` strategy in whose scope the variables were made, if any.

    Parameters
    ----------
    optimizer
        By default Adam, in the coordinates of `LogSpace`.
    variables
        What it moves.
    rate
        The default optimiser's learning rate, a number or a schedule.
    otherwise
        How the error's text goes on.
    model
        What the variables belong to.

    Raises
    ------
    ValueError
        For anything else. For an optimiser that was made outside the scope of the variables.
    """
    strategies = [v.distribute_strategy for v in variables if isinstance(v, tf.distribute.DistributedValues)]
    scope = strategies[0].scope() if strategies else contextlib.nullcontext()
    if optimizer is None:
        with scope:
            optimizer = LogSpaceAdam(rate, name="LogSpaceAdam", **coordinates(model))
    elif strategies and getattr(optimizer, "_distribution_strategy", None) is not strategies[0]:
        raise ValueError(
            "The model was built inside `strategy.scope()` and `optimizer` was not: make both there."
        )
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            f"`optimizer` must be a tf_keras optimiser (see gpflow.keras.tf_keras){otherwise}; "
            f"got {type(optimizer)}."
        )
    optimizer.build(variables)
    return optimizer
