"""The second-order expansion of log p(y | f) about a point: the sites of Laplace's method and of Taylor's.

    log p(yₙ | f) ≈ log p(yₙ | mₙ) + gₙ (f − mₙ) − ½ Wₙ (f − mₙ)²        nat1 = g + Wm,  prec = W

Conditioned on these sites the mean moves to m' = μ + Qα', α' = (I + WQ)⁻¹ (g + W(m − μ)): Newton's map for
the mode of log p(y | f) + log p(f), where α = g. Take one step of it from the mean that the sites of the mode
give: the result moves as the mode itself does with the prior and with the parameters of p(y | f). So what is
computed from the expansion about it has the right derivatives (Rasmussen & Williams 2006, section 5.5.1).
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.sites import Pair, Prior, Sites, coupling, units, with_inverse
from gpflow_ext.sites.concavity import Expansion, LogDensity, expand


class Located(NamedTuple):
    """A mean of q(f), and the sites that keep it; the state of Laplace's method."""

    alpha: tf.Tensor  # m = μ + Qα, [N, L]
    mean: tf.Tensor  # m, [N, L]
    at: Expansion  # of log p(y | f) about m
    unit: tf.Tensor  # of the functions, []

    @property
    def sites(self) -> Sites:
        """The sites that keep this mean, with the precisions of the expansion: nat1 = α + Wm."""
        return Sites(self.alpha + self.at.curvature * self.mean, self.at.curvature)

    @property
    def violation(self) -> tf.Tensor:
        """The largest of |α − g| relative to 1 + W, zero at the mode, []."""
        change = Sites(self.alpha - self.at.grad, tf.zeros_like(self.alpha))
        return units.violation(change, self.at.curvature, self.unit)

    def log_joint(self, prior: Prior) -> tf.Tensor:
        """Return log p(y | m) − ½ αᵀQα, the function Ψ whose maximum is the mode, less its constants, []."""
        return self.at.value - 0.5 * tf.reduce_sum(self.alpha * (self.mean - prior.mean))


def locate(prior: Prior, log_density: LogDensity, current: Sites, unit: tf.Tensor | float = 1.0) -> Located:
    """Return where the sites put the mean. One factorisation."""
    alpha, shift = prior.factorise(current.prec).solve(current.nat1 - current.prec * prior.mean)
    mean = prior.mean + shift
    return Located(alpha, mean, expand(log_density, mean), tf.convert_to_tensor(unit, mean.dtype))


def start(prior: Prior, log_density: LogDensity, current: Sites, unit: tf.Tensor | float = 1.0) -> Located:
    """Return where the sites put the mean, as `locate`; where all are zero nothing is solved."""

    def at_prior() -> Located:
        mean = prior.mean + tf.zeros_like(current.nat1)
        at = expand(log_density, mean)
        return Located(tf.zeros_like(mean), mean, at, tf.convert_to_tensor(unit, mean.dtype))

    there = tf.reduce_any(current.prec != 0.0) | tf.reduce_any(current.nat1 != 0.0)
    return tf.cond(there, lambda: locate(prior, log_density, current, unit), at_prior)


def evidence(prior: Prior, point: Located) -> tf.Tensor:
    """Return log p(y | m) − ½ αᵀQα − ½ log|I + WQ| − ½ Σₙ Wₙ residualₙ at a point. O(N³/3).

    At the mode that is Laplace's log q(y) where inducing points explain all variance, and J₂ of Izmailov
    (2016), section 2.3.2, where they do not: E log p(y | f) to second order in f − m. Without that charge for
    the rest of the variance short length scales, with which the points explain nothing, would cost nothing.
    """
    charge = 0.5 * tf.reduce_sum(point.at.curvature * prior.residual)
    return point.log_joint(prior) - prior.factorise(point.at.curvature).half_log_det() - charge


def laplace_evidence(prior: Prior, log_density: LogDensity, current: Sites) -> tf.Tensor:
    """Return `evidence` at the mode, [].

    Equation 5 of Izmailov (2016) with the determinant of Rasmussen & Williams (2006), equation 3.32, at the
    mean after one Newton step from the given sites: at the mode no step at all, but one that makes the
    gradient in all hyperparameters complete. Three factorisations. Where a prior has ``held_factors`` the
    gradient is that of `evidence_at_mode`, which is complete at the mode alone.
    """
    if getattr(prior, "held_factors", False):
        held = tf.nest.map_structure(tf.stop_gradient, prior)
        return evidence_at_mode(prior, log_density, _newton(held, log_density, current))
    return evidence(prior, _newton(prior, log_density, current))


def _newton(prior: Prior, log_density: LogDensity, current: Sites) -> Located:
    """Return the point after one Newton step from where the sites put the mean. Two factorisations."""
    given = locate(prior, log_density, current)
    grad, curvature = given.at.grad, given.at.curvature
    return locate(prior, log_density, Sites(grad + curvature * given.mean, curvature))


def evidence_at_mode(prior: Prior, log_density: LogDensity, mode: Located) -> tf.Tensor:
    """Return `evidence` at the mode, its gradient in closed form. One factorisation.

    The gradient in the prior and in the parameters of the density is that of `laplace_evidence` at the mode,
    without a derivative of a factorisation (algorithm 5.1 of Rasmussen & Williams 2006). With v the marginal
    variances of q(f) and b = (I + WQ)⁻¹ ∂(−½ vᵀW)/∂f̂ it is that of

        log ∫ p(f) ∏ tₙ(fₙ) df + bᵀ(μ + Qα) + log p(y | f̂) − ½ vᵀW + (Qb)ᵀg − ½ Σₙ Wₙ residualₙ

    in Q, μ, the residuals, and the parameters of log p, W and g, all else held fixed; W is held in the last
    term. Derived in docs/derivations.md, section 4.
    """
    held = tf.nest.map_structure(tf.stop_gradient, prior)
    alpha, mean, *_ = mode = tf.nest.map_structure(tf.stop_gradient, mode)
    factor = with_inverse(held.factorise(mode.at.curvature))
    var = tf.stop_gradient(factor.variance())
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(mean)
        at = expand(log_density, mean)
        charge = -0.5 * tf.reduce_sum(var * at.curvature)
    slope = tape.gradient(charge, mean, unconnected_gradients="zero")
    moved = Pair(*map(tf.stop_gradient, factor.solve(slope)))  # b, Qb
    moving = prior.log_normaliser(mode.sites, factor)
    moving += tf.reduce_sum(moved.alpha * prior.mean) + coupling(prior, moved, Pair(alpha, mean - held.mean))
    moving += at.value + charge + tf.reduce_sum(moved.shift * at.grad)
    moving -= 0.5 * tf.reduce_sum(tf.stop_gradient(at.curvature) * prior.residual)
    value = mode.log_joint(held) - factor.half_log_det() - 0.5 * tf.reduce_sum(at.curvature * held.residual)
    return tf.stop_gradient(value - moving) + moving
