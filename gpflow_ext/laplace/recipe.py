"""The recipe of `GPLaplace`, `GPJaakkola` and `GPTaylor`."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np

from gpflow_ext.laplace import engine
from gpflow_ext.laplace.model import GPJaakkola, GPLaplace, GPTaylor
from gpflow_ext.training.recipe import Recipe


def local_quadratic(
    model: GPLaplace | GPJaakkola | GPTaylor,
    data: None = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    site_updates: int = 200,
    hyper_updates: int = 20,
    stationarity: float | None = None,
) -> Recipe:
    """Return the recipe of Izmailov (2016), sections 1.3.1 and 2.3, for models of local quadratics.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS, the sites at their fixed
    point in each evaluation; without any it is one update of the sites. Those of `GPLaplace` and `GPTaylor`
    are safeguarded Newton steps, those of `GPJaakkola` never lower the bound.

    Parameters
    ----------
    model
        The model, which holds its data.
    data
        Must be ``None``.
    seed
        Not used: nothing is random.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    site_updates
        Updates of the sites in an evaluation, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    stationarity
        Largest violation of the fixed point, relative to 1 + prec, that counts as converged. In float64 1e-7
        (Newton's method squares it in each step, the gradient of log q(y) errs in proportion), or 1e-5 for
        `GPJaakkola`, which converges linearly; in float32 1e-3.
    """
    if data is not None:
        raise ValueError(f"{type(model).__name__} holds its data: call `fit(model)` without `data`.")
    double = gpflow.default_float() == np.float64
    if stationarity is None:
        stationarity = 1e-3 if not double else 1e-5 if isinstance(model, GPJaakkola) else 1e-7
    hypers = model.trainable_variables
    iteration = _iteration(model, jit_compile)
    settings: dict[str, Any] = {"recipe": "local_quadratic"}
    if hypers:
        settings |= {"site_updates": site_updates, "hyper_updates": hyper_updates}
        update = engine.hyper_update(
            iteration,
            model,
            hypers,
            site_updates=site_updates,
            hyper_updates=hyper_updates,
            stationarity=stationarity,
            jit_compile=jit_compile,
        )
    else:
        update = engine.site_update(iteration, model, stationarity, jit_compile)
    return Recipe(
        update,
        model.variables,
        steps=50 if hypers else 500,
        tolerance=1e-8 if double else 1e-5,
        monotone=bool(hypers) or isinstance(model, GPJaakkola),
        settings=settings,
    )


def _iteration(model: GPLaplace | GPJaakkola | GPTaylor, jit_compile: bool | None) -> engine.SiteIteration:
    if isinstance(model, GPJaakkola):
        return engine.SiteIteration(
            model,
            lambda prior, current: engine.jaakkola_step(prior, model.expectation, current),
            None,
            jit_compile,
        )
    return engine.SiteIteration(
        model,
        lambda prior, current: engine.newton_step(prior, model.log_density, current),
        lambda prior, current: engine.newton_start(prior, model.log_density, current),
        jit_compile,
    )
