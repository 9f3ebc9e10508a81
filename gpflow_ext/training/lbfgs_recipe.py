"""The recipe of models whose objective is one function of their parameters: L-BFGS on all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.base import Parameter
from gpflow.models import BayesianModel

from gpflow_ext.training import lbfgs
from gpflow_ext.training.gradient_descent import training_data
from gpflow_ext.training.lbfgs_in_graph import AnyRun, Climb, GraphRun, if_wanted, where
from gpflow_ext.training.log_space import LogSpace, inducing_inputs
from gpflow_ext.training.loss import Loss
from gpflow_ext.training.mean_units import mean_units
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import (
    OWN,
    Further,
    Start,
    Tried,
    are_enough,
    assign,
    best,
    check_starts,
    further_starts,
    number_of_starts,
)

_SAME = 1e-6  # relative: two values of an objective that is not an estimate differ by less


@dataclass(frozen=True)
class LBFGSOptions:
    """Options of the recipe "lbfgs".

    Attributes
    ----------
    iterations
        Iterations of L-BFGS in a step.
    starts
        Starting points; see `training.site_recipe.SiteOptions`.
    in_graph
        Whether the iterations are done in the graph, without the host, see `lbfgs_in_graph`; by default on a
        GPU or TPU, if the loss can be traced.
    """

    iterations: int = 50
    starts: int | None = None
    in_graph: bool | None = None

    def __post_init__(self) -> None:
        """Check the range."""
        check_starts(self.starts)


class LBFGSSteps(tf.Module):
    """One run of L-BFGS-B in steps of some iterations; positive parameters move in log space.

    Parameters
    ----------
    model
        Whose training loss is lowered.
    data
        What the loss is called with: a pair of tensors, or nothing.
    variables
        What moves.
    iterations
        Iterations of L-BFGS-B in a step.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    box
        Bounds of each number; see `svgp.vi_means.box_of`.
    tolerance
        As for `lbfgs.Run`.
    starts
        Further starts: the first step climbs from each of them too, and keeps the best.
    posterior
        Variables of q among those that move: the first step climbs in them alone before it climbs in all.
        From a q that has not been fitted to the data yet the kernel would be fitted to q instead of the data.
    in_graph
        See `LBFGSOptions`; not with ``box``.
    """

    def __init__(
        self,
        model: Any,
        data: Sequence[Any],
        variables: Sequence[tf.Variable],
        iterations: int,
        jit_compile: bool | None,
        box: Sequence[tuple[float, float]] | None = None,
        tolerance: float = lbfgs.SMALLEST_GAIN,
        starts: Sequence[Start] = (),
        posterior: Sequence[tf.Variable] = (),
        in_graph: bool | None = None,
    ) -> None:
        super().__init__()
        self.run = _run_of_all(model, data, variables, jit_compile, box, tolerance, in_graph)
        self._variables, self._iterations, self._further = list(variables), iterations, Further(starts)
        self.started = tf.Variable(not (starts or posterior), trainable=False)
        self.tried: tuple[Tried, ...] = ()
        if posterior:
            self._alone = _run_of_some(model, data, self.run, variables, posterior, jit_compile, tolerance)

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [*self.run.variables, self.started]

    def start(self) -> Progress:
        """See `Solver`: begin a new run where the variables are."""
        self.run.restart()
        return Progress(math.nan)

    def step(self) -> Progress:
        """See `Solver`; the violation is zero after the end of the run, and there is nothing to do."""
        if not self.started:
            self._climb_first()
        elif not self.run.ended:
            self.run.climb(self._iterations)
        return Progress(float(self.run.best), 0.0 if self.run.ended else math.inf)

    def _climb_first(self) -> None:
        """Climb from each start, and go to the best end with the memory of the climb."""
        moving, ends = [*self._variables, *self.run.variables], []
        tried: list[Tried] = []
        own = Start(OWN, [variable.read_value() for variable in self._variables])
        for start in (own, *self._further.starts):
            if are_enough(tried):
                break
            assign(self._variables, start.values)
            if hasattr(self, "_alone"):
                self._alone.restart()
                self._alone.climb(self._iterations)
            self.run.restart()
            self.run.climb(self._iterations)
            ends.append([variable.read_value() for variable in moving])
            tried.append(Tried(start.name, float(self.run.best)))
        assign(moving, ends[best(tried)])
        self.tried = tuple(tried) if self._further.starts else ()
        self.started.assign(True)


def _run_of_all(
    model: Any,
    data: Sequence[Any],
    variables: Sequence[tf.Variable],
    jit_compile: bool | None,
    box: Sequence[tuple[float, float]] | None,
    tolerance: float,
    in_graph: bool | None,
) -> AnyRun:
    """Return the run in all variables, in the graph or not; see `LBFGSSteps` for the arguments."""
    if in_graph and box is not None:
        raise ValueError("`in_graph` is for parameters without bounds: leave out one of the two.")
    units = mean_units(model, variables, data[0] if data else getattr(model, "data", None))
    coordinates = LogSpace(variables, model.trainable_parameters, inducing_inputs(model), units)

    def build() -> GraphRun:
        climb = Climb(Loss(model.training_loss, variables), coordinates, tolerance)
        return GraphRun(climb, jit_compile, data)

    run = if_wanted(in_graph, build) if box is None else None
    if run is not None:
        return run
    evaluate = lbfgs.Evaluation(model.training_loss, variables, jit_compile, *data)
    return lbfgs.Run(coordinates, evaluate, tolerance, box)


def _run_of_some(
    model: Any,
    data: Sequence[Any],
    run: AnyRun,
    variables: Sequence[tf.Variable],
    some: Sequence[tf.Variable],
    jit_compile: bool | None,
    tolerance: float,
) -> AnyRun:
    """Return a run in some of the variables; on the host it shares the evaluation of the run in all."""
    coordinates = LogSpace(list(some), model.trainable_parameters)
    if isinstance(run, GraphRun):
        climb = Climb(Loss(model.training_loss, some), coordinates, tolerance)
        return GraphRun(climb, jit_compile, data)
    return lbfgs.Run(coordinates, run.evaluate, tolerance)


@recipe("lbfgs", LBFGSOptions)
def lbfgs_of_all(model: BayesianModel, run: Run, options: LBFGSOptions) -> Plan:
    """Return the plan that trains all parameters of any GPflow model on all data by L-BFGS."""
    arrays, batches = training_data(model, run.data, None, run.seed)
    if batches is not None:
        raise ValueError('recipe="lbfgs" needs `data` as a pair of arrays, not a dataset.')
    return lbfgs_plan(model, arrays, run, options.iterations, options.starts, options.in_graph)


def _posterior(model: BayesianModel, variables: Sequence[tf.Variable]) -> list[tf.Variable]:
    """Return the trainable variables of q, where not only they are among the variables that move."""
    parts = [getattr(model, name, None) for name in ("q_mu", "q_sqrt")]
    found = [part.unconstrained_variable for part in parts if isinstance(part, Parameter) and part.trainable]
    return found if len(found) < len(variables) else []


def constants(arrays: tuple[Any, Any] | None) -> tuple[Any, ...]:
    """Return what a loss is called with: a pair of tensors, or nothing where the model holds its data."""
    return () if arrays is None else (tuple(tf.constant(part) for part in arrays),)


def known_data(model: BayesianModel, arrays: tuple[Any, Any] | None) -> Sequence[Any]:
    """Return (X, Y) of the arrays or of the model, nothing where there are none or X is to be found."""
    held = getattr(model, "data", None) if arrays is None else arrays
    if not isinstance(held, tuple | list) or isinstance(held[0] if held else None, Parameter):
        return ()
    return [part.read_value() if isinstance(part, tf.Variable) else part for part in held[:2]]


def is_an_estimate(model: BayesianModel, data: Sequence[Any], run: Run) -> bool:
    """Tell whether a loss is another at each call, as that of a Monte Carlo likelihood is.

    One that begins each evaluation where it has ended the last one comes to rest. The function that is
    compiled is that of `LBFGSSteps`; it is called only where its graph leaves the question open.
    """
    evaluate = lbfgs.Evaluation(model.training_loss, model.trainable_variables, run.jit_compile, *data)
    if evaluate.is_pure():
        return False
    first, second = evaluate()[0], evaluate()[0]
    return not (_agree(first, second) or _agree(second, evaluate()[0]))


def _agree(first: float, second: float) -> bool:
    return bool(np.isclose(first, second, rtol=_SAME, atol=_SAME, equal_nan=True))


def lbfgs_plan(
    model: BayesianModel,
    arrays: tuple[Any, Any] | None,
    run: Run,
    iterations: int = LBFGSOptions.iterations,
    starts: int | None = None,
    in_graph: bool | None = None,
) -> Plan:
    """Return the plan for a model and its data, where it does not hold them; else see `LBFGSOptions`."""
    variables = model.trainable_variables
    if not variables:
        raise ValueError("The model has no trainable variables: nothing to fit. Use gpflow.set_trainable.")
    data = constants(arrays)
    known = known_data(model, arrays)
    number = number_of_starts(model, starts, *known)
    further = further_starts(model, number - 1, run.seed, *known)
    solver = LBFGSSteps(
        model,
        data,
        variables,
        iterations,
        run.jit_compile,
        starts=further,
        posterior=_posterior(model, variables),
        in_graph=in_graph,
    )
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=100,
        tolerance=lbfgs.gain_of_a_step(variables, valley=False),
        trackables={"solver": solver},
        settings={
            "recipe": "lbfgs",
            "iterations": iterations,
            "starts": starts,
            "seed": run.seed,
            **where(solver.run),
        },
        data=arrays,
        tried=lambda: solver.tried,
    )
