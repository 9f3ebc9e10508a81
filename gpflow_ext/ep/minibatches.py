"""The plan of `SparseEP` on minibatches."""

from __future__ import annotations

import math
from typing import Any

from gpflow_ext.ep.model import SparseEP
from gpflow_ext.ep.stochastic import StochasticMatcher
from gpflow_ext.training.gradient import first_look
from gpflow_ext.training.recipe import Plan, Run

_EPOCHS, _FEWEST = 10, 2  # before a look whether the objective still rises: ten, or, in many steps, two


def minibatch_plan(
    model: SparseEP,
    run: Run,
    *,
    minibatch_size: int,
    optimizer: Any | None,
    damping: float | None,
    stationarity: float,
    steps_per_call: int = 1,
) -> Plan:
    """Return the plan of the paper's stochastic method; see `ep.stochastic`.

    Parameters
    ----------
    model
        The model, which holds its data or reads them from a dataset.
    run
        What `fit` was asked for.
    minibatch_size
        B. The last minibatch of an epoch may be smaller.
    optimizer
        A tf_keras optimiser built on the trainable variables; ``None`` if there are none.
    damping
        Share of the way that a step moves the sites, at most 1; ``None``, like the paper, is all of it.
    stationarity
        Largest change of a site within an epoch, relative to 1 + |prec|, that counts as converged.
    steps_per_call
        Minibatches in a step.
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
        seed=run.seed,
        jit_compile=run.jit_compile,
        per_call=steps_per_call,
    )
    whole, rest = divmod(num_data, minibatch_size)
    calls = math.ceil(whole / steps_per_call) + (rest > 0)  # in an epoch
    return Plan(
        matcher,
        [],  # a step undoes itself; copies of all sites would make its cost grow with N
        steps=_EPOCHS * calls if optimizer is None else _first_look(calls, steps_per_call),
        period=0 if optimizer is None else calls,
        tolerance=math.inf if optimizer is None else None,
        stationarity=stationarity,
        trackables={"solver": matcher} | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "ep",
            "minibatch_size": minibatch_size,
            "seed": run.seed,
            "damping": damping,
            **({} if steps_per_call == 1 else {"steps_per_call": steps_per_call}),
            "optimizer": None if optimizer is None else optimizer.get_config(),
        },
    )


def _first_look(calls: int, per_call: int) -> int:
    """Return the number of the step after which it is looked at, of so many calls in an epoch."""
    return min(_EPOCHS * calls, max(_FEWEST * calls, first_look(per_call)))
