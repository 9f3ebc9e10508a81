"""The evidence at the fixed point of the sites and its gradient in the hyperparameters, in one graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from gpflow_ext.ep import engine, moment_matching, sweeps
from gpflow_ext.ep.factors import FactoredModel
from gpflow_ext.ep.sweeps import Sweep
from gpflow_ext.sites import Seen, Sites
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.solver import Settled

NEAR, ENOUGH = 0.01, 50  # a violation after so many sweeps, from which no fixed point is in sight


def settle(
    target: FactoredModel,
    prior: Seen,
    sites: Sites,
    steps: int | tf.Tensor,
    tolerance: float | tf.Tensor,
    damping: float | None = None,
) -> Sweep:
    """Sweep until the violation is within the tolerance; the violation is NaN where that fails.

    One loop in the graph, each turn of which evaluates all factors once: at the sites as they are, at zero
    where these are not sound, or after a sweep, which is taken again at half the length where it does not
    stand.

    Parameters
    ----------
    target
        The model.
    prior
        Its prior at the data.
    sites
        Where to begin.
    steps
        Sweeps, at most, [].
    tolerance
        The violation that ends them, [].
    damping
        ρ of a sweep; ``None`` adapts it.
    """
    stacked = tf.stack(sites)
    unknown = tf.constant(np.inf, stacked.dtype)

    def going(done: tf.Tensor, attempt: tf.Tensor, point: Sweep) -> tf.Tensor:
        return (done <= steps) & (attempt < sweeps.ATTEMPTS) & ~(point.violation <= tolerance)

    def turn(done: tf.Tensor, attempt: tf.Tensor, point: Sweep) -> tuple[tf.Tensor, tf.Tensor, Sweep]:
        begins = tf.equal(done, 0)
        new, stands = sweeps.sweep(target, prior, point, 0.5 ** tf.cast(attempt, unknown.dtype), damping)
        lost = tf.where(begins & (attempt > 0), sweeps.ATTEMPTS, attempt + 1)
        return done + tf.cast(stands, tf.int32), tf.where(stands, 0, lost), _begun(new, begins, stands)

    begin = Sweep(sites, sites, unknown, unknown, sweeps.beginning(stacked))
    _, attempt, point = tf.while_loop(going, turn, (tf.constant(0), tf.constant(0), begin))
    failed = tf.where(attempt > 0, unknown + np.nan, point.violation)
    return tf.nest.map_structure(tf.stop_gradient, point._replace(violation=failed))


def _begun(point: Sweep, begins: tf.Tensor, stands: tf.Tensor) -> Sweep:
    """Return a point whose sites are zero where the first ones do not stand; a look at these is no sweep."""
    lost = begins & ~stands
    sites, proposal = (
        Sites(*(tf.where(lost, tf.zeros_like(part), part) for part in pair)) for pair in point[:2]
    )
    memory = point.path.memory
    memory = memory._replace(count=tf.where(begins, 0, memory.count))
    return point._replace(sites=sites, proposal=proposal, path=point.path._replace(memory=memory))


class Evidence:
    """Functions to compile: log Z at the fixed point, and its gradient in the hyperparameters.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    damping
        See `Optimum`.
    """

    def __init__(
        self, target: FactoredModel, variables: Sequence[tf.Variable], damping: float | None
    ) -> None:
        self._target, self._variables, self._damping = target, list(variables), damping

    def evaluate(
        self, steps: int | tf.Tensor, tolerance: float | tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Bring the sites to their fixed point; return log Z and violation, [2], and the gradient of log Z.

        Both are NaN where no fixed point is near: log Z means nothing there. The prior is built once, under
        the tape that takes the gradient; the sweeps run aside from it. Sites are kept where all is finite.
        """
        target, before = self._target, self._target.sites
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            chol = tf.stop_gradient(tf.linalg.cholesky(target.gram()))  # as in `evaluate_with_gradient`
            prior = target.prior(None, chol)
            with tape.stop_recording():
                fixed = tf.nest.map_structure(tf.stop_gradient, prior)
                point = settle(target, fixed, before, steps, tolerance, self._damping)
            at = moment_matching.evaluate(prior, target.log_normaliser, point.sites, layout=target.layout())
            value = at.log_evidence + target.log_prior_density()
        gradient = tape.gradient(value, self._variables, unconnected_gradients="zero")
        outcome = tf.stack([value, point.violation])
        finite = at.sound & tf.reduce_all(tf.math.is_finite(outcome)) & is_near(point.violation, steps)
        pairs = zip(point.sites, before, strict=True)
        target.assign_sites(Sites(*(tf.where(finite, new, old) for new, old in pairs)))
        return tf.where(finite, outcome, tf.constant(np.nan, outcome.dtype)), gradient


def is_near(violation: tf.Tensor, steps: int | tf.Tensor) -> tf.Tensor:
    """Return whether a violation after so many sweeps leaves a fixed point in sight, []."""
    return (violation <= NEAR) | (steps < ENOUGH)


class Optimum(Settled):
    """log Z at the fixed point of the sites, as L-BFGS sees it; see `SiteSolver`.

    Parameters
    ----------
    target
        The model.
    variables
        Its hyperparameters.
    damping
        The share ρ of the way to the matching sites; ``None`` adapts it.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.
    """

    def __init__(
        self,
        target: FactoredModel,
        variables: Sequence[tf.Variable],
        damping: float | None,
        jit_compile: bool | None,
    ) -> None:
        engine.check_damping(damping)
        evidence = Evidence(target, variables, damping)
        super().__init__(evidence, target.sites.nat1.dtype, resolve_jit(jit_compile))
