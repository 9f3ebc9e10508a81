"""Conjugate gradients, with a preconditioner or without, for several right-hand sides at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

Operator: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Map a tensor to one of its shape."""


def solve(
    operator: Operator, b: tf.Tensor, tolerance: tf.Tensor, axis: int, most: int, preconditioner: Operator
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return x with Ax ≈ b, and whether all systems are within the tolerance, [].

    That is ‖Ax − b‖ ≤ ``tolerance``·‖b‖ in the norm of the preconditioner P, ‖r‖² = rᵀP⁻¹r. They are not
    where it takes more than ``most`` iterations.

    Parameters
    ----------
    operator
        A, positive definite, applied to all systems.
    b
        The right-hand sides; each is a vector along ``axis``.
    preconditioner
        P⁻¹, applied to all systems.
    """

    def dot(a: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * c, axis=axis, keepdims=True)

    def going(k: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rz: tf.Tensor) -> tf.Tensor:
        return (k < most) & tf.reduce_any(rz > enough)

    def iterate(
        k: tf.Tensor, x: tf.Tensor, r: tf.Tensor, p: tf.Tensor, rz: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        product = operator(p)
        step = tf.math.divide_no_nan(rz, dot(p, product))
        x, r = x + step * p, r - step * product
        z = preconditioner(r)
        new = dot(r, z)
        return k + 1, x, r, z + tf.math.divide_no_nan(new, rz) * p, new

    first = preconditioner(b)
    norm = dot(b, first)
    enough = tolerance**2 * norm
    _, x, _, _, left = tf.while_loop(going, iterate, (tf.constant(0), tf.zeros_like(b), b, first, norm))
    return x, tf.reduce_all(left <= enough) & tf.reduce_all(norm >= 0.0)  # false for NaN
