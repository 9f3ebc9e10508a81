"""The recipe vi-means of Izmailov's review (2016, section 2.1.1) over GPflow's GPR and SGPR."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import GPR, SGPR

from gpflow_ext.svgp.projected_newton import ProjectedNewton
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.lbfgs_recipe import LBFGSSteps
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import Start, among, further_starts, number_of_starts
from gpflow_ext.training.trials import StartOptions, tried

Box: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class MeansOptions(StartOptions):
    """Options of the recipe "vi_means"; ``starts`` as of `training.site_recipe.SiteOptions`.

    Attributes
    ----------
    optimizer
        ``"lbfgs"`` (L-BFGS-B) or ``"projected_newton"``, whose step costs about 3P gradients for P numbers.
    iterations
        Iterations of the optimiser in a step; by default 20 of L-BFGS-B, one of Newton's method.
    bounds
        Least and largest value of every positive hyperparameter; none by default.
    """

    optimizer: Literal["lbfgs", "projected_newton"] = "lbfgs"
    iterations: int | None = None
    bounds: Box | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        super().__post_init__()
        check_box(self.bounds)


@recipe("vi_means", MeansOptions, knows_objective=True)
def vi_means(model: GPR | SGPR, run: Run, options: MeansOptions) -> Plan:
    """Return the plan vi-means: the hyperparameters maximise the collapsed bound.

    For ``SGPR``, with inducing points by `gpflow_ext.inducing.kmeans`, which stay where they are, or ``GPR``.
    """
    if not isinstance(model, GPR | SGPR):
        raise ValueError(f'recipe="vi_means" is for GPR and SGPR; {type(model).__name__} is another model.')
    training_data(model, run.data, None, run.seed)
    variables = moved(model)
    if options.optimizer == "projected_newton":
        return tried(lambda: _newton(model, variables, run, options), model, run, options.starts)
    starts = starts_of(model, variables, options.starts, run, model.data)
    box, iterations = box_of(model, variables, options.bounds), options.iterations or 20
    solver = LBFGSSteps(model, (), variables, iterations, run.jit_compile, box, starts=starts)
    return dataclasses.replace(
        _plan(model, solver, options),
        trackables={"solver": solver},
        settings={"recipe": "vi_means", "seed": run.seed, **dataclasses.asdict(options)},
        tried=lambda: solver.tried,
    )


def _newton(model: GPR | SGPR, variables: Sequence[tf.Variable], run: Run, options: MeansOptions) -> Plan:
    box, iterations = box_of(model, variables, options.bounds), options.iterations or 1
    return _plan(model, NewtonSteps(model, variables, iterations, box, run.jit_compile), options)


def _plan(model: GPR | SGPR, solver: NewtonSteps | LBFGSSteps, options: MeansOptions) -> Plan:
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=100,
        tolerance=1e-9,
        monotone=True,
        stationarity=0.0,
        settings={"recipe": "vi_means", **dataclasses.asdict(options)},
    )


def starts_of(
    model: Any, variables: Sequence[tf.Variable], starts: int | None, run: Run, data: Sequence[Any]
) -> list[Start]:
    """Return further starts than the model's own for some of its variables and (X [N, D], Y [N, P])."""
    number = number_of_starts(model, starts, *data[:2])
    return among(further_starts(model, number - 1, run.seed, *data[:2]), model, variables)


def moved(model: Any) -> list[tf.Variable]:
    """Return the trainable variables without the inducing points."""
    inducing = getattr(model, "inducing_variable", None)
    left = {id(variable) for variable in (() if inducing is None else inducing.trainable_variables)}
    variables = [variable for variable in model.trainable_variables if id(variable) not in left]
    if not variables:
        raise ValueError("The model has nothing to train but inducing points, which this recipe leaves.")
    return variables


def check_box(bounds: Box | None) -> None:
    """Raise ``ValueError`` for bounds that are no two positive values in order."""
    if bounds is not None and not 0.0 < bounds[0] < bounds[1]:
        raise ValueError(f"`bounds` must be positive values (low, high) with low < high; got {bounds}.")


def box_of(model: Any, variables: Sequence[tf.Variable], bounds: Box | None) -> list[Box] | None:
    """Return the bounds of each number of the variables, those of positive parameters in their own units."""
    if bounds is None:
        return None
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


class NewtonSteps:
    """Steps of some projected Newton iterations; the parameters are those of `LBFGSSteps`."""

    def __init__(
        self,
        model: Any,
        variables: Sequence[tf.Variable],
        iterations: int,
        box: Sequence[Box] | None,
        jit_compile: bool | None,
    ) -> None:
        self.state: list[tf.Variable] = []
        self._engine = ProjectedNewton(model.training_loss, variables, box, jit_compile)
        self._iterations = iterations
        self._small = 1e-6 if gpflow.default_float() == np.float64 else 1e-2

    def start(self) -> Progress:
        """See `Solver`; there is nothing to read."""
        return Progress(math.nan)

    def step(self) -> Progress:
        """See `Solver`; the violation is zero where the projected gradient was small."""
        value, at_rest = math.nan, False
        for _ in range(self._iterations):
            value, at_rest = self._engine.step(self._small)
            if at_rest:
                break
        return Progress(-value, 0.0 if at_rest else math.inf)
