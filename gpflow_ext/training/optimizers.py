"""The optimiser that a recipe is given, ready to be checkpointed; by default Adam in log space."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.keras import tf_keras

from gpflow_ext.training.log_space import TAIL, is_softplus

RATE = 0.01


class InLogSpace:
    """Mixin of optimisers, to be the first base: positive parameters move by their logarithms.

    For a tf_keras optimiser whose step does not depend on the value of a variable. A step of 0.01 is then one
    of a hundredth of a parameter, whatever its size.

    Parameters
    ----------
    parameters
        The parameters that its variables belong to.
    """

    def __init__(self, *arguments: Any, parameters: Sequence[gpflow.Parameter] = (), **options: Any) -> None:
        super().__init__(*arguments, **options)
        positive = (p for p in parameters if is_softplus(p.transform))
        self._positive = tuple(id(parameter.unconstrained_variable) for parameter in positive)
        self._logs: tuple[bool, ...] | None = None

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Make the slots, and note which of the variables are those of positive parameters."""
        super().build(var_list)  # type: ignore[misc]
        if self._logs is None:
            self._logs = tuple(id(variable) in self._positive for variable in var_list)
            self._positive = ()

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Take one step down the gradient in the variable."""
        descend = super().update_step  # type: ignore[misc]
        assert self._logs is not None
        if not self._logs[self._index_dict[self._var_key(variable)]]:  # type: ignore[attr-defined]
            descend(gradient, variable)
            return
        raw = tf.identity(variable.read_value())
        is_tail = raw < -TAIL  # where the softplus is the exponential
        near = tf.where(is_tail, tf.zeros_like(raw), raw)
        value = tf.nn.softplus(near)
        descend(gradient * tf.where(is_tail, tf.ones_like(raw), value / tf.sigmoid(near)), variable)
        x = tf.where(is_tail, raw, tf.math.log(value)) + (variable - raw)
        value = tf.exp(tf.maximum(x, -TAIL))
        variable.assign(tf.where(x < -TAIL, x, value + tf.math.log(-tf.math.expm1(-value))))


class LogSpaceAdam(InLogSpace, tf_keras.optimizers.Adam):
    """Adam, which moves positive parameters by their logarithms."""


def built(
    optimizer: Any | None,
    variables: Sequence[tf.Variable],
    rate: Any = RATE,
    otherwise: str = "",
    parameters: Sequence[gpflow.Parameter] = (),
) -> Any:
    """Return a tf_keras optimiser with its slots made.

    It belongs to the ``tf.distribute`` strategy in whose scope the variables were made, if any.

    Parameters
    ----------
    optimizer
        By default Adam, by the logarithms of the positive ones of the ``parameters``.
    variables
        What it moves.
    rate
        The default optimiser's learning rate, a number or a schedule.
    otherwise
        How the error's text goes on.
    parameters
        The parameters that the variables belong to.

    Raises
    ------
    ValueError
        For anything else. For an optimiser that was made outside the scope of the variables.
    """
    strategies = [v.distribute_strategy for v in variables if isinstance(v, tf.distribute.DistributedValues)]
    scope = strategies[0].scope() if strategies else contextlib.nullcontext()
    if optimizer is None:
        with scope:
            optimizer = LogSpaceAdam(rate, name="LogSpaceAdam", parameters=parameters)
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
