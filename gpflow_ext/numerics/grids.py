"""Grids, and the Kronecker structure of a separable kernel between two of them.

With k(x, x') = s ∏_d k_d(x_d, x_d') and grids Z = Z₁ × … × Z_D, X = X₁ × … × X_D, rows in the order of
``np.meshgrid(..., indexing="ij")``,

    K_uu = s ⊗_d (K_d + jitter·I) = LLᵀ,  L = √s ⊗_d L_d,  A = L⁻¹K_uf = √s ⊗_d A_d,  A_d = L_d⁻¹k_d(Z_d, X_d)

so that Aᵀv takes O(N ∑_d M_d) operations instead of O(NM), and nothing larger than N is ever stored.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.kernels import Kernel, Product, SquaredExponential

from gpflow_ext.numerics import linalg, stacked
from gpflow_ext.numerics.stacked import Stack

Array = npt.NDArray[Any]


class Dense(NamedTuple):
    """A = L⁻¹K_uf as a matrix, [C or 1, M, N]."""

    A: tf.Tensor

    def apply(self, V: tf.Tensor) -> tf.Tensor:
        """Return AᵀV for V [C, M, P], [C, N, P]. O(CNMP)."""
        return tf.matmul(self.A, V, transpose_a=True)

    def pull(self, rho: tf.Tensor) -> tf.Tensor:
        """Return Aρ for ρ [C or 1, N, P], [C or 1, M, P]. O(CNMP)."""
        return tf.matmul(self.A, rho)

    def explained(self) -> tf.Tensor:
        """Return ‖aₙ‖², [C or 1, N]."""
        return tf.reduce_sum(tf.square(self.A), axis=1)

    def spread(self, q_sqrt: tf.Tensor) -> tf.Tensor:
        """Return ‖Sₚᵀaₙ‖² for factors S [P, M, M] and one member, [N, P]. O(PNM²)."""
        A = tf.broadcast_to(self.A, [q_sqrt.shape[0], *self.A.shape[1:]])
        return tf.transpose(tf.reduce_sum(tf.matmul(q_sqrt, A, transpose_a=True) ** 2, axis=1))

    def weighted(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AΛₚAᵀ for diagonals Λ ≥ 0 [P, N], [C or 1, P, M, M]. O(CPNM²)."""
        return linalg.outer(self.A[:, None] * tf.sqrt(prec)[:, None, :])


class Kronecker(NamedTuple):
    """A = √s ⊗_d A_d."""

    factors: tuple[tf.Tensor, ...]  # A_d, [C or 1, M_d, N_d]
    scale: tf.Tensor  # s, [C or 1]

    def apply(self, V: tf.Tensor) -> tf.Tensor:
        """Return AᵀV for V [C, M, P], [C, N, P], one axis after the other."""
        return self._along_axes(V, [tf.linalg.matrix_transpose(factor) for factor in self.factors])

    def pull(self, rho: tf.Tensor) -> tf.Tensor:
        """Return Aρ for ρ [C or 1, N, P], [C or 1, M, P]."""
        return self._along_axes(rho, self.factors)

    def _along_axes(self, value: tf.Tensor, matrices: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return √s (⊗_d B_d) V for B_d [C or 1, I_d, J_d] and V [C or 1, ∏ J_d, P]."""
        P = value.shape[-1]
        value = tf.sqrt(self.scale)[:, None, None] * value
        for matrix in matrices:  # the first axis is contracted and goes to the end, before P
            value = tf.reshape(value, [tf.shape(value)[0], matrix.shape[2], -1, P])
            matrix, value = _as_many(matrix, value), _as_many(value, matrix)
            value = tf.einsum("cij,cjrp->crip", matrix, value)
        return tf.reshape(value, [tf.shape(value)[0], -1, P])

    def explained(self) -> tf.Tensor:
        """Return ‖aₙ‖², [C or 1, N]."""
        norms = [tf.reduce_sum(factor**2, axis=1) for factor in self.factors]
        product = functools.reduce(lambda a, b: _flat(a[:, :, None] * b[:, None, :]), norms)
        return self.scale[:, None] * product

    def spread(self, q_sqrt: tf.Tensor) -> tf.Tensor:
        """Return ‖Sₚᵀaₙ‖² for factors S [P, M, M] and one member, [N, P].

        For D = 2 in O(P(M³ + N₁M² + NM₂²)).
        """
        sizes, D, P = self._sizes(), len(self.factors), q_sqrt.shape[0]
        value = tf.reshape(tf.matmul(q_sqrt, q_sqrt, transpose_b=True), [P, *sizes, *sizes])
        value = tf.transpose(value, [0, *(1 + d + D * side for d in range(D) for side in (0, 1))])
        for pairs in self._pairs():  # the first pair of axes (m, m') is contracted, n goes to the end
            value = tf.matmul(tf.reshape(value, [P, pairs.shape[1], -1]), pairs[0], transpose_a=True)
        return tf.transpose(self.scale[0] * tf.reshape(value, [P, -1]))

    def weighted(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AΛₚAᵀ for diagonals Λ [P, N], [C or 1, P, M, M]. For D = 2 in O(CP(NM₁² + N₂M²))."""
        sizes, D, P = self._sizes(), len(self.factors), prec.shape[0]
        value = prec[None]
        for pairs in self._pairs():  # the first axis n is contracted, the pair (m, m') goes to the end
            value = tf.reshape(value, [tf.shape(value)[0], P, pairs.shape[2], -1])
            value = tf.matmul(value, tf.linalg.matrix_transpose(pairs)[:, None], transpose_a=True)
        value = tf.reshape(value, [-1, P, *(size for size in sizes for _ in (0, 1))])
        value = tf.transpose(value, [0, 1, *(2 + 2 * d + side for side in (0, 1) for d in range(D))])
        return self.scale[:, None, None, None] * tf.reshape(
            value, [-1, P, math.prod(sizes), math.prod(sizes)]
        )

    def basis(self) -> Kronecker:
        """Return Uᵀ for the eigenvectors U of AAᵀ of the first member, from those of the factors."""
        factors = tuple(_eigenvectors(factor[:1]) for factor in self.factors)
        return Kronecker(factors, tf.ones_like(self.scale[:1]))

    def turned(self, basis: Kronecker) -> Kronecker:
        """Return UᵀA. O(C ∑_d M_d²N_d)."""
        pairs = zip(basis.factors, self.factors, strict=True)
        return Kronecker(tuple(tf.matmul(rows, factor) for rows, factor in pairs), self.scale)

    def squared(self) -> Kronecker:
        """Return the matrix of the squared elements."""
        return Kronecker(tuple(factor**2 for factor in self.factors), self.scale**2)

    def _sizes(self) -> list[int]:
        """Return M_d for each d."""
        return [int(factor.shape[1]) for factor in self.factors]

    def _pairs(self) -> list[tf.Tensor]:
        """Return the products A_d[m, n] A_d[m', n] for each d, [C or 1, M_d², N_d]."""
        return [
            tf.reshape(factor[:, :, None] * factor[:, None], [-1, size**2, factor.shape[2]])
            for factor, size in zip(self.factors, self._sizes(), strict=True)
        ]


class Structure(NamedTuple):
    """The axes of grids, by which a model's matrices are Kronecker products."""

    inducing_axes: tuple[Array, ...]  # Z_d, [M_d]
    axes: tuple[Array, ...]  # X_d, [N_d]

    def at(self, X: tf.Tensor) -> Structure | None:
        """Return that of the same inducing points and other inputs, where these are known and a grid."""
        known = tf.get_static_value(X)
        axes = None if known is None or not len(known) else axes_of(known)
        return None if axes is None else Structure(self.inducing_axes, axes)

    def gram(self, kernel: Kernel, stack: Stack) -> tf.Tensor:
        """Return K_uu as a matrix, for inputs that are not a grid, [C or 1, M, M]. O(CM²)."""
        grams = [linalg.jittered(gram) for gram in self._between(kernel, stack, self.inducing_axes)]
        full = functools.reduce(_product, grams)
        return _scale(kernel, stack)[:, None, None] * full

    def project(self, kernel: Kernel, stack: Stack) -> Kronecker:
        """Return A between the grids. O(C ∑_d (M_d³ + M_d²N_d))."""
        grams = [linalg.jittered(gram) for gram in self._between(kernel, stack, self.inducing_axes)]
        crosses = self._between(kernel, stack, self.axes)
        factors = tuple(
            linalg.whiten(gram, tf.linalg.cholesky(tf.stop_gradient(gram)), cross)
            for gram, cross in zip(grams, crosses, strict=True)
        )
        return Kronecker(factors, _scale(kernel, stack))

    def project_symmetrically(self, kernel: Kernel, stack: Stack) -> Kronecker:
        """Return K_uu^(−½)K_uf between the grids, OA for an orthogonal O(θ). O(C ∑_d (M_d³ + M_d²N_d))."""
        roots = self._inverse_roots(kernel, stack)
        crosses = self._between(kernel, stack, self.axes)
        factors = tuple(tf.matmul(root, cross) for root, cross in zip(roots, crosses, strict=True))
        return Kronecker(factors, _scale(kernel, stack))

    def rotation(self, kernel: Kernel, stack: Stack) -> Kronecker:
        """Return O = K_uu^(−½)L."""
        roots = self._inverse_roots(kernel, stack)
        grams = self._between(kernel, stack, self.inducing_axes)
        factors = tuple(
            tf.matmul(root, tf.linalg.cholesky(linalg.jittered(gram)))
            for root, gram in zip(roots, grams, strict=True)
        )
        return Kronecker(factors, tf.ones([1], factors[0].dtype))

    def _inverse_roots(self, kernel: Kernel, stack: Stack) -> list[tf.Tensor]:
        grams = self._between(kernel, stack, self.inducing_axes)
        return [linalg.inverse_root(linalg.jittered(gram)) for gram in grams]

    def _between(self, kernel: Kernel, stack: Stack, axes: Sequence[Array]) -> list[tf.Tensor]:
        """Return k_d(Z_d, axes_d) for each d, [C or 1, M_d, ·]."""
        return [
            _axis_gram(kernel, stack, d, Z[:, None], axis[:, None])
            for d, (Z, axis) in enumerate(zip(self.inducing_axes, axes, strict=True))
        ]


def structure(kernel: Kernel, Z: Array, X: Array) -> Structure | None:
    """Return the structure of a kernel between inducing points [M, D] and inputs [N, D], if there is one.

    The kernel must be a ``SquaredExponential`` of all inputs, or a product of kernels of one input each, and
    both sets of points grids of at least two inputs.
    """
    width = X.shape[1]
    inducing_axes, axes = axes_of(Z), axes_of(X)
    if width < 2 or inducing_axes is None or axes is None or not _separable(kernel, width):
        return None
    return Structure(inducing_axes, axes)


def axes_of(points: Array) -> tuple[Array, ...] | None:
    """Return the axes of which a set of points [N, D] is the grid, row by row; ``None`` for no grid."""
    axes = tuple(np.unique(column) for column in points.T)
    if math.prod(len(axis) for axis in axes) != len(points) or not np.array_equal(grid(*axes), points):
        return None
    return axes


def grid(*axes: npt.ArrayLike) -> Array:
    """Return the points of a grid, [∏ N_d, D], the last axis changing fastest."""
    mesh = np.meshgrid(*(np.asarray(axis) for axis in axes), indexing="ij")
    return np.stack([part.ravel() for part in mesh], axis=1)


def _separable(kernel: Kernel, width: int) -> bool:
    if type(kernel) is SquaredExponential:
        return kernel.active_dims == slice(None) or _dims(kernel, width) == list(range(width))
    if type(kernel) is not Product:
        return False
    dims = [_dims(part, width) for part in kernel.kernels]
    return all(len(part) == 1 for part in dims) and sorted(part[0] for part in dims) == list(range(width))


def _dims(kernel: Kernel, width: int) -> list[int]:
    dims = kernel.active_dims
    return list(range(width))[dims] if isinstance(dims, slice) else [int(d) for d in np.atleast_1d(dims)]


def _axis_gram(kernel: Kernel, stack: Stack, d: int, Z: Array, X: Array) -> tf.Tensor:
    """Return k_d(Z, X) without the common scale, [C or 1, M_d, N_d]."""
    if type(kernel) is SquaredExponential:
        lengths = stack[kernel.lengthscales]
        length = lengths if lengths.shape.rank == 1 else lengths[:, d]
        squared = tf.constant((Z - X.T) ** 2, lengths.dtype)
        return tf.exp(-0.5 * squared / length[:, None, None] ** 2)
    width = len(kernel.kernels)
    (part,) = (part for part in kernel.kernels if _dims(part, width) == [d])
    rows = [np.zeros([len(points), width], points.dtype) for points in (Z, X)]
    for full, points in zip(rows, (Z, X), strict=True):
        full[:, d] = points[:, 0]
    return stacked.gram(part, stack, *(tf.constant(full, gpflow.default_float()) for full in rows))


def _scale(kernel: Kernel, stack: Stack) -> tf.Tensor:
    """Return s, [C or 1]."""
    if type(kernel) is SquaredExponential:
        return stack[kernel.variance]
    return tf.ones([1], gpflow.default_float())


def _eigenvectors(A: tf.Tensor) -> tf.Tensor:
    """Return the eigenvectors of AAᵀ as rows, [1, M, M]."""
    return tf.linalg.matrix_transpose(tf.linalg.eigh(tf.matmul(A, A, transpose_b=True))[1])


def _product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return the Kronecker product of matrices [C or 1, M, M] and [C or 1, R, R]."""
    full = a[:, :, None, :, None] * b[:, None, :, None, :]
    size = operator.mul(a.shape[1], b.shape[1])
    return tf.reshape(full, [-1, size, size])


def _as_many(value: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Return the value for as many members as it or the other has."""
    count = tf.maximum(tf.shape(value)[:1], tf.shape(other)[:1])
    return tf.broadcast_to(value, tf.concat([count, tf.shape(value)[1:]], axis=0))


def _flat(value: tf.Tensor) -> tf.Tensor:
    return tf.reshape(value, [tf.shape(value)[0], -1])
