"""Conjugate gradients, and logarithms by Lanczos' method, of positive definite operators on fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from gpflow_ext.numerics import conjugate_gradients, lanczos

Operator: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Map fields [L, B, G] to as many."""

STEPS = 64  # of Lanczos' method at most, which are also the most vectors of a basis
ITERATIONS = 400  # of conjugate gradients at most


def solve(operator: Operator, b: tf.Tensor, tolerance: tf.Tensor) -> tf.Tensor:
    """Return x with ‖Ax − b‖ ≤ tolerance·‖b‖ for each field of b [L, B, G], by conjugate gradients."""
    return conjugate_gradients.solve(operator, b, tolerance, -1, ITERATIONS, tf.identity)[0]


class Logarithm(NamedTuple):
    """What zᵀ log(A) z of some z is, and how it changes: d zᵀ log(A) z = Σ_k y_kᵀ dA y_k."""

    value: tf.Tensor  # [L, B]
    modes: tf.Tensor  # y, [L, B·RANK, G]
    images: tf.Tensor  # (A − I)y, [L, B·RANK, G]


def logarithm(operator: Operator, z: tf.Tensor, tolerance: tf.Tensor) -> Logarithm:
    """Return the logarithm of A for fields z [L, B, G]; see `lanczos`, also for the tolerance."""
    L, _, G = z.shape
    vectors, _, T = lanczos.tridiagonal(operator, z, tolerance, -1, min(STEPS, int(G)))
    squared = tf.reduce_sum(z * z, axis=-1)
    value, c = lanczos.logarithm(T)
    c *= tf.sqrt(squared)[..., None, None]
    both = tf.concat([c, tf.matmul(T, c) - c], axis=-1)  # [L, B, m, 2·rank]
    fields = tf.matmul(both, tf.transpose(vectors.stack(), [1, 2, 0, 3]), transpose_a=True)
    modes, images = (tf.reshape(part, [L, -1, G]) for part in tf.split(fields, 2, axis=2))
    return Logarithm(squared * value, modes, images)
