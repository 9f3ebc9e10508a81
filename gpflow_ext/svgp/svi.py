"""The svi family of Izmailov's review (2016, sections 2.1.2 and 2.2) over GPflow's SVGP.

All of them leave inducing points where they are: the review places them by k-means.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import SVGP

from gpflow_ext.data import checks
from gpflow_ext.svgp.natural_gradient import MinibatchAscent
from gpflow_ext.svgp.recipe import reader
from gpflow_ext.svgp.sag import StochasticAverageGradient
from gpflow_ext.svgp.target import SVGPTarget
from gpflow_ext.svgp.vi_means import Box, box_of, lbfgs_update, moved
from gpflow_ext.training import gradient
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.optimizers import built
from gpflow_ext.training.recipe import Recipe


def svi_lbfgsb(
    model: SVGP,
    data: Any,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    iterations: int = 20,
    bounds: Box | None = None,
) -> Recipe:
    """Return the recipe svi-L-BFGS-B: q(u), by its Cholesky factor, and the hyperparameters on all data.

    Parameters
    ----------
    model
        ``SVGP``.
    data
        X [N, D] and Y [N, P].
    seed
        Not used: nothing is random.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    iterations
        Of L-BFGS-B in a step; each step begins anew, so that a run resumes exactly.
    bounds
        As for `vi_means`.
    """
    arrays = _arrays(model, data, "svi_lbfgsb")
    variables = moved(model)
    constant = tuple(tf.constant(part) for part in arrays)
    update = lbfgs_update(
        lambda: model.training_loss(constant),
        variables,
        iterations,
        box_of(model, variables, bounds),
        jit_compile,
    )
    settings = {"recipe": "svi_lbfgsb", "iterations": iterations, "bounds": bounds}
    return Recipe(
        update, model.variables, steps=100, tolerance=1e-9, monotone=True, settings=settings, data=arrays
    )


def svi_fg(model: SVGP, data: Any, *, seed: int = 0, jit_compile: bool | None = None) -> Recipe:
    """Return the recipe svi-FG: gradient descent on all data, its step length searched; see `svi_sag`."""
    return _average_gradient("svi_fg", model, data, None, seed, jit_compile)


def svi_sag(
    model: SVGP,
    data: Any,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    minibatch_size: int | None = None,
) -> Recipe:
    """Return the recipe svi-SAG: the stochastic average gradient for q(u) and the hyperparameters.

    Parameters
    ----------
    model
        ``SVGP``.
    data
        X [N, D] and Y [N, P].
    seed
        Seed of the batches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    minibatch_size
        B, by default max(M, N/100); the table of gradients takes O(N M²/B) memory, see `svgp.sag`.
    """
    size = max(model.inducing_variable.num_inducing, math.ceil(len(data[0]) / 100)) if data is not None else 1
    return _average_gradient("svi_sag", model, data, minibatch_size or size, seed, jit_compile)


def svi_natural(
    model: SVGP,
    data: Any,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    minibatch_size: int | None = None,
    gamma: float | None = None,
    optimizer: Any | None = None,
) -> Recipe:
    """Return the recipe svi-natural: natural gradients for q(u), gradients for the hyperparameters.

    Parameters
    ----------
    model
        ``SVGP``, whitened, with one kernel and a full q_sqrt.
    data
        X [N, D] and Y [N, P], or with ``minibatch_size=None`` a dataset of minibatches that has no end.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    minibatch_size
        B; all data by default.
    gamma
        Length in (0, 1] of natural-gradient steps: by default 0.1 with minibatches, 1 without. With a
        Gaussian likelihood and all data one step of length 1 reaches the optimal q(u).
    optimizer
        A tf_keras optimiser of the hyperparameters; by default Adam at the rate 0.01.
    """
    target = SVGPTarget(model)
    arrays, iterator = training_data(model, data, minibatch_size, seed)
    if arrays is not None:
        _check_size(model, arrays, minibatches=iterator is not None)
    length = (1.0 if iterator is None else 0.1) if gamma is None else gamma
    if not 0.0 < length <= 1.0:
        raise ValueError(f"`gamma` must be in (0, 1]; got {gamma}.")
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in moved(model) if id(variable) not in q]
    optimizer = built(optimizer, hypers) if hypers else None
    engine = MinibatchAscent(
        target,
        hypers,
        optimizer,
        reader(model, arrays, iterator),
        gamma=lambda step: length,
        concave=iterator is not None,
        jit_compile=jit_compile,
    )
    trackables = {"engine": engine} | ({} if iterator is None else {"batches": iterator})
    return Recipe(
        lambda: (engine.step(), True),
        hypers,  # q moves only where it is sound
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables=trackables | ({} if optimizer is None else {"optimizer": optimizer}),
        settings={
            "recipe": "svi_natural",
            "minibatch_size": minibatch_size,
            "seed": None if minibatch_size is None else seed,
            "gamma": length,
            "optimizer": None if optimizer is None else optimizer.get_config(),
        },
        data=arrays,
    )


def svi_classification(
    model: SVGP,
    data: Any,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    minibatch_size: int | None = None,
    optimizer: Any | None = None,
) -> Recipe:
    """Return the recipe svi-classification (section 2.2): AdaDelta for everything, on minibatches.

    Parameters
    ----------
    model
        ``SVGP`` with a classification likelihood such as `BernoulliLogit`.
    data
        X [N, D] and Y [N, P].
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    minibatch_size
        B, by default N/100 as in the author's code, at least one.
    optimizer
        A tf_keras optimiser; by default the author's AdaDelta, rate 1, decay 0.9, offset 1e-4.
    """
    arrays = _arrays(model, data, "svi_classification", minibatches=True)
    checks.check_targets(model.likelihood, arrays[1])
    size = max(1, len(arrays[0]) // 100) if minibatch_size is None else minibatch_size
    _, batches = training_data(model, data, size, seed)
    variables = moved(model)
    optimizer = built(optimizer or tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-4), variables)
    return Recipe(
        gradient.gradient_update(model.training_loss, variables, optimizer, batches, jit_compile),
        [*model.variables, *optimizer.variables],
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables={"optimizer": optimizer, "batches": batches},
        settings={
            "recipe": "svi_classification",
            "optimizer": optimizer.get_config(),
            "minibatch_size": size,
            "seed": seed,
        },
        data=arrays,
    )


def _average_gradient(
    name: str, model: SVGP, data: Any, minibatch_size: int | None, seed: int, jit_compile: bool | None
) -> Recipe:
    arrays = _arrays(model, data, name, minibatches=minibatch_size is not None)
    count = 1 if minibatch_size is None else math.ceil(len(arrays[0]) / minibatch_size)
    variables = moved(model)
    engine = StochasticAverageGradient(
        model.training_loss, variables, arrays, num_batches=count, seed=seed, jit_compile=jit_compile
    )
    return Recipe(
        lambda: (-engine.step(), True),
        variables,  # a failed step undoes itself; a copy of the table would cost more than a step
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables={"engine": engine},
        settings={"recipe": name, "minibatch_size": minibatch_size, "seed": seed},
        data=arrays,
    )


def _arrays(model: SVGP, data: Any, name: str, minibatches: bool = False) -> tuple[Any, Any]:
    """Return the checked arrays of a recipe that does not read a dataset."""
    if not isinstance(model, SVGP):
        raise ValueError(f'recipe="{name}" is for SVGP; {type(model).__name__} is another model.')
    arrays, _ = training_data(model, data, None, 0)
    if arrays is None:
        raise ValueError(f'recipe="{name}" needs `data` as a pair of arrays, not a dataset.')
    _check_size(model, arrays, minibatches)
    return arrays


def _check_size(model: SVGP, arrays: tuple[Any, Any], minibatches: bool) -> None:
    """Raise where the bound would weight the data wrongly; ``num_data=None`` is for all data at once."""
    number = len(arrays[0])
    if model.num_data != number and (minibatches or model.num_data is not None):
        raise ValueError(
            f"the model has num_data={model.num_data}, but `data` has {number} rows: build it with "
            f"num_data={number}."
        )
