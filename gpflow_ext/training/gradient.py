"""Gradient training of any GPflow model, on the full data or on minibatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Steps

Loss: TypeAlias = Callable[..., tf.Tensor]


def minibatches(data: tuple[Any, Any], size: int, seed: int) -> Any:
    """Return an endless iterator over shuffled minibatches (X [B, D], Y [B, P]).

    The data are shuffled anew in each pass, which depends on the seed alone; the last, smaller batch of a
    pass is filled up from the next pass. The iterator can be checkpointed at the cost of N indices.
    """
    X, Y = (tf.convert_to_tensor(part) for part in data)
    num_data = int(X.shape[0])
    order = tf.data.Dataset.range(num_data).shuffle(num_data, seed=seed, reshuffle_each_iteration=True)
    batches = order.repeat().batch(size, drop_remainder=True)
    return iter(batches.map(lambda rows: (tf.gather(X, rows), tf.gather(Y, rows))))


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


def gradient_steps(
    loss: Loss,
    variables: Sequence[tf.Variable],
    optimizer: Any,
    batches: Any | None,
    jit_compile: bool | None,
) -> Steps:
    """Return the solver that does optimiser steps; its objective is minus the loss before the step.

    Parameters
    ----------
    loss
        Called with a minibatch, or without arguments when ``batches`` is ``None``.
    variables
        What to train.
    optimizer
        A tf_keras optimiser, built on the variables.
    batches
        Iterator over minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    """

    @tf.function(jit_compile=resolve_jit(jit_compile), autograph=False)
    def gradients(*batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = loss(*batch)
        return value, tape.gradient(value, variables, unconnected_gradients="zero")

    @tf.function(autograph=False)
    def step(*batch: Any) -> tf.Tensor:
        value, grads = gradients(*batch)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return value

    def update() -> float:
        return -float(step() if batches is None else step(next_minibatch(batches)))

    return Steps(update, optimizer.variables)
