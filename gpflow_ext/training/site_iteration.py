"""The solver of every site method: its pure steps compiled once, its state in variables."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.sites.algebra import Sites
from gpflow_ext.sites.method import SitedModel, SiteMethod
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Progress

SMALLEST_GAIN = 1e-10  # relative: an iteration that gains no more is at rest


class SiteIteration(tf.Module):
    """Steps of a site method at the model's present hyperparameters.

    A step that is not finite is undone and reported as NaN: the sites are assigned only when they are finite.

    Parameters
    ----------
    model
        The model.
    method
        How its sites are proposed.
    variables
        The hyperparameters in which `differentiate` gives the gradient.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(
        self,
        model: SitedModel,
        method: SiteMethod,
        variables: Sequence[tf.Variable] = (),
        jit_compile: bool | None = None,
    ) -> None:
        super().__init__()
        method.check(model)
        self._model, self._method, jit = model, method, resolve_jit(jit_compile)
        watched = list(variables)

        def compiled(function: Callable[..., Any]) -> Any:
            return tf.function(function, jit_compile=jit, autograph=False)

        def value(prior: Any) -> tf.Tensor:
            return method.objective(model, prior, model.sites) + model.log_prior_density()

        def gradient() -> tuple[tf.Tensor, list[tf.Tensor]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(watched)
                found = method.at_rest(model, model.prior(), self.current) + model.log_prior_density()
            return found, tape.gradient(found, watched, unconnected_gradients="zero")

        self._prior = tf.function(model.prior, autograph=False)
        self._begin = compiled(functools.partial(method.begin, model))
        self._step = compiled(lambda prior: self._assign(method.step(model, prior, self.current)))
        self._value, self._gradient = compiled(value), compiled(gradient)
        self._take = tf.function(self._assign, autograph=False)
        self.prior: Any = self._prior()
        like = self._begin.get_concrete_function(self.prior, model.sites).structured_outputs
        self._packed = functools.partial(tf.nest.pack_sequence_as, like)
        self.point = [
            tf.Variable(tf.zeros(part.shape, part.dtype), trainable=False) for part in tf.nest.flatten(like)
        ]
        self.start()

    @property
    def current(self) -> Any:
        """The present state of the method."""
        return self._packed([part.read_value() for part in self.point])

    @property
    def state(self) -> list[tf.Variable]:
        """See `Solver`."""
        return list(self.point)

    def start(self) -> Progress:
        """See `Solver`; the objective is without log priors, and NaN where the state does not hold it."""
        self.prior = self._prior()
        return Progress(*self._take(self._begin(self.prior, self._model.sites)).numpy().tolist())

    def step(self) -> Progress:
        """See `Solver`."""
        known, violation = self._step(self.prior).numpy().tolist()
        if math.isnan(violation):
            return Progress(math.nan, violation)
        if math.isnan(known):
            return Progress(float(self._value(self.prior)), violation)
        return Progress(known + float(self._model.log_prior_density()), violation)

    def settle(self, max_steps: int, tolerance: float) -> Progress:
        """See `SiteSolver`; also ends where the objective, if it is known, gains no more than rounding."""
        progress = self.start()
        for _ in range(max_steps):
            if not progress.violation > tolerance:  # near, or NaN
                break
            last, progress = progress, Progress(*self._step(self.prior).numpy().tolist())
            if progress.objective - last.objective <= SMALLEST_GAIN * max(1.0, abs(progress.objective)):
                break
        return progress

    def differentiate(self) -> tuple[float, Sequence[tf.Tensor]]:
        """See `SiteSolver`."""
        value, gradient = self._gradient()
        return float(value), gradient

    def _assign(self, new: Any) -> tf.Tensor:
        """Take over a state; one that is not finite leaves everything as it was, and returns NaN."""
        parts, old, proposed = tf.nest.flatten(new), self._model.sites, new.sites
        sound = [tf.reduce_all(tf.math.is_finite(part)) for part in proposed]
        sound += [tf.reduce_all(~tf.math.is_nan(part)) for part in parts if part.dtype.is_floating]
        finite = tf.reduce_all(sound)
        for variable, part in zip(self.point, parts, strict=True):
            variable.assign(tf.where(finite, part, variable))
        kept = (tf.where(finite, after, before) for after, before in zip(proposed, old, strict=True))
        self._model.assign_sites(Sites(*kept))
        outcome = tf.stack([self._method.known(new), new.violation])
        return tf.where(finite, outcome, tf.constant(np.nan, outcome.dtype))
