"""The recipe of `VGPKMM`."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.kmm import engine as kmm
from gpflow_ext.kmm.model import VGPKMM
from gpflow_ext.training.recipe import Recipe


def coordinate_ascent(
    model: VGPKMM,
    data: None = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    method: kmm.Method = "parallel",
    site_updates: int = 50,
    hyper_updates: int = 20,
    stationarity: float | None = None,
    block: int = 64,
    starts: int = 1,
) -> Recipe:
    """Return the recipe of Khan, Mohamed & Murphy (2012) for `VGPKMM`.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS on the bound, the sites
    at their fixed point in each evaluation; without any it is one iteration of the fixed point (one sweep
    of Algorithm 1).

    Parameters
    ----------
    model
        The model, which holds its data.
    data
        Must be ``None``.
    seed
        Seed of the further starts.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    method
        ``"parallel"`` for the safeguarded parallel fixed point, ``"algorithm1"`` for the paper's sweep.
    site_updates
        Iterations of the fixed point in an evaluation, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    stationarity
        Largest violation of the fixed point, relative to 1 + λ, that counts as converged; 1e-5 in float64,
        1e-3 in float32.
    block
        Sites in a block of Algorithm 1; it does not change the iterates.
    starts
        Starting points of the hyperparameters: the model's own, and others with every positive parameter
        multiplied by a log-normal factor of deviation 2. The first step climbs from each and keeps the best.
    """
    if starts < 1:
        raise ValueError(f"`starts` must be at least 1; got {starts}.")
    if data is not None:
        raise ValueError(f"{type(model).__name__} holds its data: call `fit(model)` without `data`.")
    double = gpflow.default_float() == np.float64
    stationarity = (1e-5 if double else 1e-3) if stationarity is None else stationarity
    ascent = kmm.SiteAscent(model, method, block, jit_compile)
    hypers = model.trainable_variables
    settings: dict[str, Any] = {"recipe": "coordinate_ascent", "method": method}
    if hypers:
        update = kmm.alternating_update(
            ascent,
            model,
            hypers,
            site_updates=site_updates,
            hyper_updates=hyper_updates,
            stationarity=stationarity,
            jit_compile=jit_compile,
            starts=_further_starts(model, starts - 1, seed),
        )
        settings |= {
            "hyper_updates": hyper_updates,
            "site_updates": site_updates,
            "starts": starts,
            "seed": seed,
        }
    else:
        update = kmm.site_update(ascent, model, stationarity)
    return Recipe(
        update,
        [*model.variables, *ascent.point],
        steps=50 if hypers else 200,
        tolerance=1e-8 if double else 1e-5,
        monotone=True,
        trackables={"ascent": ascent},
        settings=settings,
    )


def _further_starts(model: BayesianModel, number: int, seed: int) -> list[list[tf.Tensor]]:
    """Return values for the model's trainable variables, its positive parameters multiplied at random."""
    rng = np.random.default_rng(seed)
    parameters = {id(p.unconstrained_variable): p for p in model.trainable_parameters}

    def moved(variable: tf.Variable) -> tf.Tensor:
        parameter = parameters[id(variable)]
        value = parameter.numpy()
        if parameter.transform is None or (value <= 0.0).any():
            return variable.read_value()
        factor = np.exp(2.0 * rng.standard_normal(value.shape)).astype(value.dtype)
        return parameter.transform.inverse(tf.constant(value * factor))

    return [[moved(variable) for variable in model.trainable_variables] for _ in range(number)]
