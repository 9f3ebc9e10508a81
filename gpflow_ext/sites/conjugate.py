"""Conjugate gradients for (I + HQ)α = b, preconditioned by a factor of I + ΛQ for precisions Λ near H."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from gpflow_ext.sites.algebra import Factor, Pair

ITERATIONS = 12  # beyond, a factorisation is cheaper
UNSEEN = 1e3  # a residual so many times what it is the difference of is one that Q hides

Solve: TypeAlias = Callable[[tf.Tensor], Pair]
"""Map b [N, L] to the solution α of a linear system and Qα."""


def near(factor: Factor, prec: tf.Tensor, b: tf.Tensor, tolerance: tf.Tensor) -> tuple[Pair, tf.Tensor]:
    """Return α = (I + Λ'Q)⁻¹b and Qα at other precisions Λ' [N, L], and whether they are within a tolerance.

    By the factor's own ``near`` where it has one; else see `solve`.
    """
    own = getattr(factor, "near", None)
    if own is not None:
        found: tuple[Pair, tf.Tensor] = own(prec, b, tolerance)
        return found
    return solve(lambda p: prec * p, factor.solve, b, tolerance, ITERATIONS)


def solve(
    times: Callable[[tf.Tensor], tf.Tensor],
    precondition: Solve,
    b: tf.Tensor,
    tolerance: tf.Tensor,
    most: int,
) -> tuple[Pair, tf.Tensor]:
    """Solve (H + Q⁻¹) Qα = b for α and Qα, Q⁻¹ never being formed; tell whether they are within a tolerance.

    That is relative, in the norm of the preconditioner. Where Q is singular, as under inducing points, the
    part of the residual in its null space is unseen by these inner products, and the polynomials of conjugate
    gradients can amplify it without bound. A step of length one along the preconditioned residual replaces it
    by (W - H) z, which has no such part. So the first step is one, and so is each that finds the residual to
    outweigh what it is the difference of.

    Where H is indefinite they end at the first direction without positive curvature, which is not followed
    (Steihaug 1983): what was found until then is a direction of ascent.

    Parameters
    ----------
    times
        H, applied to [N, L].
    precondition
        Solution with (I + WQ) for precisions W near H.
    b
        The right-hand side, [N, L].
    most
        Iterations, at most.
    """

    def iterate(k: tf.Tensor, whole: tf.Tensor, *loop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        _, delta, shift, r, rz, p, p_alpha = loop  # p = Q p_alpha
        product = times(p) + p_alpha
        curvature = tf.reduce_sum(p * product)
        along = tf.math.divide_no_nan(rz, tf.nn.relu(curvature))
        step = tf.where(whole, tf.ones_like(along), along)
        delta, shift, r = delta + step * p_alpha, shift + step * p, r - step * product
        z_alpha, z = precondition(r)
        new = tf.reduce_sum(r * z)
        unseen = tf.reduce_max(tf.abs(r)) > UNSEEN * tf.reduce_max(tf.abs(r + delta))
        ratio = tf.where(whole | unseen, tf.zeros_like(new), tf.math.divide_no_nan(new, rz))
        p, p_alpha = z + ratio * p, z_alpha + ratio * p_alpha
        return k + 1, unseen, curvature > 0.0, delta, shift, r, new, p, p_alpha

    first, p = precondition(b)
    rz = tf.reduce_sum(b * p)
    zero = tf.zeros_like(first)
    begin = (tf.constant(0), tf.constant(True), tf.constant(True), zero, zero, b, rz, p, first)
    enough = tf.cast(tolerance, b.dtype) ** 2 * rz
    going = lambda k, _, convex, delta, shift, r, rz, *__: (k < most) & convex & (rz > enough)  # noqa: E731
    *_, delta, shift, _, left, _, _ = tf.while_loop(going, iterate, begin)
    return Pair(delta, shift), (left <= enough) & (rz >= 0.0)  # false for NaN
