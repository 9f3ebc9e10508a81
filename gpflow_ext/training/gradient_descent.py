"""The recipe of every other GPflow model."""

from __future__ import annotations

import functools
from typing import Any

import tensorflow as tf
from gpflow.models import BayesianModel, ExternalDataTrainingLossMixin

from gpflow_ext.data import checks
from gpflow_ext.training import gradient
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.recipe import Recipe


def gradient_descent(
    model: BayesianModel,
    data: Any = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    optimizer: Any | None = None,
    minibatch_size: int | None = None,
) -> Recipe:
    """Return the recipe that trains any GPflow model by a tf_keras optimiser.

    Parameters
    ----------
    model
        The model.
    data
        Training data for a model that does not hold them, else ``None``.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    optimizer
        A tf_keras optimiser; Adam with learning rate 0.01 by default.
    minibatch_size
        Rows in a minibatch of arrays; all data by default.
    """
    variables = model.trainable_variables
    if not variables:
        raise ValueError("The model has no trainable variables: nothing to fit. Use gpflow.set_trainable.")
    optimizer = built(optimizer, variables)
    arrays, batches = training_data(model, data, minibatch_size, seed)
    loss = model.training_loss
    if batches is None and arrays is not None:
        loss = functools.partial(model.training_loss, tuple(tf.constant(part) for part in arrays))
    return Recipe(
        gradient.gradient_update(loss, variables, optimizer, batches, jit_compile),
        [*model.variables, *optimizer.variables],
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables={"optimizer": optimizer} | ({} if batches is None else {"batches": batches}),
        settings={
            "recipe": "gradient_descent",
            "optimizer": optimizer.get_config(),
            "minibatch_size": minibatch_size,
            "seed": None if minibatch_size is None else seed,
        },
        data=arrays,
    )


def training_data(
    model: BayesianModel, data: Any, minibatch_size: int | None, seed: int
) -> tuple[tuple[Any, Any] | None, Any | None]:
    """Return the arrays to train on, and the iterator over minibatches, each if there is one."""
    external = isinstance(model, ExternalDataTrainingLossMixin)
    if external != (data is not None):
        fix = "pass `data=(X, Y)`" if external else "call `fit(model)` without `data`"
        raise ValueError(
            f"{type(model).__name__} {'does not hold' if external else 'holds'} its data: {fix}."
        )
    if minibatch_size is not None and (data is None or isinstance(data, tf.data.Dataset)):
        raise ValueError("`minibatch_size` needs `data` as a pair of arrays.")
    if data is None:
        return None, None
    if isinstance(data, tf.data.Dataset):
        return None, iter(data)
    arrays = checks.check_data(data)
    if minibatch_size is None:
        return arrays, None
    if not 1 <= minibatch_size <= len(arrays[0]):
        raise ValueError(
            f"`minibatch_size` must be from 1 to {len(arrays[0])}, the number of data; got {minibatch_size}."
        )
    return arrays, gradient.minibatches(arrays, minibatch_size, seed)
