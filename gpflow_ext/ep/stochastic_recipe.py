"""The recipe of `SparseEP` on minibatches."""

from __future__ import annotations

import math
from typing import Any

from gpflow_ext.ep.model import SparseEP
from gpflow_ext.ep.stochastic import StochasticMatcher
from gpflow_ext.training.recipe import Recipe


def stochastic_expectation_propagation(
    model: SparseEP,
    *,
    minibatch_size: int,
    seed: int,
    jit_compile: bool | None,
    optimizer: Any | None,
    damping: float | None,
    stationarity: float,
) -> Recipe:
    """Return the recipe of the paper's stochastic method; see `ep.stochastic`.

    Parameters
    ----------
    model
        The model, which holds its data or reads them from a dataset.
    minibatch_size
        B. The last minibatch of an epoch may be smaller.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    optimizer
        A tf_keras optimiser built on the trainable variables; ``None`` if there are none.
    damping
        Share of the way that a step moves the sites, at most 1; ``None``, like the paper, is all of it.
    stationarity
        Largest change of a site within an epoch, relative to 1 + |prec|, that counts as converged.
    """
    num_data = model.rows.num_data
    if not 1 <= minibatch_size <= num_data:
        raise ValueError(
            f"`minibatch_size` must be from 1 to {num_data}, the number of data; got {minibatch_size}."
        )
    matcher = StochasticMatcher(
        model,
        model.trainable_variables,
        optimizer,
        minibatch_size=minibatch_size,
        damping=1.0 if damping is None else damping,
        seed=seed,
        jit_compile=jit_compile,
    )
    return Recipe(
        lambda: matcher.update(stationarity),
        [],  # a step undoes itself; copies of all sites would make its cost grow with N
        steps=10 * math.ceil(num_data / minibatch_size),
        tolerance=math.inf if optimizer is None else None,
        monotone=False,
        trackables={"matcher": matcher} | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "stochastic_expectation_propagation",
            "minibatch_size": minibatch_size,
            "seed": seed,
            "damping": damping,
            "optimizer": None if optimizer is None else optimizer.get_config(),
        },
    )
