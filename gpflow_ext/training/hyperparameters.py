"""Hyperparameters by L-BFGS on the objective at the fixed point of the sites, whatever the site method."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias

import gpflow
import tensorflow as tf

from gpflow_ext.compiled import examine, replica
from gpflow_ext.compiled.structure import Apart
from gpflow_ext.data.checks import Array
from gpflow_ext.data.parts import parts
from gpflow_ext.sites.algebra import Sites
from gpflow_ext.training import deadline, lbfgs
from gpflow_ext.training.lbfgs_in_graph import Climb, GraphRun
from gpflow_ext.training.log_space import LogSpace, inducing_inputs
from gpflow_ext.training.solver import InGraph, Progress, Settling, SiteSolver
from gpflow_ext.training.starts import OWN, Further, Spare, Start, Tried, are_enough, best

WORKERS = 2  # threads that climb from further starts; the ends are those of one
_SHARE = 0.1  # of the relative gain that a trial promises: a violation that its evaluation may leave
_LOOSEST = 1e-3  # violation that one may leave


class _Course(Apart):
    """Where a climb is: kept apart from the ascent, since TensorFlow wraps what its modules hold."""

    latest: Progress | None = None  # of the last evaluation
    reached: Progress | None = None  # of the iterate, if that was evaluated in this part
    at_iterate: Sites | None = None
    left = False  # whether the sites are no longer those at the iterate


_End: TypeAlias = tuple[Tried, Progress, list[tf.Tensor], Sites]


class Sited(Protocol):
    """Protocol of a model for the ascent, a ``tf.Module``."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""


def enough(promised: Any, stationarity: float) -> Any:
    """Return the violation at which the sites of a trial are settled enough, at least ``stationarity``.

    The objective is nearly stationary in the sites, so that a violation much below the relative gain leaves
    the search where it would go. As the gain falls the sites settle: the end of a run is that of exact ones.

    Parameters
    ----------
    promised
        The relative gain that the trial promises, see `guarded.promise`, a number or a tensor [].
    stationarity
        The violation that counts as none.
    """
    least = tf.minimum if isinstance(promised, tf.Tensor) else min
    most = tf.maximum if isinstance(promised, tf.Tensor) else max
    return most(least(_SHARE * promised, _LOOSEST), stationarity)


class OptimisedLoss:
    """Minus the objective at the fixed point of the sites, as a run in the graph lowers it.

    Parameters
    ----------
    settling
        Brings the sites there.
    steps, tolerance
        Updates of the sites in an evaluation, at most, and the violation that ends them at last.
    dtype
        Of the sites.
    """

    def __init__(self, settling: Settling, steps: int, tolerance: float, dtype: tf.DType) -> None:
        self._settling, self._steps, self._tolerance, self._dtype = settling, steps, tolerance, dtype
        self.violation = tf.Variable(math.inf, trainable=False, dtype=tf.float64)  # of the last evaluation
        self.promised = tf.Variable(0.0, trainable=False, dtype=tf.float64)  # of the next, see `Climb`

    def value_and_gradient(self, *data: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """See `Loss.value_and_gradient`; NaN where the sites cannot be brought there."""
        tolerance = tf.cast(enough(self.promised.read_value(), self._tolerance), self._dtype)
        outcome, gradient = self._settling.evaluate(*data, self._steps, tolerance)
        self.violation.assign(tf.cast(outcome[1], tf.float64))
        return -outcome[0], [-part for part in gradient]


class HyperparameterAscent(tf.Module):
    """One run of L-BFGS on the optimised objective, in steps of some iterations.

    In each evaluation the sites are brought near their fixed point at the new hyperparameters, as near as is
    `enough`, warm-started from those at the iterate of L-BFGS, so that a distant trial leaves no trace if
    there are several fixed points. The gradient is that of the objective there with the sites held fixed, at
    a fixed point exact by the envelope theorem. Positive parameters move in log space; see `log_space`. A
    step never lowers the objective. It depends on the variables of the model and of the ascent alone: a
    restart from a checkpoint repeats it exactly.

    Parameters
    ----------
    solver
        The solver of the sites.
    model
        The model.
    variables
        Its hyperparameters.
    site_updates
        Updates of the sites in an evaluation, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    tolerance
        Relative gain of an iteration that counts as none; see `lbfgs.Run`.
    stationarity
        The violation that ends the updates of the sites.
    starts
        Further starts: the first step climbs from each of them too, and keeps the best.
    spare
        Further starts for where the objective is not finite at the first.
    inputs, units
        See `LogSpace`; by default the inducing inputs of the model and the solver, and one.
    in_graph
        What the solver evaluates by, where the iterations are done in the graph, see `lbfgs_in_graph`; else
        they are done on the host.
    """

    def __init__(
        self,
        solver: SiteSolver,
        model: Sited,
        variables: Sequence[tf.Variable],
        *,
        site_updates: int,
        hyper_updates: int,
        tolerance: float,
        stationarity: float,
        starts: Sequence[Start] = (),
        spare: Spare | None = None,
        inputs: Sequence[tf.Variable] | None = None,
        units: Sequence[Array] | None = None,
        in_graph: InGraph | None = None,
    ) -> None:
        super().__init__()
        self.solver, self._model, self._variables = solver, model, list(variables)
        self._site_updates, self._hyper_updates = site_updates, hyper_updates
        self._stationarity, self._course = stationarity, _Course()
        self._further, self._spare = Further(starts), spare or Spare()
        self.tried: tuple[Tried, ...] = ()
        points = inducing_inputs(self) if inputs is None else inputs
        self.run = self._new_run(points, units, tolerance, in_graph)
        self.started = tf.Variable(not starts, trainable=False)  # whether the choice between starts is made
        self.last = tf.Variable([math.nan, math.inf], trainable=False, dtype=tf.float64)

    def _new_run(
        self,
        inputs: Sequence[tf.Variable],
        units: Sequence[Array] | None,
        tolerance: float,
        in_graph: InGraph | None,
    ) -> Any:
        coordinates = LogSpace(self._variables, parts(self._model, gpflow.Parameter), inputs, units)
        if in_graph is None:
            return lbfgs.Run(coordinates, self._evaluate, tolerance, arrived=self._arrive)
        bounds = self._site_updates, self._stationarity, in_graph.sites[0].dtype
        self._loss = OptimisedLoss(in_graph.settling, *bounds)
        carried = [*in_graph.sites, self._loss.violation]
        climb = Climb(self._loss, coordinates, tolerance, carried, promised=self._loss.promised)
        return GraphRun(climb, in_graph.jit_compile, in_graph.data)

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [*self.solver.state, *self.run.variables, self.started, self.last]

    def start(self) -> Progress:
        """See `Solver`: begin a new run of L-BFGS where the hyperparameters are."""
        self.run.restart()
        return Progress(math.nan) if isinstance(self.run, GraphRun) else self._settle()

    def step(self) -> Progress:
        """See `Solver`; after the end of the run there is nothing to do."""
        last = Progress(*self.last.numpy().tolist())
        if bool(self.run.ended) and (last.violation <= self._stationarity or math.isinf(last.violation)):
            return last
        progress = self._climb() if bool(self.started) else self._climb_from_each(self._further)
        if math.isnan(progress.objective) and math.isnan(last.objective):
            spare = self._spare.starts(self._model)
            progress = self._climb_from_each(Further(spare)) if spare else progress
        self.started.assign(True)
        self.last.assign(progress)
        return progress

    def _climb_from_each(self, further: Further) -> Progress:
        """Climb from here and further starts, on copies where there can be any, and go to the best end."""
        here, sites = [variable.read_value() for variable in self._variables], self._model.sites
        until, done = deadline.current(), list[Tried]()  # in the order of their ends

        def climb(ascent: HyperparameterAscent, start: Start) -> _End | None:
            with until.observed():  # in a thread of the pool
                if are_enough(done):
                    return None
                ascent._move(start.values, sites)
                ascent.run.restart()
                progress = ascent._climb()
            tried = Tried(start.name, progress.objective)
            done.append(tried)
            values = [variable.read_value() for variable in ascent._moving]
            return tried, progress, values, ascent._model.sites

        starts = (Start(OWN, here), *further.starts)
        copies = self._copies(len(starts))
        with ThreadPoolExecutor(1 if copies[0] is self else WORKERS) as pool:
            ends = [end for end in pool.map(climb, copies, starts) if end is not None]
        self.tried = tuple(end[0] for end in ends)
        _, progress, kept, sites = ends[best(self.tried)]
        self._move(kept, sites)
        return progress

    def _copies(self, number: int) -> list[HyperparameterAscent]:
        """Return replicas, or the ascent itself where there can be none, as with distributed variables."""
        if not examine(self).refused:
            with contextlib.suppress(Exception):  # of any kind, from a user's own class
                return [replica(self) for _ in range(number)]
        return [self] * number

    @property
    def _moving(self) -> list[tf.Variable]:
        return [*self._variables, *self.run.variables, *self.solver.state]

    def _climb(self) -> Progress:
        """Do a part of the run; what ends at an edge of where the objective is finite is not at rest."""
        reached = self._go_on()
        return reached._replace(violation=math.inf) if self.run.barred else reached

    def _go_on(self) -> Progress:
        if isinstance(self.run, GraphRun):
            self.run.climb(self._hyper_updates)
            return self._at_best(Progress(float(self.run.best), float(self._loss.violation)))
        course, sites = self._course, self._model.sites
        course.at_iterate, course.left, course.reached = sites, False, None
        raised = self.run.climb(self._hyper_updates)
        if raised and self.run.at_latest:
            return self._at_best(course.latest)
        self._model.assign_sites(course.at_iterate if raised else sites)
        return self._at_best(course.reached if raised and not bool(self.run.ended) else None)

    def _at_best(self, here: Progress | None) -> Progress:
        """Return where a part has ended; settle where the run has, unless the sites are at rest.

        A run that goes on finds the sites as they were at its iterate, so that it does not depend on where a
        part ends. Sites that leave stay as they were, their violation unknown.
        """
        if here is not None and (here.violation <= self._stationarity or not bool(self.run.ended)):
            return here
        found = self._settle()
        return found if math.isfinite(found.objective) else Progress(float(self.run.best), math.inf)

    def _settle(self) -> Progress:
        return Progress(*self.solver.evaluate(self._site_updates, self._stationarity)[:2])

    def _evaluate(self) -> tuple[float, Sequence[tf.Tensor]]:
        course = self._course
        if course.left and course.at_iterate is not None:
            self._model.assign_sites(course.at_iterate)
        course.left = True
        violation = enough(self.run.promised, self._stationarity)
        found = self.solver.evaluate(self._site_updates, violation)
        course.latest = Progress(found.objective, found.violation)
        return found.objective, found.gradient

    def _arrive(self) -> None:
        course = self._course
        course.at_iterate, course.left, course.reached = self._model.sites, False, course.latest

    def _move(self, values: Sequence[tf.Tensor], sites: Sites) -> None:
        for variable, value in zip(self._moving, values, strict=False):
            variable.assign(value)
        self._model.assign_sites(sites)
