"""Newton's direction in the mean of q(f), equation 21 of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import tensorflow as tf

from gpflow_ext.sites import Expectation, Factor, Pair, Prior

CG_TOLERANCE = 1e-3  # of the Newton step, in the norm of the preconditioner
CG_ITERATIONS = 50
UNSEEN = 1e3  # a residual so many times what it is the difference of is one that Q hides
ROUGH_CG_ITERATIONS = 12  # with a factor of other precisions: beyond, a factorisation is cheaper

Solve: TypeAlias = Callable[[tf.Tensor], Pair]
"""Map b [N, L] to the solution α of a linear system and Qα."""


class MeanPoint(Protocol):
    """Protocol of a point at which the direction is wanted; all [N, L]."""

    @property
    def alpha(self) -> tf.Tensor:
        """α of m = μ + Qα."""

    @property
    def mean(self) -> tf.Tensor:
        """M."""

    @property
    def var(self) -> tf.Tensor:
        """V."""

    @property
    def grad(self) -> tf.Tensor:
        """∂f_b/∂m."""

    @property
    def curvature(self) -> tf.Tensor:
        """−2 ∂f_b/∂v."""


def own_factor(prior: Prior, point: MeanPoint) -> Factor:
    """Return the factor of I + WQ, W = −2 ∂f_b/∂v, whose solutions are exact with one latent function."""
    return prior.factorise(tf.nn.relu(point.curvature))


def direction(expectation: Expectation, point: MeanPoint, solve: Solve, exact: bool) -> Pair:
    """Return the change δ of α that solves (I + HQ) δ = g − α, with H = −∂²f_b/∂m², and Qδ.

    With one latent function H is taken as the diagonal W = −2 ∂f_b/∂v (Price's theorem), and the solution by
    the factor of I + WQ is it. With several, as for the multinomial logit, W only bounds H; and a solution by
    a factor for other precisions does not equal it. Then either preconditions conjugate gradients in m, which
    find the step at O(N²) an iteration.

    Parameters
    ----------
    expectation, point
        The likelihood, and where the step begins.
    solve, exact
        Solution by a factor, and whether that is `own_factor`.
    """
    residual = point.grad - point.alpha
    curvature = tf.nn.relu(point.curvature)
    one_latent = point.mean.shape[-1] == 1
    if exact and one_latent:
        return solve(residual)

    def times_hessian(p: tf.Tensor) -> tf.Tensor:
        if one_latent:
            return curvature * p
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(point.mean)
            with tf.GradientTape(watch_accessed_variables=False) as inner:
                inner.watch(point.mean)
                value = tf.reduce_sum(expectation(point.mean, point.var))
            slope = tf.reduce_sum(inner.gradient(value, point.mean) * tf.stop_gradient(p))
        return -outer.gradient(slope, point.mean)

    most = CG_ITERATIONS if exact else ROUGH_CG_ITERATIONS
    return _conjugate_gradients(times_hessian, solve, residual, most)


def _conjugate_gradients(
    times_hessian: Callable[[tf.Tensor], tf.Tensor], solve: Solve, residual: tf.Tensor, most: int
) -> Pair:
    """Solve (H + Q⁻¹) Qδ = residual for δ and Qδ, Q⁻¹ never being formed.

    Where Q is singular, as under inducing points, the part of the residual in its null space is unseen by
    these inner products, and the polynomials of conjugate gradients can amplify it without bound. A step of
    length one along the preconditioned residual replaces it by (W - H) z, which has no such part. So the
    first step is one, and so is each that finds the residual to outweigh what it is the difference of.
    """

    def iterate(k: tf.Tensor, whole: tf.Tensor, *loop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        delta, shift, r, rz, p, p_alpha = loop  # p = Q p_alpha
        product = times_hessian(p) + p_alpha
        along = tf.math.divide_no_nan(rz, tf.reduce_sum(p * product))
        step = tf.where(whole, tf.ones_like(along), along)
        delta, shift, r = delta + step * p_alpha, shift + step * p, r - step * product
        z_alpha, z = solve(r)
        new = tf.reduce_sum(r * z)
        unseen = tf.reduce_max(tf.abs(r)) > UNSEEN * tf.reduce_max(tf.abs(r + delta))
        ratio = tf.where(whole | unseen, tf.zeros_like(new), tf.math.divide_no_nan(new, rz))
        return k + 1, unseen, delta, shift, r, new, z + ratio * p, z_alpha + ratio * p_alpha

    first, p = solve(residual)
    rz = tf.reduce_sum(residual * p)
    zero = tf.zeros_like(first)
    begin = (tf.constant(0), tf.constant(True), zero, zero, residual, rz, p, first)
    enough = CG_TOLERANCE**2 * rz
    going = lambda k, whole, delta, shift, r, rz, *_: (k < most) & (rz > enough)  # noqa: E731
    return Pair(*tf.while_loop(going, iterate, begin)[2:4])
