"""Hyperparameters by L-BFGS on the objective at the fixed point of the sites, whatever the site method."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.sites.algebra import Sites
from gpflow_ext.training import lbfgs
from gpflow_ext.training.solver import Progress, SiteSolver


class Sited(Protocol):
    """What the ascent needs of a model."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""


class HyperparameterAscent(tf.Module):
    """Steps of some iterations of L-BFGS on the optimised objective.

    In each evaluation the sites are brought to their fixed point at the new hyperparameters, warm-started
    from the last ones, and the gradient is that of the objective there with the sites held fixed, exact by
    the envelope theorem. A run that does not raise the objective is undone, so a step never lowers it. It
    depends on the variables of the model and of the solver alone: a restart from a checkpoint repeats it
    exactly.

    Parameters
    ----------
    solver
        Of the sites.
    model
        The model.
    variables
        Its hyperparameters.
    site_updates
        Steps of the solver in an evaluation, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    stationarity
        The violation that ends the solver after a step.
    within
        The same in the evaluations.
    starts
        Further values of the variables: the first step climbs from each of them too, and keeps the best.
    """

    def __init__(
        self,
        solver: SiteSolver,
        model: Sited,
        variables: Sequence[tf.Variable],
        *,
        site_updates: int,
        hyper_updates: int,
        stationarity: float,
        within: float | None = None,
        starts: Sequence[Sequence[tf.Tensor]] = (),
    ) -> None:
        super().__init__()
        self.solver, self._model, self._variables = solver, model, list(variables)
        self._site_updates, self._hyper_updates = site_updates, hyper_updates
        self._stationarity, self._within = stationarity, stationarity if within is None else within
        self._starts = tuple(tuple(values) for values in starts)
        self.started = tf.Variable(not starts, trainable=False)  # whether the choice between starts is made

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return [*self.solver.state, self.started]

    def start(self) -> Progress:
        """See `Solver`."""
        return self.solver.start()

    def step(self) -> Progress:
        """See `Solver`."""
        if bool(self.started):
            return self._climb()
        self.started.assign(True)
        here, sites = [variable.read_value() for variable in self._variables], self._model.sites
        ends = []
        for values in (here, *self._starts):
            self._move(values, sites)
            progress = self._climb()
            ends.append((progress, [v.read_value() for v in self._variables], self._model.sites))
        best, values, sites = max(ends, key=lambda end: np.nan_to_num(end[0].objective, nan=-np.inf))
        self._move(values, sites)
        self.solver.start()
        return best

    def _climb(self) -> Progress:
        sites = self._model.sites
        if not lbfgs.climb(self._variables, self._evaluate, self._hyper_updates):
            self._model.assign_sites(sites)
        violation = self.solver.settle(self._site_updates, self._stationarity).violation
        return Progress(math.nan if math.isnan(violation) else self.solver.differentiate()[0], violation)

    def _evaluate(self) -> tuple[float, Sequence[tf.Tensor]]:
        violation = self.solver.settle(self._site_updates, self._within).violation
        value, gradient = self.solver.differentiate()
        return math.nan if math.isnan(violation) else value, gradient

    def _move(self, values: Sequence[tf.Tensor], sites: Sites) -> None:
        gpflow.optimizers.Scipy.assign_tensors(self._variables, values)
        self._model.assign_sites(sites)


def further_starts(model: BayesianModel, number: int, seed: int) -> list[list[tf.Tensor]]:
    """Return values for the model's trainable variables, its positive parameters multiplied at random.

    Each by a log-normal factor of deviation 2.
    """
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
