"""Inference for sites from local quadratics: Newton's method, and Jaakkola and Jordan's updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.laplace import expansion
from gpflow_ext.laplace.expansion import LogDensity, Point
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Expectation, Prior, Sites
from gpflow_ext.training import lbfgs
from gpflow_ext.training.loop import resolve_jit

SMALLEST_STEP = 2.0**-20  # of a Newton step in the line search


class Target(Protocol):
    """What the engine needs of a model with Gaussian sites."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def prior(self) -> Prior:
        """Return the prior at the training inputs."""

    def training_loss(self) -> tf.Tensor:
        """Return minus the objective at any sites."""

    def objective_at_rest(self) -> tf.Tensor:
        """Return the objective at a fixed point of the sites, with the gradient of the optimised one."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""


class Step(NamedTuple):
    """The outcome of one update of all sites."""

    sites: Sites
    violation: tf.Tensor  # of the fixed point, relative to 1 + prec, []


Update: TypeAlias = Callable[[Prior, Sites], Step]


def newton_start(prior: Prior, log_density: LogDensity, current: Sites) -> Step:
    """Return the sites with the mean that the given ones have, their precisions taken there. O(N³)."""
    point, _ = expansion.locate(prior, log_density, current)
    return Step(point.sites, point.violation)


def newton_step(prior: Prior, log_density: LogDensity, current: Sites) -> Step:
    """Take a Newton step towards the mode, halved until log p(y | f) + log p(f) does not fall.

    Algorithm 3.1 of Rasmussen & Williams (2006) from sites whose precisions are W at their mean. One
    factorisation; a trial of the line search is O(N).
    """
    point, factor = expansion.locate(prior, log_density, current)
    shift = point.mean - prior.mean
    delta = factor.solve(point.at.grad + current.prec * shift) - point.alpha
    move = prior.product(delta)
    least = point.log_joint(prior)
    least -= linalg.rounding_slack(least)

    def log_joint(length: tf.Tensor) -> tf.Tensor:
        alpha, moved = point.alpha + length * delta, shift + length * move
        return tf.reduce_sum(log_density(prior.mean + moved)) - 0.5 * tf.reduce_sum(alpha * moved)

    def falls(length: tf.Tensor) -> tf.Tensor:
        value = log_joint(length)  # in a graph, not (NaN >= least) would be rewritten as NaN < least: false
        fallen = tf.logical_not(tf.math.is_finite(value)) | (value < least)
        return (length > SMALLEST_STEP) & fallen

    whole = tf.ones([], least.dtype)
    (length,) = tf.while_loop(falls, lambda length: (0.5 * length,), (whole,))
    mean = point.mean + length * move
    new = Point(point.alpha + length * delta, mean, expansion.expand(log_density, mean))
    return Step(new.sites, new.violation)


def jaakkola_step(prior: Prior, expectation: Expectation, current: Sites) -> Step:
    """Set q to its optimum for ξ and ξ to its optimum for q, equations 13 and 14 of Izmailov (2016). O(N³).

    With the bound at its best ξ² = m² + v this is prec = −2 ∂v, nat1 = ∂m + prec·m: for the logit prec =
    2λ(ξ), nat1 = y − ½.
    """
    q = sites.condition(prior, current)
    _, grad, curvature = sites.expect(expectation, q.mean, q.var)
    change = tf.maximum(tf.abs(curvature - current.prec), tf.abs(grad - q.alpha))
    return Step(
        Sites(grad + curvature * q.mean, curvature), tf.reduce_max(change / (1.0 + tf.abs(current.prec)))
    )


class SiteIteration:
    """Updates of the sites, compiled once; the only state is the model's own.

    Parameters
    ----------
    target
        The model.
    step
        One update.
    start
        What to do with the sites after the prior has moved, if anything.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(self, target: Target, step: Update, start: Update | None, jit_compile: bool | None) -> None:
        self.update = step
        jit = resolve_jit(jit_compile)
        self._prior = tf.function(target.prior, autograph=False)

        def compiled(update: Update) -> Callable[[Prior], tf.Tensor]:
            def assign(prior: Prior) -> tf.Tensor:
                old = target.sites
                new = update(prior, old)
                sound = [tf.reduce_all(tf.math.is_finite(part)) for part in (*new.sites, new.violation)]
                finite = tf.reduce_all(sound)
                kept = (tf.where(finite, after, before) for after, before in zip(new.sites, old, strict=True))
                target.assign_sites(Sites(*kept))
                return tf.where(finite, new.violation, float("nan"))

            return tf.function(assign, jit_compile=jit, autograph=False)

        self._step, self._start = compiled(step), None if start is None else compiled(start)
        self.restart()

    def restart(self) -> None:
        """Read the prior again after it has moved."""
        self.prior = self._prior()
        if self._start is not None:
            self._start(self.prior)

    def step(self) -> float:
        """Do one update; return how far from the fixed point it is, NaN if it failed and changed nothing."""
        return float(self._step(self.prior))

    def settle(self, max_steps: int, tolerance: float) -> float:
        """Restart, then update until the fixed point is near; return how far it is."""
        self.restart()
        violation = float("nan")
        for _ in range(max_steps):
            violation = self.step()
            if not violation > tolerance:  # near, or NaN
                break
        return violation


def site_update(
    iteration: SiteIteration, target: Target, stationarity: float, jit_compile: bool | None
) -> Callable[[], tuple[float, bool]]:
    """Return the update that moves the sites alone, the hyperparameters being fixed."""
    loss = tf.function(target.training_loss, jit_compile=resolve_jit(jit_compile), autograph=False)

    def update() -> tuple[float, bool]:
        violation = iteration.step()
        return float("nan") if violation != violation else -float(loss()), violation <= stationarity

    return update


def hyper_update(
    iteration: SiteIteration,
    target: Target,
    variables: Sequence[tf.Variable],
    *,
    site_updates: int,
    hyper_updates: int,
    stationarity: float,
    jit_compile: bool | None,
) -> Callable[[], tuple[float, bool]]:
    """Return the update that does ``hyper_updates`` iterations of L-BFGS on the optimised objective.

    In each evaluation the sites are brought to their fixed point at the new hyperparameters, warm-started
    from the last ones. A run that does not raise the objective is undone. An update depends on the model's
    variables alone, so a restart from a checkpoint repeats it exactly.
    """
    evaluated = lbfgs.evaluation(
        lambda: -target.objective_at_rest() - target.log_prior_density(), variables, jit_compile
    )

    def evaluate() -> tuple[float, Sequence[tf.Tensor]]:
        violation = iteration.settle(site_updates, stationarity)
        value, gradient = evaluated()
        return float("nan") if violation != violation else value, gradient

    def update() -> tuple[float, bool]:
        kept = target.sites
        if not lbfgs.climb(variables, evaluate, hyper_updates):
            target.assign_sites(kept)
        violation = iteration.settle(site_updates, stationarity)
        return evaluated()[0], violation <= stationarity

    return update
