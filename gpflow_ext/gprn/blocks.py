"""The algebra of Kronecker products with blocks: rows l [N, M] of a factor, and a K × K matrix for each.

Where each of the K nodes has a kernel of its own, rows are [K, N, M]: l_k for node k instead of l.
"""

from __future__ import annotations

import tensorflow as tf


def diagonal(residual: tf.Tensor | float, like: tf.Tensor) -> tf.Tensor:
    """Return variances [N] or [K, N] on the diagonals of blocks [..., N, K, K]."""
    own = residual * tf.ones([like.shape[-1], like.shape[-3]], like.dtype)
    return tf.linalg.diag(tf.transpose(own))


def applied(rows: tf.Tensor, whitened: tf.Tensor) -> tf.Tensor:
    """Return l_kᵀg_k for g [M, K], as [N, K]."""
    if rows.shape.rank == 2:
        return tf.matmul(rows, whitened)
    return tf.einsum("knm,mk->nk", rows, whitened)


def pulled(rows: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return Σᵢ l_ki h_ik for h [N, K], as [M, K]."""
    if rows.shape.rank == 2:
        return tf.matmul(rows, values, transpose_a=True)
    return tf.einsum("knm,nk->mk", rows, values)


def whitened(chol: tf.Tensor, values: tf.Tensor, adjoint: bool = False) -> tf.Tensor:
    """Return L_k⁻¹h_k, or L_k⁻ᵀh_k, for L [N, N] or [K, N, N] and h [N, K], as [N, K]."""
    if chol.shape.rank == 2:
        return tf.linalg.triangular_solve(chol, values, adjoint=adjoint)
    columns = tf.linalg.triangular_solve(chol, tf.transpose(values)[:, :, None], adjoint=adjoint)
    return tf.transpose(columns[:, :, 0])


def gram(rows: tf.Tensor, inner: tf.Tensor) -> tf.Tensor:
    """Return Σᵢ lᵢlᵢᵀ ⊗ Aᵢ for A [..., N, K, K], as [..., MK, MK]. O(NM²K²)."""
    (num_data, M), K = rows.shape[-2:], inner.shape[-1]
    lead = inner.shape[:-3]
    if rows.shape.rank == 2:
        right = inner[..., None] * rows[:, None, None, :]  # [..., i, k, l, m]
        full = tf.matmul(rows, tf.reshape(right, [*lead, num_data, -1]), transpose_a=True)
        full = tf.linalg.matrix_transpose(tf.reshape(full, [*lead, M, K, K, M]))
    else:
        right = tf.einsum("...ikl,lim->...kilm", inner, rows)
        full = tf.matmul(rows, tf.reshape(right, [*lead, K, num_data, K * M]), transpose_a=True)
        full = tf.einsum("...kmln->...mknl", tf.reshape(full, [*lead, K, M, K, M]))
    return tf.reshape(full, [*lead, M * K, M * K])


def half(factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
    """Return F⁻¹(A ⊗ I) for F [..., MK, MK] and A [M, X] or [K, M, X], as [..., MK, X, K]. O((MK)² XK)."""
    size, (num_data, columns) = factor.shape[-1], A.shape[-2:]
    K = size // num_data
    eye = tf.eye(K, dtype=A.dtype)
    each = A[:, None, :] if A.shape.rank == 2 else tf.transpose(A, [1, 0, 2])  # [M, 1 or K, X]
    rhs = tf.reshape(each[..., None] * eye[None, :, None, :], [size, -1])
    rhs = tf.broadcast_to(rhs, [*factor.shape[:-2], size, tf.shape(rhs)[-1]])
    solved = tf.linalg.triangular_solve(factor, rhs)
    return tf.reshape(solved, [*factor.shape[:-2], size, -1 if columns is None else columns, K])


def on_diagonal(factor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Return the K × K blocks on the diagonal of (L ⊗ I)(FFᵀ)⁻¹(L ⊗ I)ᵀ, [..., N, K, K]. O(N(MK)²K)."""
    solved = half(factor, tf.linalg.matrix_transpose(rows))
    return tf.einsum("...rnk,...rnl->...nkl", solved, solved)
