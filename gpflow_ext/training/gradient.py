"""Gradient training of any GPflow model, on the full data or on minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.data.order import shuffled
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Loss, LossFunction
from gpflow_ext.training.solver import Steps

_FIRST_LOOK = 1000  # steps of a run without a number of them, see `training.open_end`


class Minibatches(tf.Module):
    """An endless iterator over shuffled minibatches (X [B, D], Y [B, P]).

    The data are shuffled again in each pass, which depends on the seed alone; the last, smaller batch of a
    pass is filled up from the next pass. It can be checkpointed at the cost of N indices.

    Parameters
    ----------
    data
        Inputs X [N, D] and targets Y [N, P].
    size
        B.
    seed
        Seed of the order.
    """

    def __init__(self, data: tuple[Any, Any], size: int, seed: int) -> None:
        super().__init__()
        self.data = tuple(tf.convert_to_tensor(part) for part in data)
        num_data = int(self.data[0].shape[0])
        rows = shuffled(tf.data.Dataset.range(num_data), num_data, seed, repeated=True)
        self.order = iter(rows.repeat().batch(size, drop_remainder=True))

    def __iter__(self) -> Minibatches:
        return self

    def __next__(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows = next(self.order)
        return tf.gather(self.data[0], rows), tf.gather(self.data[1], rows)

    def rows(self, number: int) -> tf.Tensor:
        """Return the rows of the next minibatches, [number, B]."""
        return tf.stack([next(self.order) for _ in range(number)])


def check_per_call(steps_per_call: int, minibatch_size: int | None, **multiples: int) -> None:
    """Raise ``ValueError`` for a number of steps in a call that is not one, or not for the other options.

    Parameters
    ----------
    steps_per_call, minibatch_size
        Values of a recipe's options.
    multiples
        Numbers of steps that end with a call, by the names of their options.
    """
    if steps_per_call < 1:
        raise ValueError(f"`steps_per_call` must be at least 1; got {steps_per_call}.")
    if steps_per_call > 1 and minibatch_size is None:
        raise ValueError("`steps_per_call` is for minibatches of arrays: give `minibatch_size`.")
    for name, number in multiples.items():
        if number % steps_per_call:
            raise ValueError(
                f"`{name}` must be a multiple of `steps_per_call`, {steps_per_call}; got {number}."
            )


def period(arrays: tuple[Any, Any] | None, minibatch_size: int | None, per_call: int = 1) -> int:
    """Return the calls of so many steps in a pass through arrays, one where it is not known."""
    rows = 1 if arrays is None or minibatch_size is None else len(arrays[0]) / minibatch_size
    return max(1, round(rows / per_call))


def first_look(per_call: int = 1) -> int:
    """Return the calls of so many steps before an open end is first looked for, of a thousand steps."""
    return -(-_FIRST_LOOK // per_call)


def next_minibatch(batches: Any) -> Any:
    """Return what an iterator over minibatches gives next.

    Raises
    ------
    ValueError
        Where there is no next one, or it has no rows.
    """
    batch = next(batches, None)
    if batch is None:
        raise ValueError("The dataset of minibatches has ended: let it go on with `.repeat()`.")
    if tf.nest.flatten(batch)[0].shape[:1] == [0]:
        raise ValueError("The dataset gave an empty minibatch: drop those without rows.")
    return batch


class Descent(Loss):
    """A loss and the step of an optimiser down its gradient.

    Parameters
    ----------
    loss, variables
        As for `Loss`.
    optimizer
        A tf_keras optimiser, built on the variables.
    """

    def __init__(self, loss: LossFunction, variables: Sequence[tf.Variable], optimizer: Any) -> None:
        super().__init__(loss, variables)
        self._optimizer = optimizer

    def step(self, *batch: Any) -> tf.Tensor:
        """Do one step; return the loss before it, []."""
        value, gradient = self.value_and_gradient(*batch)
        self._optimizer.apply_gradients(zip(gradient, self._variables, strict=True))
        return value

    def steps(self, rows: tf.Tensor, *data: tf.Tensor) -> tf.Tensor:
        """Do a step on each minibatch of rows [S, B] of the data; return the mean loss before them, []."""
        number = tf.shape(rows)[0]

        def step(k: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return k + 1, total + self.step(tuple(tf.gather(part, rows[k]) for part in data))

        _, total = tf.while_loop(
            lambda k, _: k < number, step, (0, tf.zeros([], data[0].dtype)), parallel_iterations=1
        )
        return total / tf.cast(number, total.dtype)


def gradient_steps(
    loss: LossFunction,
    variables: Sequence[tf.Variable],
    optimizer: Any,
    batches: Any | None,
    jit_compile: bool | None,
    per_call: int = 1,
) -> Steps:
    """Return the solver that does optimiser steps; its objective is minus the loss before the step.

    Parameters
    ----------
    loss, variables, optimizer
        As for `Descent`; the loss is called with a minibatch, or without arguments when ``batches`` is
        ``None``.
    batches
        Iterator over minibatches.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    per_call
        Optimiser steps of one step of the solver, whose objective is their mean; above one ``batches`` are
        `Minibatches`, and the host waits for the device once in a call.
    """
    descent = Descent(loss, variables, optimizer)
    compiled = Compiled(descent, resolve_jit(jit_compile), batches=True)

    def update() -> float:
        if per_call > 1 and batches is not None:
            return -float(compiled(descent.steps, batches.rows(per_call), *batches.data))
        batch = () if batches is None else (next_minibatch(batches),)
        return -float(compiled(descent.step, *batch))

    return Steps(update, optimizer.variables)
