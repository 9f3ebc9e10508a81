"""Small pieces of linear algebra shared by all packages."""

from __future__ import annotations

import contextlib
import contextvars
import sys
from collections.abc import Iterator
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.devices import has_accelerator

LEAF = 512  # rows up to which TensorFlow's own factorisation, on one core, beats the recursion
INVERTED_LEAF = 256  # rows up to which a matrix is inverted by two triangular solves
INVERTED_ON_ACCELERATOR = 1024  # the same on a GPU, which is slow at many small operations
BATCHED_LEAF = 64  # rows up to which a GPU factorises many matrices by one operation, which is for small ones
_expected = contextvars.ContextVar("expected", default=0)  # length of axes that a graph leaves open


@contextlib.contextmanager
def expecting(length: int) -> Iterator[None]:
    """Within, divide matrices whose size a graph leaves open as those of this size, see `cholesky`."""
    token = _expected.set(length)
    try:
        yield
    finally:
        _expected.reset(token)


def cholesky(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Factorise a batch of symmetric matrices and say whether it worked.

    ``tf.linalg.cholesky`` returns NaN for an indefinite matrix without raising, and assertions vanish
    under XLA, so the status is returned as a tensor for the caller to read. On CPU it uses one core: large
    matrices are factorised by halves, most of the work being matrix products, which use all of them. A GPU
    has a library for one matrix of any size, and XLA thousands of operations less to compile.

    Parameters
    ----------
    matrix
        Symmetric matrices, shape [..., M, M]; what is above the diagonal is not read.

    Returns
    -------
    The lower factor, shape [..., M, M], and a scalar boolean that is true when every pivot is finite.
    """
    factor = _factor(matrix, expected(matrix.shape[-1]))
    return factor, tf.reduce_all(tf.math.is_finite(tf.linalg.diag_part(factor)))


def _factor(matrix: tf.Tensor, size: int) -> tf.Tensor:
    if size <= _leaf(matrix):
        return tf.linalg.cholesky(matrix)
    half = _length(matrix) // 2
    first = _factor(matrix[..., :half, :half], size // 2)
    across = triangular_solve(first, tf.linalg.matrix_transpose(matrix[..., half:, :half]))
    rest = matrix[..., half:, half:] - tf.matmul(across, across, transpose_a=True)
    last = _factor(rest, size - size // 2)
    upper = tf.concat([first, tf.zeros_like(across)], axis=-1)
    return tf.concat([upper, tf.concat([tf.linalg.matrix_transpose(across), last], axis=-1)], axis=-2)


def _leaf(matrix: tf.Tensor) -> int:
    """Return the number of rows up to which one operation factorises matrices [..., M, M]."""
    if not has_accelerator():
        return LEAF
    return sys.maxsize if matrix.shape[:-2].num_elements() == 1 else BATCHED_LEAF


def inverse(factor: tf.Tensor) -> tf.Tensor:
    """Return (FFᵀ)⁻¹ of lower triangular F [..., M, M], by halves. O(M³).

    With F = [[A, 0], [B, C]] and E = BA⁻¹ it is [[P + EᵀRE, −EᵀR], [−RE, R]], P = (AAᵀ)⁻¹ and R = (CCᵀ)⁻¹:
    5/12 M³ multiplications, where two triangular solves take M³.
    """
    return _inverse(factor, expected(factor.shape[-1]))


def _inverse(factor: tf.Tensor, size: int) -> tf.Tensor:
    if size <= (INVERTED_ON_ACCELERATOR if has_accelerator() else INVERTED_LEAF):
        half = triangular_solve(factor, tf.linalg.diag(tf.ones_like(tf.linalg.diag_part(factor))))
        return triangular_solve(factor, half, adjoint=True)
    half = _length(factor) // 2
    first, across = factor[..., :half, :half], factor[..., half:, :half]
    P, R = _inverse(first, size // 2), _inverse(factor[..., half:, half:], size - size // 2)
    Et = triangular_solve(first, tf.linalg.matrix_transpose(across), adjoint=True)
    RE = tf.matmul(R, Et, transpose_b=True)
    upper = tf.concat([P + tf.matmul(Et, RE), -tf.linalg.matrix_transpose(RE)], axis=-1)
    return tf.concat([upper, tf.concat([-RE, R], axis=-1)], axis=-2)


def triangular_inverse(factor: tf.Tensor) -> tf.Tensor:
    """Return F⁻¹ of lower triangular F [..., M, M], by halves. O(M³/3).

    With F = [[A, 0], [B, C]] it is [[A⁻¹, 0], [−C⁻¹BA⁻¹, C⁻¹]].
    """
    return _triangular_inverse(factor, expected(factor.shape[-1]))


def _triangular_inverse(factor: tf.Tensor, size: int) -> tf.Tensor:
    if size <= (INVERTED_ON_ACCELERATOR if has_accelerator() else INVERTED_LEAF):
        return triangular_solve(factor, tf.linalg.diag(tf.ones_like(tf.linalg.diag_part(factor))))
    half = _length(factor) // 2
    first = _triangular_inverse(factor[..., :half, :half], size // 2)
    last = _triangular_inverse(factor[..., half:, half:], size - size // 2)
    across = tf.matmul(last, tf.matmul(factor[..., half:, :half], first))
    upper = tf.concat([first, tf.zeros_like(tf.linalg.matrix_transpose(across))], axis=-1)
    return tf.concat([upper, tf.concat([-across, last], axis=-1)], axis=-2)


def finite(parts: tuple[tf.Tensor, ...], owner: Any) -> tuple[tf.Tensor, ...]:
    """Return the computed parts of the posterior of ``owner`` if they are finite; not checked in graphs.

    Raises
    ------
    tf.errors.InvalidArgumentError
        As by GPflow's posteriors, instead of NaN predictions.
    """
    if tf.executing_eagerly():
        for part in parts:
            if part.dtype.is_floating:
                tf.debugging.check_numerics(
                    part,
                    f"{type(owner).__name__}: Cholesky factor is non-finite, as the prior covariance is not "
                    "positive definite or training diverged; standardise the data, or set less extreme "
                    "hyperparameters",
                )
    return parts


def expected(length: int | None) -> int:
    """Return the length of an axis, or that which is expected of one that a graph leaves open."""
    return length or _expected.get()


def _length(matrix: tf.Tensor) -> Any:
    """Return the length of the last axis, a number where it is known."""
    return matrix.shape[-1] or tf.shape(matrix)[-1]


def jittered(gram: tf.Tensor) -> tf.Tensor:
    """Return K + jI for matrices [..., N, N] and GPflow's default jitter j."""
    return tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + gpflow.default_jitter())


def with_jitter(gram: tf.Tensor, nugget: tf.Tensor | float = 0.0) -> tf.Tensor:
    """Return K + (j + nugget)I for matrices [..., N, N], a nugget [...], and GPflow's default jitter j.

    Where rounding may take more than that from an eigenvalue, as in single precision, j is Nε·max Kₙₙ.
    """
    least = tf.cast(gpflow.default_jitter(), gram.dtype)
    jitter = tf.maximum(least, rounding(gram))
    own = tf.linalg.diag_part(gram)
    return tf.linalg.set_diag(gram, own + jitter + tf.convert_to_tensor(nugget, gram.dtype)[..., None])


def above_rounding(gram: tf.Tensor) -> tf.Tensor:
    """Return matrices [..., N, N] that have GPflow's default jitter, raised to Nε·max Kₙₙ where that is more.

    As of a kernel whose variance is that of house prices: rounding leaves their K with negative eigenvalues.
    """
    lacking = tf.nn.relu(rounding(gram) - tf.cast(gpflow.default_jitter(), gram.dtype))
    return tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + lacking)


def rounding(gram: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return what rounding in a dtype, by default that of K, takes from eigenvalues, Nε·max Kₙₙ, [..., 1]."""
    kind = gram.dtype if dtype is None else dtype
    size = tf.cast(_length(gram), gram.dtype) * float(np.finfo(kind.as_numpy_dtype).eps)
    return size * tf.reduce_max(tf.linalg.diag_part(gram), axis=-1, keepdims=True)


def solve(matrix: tf.Tensor, rhs: tf.Tensor) -> tf.Tensor:
    """Return A⁻¹B for A [..., M, M] and B [..., M, N], and NaN where A is not finite.

    ``tf.linalg.solve`` raises there on CPU.
    """
    finite = tf.reduce_all(tf.math.is_finite(matrix), axis=[-2, -1], keepdims=True)
    eye = tf.eye(_length(matrix), dtype=matrix.dtype)
    unknown = tf.constant(np.nan, matrix.dtype)
    return tf.where(finite, tf.linalg.solve(tf.where(finite, matrix, eye), rhs), unknown)


def triangular_solve(factor: tf.Tensor, rhs: tf.Tensor, adjoint: bool = False) -> tf.Tensor:
    """Return F⁻¹B, or F⁻ᵀB, for lower triangular F [..., M, M] and B [..., M, N], in two parts of columns.

    On CPU an operation uses one core; the two run side by side. Elsewhere it is one.
    """
    columns = rhs.shape[-1]
    if has_accelerator() or not (_expected.get() > LEAF if columns is None else columns >= LEAF):
        return tf.linalg.triangular_solve(factor, rhs, adjoint=adjoint)
    half = _length(rhs) // 2
    parts = rhs[..., :half], rhs[..., half:]
    return tf.concat([tf.linalg.triangular_solve(factor, part, adjoint=adjoint) for part in parts], axis=-1)


def whiten(gram: tf.Tensor, chol: tf.Tensor, cross: tf.Tensor) -> tf.Tensor:
    """Return A = chol⁻¹ cross, [..., M, N], differentiable in ``gram`` = chol cholᵀ though ``chol`` is given.

    With Ā the adjoint of A and Φ the lower triangle with its diagonal halved, that of ``cross`` is chol⁻ᵀĀ
    and that of ``gram`` chol⁻ᵀ ½(P + Pᵀ) chol⁻¹ for P = Φ(−ĀAᵀ) (Murray 2016): two triangular solves in
    place of a new factorisation and its derivative. The adjoint of ``chol`` is zero. O(M²(M + N)).
    Derived in docs/derivations.md, section 2.
    """

    @tf.custom_gradient
    def value(gram: tf.Tensor, chol: tf.Tensor, cross: tf.Tensor) -> Any:
        A = triangular_solve(chol, cross)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
            P = tf.linalg.band_part(-tf.matmul(upstream, A, transpose_b=True), -1, 0)
            P = tf.linalg.set_diag(P, 0.5 * tf.linalg.diag_part(P))
            symmetric = 0.5 * (P + tf.linalg.matrix_transpose(P))
            half = tf.linalg.triangular_solve(chol, symmetric, adjoint=True)
            by_gram = tf.linalg.triangular_solve(chol, tf.linalg.matrix_transpose(half), adjoint=True)
            return by_gram, None, tf.linalg.triangular_solve(chol, upstream, adjoint=True)

        return A, gradient

    return value(gram, chol, cross)


def outer(matrix: tf.Tensor) -> tf.Tensor:
    """Return BBᵀ of matrices [..., M, N]; its gradient takes one product, (S + Sᵀ)B, not two. O(M²N).

    Derived in docs/derivations.md, section 8.
    """

    @tf.custom_gradient
    def value(matrix: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return tf.matmul(upstream + tf.linalg.matrix_transpose(upstream), matrix)

        return tf.matmul(matrix, matrix, transpose_b=True), gradient

    return value(matrix)


def inverse_root(gram: tf.Tensor) -> tf.Tensor:
    """Return the symmetric K^(−½) of positive definite matrices [..., M, M], differentiable. O(M³).

    In the basis of the eigenvectors the derivative is elementwise, −1/(√λᵢ√λⱼ(√λᵢ + √λⱼ)): no difference of
    eigenvalues is divided by, so that close ones do no harm. What rounding leaves below ε·max λ is raised. A
    matrix that is not finite gives NaN, as in a Cholesky factorisation, not an error. Derived in
    docs/derivations.md, section 9.
    """

    @tf.custom_gradient
    def value(gram: tf.Tensor) -> Any:
        finite = tf.reduce_all(tf.math.is_finite(gram), axis=[-2, -1], keepdims=True)
        eigenvalues, vectors = tf.linalg.eigh(
            tf.where(finite, gram, tf.eye(gram.shape[-1], dtype=gram.dtype))
        )
        vectors = tf.where(finite, vectors, tf.constant(np.nan, gram.dtype))
        least = np.finfo(gram.dtype.as_numpy_dtype).eps * eigenvalues[..., -1:]
        roots = tf.sqrt(tf.maximum(eigenvalues, least))

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            rows, columns = roots[..., :, None], roots[..., None, :]
            turned = tf.matmul(tf.matmul(vectors, upstream, transpose_a=True), vectors)
            turned = -turned / (rows * columns * (rows + columns))
            found = tf.matmul(tf.matmul(vectors, turned), vectors, transpose_b=True)
            return 0.5 * (found + tf.linalg.matrix_transpose(found))

        return tf.matmul(vectors / roots[..., None, :], vectors, transpose_b=True), gradient

    return value(gram)


def half_log_det(factor: tf.Tensor) -> tf.Tensor:
    """Return ½ log|F Fᵀ| = Σ log Fᵢᵢ summed over all leading axes of Cholesky factors [..., M, M]."""
    return tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))


def rounding_slack(value: tf.Tensor) -> tf.Tensor:
    """Return the change of ``value`` that is explained by rounding in a sum of many terms."""
    epsilon = float(np.finfo(value.dtype.as_numpy_dtype).eps)
    return 256.0 * epsilon * tf.maximum(tf.abs(value), tf.ones_like(value))
