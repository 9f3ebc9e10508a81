"""The solvers of every site method: their pure updates are compiled once for each structure of a model."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.sites.algebra import Prior, Sites, as_one_function
from gpflow_ext.sites.method import SMALLEST_GAIN, SitedModel, SiteMethod
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Evaluation, Progress

_LONG = 5_000  # data of a state space from which XLA is worth its time


class SiteUpdates(tf.Module):
    """Functions to compile, of a model's variables and data, without any state of their own.

    Sites are assigned only when they are finite.
    """

    def __init__(self, model: SitedModel, method: SiteMethod, variables: Sequence[tf.Variable]) -> None:
        super().__init__()
        self._model, self._method, self._variables = model, method, list(variables)

    def prior(self) -> Prior:
        """Return the prior at the training inputs."""
        return self._model.prior()

    def begin(self, prior: Prior) -> tuple[Any, tf.Tensor]:
        """Return the state at the model's sites, with its objective, if known, and violation, [2]."""
        return self._keep(self._method.begin(self._model, prior, self._model.sites))

    def step(self, prior: Prior, state: Any) -> tuple[Any, tf.Tensor]:
        """Return the state after an update, with its objective, if known, and violation; NaN where undone."""
        model = self._model
        with as_one_function(model.expectation, model.sites.nat1):
            return self._keep(self._method.step(model, prior, state))

    def valued_step(self, prior: Prior, state: Any) -> tuple[Any, tf.Tensor]:
        """Do the same as `step`, but with the objective in any case, log priors included."""
        new, numbers = self.step(prior, state)
        value = self._method.value(self._model, prior, new) + self._model.log_prior_density()
        return new, tf.stack([value, numbers[1]])

    def evaluate(
        self, steps: int | tf.Tensor, tolerance: float | tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Bring the sites to their fixed point; return objective and violation, [2], and the gradient.

        One graph: the prior is built once, with the tape that takes the gradient, and the iteration runs
        aside from it.
        """
        model, method, before = self._model, self._method, self._model.sites
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            prior = model.prior()
            with tape.stop_recording():
                state, finite = method.solve(model, prior, before, steps, tolerance, SMALLEST_GAIN)
            value = method.at_rest(model, prior, state) + model.log_prior_density()
        gradient = tape.gradient(value, self._variables, unconnected_gradients="zero")
        finite &= tf.math.is_finite(value)
        self._assign(state.sites, before, finite)
        return _or_nan(finite, tf.stack([value, state.violation])), gradient

    def _keep(self, new: Any) -> tuple[Any, tf.Tensor]:
        """Assign the sites of a state; return it and its outcome, which is NaN where it is not finite."""
        parts = tf.nest.flatten(new)
        sound = [tf.reduce_all(tf.math.is_finite(part)) for part in new.sites]
        sound += [tf.reduce_all(~tf.math.is_nan(part)) for part in parts if part.dtype.is_floating]
        finite = tf.reduce_all(sound)
        self._assign(new.sites, self._model.sites, finite)
        return new, _or_nan(finite, tf.stack([self._method.known(new), new.violation]))

    def _assign(self, sites: Sites, before: Sites, finite: tf.Tensor) -> None:
        parts = zip(sites, before, strict=True)
        self._model.assign_sites(Sites(*(tf.where(finite, new, old) for new, old in parts)))


def _jit(model: Any, jit_compile: bool | None) -> bool:
    """Return whether to compile with XLA: as asked, and by default where it is faster; see `resolve_jit`.

    The loops over time of a state space are ten times faster with it, on a CPU too, and take it about ten
    seconds to compile.
    """
    if jit_compile is None and getattr(model, "prior_name", None) == "markov" and len(model.data[0]) >= _LONG:
        return True
    return resolve_jit(jit_compile)


def _or_nan(finite: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(finite, values, tf.constant(np.nan, values.dtype))


class SiteIteration(tf.Module):
    """Steps of a site method at the model's current hyperparameters.

    A step that is not finite is undone and reported as NaN.

    Parameters
    ----------
    model
        The model.
    method
        How its sites are proposed.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    updates, enough
        Updates of the sites in a step, at most; they end at a violation of ``enough``. With more than one the
        objective is computed after the last of them alone, where it costs more than an update.
    """

    def __init__(
        self,
        model: SitedModel,
        method: SiteMethod,
        jit_compile: bool | None = None,
        updates: int = 1,
        enough: float = 0.0,
    ) -> None:
        super().__init__()
        method.check(model)
        self._number, self._enough = updates, enough
        self._updates = SiteUpdates(model, method, ())
        self._compiled = Compiled(self._updates, _jit(model, jit_compile))
        self.prior = self._compiled(self._updates.prior)
        like, _ = self._compiled.specification(self._updates.begin, self.prior)
        self._packed = functools.partial(tf.nest.pack_sequence_as, like)
        self.point = [
            tf.Variable(
                tf.zeros([0 if n is None else n for n in part.shape], part.dtype), False, shape=part.shape
            )
            for part in tf.nest.flatten(like)
        ]
        self._begin()

    @property
    def current(self) -> Any:
        """The current state of the method."""
        return self._packed(list(map(tf.convert_to_tensor, self.point)))

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return list(self.point)

    def start(self) -> Progress:
        """See `Solver`; the objective is without log priors, and NaN where the state does not hold it."""
        self.prior = self._compiled(self._updates.prior)
        return self._begin()

    def step(self) -> Progress:
        """See `Solver`."""
        for _ in range(self._number - 1):
            last = self._take(self._compiled(self._updates.step, self.prior, self.current))
            if not last.violation > self._enough:
                break
        progress = self._take(self._compiled(self._updates.valued_step, self.prior, self.current))
        return Progress(math.nan, math.nan) if math.isnan(progress.violation) else progress

    def settle(self, max_steps: int, tolerance: float) -> Progress:
        """Start, then step until the violation is within the tolerance; the objective may be NaN.

        It also ends where the objective, if it is known, gains no more than rounding.
        """
        progress = self.start()
        for _ in range(max_steps):
            if not progress.violation > tolerance:  # near, or NaN
                break
            last = progress
            progress = self._take(self._compiled(self._updates.step, self.prior, self.current))
            if progress.objective - last.objective <= SMALLEST_GAIN * max(1.0, abs(progress.objective)):
                break
        return progress

    def _begin(self) -> Progress:
        return self._take(self._compiled(self._updates.begin, self.prior))

    def _take(self, outcome: tuple[Any, tf.Tensor]) -> Progress:
        state, numbers = outcome
        progress = Progress(*numbers.numpy().tolist())
        if not math.isnan(progress.violation):
            for variable, part in zip(self.point, tf.nest.flatten(state), strict=True):
                variable.assign(part, read_value=False)
        return progress


class SiteOptimum(tf.Module):
    """The objective at the fixed point of the sites, as a function of the hyperparameters; see `SiteSolver`.

    Parameters
    ----------
    model, method, jit_compile
        As for `SiteIteration`.
    variables
        The hyperparameters.
    """

    def __init__(
        self,
        model: SitedModel,
        method: SiteMethod,
        variables: Sequence[tf.Variable],
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__()
        method.check(model)
        self.settling, self.jit_compile = SiteUpdates(model, method, variables), _jit(model, jit_compile)
        self._compiled = Compiled(self.settling, self.jit_compile)
        self._dtype = model.sites.nat1.dtype

    @property
    def state(self) -> list[tf.Variable]:
        """See `SiteSolver`: it starts from the model's sites."""
        return []

    def evaluate(self, max_steps: int, tolerance: float) -> Evaluation:
        """See `SiteSolver`."""
        bounds = tf.constant(max_steps), tf.constant(tolerance, self._dtype)
        outcome, gradient = self._compiled(self.settling.evaluate, *bounds)
        objective, violation = outcome.numpy().tolist()
        return Evaluation(objective, violation, gradient)
