"""Newton's step in the precisions and the mean together, where steps in turn gain little.

At the optimum λ = λ(m, v) = −2 ∂f_b/∂v and α = ∂f_b/∂m. With counts both depend on m + v/2: what the
covariance alone could gain by shrinking the mean takes back by growing, and each turn of the two gains a few
per cent. With η = log λ, the covariance V, W = λ(m, v) and S = (Σ⁻¹ + W)⁻¹ the equations of both, linear
about a point, are

    dv = −(V∘V) Λ dη        dm = S [∂f_b/∂m − α + (∂²f_b/∂m∂v) dv]
    dη = log W − log λ + (∂ log W/∂m) dm + (∂ log W/∂v) dv :

N equations in dη. Those in log λ hold far from the optimum too: the Poisson likelihood's log W is linear in m
and v. Derived in docs/derivations.md, section 15. For dense priors, one latent function, and λ > 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.kmm import ascent
from gpflow_ext.kmm.ascent import State
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Dense, Expectation, Pair, Prior

FARTHEST = 30.0  # that log λ moves in a step
MEAN_STEPS = 30  # after a trial of the precisions, at most
MEAN_GAIN = 1e-9  # relative: a step in the mean that gains less is the last


class Direction(NamedTuple):
    """The solution of the equations above."""

    log_prec: tf.Tensor  # dη, [N, 1]
    mean: Pair  # dm, and the change of α


def step(prior: Dense, expectation: Expectation, state: State) -> State:
    """Move along Newton's direction in log λ, the mean to its optimum there; or take `ascent.parallel_step`.

    The latter where the bound falls however often the step is halved. Some ten factorisations.
    """
    direction = newton_direction(prior, expectation, state)
    known = tf.reduce_all(tf.math.is_finite(direction.log_prec) & tf.math.is_finite(direction.mean.alpha))

    def trial(length: tf.Tensor) -> tuple[State, tuple[()]]:
        turn = tf.clip_by_value(length * direction.log_prec, -FARTHEST, FARTHEST)
        prec, factor = ascent.factored(prior, _positive(state.prec) * tf.exp(turn))
        alpha, mean = state.alpha + length * direction.mean.alpha, state.mean + length * direction.mean.shift
        stays = ascent.at_precision(prior, expectation, state, prec, factor)
        moved = state._replace(alpha=alpha, mean=mean)
        moves = ascent.at_variance(prior, expectation, moved, prec, stays.var, stays.spread)
        better = moves.objective > stays.objective
        begin = State(*(tf.where(better, new, old) for new, old in zip(moves, stays, strict=True)))
        return _settle_mean(prior, expectation, begin, factor), ()

    moved = tf.cond(known, lambda: ascent.backtrack(prior, trial, state, ())[0], lambda: state)
    fails = tf.reduce_all(moved.prec == state.prec)
    return tf.cond(fails, lambda: ascent.parallel_step(prior, expectation, state), lambda: moved)


def newton_direction(prior: Dense, expectation: Expectation, state: State) -> Direction:
    """Return Newton's direction at a point. O(N³): two factorisations, two products, and N equations."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch((state.mean, state.var))
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch((state.mean, state.var))
            value = tf.reduce_sum(expectation(state.mean, state.var))
        grad, by_var = inner.gradient(value, (state.mean, state.var))
        log_curvature = tf.math.log(_positive(-2.0 * by_var))
    # Zeros where nothing depends on the point, as the curvature of Gaussian noise.
    log_by_mean, log_by_var = outer.gradient(
        log_curvature, (state.mean, state.var), unconnected_gradients="zero"
    )
    cross = outer.gradient(grad, state.var, unconnected_gradients="zero")
    own, held = (prior.factorise(prec) for prec in (tf.nn.relu(state.curvature), state.prec))
    S, V = (factor.covariance()[0] for factor in (own, held))
    shrinking = tf.square(V) * state.prec[:, 0]  # −dv/dη, [N, N]
    matrix = log_by_var * shrinking + log_by_mean * tf.matmul(S, cross * shrinking)
    matrix = tf.linalg.set_diag(matrix, tf.linalg.diag_part(matrix) + 1.0)
    rise = state.grad - state.alpha
    gap = log_curvature - tf.math.log(_positive(state.prec))
    turn = linalg.solve(matrix, gap + log_by_mean * tf.matmul(S, rise))
    return Direction(turn, own.solve(rise - cross * tf.matmul(shrinking, turn)))


def _positive(prec: tf.Tensor) -> tf.Tensor:
    return tf.maximum(prec, np.finfo(prec.dtype.as_numpy_dtype).tiny)


def _settle_mean(prior: Prior, expectation: Expectation, state: State, factor: Any) -> State:
    """Take Newton steps in the mean until one gains next to nothing."""

    def going(k: tf.Tensor, gain: tf.Tensor, state: State) -> tf.Tensor:
        return (k < MEAN_STEPS) & (gain > MEAN_GAIN * (1.0 + tf.abs(state.objective)))

    def move(k: tf.Tensor, _: tf.Tensor, state: State) -> tuple[tf.Tensor, tf.Tensor, State]:
        new = ascent.mean_step(prior, expectation, state, factor.solve)
        return k + 1, new.objective - state.objective, new

    begin = (tf.constant(0), tf.constant(np.inf, state.objective.dtype), state)
    found: State = tf.while_loop(going, move, begin)[2]
    return found
