"""The recipe vi-means of Izmailov's review (2016, section 2.1.1) over GPflow's GPR and SGPR."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import GPR, SGPR

from gpflow_ext.svgp.projected_newton import ProjectedNewton
from gpflow_ext.training import lbfgs
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.loop import Update
from gpflow_ext.training.recipe import Recipe

Box: TypeAlias = tuple[float, float]


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
    """Return the recipe vi-means: the hyperparameters maximise the collapsed bound.

    Inducing points stay where they are.

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
    variables = moved(model)
    box = box_of(model, variables, bounds)
    settings = {"recipe": "vi_means", "optimizer": optimizer, "iterations": iterations, "bounds": bounds}
    if optimizer == "lbfgs":
        update = lbfgs_update(model.training_loss, variables, iterations or 20, box, jit_compile)
    else:
        update = _newton_update(model.training_loss, variables, iterations or 1, box, jit_compile)
    return Recipe(update, model.variables, steps=100, tolerance=1e-9, monotone=True, settings=settings)


def moved(model: Any) -> list[tf.Variable]:
    """Return the trainable variables without the inducing points."""
    inducing = getattr(model, "inducing_variable", None)
    left = {id(variable) for variable in (() if inducing is None else inducing.trainable_variables)}
    variables = [variable for variable in model.trainable_variables if id(variable) not in left]
    if not variables:
        raise ValueError("The model has nothing to train but inducing points, which this recipe leaves.")
    return variables


def box_of(model: Any, variables: Sequence[tf.Variable], bounds: Box | None) -> list[Box] | None:
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


def lbfgs_update(
    loss: Callable[[], tf.Tensor],
    variables: Sequence[tf.Variable],
    iterations: int,
    box: Sequence[Box] | None,
    jit_compile: bool | None,
) -> Update:
    """Return the update that does some iterations of L-BFGS-B; its objective is measured after them."""
    evaluate = lbfgs.evaluation(loss, variables, jit_compile)

    def update() -> tuple[float, bool]:
        lbfgs.climb(variables, evaluate, iterations, box)
        return evaluate()[0], True

    return update


def _newton_update(
    loss: Callable[[], tf.Tensor],
    variables: Sequence[tf.Variable],
    iterations: int,
    box: Sequence[Box] | None,
    jit_compile: bool | None,
) -> Update:
    engine = ProjectedNewton(loss, variables, box, jit_compile)
    small = 1e-6 if gpflow.default_float() == np.float64 else 1e-2

    def update() -> tuple[float, bool]:
        for _ in range(iterations):
            value, at_rest = engine.step(small)
            if at_rest:
                break
        return -value, at_rest

    return update
