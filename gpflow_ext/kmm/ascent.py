"""The safeguarded parallel fixed point for Gaussian sites: coordinate ascent on (V, m), monotone.

Khan, Mohamed & Murphy (2012) alternate between the diagonal of the covariance (their equations 13-20) and
the mean (equation 21). Here the fixed point λₙ = −2 ∂f_b/∂vₙ is taken for all n at once and accepted only
where the bound rises; the paper's own sweep over n is in `kmm.algorithm1`. Both steps compile under XLA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.kmm import newton
from gpflow_ext.sites import Expectation, Factor, Pair, Prior, Sites, units
from gpflow_ext.sites.conjugate import Solve

SMALLEST_STEP = 2.0**-14  # of the covariance, each trial of which is a factorisation
SMALLEST_MEAN_STEP = 2.0**-40  # Newton's from a log rate of zero to that of a count y is about y long
LOG_RANGE = 40.0  # a variance is sought in [exp(-LOG_RANGE), 1] times that of its cavity
ROOT_TOLERANCE = 1e-2  # enough for a step; at the fixed point v itself is the root
ROOT_EVALUATIONS = 60  # of the curvature, at most; 4-6 reach the last digit

Found = TypeVar("Found")


class State(NamedTuple):
    """A point of the ascent, with what the next step needs of it."""

    prec: tf.Tensor  # λ, [N, L]
    alpha: tf.Tensor  # m = μ + Qα, [N, L]
    mean: tf.Tensor  # [N, L]
    var: tf.Tensor  # [N, L]
    grad: tf.Tensor  # ∂f_b/∂m at mean and var, [N, L]
    curvature: tf.Tensor  # −2 ∂f_b/∂v there, [N, L]
    spread: tf.Tensor  # the part of KL[q || p] that depends on V alone, []
    objective: tf.Tensor  # the bound, []
    last_prec: tf.Tensor  # λ before the last covariance step if that was damped, else λ, [N, L]
    last_natural: tf.Tensor  # the natural gradient λ(v) − λ there, [N, L]
    least: tf.Tensor  # of a precision: zero, or −∞ where they may be negative, []
    unit: tf.Tensor  # of the functions, []

    @property
    def sites(self) -> Sites:
        """The sites of this point: nat1 = α + λm."""
        return Sites(self.alpha + self.prec * self.mean, self.prec)

    @property
    def violation(self) -> tf.Tensor:
        """The largest of |λ + 2 ∂f_b/∂v| and |α − ∂f_b/∂m| relative to 1 + |λ|, zero at the optimum, []."""
        change = Sites(self.alpha - self.grad, self.prec - self.bounded(self.curvature))
        return units.violation(change, self.prec, self.unit)

    def bounded(self, prec: tf.Tensor) -> tf.Tensor:
        """Return precisions of any shape, or the least that they may have."""
        return tf.maximum(prec, self.least)


class Factored(NamedTuple):
    """Precisions and their factor."""

    prec: tf.Tensor  # Λ, [N, L]
    factor: Any  # of I + ΛQ, a `sites.Factor`


def factored(prior: Prior, prec: tf.Tensor) -> Factored:
    """Factorise I + ΛQ for prec [N, L], and keep it beside them."""
    return Factored(prec, prior.factorise(prec))


def start(
    prior: Prior,
    expectation: Expectation,
    initial: Sites,
    factor: Factor | None = None,
    signed: bool = False,
    unit: tf.Tensor | float = 1.0,
) -> State:
    """Return the state at given sites (all zero: the prior, as in step 1 of the paper's Algorithm 1).

    Parameters
    ----------
    initial
        The sites.
    factor
        That of their precisions, if it is known.
    signed
        Whether precisions may be negative. Sites under which the posterior has no covariance, as after a
        change of the prior, are then replaced by zeros.
    unit
        That of the functions, []; see `sites.units`.
    """
    if signed:
        factor = prior.factorise(initial.prec) if factor is None else factor
        initial = kept(initial, factor.finite)

    def conditioned() -> tuple[tf.Tensor, ...]:
        q = sites.condition(prior, initial, factor)
        return q.alpha, q.mean, q.var, q.kl - 0.5 * tf.reduce_sum(q.alpha * (q.mean - prior.mean))

    def unconditioned() -> tuple[tf.Tensor, ...]:
        mean = prior.mean + prior.product(initial.nat1)
        return initial.nat1, mean, prior.variance() + tf.zeros_like(mean), tf.zeros([], mean.dtype)

    alpha, mean, var, spread = tf.cond(tf.reduce_any(initial.prec != 0.0), conditioned, unconditioned)
    zero, least = tf.zeros_like(alpha), tf.constant(-np.inf if signed else 0.0, alpha.dtype)
    unit = tf.convert_to_tensor(unit, spread.dtype)
    first = State(initial.prec, alpha, mean, var, zero, zero, spread, spread, initial.prec, zero, least, unit)
    return _evaluate(prior, expectation, first)


def kept(initial: Sites, finite: tf.Tensor) -> Sites:
    """Return the sites if the factorisation of their precisions worked, else zeros."""
    return Sites(*(tf.where(finite, part, tf.zeros_like(part)) for part in initial))


def parallel_step(prior: Prior, expectation: Expectation, state: State, separate: bool = False) -> State:
    """Take a Newton step in the mean, move the covariance to its fixed point, and take another Newton step.

    All data move at once. Each part is damped until the bound does not fall by more than rounding. Two Newton
    steps to one of the covariance need the fewest factorisations, since the fixed point depends on the mean;
    the second one goes by conjugate gradients with the factor of the covariance. In all two factorisations
    and one triangular solve, and as much for each damping of the covariance, which is rare for the logit.
    """
    factor = newton.own_factor(prior, state)
    direction = newton.direction(expectation, state, factor.solve, True, separate)
    state = _move_mean(prior, expectation, state, direction)
    state, tried = covariance_step(prior, expectation, state, Factored(state.prec, factor))
    return mean_step(prior, expectation, state, tried.factor.solve, separate)


def covariance_step(
    prior: Prior, expectation: Expectation, state: State, known: Factored
) -> tuple[State, Factored]:
    """Replace λ by λ' where that keeps the bound, else by a damped step towards it; the mean stays.

    Return the state and the factor of I + ΛQ at the precisions that were tried last: those of the state, or,
    where no step keeps the bound, near them. ``known`` is one of any precisions, for its structure.

    λ' is λ(v) = −2 ∂f_b/∂v at the current variance, but not beyond the root of equation 16 of Khan, Mohamed
    & Murphy (2012), v (c + λ(v)) = 1 with the cavity held fixed. Where f_b is convex in v (the logit near
    zero) that is the former, a step that cannot overshoot; where it is concave (Poisson) the latter, while
    λ(v) at a prior variance can exceed the answer by hundreds of orders of magnitude.

    After a step that had to be damped the first length is that of the secant through it and the last point
    (Barzilai & Borwein 1988): where the precisions of neighbours push each other, as under counts, all λ(v)
    overshoot together. Along d = λ(v) − λ, the natural gradient, the bound rises by ½ dᵀ(V∘V)d ≥ 0. So where
    the first trials fail, the later ones halve the largest multiple of d that halves no variance by itself.

    Where λ may be negative, as for likelihoods that are not log-concave, no site more than doubles its
    variance by itself; a trial without a covariance has no objective, and is none.
    """
    seen = state.var - prior.residual
    cavity = 1.0 / seen - state.prec

    def curvature(v: tf.Tensor) -> tf.Tensor:
        return state.bounded(sites.expect(expectation, state.mean, v + prior.residual).curvature)

    at_current = state.bounded(state.curvature)
    natural = at_current - state.prec
    doubled = tf.where(state.least < 0.0, state.prec - 0.5 / seen, state.least)
    direct = tf.maximum(_not_beyond_root(curvature, cavity, seen, at_current), doubled) - state.prec
    # Where a datum's latent functions are coupled, roots found side by side may lie behind.
    direct = tf.where(natural * direct > 0.0, direct, natural)
    full = _secant_step(state, natural) * direct
    gradual = natural / tf.maximum(tf.reduce_max(tf.abs(natural) * seen), 1.0)

    def trial(step: tf.Tensor) -> tuple[State, Factored]:
        move = tf.where(step > 0.05, step * full, 32.0 * step * gradual)
        tried = factored(prior, state.prec + move)
        return at_precision(prior, expectation, state, *tried), tried

    moved, tried = backtrack(prior, trial, state, known)
    undamped = tf.reduce_all(moved.prec == state.prec + direct)
    moved = moved._replace(last_prec=tf.where(undamped, moved.prec, state.prec), last_natural=natural)
    return moved, tried


def _secant_step(state: State, natural: tf.Tensor) -> tf.Tensor:
    """Return −⟨Δλ, Δd⟩ / ⟨Δd, Δd⟩ within [1/16, 1], in the metric v² of changes of λ; 1 if Δλ = 0."""
    metric = tf.square(state.var)
    change, response = state.prec - state.last_prec, natural - state.last_natural
    along = -tf.reduce_sum(metric * change * response)
    length = along / tf.reduce_sum(metric * tf.square(response))
    return tf.where(along > 0.0, tf.clip_by_value(length, 0.0625, 1.0), tf.ones_like(length))


def _not_beyond_root(
    curvature: Callable[[tf.Tensor], tf.Tensor], cavity: tf.Tensor, v: tf.Tensor, prec: tf.Tensor
) -> tf.Tensor:
    """Return the smaller of λ(v), given as ``prec``, and λ at the root of equation 16, where v must shrink.

    No root is sought where v must grow, nor beyond a point that shows λ to rise as v shrinks, nor where the
    other sites alone leave the datum no variance.
    """
    overshoot = tf.math.log(v * (cavity + prec))
    shrinks = (overshoot > ROOT_TOLERANCE) & (cavity > 0.0)

    def settled(h: tf.Tensor, at_point: tf.Tensor) -> tf.Tensor:
        near = tf.abs(h) <= tf.minimum(0.1 * overshoot, ROOT_TOLERANCE)
        return near | (shrinks & (h <= 0.0) & (at_point > prec)) | ~shrinks

    at_root = _root(curvature, cavity, v, prec, settled, ROOT_TOLERANCE)
    return tf.where(shrinks, tf.minimum(prec, at_root), prec)


def diagonal_elements(
    curvature: Callable[[tf.Tensor], tf.Tensor], cavity: tf.Tensor, v: tf.Tensor, tolerance: float
) -> tf.Tensor:
    """Return λ(v) = max(−2 ∂f_b/∂v, 0) at the roots of v (c + λ(v)) = 1, equation 16, elementwise.

    Parameters
    ----------
    curvature
        Maps variances to −2 ∂f_b/∂v, of the same shape.
    cavity
        Precisions c = 1/v − λ > 0 without the site itself (the paper's Ω₂₂ − k̃₂₂), any shape.
    v
        Where to start.
    tolerance
        Tolerance of the root in log v.
    """

    def positive(v: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(curvature(v))

    return _root(positive, cavity, v, positive(v), lambda h, _: tf.abs(h) <= tolerance, tolerance)


def _root(
    curvature: Callable[[tf.Tensor], tf.Tensor],
    cavity: tf.Tensor,
    v: tf.Tensor,
    prec: tf.Tensor,
    settled: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    tolerance: float,
) -> tf.Tensor:
    """Solve v (c + λ(v)) = 1 from v and λ(v) = ``prec`` until ``settled(h, λ)`` everywhere; return λ.

    The paper iterates v ← 1 / (c + λ(v)), which diverges for the Poisson likelihood; here the root of
    h(x) = −log(c + λ(eˣ)) − x is found by secants inside a shrinking bracket of x = log v, at a larger v
    where c + λ < 0. A bracket within the tolerance ends the search too: coupled functions move their roots.
    """

    def refine(k: tf.Tensor, *bracket: tf.Tensor) -> tuple[tf.Tensor, ...]:
        low, high, x, h, slope, _ = bracket
        low, high = tf.where(h > 0, x, low), tf.where(h > 0, high, x)
        secant = x - h / slope
        inside = (secant > low) & (secant < high)  # false for NaN
        proposal = tf.where(inside, secant, 0.5 * (low + high))
        prec = curvature(tf.exp(proposal))
        value = -tf.math.log(tf.nn.relu(cavity + prec)) - proposal
        return k + 1, low, high, proposal, value, (value - h) / (proposal - x), prec

    def going(k: tf.Tensor, *bracket: tf.Tensor) -> tf.Tensor:
        low, high, _, h, _, prec = bracket
        return (k < ROOT_EVALUATIONS) & ~tf.reduce_all(settled(h, prec) | (high - low <= tolerance))

    high = -tf.math.log(cavity)
    x = tf.minimum(tf.math.log(v), high)
    h = -tf.math.log(cavity + prec) - x
    # The first secant is the paper's own fixed-point step: slope −1 gives x + h = −log(c + λ).
    begin = (tf.constant(0), high - LOG_RANGE, high, x, h, -tf.ones_like(x), prec)
    return tf.while_loop(going, refine, begin)[-1]


def at_precision(
    prior: Prior, expectation: Expectation, state: State, prec: tf.Tensor, factor: Factor | None = None
) -> State:
    """Return the state with other precisions, their factor if it is known, and the same mean. O(N³)."""
    factor = prior.factorise(prec) if factor is None else factor
    var = factor.variance()
    zero = tf.zeros_like(state.alpha)
    spread = sites.divergence(prior, prec, var, factor, zero, zero)
    return at_variance(prior, expectation, state, prec, var, spread)


def at_variance(
    prior: Prior, expectation: Expectation, state: State, prec: tf.Tensor, var: tf.Tensor, spread: tf.Tensor
) -> State:
    """Return the state with another covariance, given by its λ, variances and divergence, and the same mean.

    λv ≤ 1 holds exactly for precisions λ ≥ 0; where rounding breaks it the variances, and so the bound, are
    meaningless: −inf.
    """
    new = _evaluate(prior, expectation, state._replace(prec=prec, var=var, spread=spread))
    sound = tf.reduce_all(prec * (var - prior.residual) <= 1.001) | (state.least < 0.0)
    return new._replace(objective=tf.where(sound, new.objective, -np.inf))


def mean_step(
    prior: Prior, expectation: Expectation, state: State, solve: Solve | None = None, separate: bool = False
) -> State:
    """Take one Newton step in m on equation 21, with backtracking; each trial costs O(N).

    ``solve`` spares a factorisation, for which and for ``separate`` see `newton.direction`.
    """
    exact = solve is None
    solve = newton.own_factor(prior, state).solve if solve is None else solve
    return _move_mean(prior, expectation, state, newton.direction(expectation, state, solve, exact, separate))


def _move_mean(prior: Prior, expectation: Expectation, state: State, direction: Pair) -> State:
    def trial(step: tf.Tensor) -> tuple[State, tuple[()]]:
        alpha, mean = state.alpha + step * direction.alpha, state.mean + step * direction.shift
        return _evaluate(prior, expectation, state._replace(alpha=alpha, mean=mean)), ()

    return backtrack(prior, trial, state, (), SMALLEST_MEAN_STEP)[0]


def _evaluate(prior: Prior, expectation: Expectation, state: State) -> State:
    """Fill in the bound of equation 6 and the derivatives of its terms, from m, V and α. O(N)."""
    quadratic = sites.energy(prior, state.alpha, state.mean - prior.mean)
    value, grad, curvature = sites.expect(expectation, state.mean, state.var)
    return state._replace(objective=value - state.spread - quadratic, grad=grad, curvature=curvature)


def _floor(prior: Prior, state: State) -> tf.Tensor:
    """Return the least objective that counts as no decrease, up to the error of the prior's results."""
    return state.objective - sites.slack(prior, state.objective)


def backtrack(
    prior: Prior,
    trial: Callable[[tf.Tensor], tuple[State, Found]],
    state: State,
    found: Found,
    smallest: float = SMALLEST_STEP,
) -> tuple[State, Found]:
    """Return the first trial, of a step of one, half of it, …, that is not below the state, or the state.

    With it what the last trial found besides; ``found`` is of the same structure.
    """

    def search(step: tf.Tensor, searching: tf.Tensor, _: State, found: Found) -> tuple[Any, ...]:
        candidate, new = trial(step)
        accepted = candidate.objective >= _floor(prior, state)  # false for NaN
        parts = zip(candidate, state, strict=True)
        chosen = State(*(old if new is old else tf.where(accepted, new, old) for new, old in parts))
        new = tf.nest.map_structure(lambda a, b: tf.ensure_shape(a, b.shape), new, found)
        return 0.5 * step, tf.logical_not(accepted), chosen, new

    begin = (tf.constant(1.0, state.objective.dtype), tf.constant(True), state, found)
    _, _, chosen, found = tf.while_loop(
        lambda step, searching, *_: searching & (step > smallest), search, begin
    )
    return chosen, found
