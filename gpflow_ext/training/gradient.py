"""Gradient training of any GPflow model, on the full data or on minibatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Loss, LossFunction
from gpflow_ext.training.solver import Steps


class Minibatches(tf.Module):
    """An endless iterator over shuffled minibatches (X [B, D], Y [B, P]).

    The data are shuffled anew in each pass, which depends on the seed alone; the last, smaller batch of a
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
        self._data = tuple(tf.convert_to_tensor(part) for part in data)
        num_data = int(self._data[0].shape[0])
        rows = tf.data.Dataset.range(num_data).shuffle(num_data, seed=seed, reshuffle_each_iteration=True)
        self.order = iter(rows.repeat().batch(size, drop_remainder=True))

    def __iter__(self) -> Minibatches:
        return self

    def __next__(self) -> tuple[tf.Tensor, tf.Tensor]:
        rows = next(self.order)
        return tf.gather(self._data[0], rows), tf.gather(self._data[1], rows)


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


def gradient_steps(
    loss: LossFunction,
    variables: Sequence[tf.Variable],
    optimizer: Any,
    batches: Any | None,
    jit_compile: bool | None,
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
        XLA; ``None`` means on GPU and TPU only.
    """
    descent = Descent(loss, variables, optimizer)
    compiled = Compiled(descent, resolve_jit(jit_compile), batches=True)

    def update() -> float:
        batch = () if batches is None else (next_minibatch(batches),)
        return -float(compiled(descent.step, *batch))

    return Steps(update, optimizer.variables)
