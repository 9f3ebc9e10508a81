"""Products and solves of stacked matrices, [1 or L, ·, ·], with vectors over the data, [N, L]."""

from __future__ import annotations

import tensorflow as tf


def matvec(matrix: tf.Tensor, vectors: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Multiply [1 or L, A, B] by the columns of [B, L] to [A, L] (or its transpose by [A, L] to [B, L])."""
    return tf.transpose(tf.linalg.matvec(matrix, tf.transpose(vectors), transpose_a=transpose))


def cholesky_solve(chol: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Solve RRᵀ x = b for R [1 or L, N, N] and the columns of b [N, L], [N, L]."""
    return tf.transpose(tf.linalg.cholesky_solve(chol, tf.transpose(vectors)[..., None])[..., 0])


def whitened(chol: tf.Tensor, mean: tf.Tensor, factor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return L⁻¹m [M, L] and L⁻¹F [L, M, M] for q(u) = N(m, FFᵀ) and L [M, M] or [1 or L, M, M]. O(LM³)."""
    chol = tf.broadcast_to(chol, tf.shape(factor))
    inner = tf.linalg.triangular_solve(chol, tf.transpose(mean)[..., None])[..., 0]
    return tf.transpose(inner), tf.linalg.triangular_solve(chol, factor)


def inverse(chol: tf.Tensor) -> tf.Tensor:
    """Return (RRᵀ)⁻¹ for R [L, M, M]."""
    eye = tf.eye(tf.shape(chol)[-1], batch_shape=tf.shape(chol)[:1], dtype=chol.dtype)
    half = tf.linalg.triangular_solve(chol, eye)
    return tf.matmul(half, half, transpose_a=True)


def batch_shape(A: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return the shape [L, M, N] that A takes beside precisions [N, L]."""
    return tf.concat([tf.shape(prec)[1:], tf.shape(A)[1:]], axis=0)
