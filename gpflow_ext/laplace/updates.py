"""Updates of sites from local quadratics: Newton's method, and Jaakkola and Jordan's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.laplace.expansion import Located
from gpflow_ext.sites import Expectation, Pair, Prior, Sites, Step
from gpflow_ext.sites.concavity import LogDensity, expand

SMALLEST_STEP = 2.0**-40  # of a Newton step in the line search; see `kmm.ascent.SMALLEST_MEAN_STEP`

Kept = TypeVar("Kept")


def newton_step(prior: Prior, log_density: LogDensity, point: Located) -> Located:
    """Take a Newton step towards the mode, backtracking until log p(y | f) + log p(f) does not fall.

    Algorithm 3.1 of Rasmussen & Williams (2006), solved for the change of α, (I + WQ)δ = g − α, so that an
    iterative solver's error shrinks with it. One factorisation, or two where `ascent` takes W without what is
    below zero; a trial of the line search is O(N).
    """

    def change(prec: tf.Tensor) -> tuple[tuple[()], Pair]:
        return (), prior.factorise(prec).solve(point.at.grad - point.alpha)

    still = tf.zeros_like(point.alpha)
    return moved(prior, log_density, point, ascent(point, change, ((), Pair(still, still)))[1])


def ascent(
    point: Located, change: Callable[[tf.Tensor], tuple[Kept, Pair]], like: tuple[Kept, Pair]
) -> tuple[Kept, Pair]:
    """Return the change for W, or that for max(W, 0) where log p(y | f) + log p(f) falls along the former.

    It may where the likelihood is not log-concave and I + WQ is not positive definite. With W ≥ 0 the slope
    (g − α)ᵀQ(I + WQ)⁻¹(g − α) is not below zero, so that a short enough step does not lower the density.

    Parameters
    ----------
    change
        Map precisions [N, L] to what is to be kept, and to the change of α and Qα.
    like
        Tensors of the structure and the shapes of what it returns.
    """
    prec = point.at.curvature
    most = 1 + tf.cast(tf.reduce_any(prec < 0.0), tf.int32)

    def going(tried: tf.Tensor, _: Kept, found: Pair) -> tf.Tensor:
        return (tried == 0) | ((tried < most) & tf.logical_not(rises(point, found)))

    def attempt(tried: tf.Tensor, _: Kept, __: Pair) -> tuple[tf.Tensor, Kept, Pair]:
        kept, found = change(tf.where(tried > 0, tf.nn.relu(prec), prec))
        return tried + 1, kept, found

    _, kept, found = tf.while_loop(going, attempt, (tf.constant(0), *like))
    return kept, found


def rises(point: Located, change: Pair) -> tf.Tensor:
    """Return whether log p(y | f) + log p(f) does not fall along a change of α and Qα, at first, []."""
    slope = tf.reduce_sum((point.at.grad - point.alpha) * change.shift)
    return tf.math.is_finite(slope) & (slope >= 0.0)


def moved(prior: Prior, log_density: LogDensity, point: Located, change: Pair) -> Located:
    """Move a point by a change of α and Σα, or by as much of it as does not lower log p(y | f) + log p(f)."""
    shift, (delta, move) = point.mean - prior.mean, change
    least = point.log_joint(prior)
    least -= sites.slack(prior, least)

    def log_joint(length: tf.Tensor) -> tf.Tensor:
        alpha, new = point.alpha + length * delta, shift + length * move
        return tf.reduce_sum(log_density(prior.mean + new)) - 0.5 * tf.reduce_sum(alpha * new)

    def falls(length: tf.Tensor) -> tf.Tensor:
        value = log_joint(length)  # in a graph, not (NaN >= least) would be rewritten as NaN < least: false
        fallen = tf.logical_not(tf.math.is_finite(value)) | (value < least)
        return (length > SMALLEST_STEP) & fallen

    whole = tf.ones([], least.dtype)
    (length,) = tf.while_loop(falls, lambda length: (0.5 * length,), (whole,))
    mean = point.mean + length * move
    return Located(point.alpha + length * delta, mean, expand(log_density, mean), point.unit)


def jaakkola_step(prior: Prior, expectation: Expectation, current: Sites) -> Step:
    """Set q to its optimum for ξ and ξ to its optimum for q, equations 13 and 14 of Izmailov (2016). O(N³).

    With the bound at its best ξ² = m² + v this is prec = −2 ∂v, nat1 = ∂m + prec·m: for the logit prec =
    2λ(ξ), nat1 = y − ½.
    """
    q = sites.condition(prior, current)
    _, grad, curvature = sites.expect(expectation, q.mean, q.var)
    change = Sites(grad - q.alpha, curvature - current.prec)
    violation = sites.units.violation(change, current.prec, tf.ones_like(q.kl))
    return Step(Sites(grad + curvature * q.mean, curvature), violation)
