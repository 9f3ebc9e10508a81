"""Fields on a grid, products with Kronecker matrices, and their spectrum.

A field has a value in each of the G = ∏ n_d cells, the last axis changing fastest. Arrays of fields are
[L, B, G], L latent functions with B fields each; S of matrices is 1, where all share a kernel, or L.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes


def along(fields: tf.Tensor, matrices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return (⊗_d M_dᵀ)v for M_d [S, n_d, m_d] and fields v [L, B, ∏ n_d], [L, B, ∏ m_d]. O(BG ∑ m_d)."""
    L, B, _ = sizes(fields)
    for matrix in matrices:  # the first axis is contracted and goes to the end
        fields = tf.reshape(fields, [L, B, matrix.shape[1], -1])
        fields = tf.matmul(fields, matrix[:, None], transpose_a=True)
        L = sizes(fields)[0]
    return tf.reshape(fields, [L, B, _product(matrices)])


def _product(matrices: Sequence[tf.Tensor]) -> int:
    return functools.reduce(lambda size, matrix: size * matrix.shape[2], matrices, 1)


def outer(vectors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the fields ⊗_d v_d of vectors v_d [B, n_d], [B, G]."""
    B = sizes(vectors[0])[0]
    return functools.reduce(lambda a, b: tf.reshape(a[:, :, None] * b[:, None, :], [B, -1]), vectors)


class Spectrum(NamedTuple):
    """K = ⊗_d K_d = QEQᵀ, with Q = ⊗_d Q_d and E = ⊗_d E_d."""

    vectors: tuple[tf.Tensor, ...]  # Q_d, [S, n_d, n_d]
    values: tuple[tf.Tensor, ...]  # the diagonals of E_d, [S, n_d]

    @property
    def all_values(self) -> tf.Tensor:
        """The eigenvalues of K, [S, 1, G]."""
        return outer(self.values)[:, None]

    def forth(self, fields: tf.Tensor) -> tf.Tensor:
        """Return Qᵀv of fields, [L, B, G]."""
        return along(fields, self.vectors)

    def back(self, fields: tf.Tensor) -> tf.Tensor:
        """Return Qv of fields, [L, B, G]."""
        return along(fields, [tf.linalg.matrix_transpose(each) for each in self.vectors])

    def diagonal(self, values: tf.Tensor) -> tf.Tensor:
        """Return the diagonal of Q diag(v) Qᵀ for v [L, 1, G], [L, 1, G]."""
        return along(values, [tf.linalg.matrix_transpose(each) ** 2 for each in self.vectors])


def spectrum(grams: Sequence[tf.Tensor]) -> Spectrum:
    """Return the spectrum of K_d [S, n_d, n_d], what rounding leaves below ε·max E_d raised. O(∑ n_d³)."""
    vectors, values = [], []
    for gram in grams:
        finite = tf.reduce_all(tf.math.is_finite(gram), axis=[-2, -1], keepdims=True)
        own, basis = tf.linalg.eigh(tf.where(finite, gram, tf.eye(gram.shape[-1], dtype=gram.dtype)))
        least = tf.constant(gram.dtype.as_numpy_dtype(2.2e-16), gram.dtype) * own[:, -1:]
        values.append(tf.where(finite[..., 0], tf.maximum(own, least), tf.constant(float("nan"), gram.dtype)))
        vectors.append(basis)
    return Spectrum(tuple(vectors), tuple(values))
