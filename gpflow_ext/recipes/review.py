"""The recipes of Izmailov's review (2016) over GPflow's own models: vi-means and the svi family.

All of them leave inducing points where they are: the review places them by k-means.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import GPR, SGPR, SVGP

from gpflow_ext import checks
from gpflow_ext.inference import gradient, lbfgs
from gpflow_ext.inference.natural_gradient import MinibatchAscent
from gpflow_ext.inference.projected_newton import ProjectedNewton
from gpflow_ext.inference.sag import StochasticAverageGradient
from gpflow_ext.recipes.gradient_descent import training_data
from gpflow_ext.recipes.optimizers import built
from gpflow_ext.recipes.recipe import Recipe
from gpflow_ext.recipes.stochastic_variational import reader
from gpflow_ext.recipes.svgp_target import SVGPTarget

Box = tuple[float, float]


def vi_means(
    model: GPR | SGPR,
    data: None = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    optimizer: Literal["lbfgs", "projected_newton"] = "lbfgs",
    iterations: int | None = None,
    bounds: Box | None = None,
) -> Recipe:
    """Return the recipe vi-means: the hyperparameters maximise the collapsed bound (section 2.1.1).

    Parameters
    ----------
    model
        ``SGPR``, with inducing points by `gpflow_ext.inducing.kmeans`; or ``GPR``.
    data
        Must be ``None``: the model holds its data.
    seed
        Not used: nothing is random.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    optimizer
        ``"lbfgs"`` (L-BFGS-B) or ``"projected_newton"``, whose step costs about 3P gradients for P numbers.
    iterations
        Of the optimiser in a step; by default 20 of L-BFGS-B, one of Newton's method.
    bounds
        Least and largest value of every positive hyperparameter; none by default.
    """
    if not isinstance(model, GPR | SGPR):
        raise ValueError(f'recipe="vi_means" is for GPR and SGPR; {type(model).__name__} is another model.')
    if optimizer not in ("lbfgs", "projected_newton"):
        raise ValueError(f'`optimizer` must be "lbfgs" or "projected_newton"; got {optimizer!r}.')
    training_data(model, data, None, seed)
    variables = _moved(model)
    box = _box(model, variables, bounds)
    settings = {"recipe": "vi_means", "optimizer": optimizer, "iterations": iterations, "bounds": bounds}
    if optimizer == "lbfgs":
        update = _lbfgs_update(model.training_loss, variables, iterations or 20, box, jit_compile)
    else:
        update = _newton_update(model.training_loss, variables, iterations or 1, box, jit_compile)
    return Recipe(update, model.variables, steps=100, tolerance=1e-9, monotone=True, settings=settings)


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
    variables = _moved(model)
    constant = tuple(tf.constant(part) for part in arrays)
    update = _lbfgs_update(
        lambda: model.training_loss(constant),
        variables,
        iterations,
        _box(model, variables, bounds),
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
        B, by default max(M, N/100); the table of gradients takes O(N M²/B) memory, see `inference.sag`.
    """
    size = max(len(model.inducing_variable), math.ceil(len(data[0]) / 100)) if data is not None else 1
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
    length = (1.0 if iterator is None else 0.1) if gamma is None else gamma
    if not 0.0 < length <= 1.0:
        raise ValueError(f"`gamma` must be in (0, 1]; got {gamma}.")
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in _moved(model) if id(variable) not in q]
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
    arrays = _arrays(model, data, "svi_classification")
    checks.check_targets(model.likelihood, arrays[1])
    size = max(1, len(arrays[0]) // 100) if minibatch_size is None else minibatch_size
    _, batches = training_data(model, data, size, seed)
    variables = _moved(model)
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
    arrays = _arrays(model, data, name)
    count = 1 if minibatch_size is None else math.ceil(len(arrays[0]) / minibatch_size)
    variables = _moved(model)
    engine = StochasticAverageGradient(
        model.training_loss, variables, arrays, num_batches=count, seed=seed, jit_compile=jit_compile
    )
    return Recipe(
        lambda: (-engine.step(), True),
        [*variables, *engine.state],
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables={"engine": engine},
        settings={"recipe": name, "minibatch_size": minibatch_size, "seed": seed},
        data=arrays,
    )


def _arrays(model: SVGP, data: Any, name: str) -> tuple[Any, Any]:
    """Return the checked arrays of a recipe that takes all data at once."""
    if not isinstance(model, SVGP):
        raise ValueError(f'recipe="{name}" is for SVGP; {type(model).__name__} is another model.')
    arrays, _ = training_data(model, data, None, 0)
    if arrays is None:
        raise ValueError(f'recipe="{name}" needs `data` as a pair of arrays, not a dataset.')
    if model.num_data is not None and model.num_data != len(arrays[0]):
        raise ValueError(f"the model has num_data={model.num_data}, but `data` has {len(arrays[0])} rows.")
    return arrays


def _moved(model: Any) -> list[tf.Variable]:
    """Return the trainable variables without the inducing points."""
    inducing = getattr(model, "inducing_variable", None)
    left = {id(variable) for variable in (() if inducing is None else inducing.trainable_variables)}
    variables = [variable for variable in model.trainable_variables if id(variable) not in left]
    if not variables:
        raise ValueError("The model has nothing to train but inducing points, which this recipe leaves.")
    return variables


def _box(model: Any, variables: Sequence[tf.Variable], bounds: Box | None) -> list[Box] | None:
    """Return the bounds of each number of the variables, those of positive parameters in their own units."""
    if bounds is None:
        return None
    low, high = bounds
    if not 0.0 < low < high:
        raise ValueError(f"`bounds` must be positive values (low, high) with low < high; got {bounds}.")
    parameters = {id(p.unconstrained_variable): p for p in model.trainable_parameters}
    pairs: list[Box] = []
    for variable in variables:
        parameter, size = parameters[id(variable)], int(np.prod(variable.shape))
        if (
            parameter.transform is None
            or parameter.shape != variable.shape
            or (parameter <= 0.0).numpy().any()
        ):
            pairs += [(-math.inf, math.inf)] * size
            continue
        ends = (parameter.transform.inverse(tf.constant(end, parameter.dtype)) for end in bounds)
        pairs += [tuple(float(end) for end in ends)] * size  # type: ignore[list-item]
    return pairs


def _lbfgs_update(
    loss: Any, variables: Sequence[tf.Variable], iterations: int, box: Any, jit_compile: bool | None
) -> Any:
    evaluate = lbfgs.evaluation(loss, variables, jit_compile)

    def update() -> tuple[float, bool]:
        lbfgs.climb(variables, evaluate, iterations, box)
        return evaluate()[0], True

    return update


def _newton_update(
    loss: Any, variables: Sequence[tf.Variable], iterations: int, box: Any, jit_compile: bool | None
) -> Any:
    engine = ProjectedNewton(loss, variables, box, jit_compile)
    small = 1e-6 if gpflow.default_float() == np.float64 else 1e-2

    def update() -> tuple[float, bool]:
        for _ in range(iterations):
            value, at_rest = engine.step(small)
            if at_rest:
                break
        return -value, at_rest

    return update
