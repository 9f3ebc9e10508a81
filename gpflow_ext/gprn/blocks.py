"""The algebra of Kronecker products with blocks: rows l [N, M] of a factor, and a K × K matrix for each."""

from __future__ import annotations

import tensorflow as tf


def diagonal(residual: tf.Tensor | float, like: tf.Tensor) -> tf.Tensor:
    """Return variances [N] times the identity, for blocks [..., N, K, K]."""
    own = residual * tf.ones([like.shape[-3]], like.dtype)
    return own[:, None, None] * tf.eye(like.shape[-1], dtype=like.dtype)


def gram(rows: tf.Tensor, inner: tf.Tensor) -> tf.Tensor:
    """Return Σᵢ lᵢlᵢᵀ ⊗ Aᵢ for rows lᵢ [N, M] and A [..., N, K, K], as [..., MK, MK]. O(NM²K²)."""
    (num_data, M), K = rows.shape, inner.shape[-1]
    lead = inner.shape[:-3]
    right = inner[..., None] * rows[:, None, None, :]  # [..., i, k, l, m]
    full = tf.matmul(rows, tf.reshape(right, [*lead, num_data, -1]), transpose_a=True)
    full = tf.linalg.matrix_transpose(tf.reshape(full, [*lead, M, K, K, M]))
    return tf.reshape(full, [*lead, M * K, M * K])


def half(factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
    """Return F⁻¹(A ⊗ I) for F [..., MK, MK] and A [M, X], as [..., MK, X, K]. O((MK)² XK)."""
    size, (num_data, columns) = factor.shape[-1], A.shape
    K = size // num_data
    rhs = A[:, None, :, None] * tf.eye(K, dtype=A.dtype)[None, :, None, :]
    rhs = tf.reshape(rhs, [size, -1])
    rhs = tf.broadcast_to(rhs, [*factor.shape[:-2], size, tf.shape(rhs)[-1]])
    solved = tf.linalg.triangular_solve(factor, rhs)
    return tf.reshape(solved, [*factor.shape[:-2], size, -1 if columns is None else columns, K])


def on_diagonal(factor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return the K × K blocks on the diagonal of (L ⊗ I)(FFᵀ)⁻¹(L ⊗ I)ᵀ, [..., N, K, K]. O(N(MK)²K)."""
    solved = half(factor, tf.transpose(rows))
    return tf.einsum("...rnk,...rnl->...nkl", solved, solved)
