"""Conjugate gradients with a preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Operator: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Map columns [N, L] to as many."""

ITERATIONS = 25  # which take as long as a factor


def solve(
    operator: Operator, preconditioner: Operator, b: tf.Tensor, tolerance: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x with Ax ≈ b for columns b [N, L], and whether all are within the tolerance, [].

    That is ‖Ax − b‖ ≤ ``tolerance``·‖b‖ in the norm of the preconditioner P, ‖r‖² = rᵀP⁻¹r. They are not
    where it takes more than `ITERATIONS`.
    """

    def going(k: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rr: tf.Tensor) -> tf.Tensor:
        return (k < ITERATIONS) & tf.reduce_any(rr > enough)

    def iterate(
        k: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rr: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        product = operator(p)
        step = tf.math.divide_no_nan(rr, tf.reduce_sum(p * product, axis=0))
        x, r = x + step * p, r - step * product
        z = preconditioner(r)
        new = tf.reduce_sum(r * z, axis=0)
        return k + 1, x, r, z + tf.math.divide_no_nan(new, rr) * p, new

    first = preconditioner(b)
    norm = tf.reduce_sum(b * first, axis=0)
    enough = tolerance**2 * norm
    _, x, _, _, left = tf.while_loop(going, iterate, (tf.constant(0), tf.zeros_like(b), b, first, norm))
    return x, tf.reduce_all(left <= enough) & tf.reduce_all(norm >= 0.0)  # false for NaN
