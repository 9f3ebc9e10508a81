"""Starts of recipes by small steps: some are taken from each start, and the run begins anew at the best."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.training import deadline
from gpflow_ext.training.open_end import SECONDS
from gpflow_ext.training.recipe import Plan, Run
from gpflow_ext.training.solver import Progress, Solver
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

_SHARE = 10  # of the steps and of the seconds of a run, one in so many is a trial's
_FEWEST = 100  # steps of a run by which trials are measured, even where fewer are asked for


@dataclass(frozen=True)
class StartOptions:
    """Options of a recipe by small steps that has no others, and a part of those of the rest.

    Attributes
    ----------
    starts
        Starting points of the hyperparameters, the model's own among them; see
        `training.site_recipe.SiteOptions`. From each a tenth of the recipe's default number of steps is
        taken, or of `fit`'s ``steps`` where these are fewer, on the same minibatches, or as many as a tenth
        of `fit`'s ``seconds`` allows, six seconds by default. The run then begins anew at the one whose
        objective was highest on average over the second half of them.
    """

    starts: int | None = 1

    def __post_init__(self) -> None:
        """Check the range."""
        check_starts(self.starts)


class Trials(tf.Module):
    """A solver whose first step begins at the best of several starts.

    Parameters
    ----------
    model
        The model.
    build
        Makes a plan that begins where the model is.
    solver
        That of the plan that goes on.
    starts
        Further starts than the model's own.
    run
        What `fit` was asked for, which limits a trial.
    optimizer
        Keeps variables of its own, which a user's optimiser shares among all plans.
    """

    def __init__(
        self,
        model: BayesianModel,
        build: Callable[[], Plan],
        solver: Solver,
        starts: Sequence[Start],
        run: Run,
        optimizer: Any = None,
    ) -> None:
        super().__init__()
        self._model, self._build, self.solver, self._further = model, build, solver, Further(starts)
        self._run, self._optimizer = run, optimizer
        with tf.device("CPU"):  # the host reads it before each step
            self.started = tf.Variable(not starts, trainable=False)
        self.tried: tuple[Tried, ...] = ()

    @property
    def state(self) -> Sequence[tf.Variable]:
        """See `Solver`."""
        return self.solver.state

    def start(self) -> Progress:
        """See `Solver`."""
        return self.solver.start()

    def step(self) -> Progress:
        """See `Solver`."""
        if not self.started:
            self._choose()
            self.started.assign(True)
            self.solver.start()
        return self.solver.step()

    def _choose(self) -> None:
        """Try each start, and leave the model as it was but for the values of the best one."""
        moving = [*self._model.variables, *(() if self._optimizer is None else self._optimizer.variables)]
        kept, trainable = [variable.read_value() for variable in moving], self._model.trainable_variables
        starts = (Start(OWN, [v.read_value() for v in trainable]), *self._further.starts)
        tried, most = list[Tried](), math.inf
        for start in starts:
            if are_enough(tried):
                break
            assign(trainable, start.values)
            objectives = _objectives(self._build(), most, self._run)
            tried.append(Tried(start.name, float(np.mean(objectives[len(objectives) // 2 :]))))
            if not math.isnan(tried[-1].objective):
                most = len(objectives)  # the others are judged by as many steps as this one had time for
            assign(moving, kept)
        assign(trainable, starts[best(tried)].values)
        self.tried = tuple(tried)


def _objectives(plan: Plan, most: float, run: Run) -> list[float]:
    """Return the objectives of a trial's steps, two at least unless one is NaN, which is then the last.

    The time of the first step, which compiles, is not counted.
    """
    found, begin = [plan.solver.step().objective], time.perf_counter()
    steps = plan.steps if run.steps is None else min(plan.steps, max(_FEWEST, run.steps))
    number = min(most, max(2, math.ceil(steps / _SHARE)))
    seconds = (min(run.seconds, SECONDS) if run.open_ended else run.seconds) / _SHARE

    def is_over() -> bool:
        return time.perf_counter() - begin > seconds or deadline.current().is_over

    while len(found) < number and not math.isnan(found[-1]) and not (len(found) > 1 and is_over()):
        found.append(plan.solver.step().objective)
    return found


def tried(
    build: Callable[[], Plan], model: BayesianModel, run: Run, starts: int | None, plan: Plan | None = None
) -> Plan:
    """Return the plan of small steps that begins at the best of several starts.

    Parameters
    ----------
    build
        Makes a plan that begins where the model is; called for each start.
    model, run
        What `fit` was asked for.
    starts
        The number asked for; by default that of `number_of_starts` where the data are arrays, else one.
    plan
        The plan that goes on, if it is made already.

    Raises
    ------
    ValueError
        For several starts with a ``strategy``.
    """
    if run.strategy is not None and (starts or 1) > 1:
        raise ValueError("`starts` are for one device: leave them out with `strategy`.")
    plan = build() if plan is None else plan
    held = getattr(model, "data", None) if plan.data is None else plan.data
    known = held[:2] if isinstance(held, tuple | list) else ()
    if starts == 1:
        return plan
    if starts is None and (not known or run.strategy is not None):
        number = 1
    else:
        number = number_of_starts(model, starts, *known)
    further = further_starts(model, number - 1, run.seed, *known)
    solver = Trials(model, build, plan.solver, further, run, plan.trackables.get("optimizer"))
    return dataclasses.replace(
        plan,
        solver=solver,
        trackables=plan.trackables | {"started": solver.started},
        settings=plan.settings | {"starts": starts, "seed": run.seed},
        tried=lambda: solver.tried,
    )
