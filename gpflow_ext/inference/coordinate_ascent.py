"""The safeguarded parallel fixed point for Gaussian sites: coordinate ascent on (V, m), monotone.

Khan, Mohamed & Murphy (2012) alternate between the diagonal of the covariance (their equations 13-20) and
the mean (equation 21). Here the fixed point λₙ = −2 ∂f_b/∂vₙ is taken for all n at once and accepted only
where the bound rises; the paper's own sweep over n is in `gpflow_ext.inference.algorithm1`.
Both steps are pure functions of tensors that compile under XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext import linalg, sites
from gpflow_ext.sites import Expectation, Prior, Sites

SMALLEST_STEP = 2.0**-14
LOG_RANGE = 40.0  # a variance is sought in [exp(-LOG_RANGE), 1] times that of its cavity
ROOT_TOLERANCE = 1e-2  # enough for a step; at the fixed point v itself is the root
CG_TOLERANCE = 1e-3  # of the Newton step, in the norm of the preconditioner
CG_ITERATIONS = 50
ROOT_EVALUATIONS = 60  # of the curvature, at most; 4-6 reach the last digit


class State(NamedTuple):
    """A point of the ascent, with what the next step needs of it."""

    prec: tf.Tensor  # λ, [N, L]
    alpha: tf.Tensor  # m = μ + Qα, [N, L]
    mean: tf.Tensor  # [N, L]
    var: tf.Tensor  # [N, L]
    spread: tf.Tensor  # the part of KL[q || p] that depends on V alone, []
    objective: tf.Tensor  # the bound, []

    @property
    def sites(self) -> Sites:
        """The sites of this point: nat1 = α + λm."""
        return Sites(self.alpha + self.prec * self.mean, self.prec)


def start(prior: Prior, expectation: Expectation, initial: Sites) -> State:
    """Return the state at given sites (all zero: the prior, as in step 1 of the paper's Algorithm 1)."""
    q = sites.condition(prior, initial)
    quadratic = 0.5 * tf.reduce_sum(q.alpha * (q.mean - prior.mean))
    objective = tf.reduce_sum(expectation(q.mean, q.var)) - q.kl
    return State(initial.prec, q.alpha, q.mean, q.var, q.kl - quadratic, objective)


def parallel_step(prior: Prior, expectation: Expectation, state: State) -> State:
    """Move the covariance to its fixed point for all data at once, then the mean by one Newton step.

    Each half is damped until the bound does not fall, so an iteration never decreases it by more than
    rounding. Two Cholesky factorisations and one triangular solve, plus a factorisation and a solve for
    each damping of the covariance (rare for the logit).
    """
    return mean_step(prior, expectation, covariance_step(prior, expectation, state))


def covariance_step(prior: Prior, expectation: Expectation, state: State) -> State:
    """Replace λ by λ' where that keeps the bound, else by a damped step towards it; the mean stays.

    λ' is the smaller of λ(v) = −2 ∂f_b/∂v at the current variance and at the root of equation 16 of Khan,
    Mohamed & Murphy (2012), v (c + λ(v)) = 1 with the cavity held fixed. Where f_b is convex in v (the logit
    near zero) that is the former, a step that cannot overshoot; where it is concave (Poisson) the latter,
    while λ(v) at a prior variance can exceed the answer by hundreds of orders of magnitude.

    Along d = λ(v) − λ, the natural gradient, the bound rises by ½ dᵀ(V∘V)d ≥ 0. So where the first trials
    fail, the later ones halve the largest multiple of d that passes no root.
    """
    seen = state.var - prior.residual
    cavity = 1.0 / seen - state.prec

    def curvature(v: tf.Tensor) -> tf.Tensor:
        return sites.expectation_gradients(expectation, state.mean, v + prior.residual)[1]

    at_current, at_root = diagonal_elements(curvature, cavity, seen, ROOT_TOLERANCE)
    natural = at_current - state.prec
    direct = tf.minimum(at_current, at_root) - state.prec
    share = tf.where(natural * direct > 0.0, direct / natural, tf.ones_like(natural))
    gradual = tf.reduce_min(share) * natural

    def trial(step: tf.Tensor) -> State:
        move = tf.where(step > 0.2, step * direct, 4.0 * step * gradual)
        return at_precision(prior, expectation, state, state.prec + move)

    return _backtrack(trial, state)


def diagonal_elements(
    curvature: Callable[[tf.Tensor], tf.Tensor], cavity: tf.Tensor, v: tf.Tensor, tolerance: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return λ(v) = max(−2 ∂f_b/∂v, 0) at v and at the roots of v (c + λ(v)) = 1, equation 16, elementwise.

    The paper iterates v ← 1 / (c + λ(v)), which diverges for the Poisson likelihood; here the root of
    h(x) = −log(c + λ(eˣ)) − x is found by secants inside a shrinking bracket of x = log v.

    Parameters
    ----------
    curvature
        Maps variances to −2 ∂f_b/∂v, of the same shape.
    cavity
        Precisions c = 1/v − λ > 0 without the site itself (the paper's Ω₂₂ − k̃₂₂), any shape.
    v
        Where to start.
    tolerance
        Of the root in log v.
    """

    def evaluate(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        prec = tf.nn.relu(curvature(tf.exp(x)))
        return prec, -tf.math.log(cavity + prec) - x

    def refine(k: tf.Tensor, *bracket: tf.Tensor) -> tuple[tf.Tensor, ...]:
        low, high, x, h, slope, _ = bracket
        low, high = tf.where(h > 0, x, low), tf.where(h > 0, high, x)
        secant = x - h / slope
        inside = (secant > low) & (secant < high)  # false for NaN
        proposal = tf.where(inside, secant, 0.5 * (low + high))
        prec, value = evaluate(proposal)
        return k + 1, low, high, proposal, value, (value - h) / (proposal - x), prec

    def going(k: tf.Tensor, *bracket: tf.Tensor) -> tf.Tensor:
        _, _, _, h, _, _ = bracket
        return (k < ROOT_EVALUATIONS) & tf.reduce_any(tf.abs(h) > tolerance)

    high = -tf.math.log(cavity)
    x = tf.minimum(tf.math.log(v), high)
    prec, h = evaluate(x)
    # The first secant is the paper's own fixed-point step: slope −1 gives x + h = −log(c + λ).
    begin = (tf.constant(0), high - LOG_RANGE, high, x, h, -tf.ones_like(x), prec)
    return prec, tf.while_loop(going, refine, begin)[-1]


def at_precision(prior: Prior, expectation: Expectation, state: State, prec: tf.Tensor) -> State:
    """Return the state with other precisions ≥ 0 and the same mean. O(N³)."""
    factor = prior.factorise(prec)
    var = factor.variance()
    zero = tf.zeros_like(state.alpha)
    spread = sites.divergence(prior, prec, var, factor.chol, zero, zero)
    new = _evaluate(prior, expectation, State(prec, state.alpha, state.mean, var, spread, state.objective))
    # λv ≤ 1 holds exactly; where rounding breaks it the variances, and so the bound, are meaningless.
    sound = tf.reduce_all(prec * (var - prior.residual) <= 1.001)
    return new._replace(objective=tf.where(sound, new.objective, -np.inf))


def mean_step(prior: Prior, expectation: Expectation, state: State) -> State:
    """Take one Newton step in m on equation 21, with backtracking.

    One Cholesky factorisation; each trial costs O(N).
    """
    direction = newton_direction(prior, expectation, state)
    shift = prior.product(direction)

    def trial(step: tf.Tensor) -> State:
        moved = state._replace(alpha=state.alpha + step * direction, mean=state.mean + step * shift)
        return _evaluate(prior, expectation, moved)

    return _backtrack(trial, state)


def newton_direction(prior: Prior, expectation: Expectation, state: State) -> tf.Tensor:
    """Return the change δ of α that solves (I + HQ) δ = g − α, with H = −∂²f_b/∂m², [N, L].

    With one latent function, or a likelihood that is separable in them, H is the diagonal W = −2 ∂f_b/∂v
    (Price's theorem) and one factorisation of I + WQ solves it. Otherwise, as for the multinomial logit, W
    only bounds H: conjugate gradients in m, preconditioned by that factorisation, find the exact step at
    O(N²) an iteration.
    """
    grad, curvature = sites.expectation_gradients(expectation, state.mean, state.var)
    factor = prior.factorise(tf.nn.relu(curvature))
    residual = grad - state.alpha
    first = factor.solve(residual)
    if state.mean.shape[-1] == 1:
        return first

    def times_hessian(p: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(state.mean)
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(state.mean)
                value = tf.reduce_sum(expectation(state.mean, state.var))
            slope = tf.reduce_sum(inner.gradient(value, state.mean) * tf.stop_gradient(p))
        return -outer.gradient(slope, state.mean)

    def iterate(k: tf.Tensor, *loop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        delta, r, rz, p, p_alpha = loop  # p = Q p_alpha
        product = times_hessian(p) + p_alpha
        step = tf.math.divide_no_nan(rz, tf.reduce_sum(p * product))
        delta, r = delta + step * p_alpha, r - step * product
        z_alpha = factor.solve(r)
        z = prior.product(z_alpha)
        new = tf.reduce_sum(r * z)
        ratio = tf.math.divide_no_nan(new, rz)
        return k + 1, delta, r, new, z + ratio * p, z_alpha + ratio * p_alpha

    p = prior.product(first)
    rz = tf.reduce_sum(residual * p)
    begin = (tf.constant(0), tf.zeros_like(first), residual, rz, p, first)
    enough = CG_TOLERANCE**2 * rz
    going = lambda k, delta, r, rz, *_: (k < CG_ITERATIONS) & (rz > enough)  # noqa: E731
    return tf.while_loop(going, iterate, begin)[1]


def stationarity(expectation: Expectation, state: State) -> tf.Tensor:
    """Return the largest of |λ + 2 ∂f_b/∂v| and |α − ∂f_b/∂m| relative to 1 + λ, zero at the optimum."""
    grad, curvature = sites.expectation_gradients(expectation, state.mean, state.var)
    violation = tf.maximum(tf.abs(state.prec - tf.nn.relu(curvature)), tf.abs(state.alpha - grad))
    return tf.reduce_max(violation / (1.0 + state.prec))


def _evaluate(prior: Prior, expectation: Expectation, state: State) -> State:
    """Fill in the bound of equation 6 from m, V and their part of the divergence. O(N)."""
    quadratic = 0.5 * tf.reduce_sum(state.alpha * (state.mean - prior.mean))
    value = tf.reduce_sum(expectation(state.mean, state.var)) - state.spread - quadratic
    return state._replace(objective=value)


def _backtrack(trial: Callable[[tf.Tensor], State], state: State) -> State:
    """Return the first trial of step 1, ½, ¼, … that does not lower the objective, or the state itself."""
    floor = state.objective - linalg.rounding_slack(state.objective)

    def search(step: tf.Tensor, searching: tf.Tensor, _: State) -> tuple[tf.Tensor, tf.Tensor, State]:
        candidate = trial(step)
        accepted = candidate.objective >= floor  # false for NaN
        chosen = State(*(tf.where(accepted, new, old) for new, old in zip(candidate, state, strict=True)))
        return 0.5 * step, tf.logical_not(accepted), chosen

    first = (tf.ones([], state.objective.dtype), tf.constant(True), state)
    _, _, chosen = tf.while_loop(lambda step, searching, _: searching & (step > SMALLEST_STEP), search, first)
    return chosen
