"""Products with many triangular matrices at once, at little more than half the cost of dense ones.

The posterior of a sparse model with P latent functions holds P lower triangular factors [M, M], and almost
all of the time of a training step goes into their products with one [M, B] matrix. A product by blocks of
columns leaves out the zeros: with n blocks (1 + 1/n)/2 of the operations are left. All P factors share one
matrix product for each block.
"""

from __future__ import annotations

import itertools
from typing import Any

import tensorflow as tf

_BLOCKS = 8
_SMALLEST = 32  # rows of a block below which its product is no longer worth an operation of its own
_LEAF = 128  # rows up to which TensorFlow's own triangular solve inverts a matrix


def squared_norms(factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
    """Return aₙᵀS_p aₙ for S_p = F_pF_pᵀ, [B, P]. O(½PM²B), and as much for each of its two derivatives.

    These are derived in docs/derivations.md, section 8.

    Parameters
    ----------
    factor
        Lower triangular F, [P, M, M]; what is above the diagonal is not read.
    A
        Columns aₙ that all factors share, [1, M, B], or those of each, [P, M, B], at twice the cost.
    """
    if A.shape[0] == 1:
        return _shared_norms(factor, A[0])
    columns = tf.matmul(tf.linalg.band_part(factor, -1, 0), A, transpose_a=True)
    return tf.transpose(tf.reduce_sum(tf.square(columns), axis=1))


def _shared_norms(factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:

    @tf.custom_gradient
    def value(factor: tf.Tensor, A: tf.Tensor) -> Any:
        count, blocks = factor.shape[0], _blocks(factor.shape[-1])
        rows, products = [], []  # of F_pᵀ, [P·b, M - begin], and of F_pᵀA, [P, b, B]
        for begin, end in blocks:
            columns = tf.linalg.band_part(factor[:, begin:, begin:end], -1, 0)
            rows.append(tf.reshape(tf.linalg.matrix_transpose(columns), [-1, columns.shape[1]]))
            products.append(tf.reshape(tf.matmul(rows[-1], A[begin:]), [count, end - begin, -1]))
        norms = tf.add_n([tf.reduce_sum(tf.square(product), axis=1) for product in products])

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            twice = 2.0 * tf.transpose(upstream)[:, None, :]
            scaled = [tf.reshape(twice * p, [-1, tf.shape(p)[-1]]) for p in products]  # [P·b, B]
            by_rows = [
                tf.matmul(s, A[begin:], transpose_b=True)
                for s, (begin, _) in zip(scaled, blocks, strict=True)
            ]
            by_A = [tf.matmul(row, s, transpose_a=True) for row, s in zip(rows, scaled, strict=True)]
            by_A = [tf.pad(part, [[begin, 0], [0, 0]]) for part, (begin, _) in zip(by_A, blocks, strict=True)]
            return tf.linalg.band_part(_assemble(by_rows, blocks, count), -1, 0), tf.add_n(by_A)

        return tf.transpose(norms), gradient

    return value(factor, A)


def weighted_gram(A: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    """Return Σₙ wₙₚ aₙaₙᵀ of which the lower triangle is to be read, by blocks, [P, M, M]. O(½PM²B).

    Where a graph leaves M open it is one block, at twice the cost.

    Parameters
    ----------
    A
        Columns aₙ that all weights share, [1, M, B], or those of each, [P, M, B], at twice the cost.
    weight
        w, [B, P].
    """
    if A.shape[0] != 1 or A.shape[1] is None:
        return tf.matmul(A * tf.transpose(weight)[:, None, :], A, transpose_b=True)
    A = A[0]
    blocks, products = _blocks(A.shape[0]), []
    for begin, end in blocks:
        scaled = A[begin:end] * tf.transpose(weight)[:, None, :]  # [P, b, B]
        scaled = tf.reshape(scaled, [-1, tf.shape(scaled)[-1]])
        products.append(tf.matmul(scaled, A[begin:], transpose_b=True))
    return _assemble(products, blocks, weight.shape[-1])


def symmetric(lower: tf.Tensor) -> tf.Tensor:
    """Return the symmetric matrices whose lower triangles are given, [..., M, M]."""
    lower = tf.linalg.band_part(lower, -1, 0)
    both = lower + tf.linalg.matrix_transpose(lower)
    return tf.linalg.set_diag(both, tf.linalg.diag_part(lower))


def inverse(factor: tf.Tensor) -> tf.Tensor:
    """Return the inverses of lower triangular matrices [..., M, M], by halves. O(M³/3) each."""
    size = factor.shape[-1]
    if size <= _LEAF:
        return tf.linalg.triangular_solve(
            factor, tf.eye(size, batch_shape=factor.shape[:-2], dtype=factor.dtype)
        )
    half = size // 2
    first, last = inverse(factor[..., :half, :half]), inverse(factor[..., half:, half:])
    across = -tf.matmul(last, tf.matmul(factor[..., half:, :half], first))
    upper = tf.concat([first, tf.zeros_like(tf.linalg.matrix_transpose(across))], axis=-1)
    return tf.concat([upper, tf.concat([across, last], axis=-1)], axis=-2)


def log_det_and_gram(matrix: tf.Tensor, columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return log|R| [...] and CᵀR⁻¹C [..., N, N] for positive definite R [..., M, M] and C [..., M, N].

    Their adjoints l̄ and Ē, made symmetric, give that of R as l̄R⁻¹ − WĒWᵀ and that of C as 2WĒ, W = R⁻¹C, in
    place of the derivative of the factorisation (docs/derivations.md, section 11). First derivatives only.
    O(M²(M + N)).
    """

    @tf.custom_gradient
    def value(matrix: tf.Tensor, columns: tf.Tensor) -> Any:
        factor = tf.linalg.cholesky(matrix)
        half = tf.linalg.triangular_solve(factor, columns)
        log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)

        def gradient(by_log_det: tf.Tensor, by_gram: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            solved = tf.linalg.triangular_solve(factor, half, adjoint=True)
            weighted = tf.matmul(solved, by_gram + tf.linalg.matrix_transpose(by_gram))
            root = inverse(factor)
            by_matrix = by_log_det[..., None, None] * tf.matmul(root, root, transpose_a=True)
            return by_matrix - 0.5 * tf.matmul(weighted, solved, transpose_b=True), weighted

        return (log_det, tf.matmul(half, half, transpose_a=True)), gradient

    return value(matrix, columns)


def _blocks(size: int) -> list[tuple[int, int]]:
    """Return the ends of the blocks of rows."""
    number = max(1, min(_BLOCKS, size // _SMALLEST))
    ends = [size * i // number for i in range(number + 1)]
    return list(itertools.pairwise(ends))


def _assemble(rows: list[tf.Tensor], blocks: list[tuple[int, int]], count: int | None) -> tf.Tensor:
    """Return [P, M, M] whose columns ``begin`` to ``end`` are the transposed rows [P·b, M - begin].

    P is ``count`` if that is known: the shapes of a graph, by which predictions are checked, are to keep it.
    """
    columns, number = [], -1 if count is None else count
    for part, (begin, end) in zip(rows, blocks, strict=True):
        below = tf.linalg.matrix_transpose(tf.reshape(part, [number, end - begin, part.shape[-1]]))
        columns.append(tf.pad(below, [[0, 0], [begin, 0], [0, 0]]))
    return tf.concat(columns, axis=-1)
