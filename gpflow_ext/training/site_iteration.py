"""The solvers of every site method: their pure updates are compiled once for each structure of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.sites.algebra import Sites
from gpflow_ext.sites.method import SMALLEST_GAIN, SitedModel, SiteMethod
from gpflow_ext.sites.vecchia.structure import Structure
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Evaluation, Progress, Settled

PATIENCE = 50  # updates far from rest after which a method makes room for its finisher
FAR = 10.0  # times the tolerance: a violation that rounding or flatness does not explain
_LONG = 5_000  # data of a state space from which XLA is worth its time
_LONG_SIGNED = 3_000  # where precisions may be negative, which takes two to four times as many updates


class SiteUpdates(tf.Module):
    """Functions to compile, of a model's variables and data, without any state of their own.

    Sites are assigned only when they are finite.
    """

    def __init__(self, model: SitedModel, method: SiteMethod, variables: Sequence[tf.Variable]) -> None:
        super().__init__()
        self._model, self._method, self._variables = model, method, list(variables)

    def evaluate(
        self, steps: int | tf.Tensor, tolerance: float | tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Bring the sites to their fixed point; return objective and violation, [2], and the gradient.

        Both are NaN where no fixed point is near, see `SiteMethod.is_near`. Without steps the sites stay as
        they are, to the last digit.

        One graph: the prior is built once, with the tape that takes the gradient, and the iteration runs
        aside from it.
        """
        model, method, before = self._model, self._method, self._model.sites
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            prior = model.prior()
            with tape.stop_recording():
                state, finite = method.solve(model, prior, before, steps, tolerance, SMALLEST_GAIN)
            at_rest = method.at_rest if self._variables else method.value
            value = at_rest(model, prior, state) + model.log_prior_density()
        gradient = tape.gradient(value, self._variables, unconnected_gradients="zero")
        finite &= tf.math.is_finite(value) & method.is_near(state.violation, steps)
        self._assign(state.sites, before, finite & (steps > 0))
        return _or_nan(finite, tf.stack([value, state.violation])), gradient

    def _assign(self, sites: Sites, before: Sites, finite: tf.Tensor) -> None:
        parts = zip(sites, before, strict=True)
        self._model.assign_sites(Sites(*(tf.where(finite, new, old) for new, old in parts)))


def _jit(model: Any, jit_compile: bool | None) -> bool:
    """Return whether to compile with XLA: as asked, and by default where it is faster; see `resolve_jit`.

    The loops over time of a state space are ten times faster with it, on a CPU too, and take it some two to
    five seconds to compile.
    """
    if jit_compile is None and getattr(model, "prior_name", None) == "markov":
        long = _LONG_SIGNED if getattr(model, "indefinite", False) else _LONG
        return resolve_jit(None) or len(model.data[0]) >= long
    return resolve_jit(jit_compile)


def optimises(model: Any) -> bool:
    """Return whether TensorFlow's optimisation of the graph is worth its time.

    It is where it folds transposes of large matrices into their products. In passes over time and in the tree
    of a Vecchia prior there are none: it would take up to a second, for nothing.
    """
    if isinstance(getattr(model, "structure", None), Structure):
        return bool(model.prior_options.inducing)
    return getattr(model, "prior_name", None) != "markov"


def _or_nan(finite: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    return tf.where(finite, values, tf.constant(np.nan, values.dtype))


class SiteOptimum(Settled):
    """The objective at the fixed point of the sites, as a function of the hyperparameters; see `SiteSolver`.

    Parameters
    ----------
    model
        The model.
    method
        How its sites are proposed.
    variables
        The hyperparameters.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only, and for long series.
    """

    def __init__(
        self,
        model: SitedModel,
        method: SiteMethod,
        variables: Sequence[tf.Variable],
        jit_compile: bool | None = None,
    ) -> None:
        method.check(model)
        how = model.sites.nat1.dtype, _jit(model, jit_compile), (), optimises(model)
        super().__init__(SiteUpdates(model, method, variables), *how)
        finisher, self._by_finisher = method.finisher(model), None
        if finisher is not None:
            self._by_finisher = Settled(SiteUpdates(model, finisher, variables), *how)
        self.restless = tf.Variable(0, trainable=False)  # updates since the sites last were near rest

    @property
    def state(self) -> list[tf.Variable]:
        """See `SiteSolver`: it starts from the model's sites."""
        return [] if self._by_finisher is None else [self.restless]

    def evaluate(self, max_steps: int, tolerance: float) -> Evaluation:
        """See `SiteSolver`: by the method, or its finisher once `PATIENCE` updates have not led near rest."""
        if self._by_finisher is None:
            return super().evaluate(max_steps, tolerance)
        if self.restless < PATIENCE:
            found = super().evaluate(max_steps, tolerance)
            self.restless.assign(self.restless + max_steps if found.violation > FAR * tolerance else 0)
            if self.restless < PATIENCE:
                return found
        return self._by_finisher.evaluate(max_steps, tolerance)


class SiteSteps(tf.Module):
    """Updates of the sites at the model's current hyperparameters, several in a step.

    They and the objective after the last of them are one compiled call. A step that is not finite changes
    nothing and is reported as NaN.

    Parameters
    ----------
    optimum
        Evaluates the objective, with or without hyperparameters of its own.
    updates, enough
        Updates in a step, at most; they end at a violation of ``enough``.
    """

    def __init__(self, optimum: SiteOptimum, updates: int, enough: float) -> None:
        super().__init__()
        self.optimum, self.updates, self.enough = optimum, updates, enough

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`: a step begins from the model's sites."""
        return []

    def start(self) -> Progress:
        """See `Solver`."""
        return self._after(0)

    def step(self) -> Progress:
        """See `Solver`."""
        return self._after(self.updates)

    def _after(self, updates: int) -> Progress:
        objective, violation, _ = self.optimum.evaluate(updates, self.enough)
        return Progress(objective, violation)
