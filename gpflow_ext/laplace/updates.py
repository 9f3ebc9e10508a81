"""Updates of sites from local quadratics: Newton's method, and Jaakkola and Jordan's."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.laplace import expansion
from gpflow_ext.laplace.expansion import Located, LogDensity
from gpflow_ext.sites import Expectation, Pair, Prior, Sites, Step

SMALLEST_STEP = 2.0**-20  # of a Newton step in the line search


def newton_step(prior: Prior, log_density: LogDensity, point: Located) -> Located:
    """Take a Newton step towards the mode, backtracking until log p(y | f) + log p(f) does not fall.

    Algorithm 3.1 of Rasmussen & Williams (2006), solved for the change of α, (I + WQ)δ = g − α, so that an
    iterative solver's error shrinks with it. One factorisation; a trial of the line search is O(N).
    """
    return moved(
        prior, log_density, point, prior.factorise(point.at.curvature).solve(point.at.grad - point.alpha)
    )


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
    return Located(point.alpha + length * delta, mean, expansion.expand(log_density, mean))


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
