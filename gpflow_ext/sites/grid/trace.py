"""The log determinant of a grid prior with its derivatives, by probes that are always the same.

K = QEQᵀ is the covariance of all cells, Λ the precisions in them, λ̄ their mean, and

    H = ψ(K), ψ(e) = (e/(1 + λ̄e))^½        log|I + ΛK| = log|I + λ̄K| + tr log Ã,  Ã = I + HΔH,  Δ = Λ − λ̄

The first part is in closed form, and all where Λ is constant. The trace is Σ_c z_cᵀ log(Ã) z_c for probes z_c
with random signs in the cells of one colour and zeros elsewhere (Tang & Saad 2012). Cells of one colour lie
as far apart as there are colours for: the error is that of elements between them, none if each cell has a
colour of its own.

F, half of the sum, is a smooth function of Λ and K, whose exact derivatives are given here: variances
2 ∂F/∂Λ, and ∂F/∂K_d. So bounds and their gradients agree, with few probes too. Derived in
docs/derivations.md, section 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import lanczos
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites.grid import krylov
from gpflow_ext.sites.grid.kronecker import Spectrum, outer

BLOCK = 2**27  # bytes of the bases of the probes that are taken side by side
CHUNK = 2**21  # elements of the matrices that are taken side by side


class Probes(NamedTuple):
    """Signs of all cells, and which cells of an axis each of the P probes sees.

    Logarithms are computed in their precision, single or double.
    """

    signs: tf.Tensor  # [G]
    masks: tuple[tf.Tensor, ...]  # [P, n_d]

    def fields(self, masks: tuple[tf.Tensor, ...]) -> tf.Tensor:
        """Return the probes of some masks, [1, P, G]."""
        return (outer(masks) * self.signs)[None]


class Trace(NamedTuple):
    """F, and its derivative in Λ."""

    value: tf.Tensor  # F, [L]
    variance: tf.Tensor  # 2 ∂F/∂Λ, [L, 1, G]
    weights: tf.Tensor  # Σ_k (Hy_k)², the derivative with λ̄ held, [L, 1, G]
    modes: tf.Tensor  # y_k in the basis of Q, in the precision of the probes, [L, K, G]


def at_level(spectrum: Spectrum, prec: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return λ̄ [L, 1, 1] and ψ(E) [L, 1, G] for precisions [L, 1, G]."""
    level, values = tf.reduce_mean(prec, axis=-1, keepdims=True), spectrum.all_values
    return level, tf.sqrt(values / (1.0 + level * values))


def estimate(spectrum: Spectrum, probes: Probes, prec: tf.Tensor, tolerance: tf.Tensor) -> Trace:
    """Return F = ½ log|I + ΛK| and its derivative for Λ [L, 1, G]. Some 20 to 60 products with K a probe."""
    level, psi = at_level(spectrum, prec)
    delta, number, G = prec - level, probes.signs.dtype, int(prec.shape[-1])
    rounded = tf.nest.map_structure(lambda part: tf.cast(part, number), (spectrum, psi, delta, tolerance))

    def some(masks: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        basis, psi, delta, tolerance = rounded

        def operator(fields: tf.Tensor) -> tf.Tensor:
            return fields + psi * basis.forth(delta * basis.back(psi * fields))

        z = basis.forth(probes.fields(masks)) + tf.zeros_like(psi)
        found = krylov.logarithm(operator, z, tolerance)
        weights = tf.reduce_sum(basis.back(psi * found.modes) ** 2, axis=1, keepdims=True)
        slope = tf.reduce_sum(found.images * psi**2 * found.modes, axis=[1, 2])
        sums = tf.reduce_sum(found.value, axis=1), weights, slope
        return *(tf.cast(part, prec.dtype) for part in sums), found.modes

    value, weights, slope, modes = _in_blocks(some, probes.masks, int(prec.shape[0]), G)
    closed = tf.reduce_sum(tf.math.log1p(level * spectrum.all_values), axis=[1, 2])
    # 2 ∂F/∂λ̄ is zero up to the error of the probes
    by_level = tf.reduce_sum(psi**2, axis=[1, 2]) - slope - tf.reduce_sum(weights, axis=[1, 2])
    return Trace(0.5 * (closed + value), weights + by_level[:, None, None] / G, weights, modes)


def _in_blocks(
    some: Callable[[tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]],
    masks: tuple[tf.Tensor, ...],
    L: int,
    cells: int,
) -> tuple[tf.Tensor, ...]:
    """Return value, weights and slope summed over all probes, and the modes of all."""
    P = int(masks[0].shape[0])
    block = largest_divisor(P, BLOCK // (8 * L * cells * min(krylov.STEPS, cells)))
    if block == P:
        return some(masks)
    blocks = tuple(tf.reshape(mask, [P // block, block, -1]) for mask in masks)
    rank = min(lanczos.RANK, cells)
    shapes = [L], [L, 1, cells], [L], [L, block * rank, cells]
    signature = tuple(map(tf.TensorSpec, shapes, (*(tf.float64,) * 3, masks[0].dtype)))
    value, weights, slope, modes = one_by_one(some, blocks, fn_output_signature=signature)
    modes = tf.reshape(tf.transpose(modes, [1, 0, 2, 3]), [L, -1, cells])
    return *(tf.reduce_sum(part, axis=0) for part in (value, weights, slope)), modes


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most ``most``, or one."""
    return next((k for k in range(min(number, most), 0, -1) if number % k == 0), 1)


def balanced(spectrum: Spectrum, probes: Probes, prec: tf.Tensor, trace: Trace) -> tf.Tensor:
    """Return diag V in all cells, [L, 1, G], exact where Λ is constant.

    The estimates are multiplied by what makes those for λ̄ exact, diag H² over Σ_c (Hz_c)². That takes away
    most of the error, but not as the derivative of an estimate of the log determinant.
    """
    _, psi = at_level(spectrum, prec)
    seen = spectrum.back(psi * spectrum.forth(tf.cast(probes.fields(probes.masks), psi.dtype)))
    ratio = tf.math.divide_no_nan(spectrum.diagonal(psi**2), tf.reduce_sum(seen**2, axis=1, keepdims=True))
    return ratio * trace.weights


def slopes(spectrum: Spectrum, prec: tf.Tensor, trace: Trace) -> tuple[tf.Tensor, ...]:
    """Return ∂F/∂K_d, each [S, n_d, n_d], the precisions Λ held.

    A change of K moves H by the divided differences of ψ in the basis of Q. Those of a change of K_d join
    only elements that agree in all other axes. O(KG ∑ n_d) for K modes.
    """
    level, psi = at_level(spectrum, prec)
    modes = tf.cast(trace.modes, psi.dtype)
    moved = spectrum.forth((prec - level) * spectrum.back(psi * modes))
    return tuple(_slope(spectrum, level[:, 0], moved, modes, d) for d in range(len(spectrum.values)))


def _slope(spectrum: Spectrum, level: tf.Tensor, left: tf.Tensor, right: tf.Tensor, d: int) -> tf.Tensor:
    """Return ∂/∂K_d of Σ leftᵀ ψ(K) right + ½ log|I + λ̄K|."""
    sizes = [int(values.shape[1]) for values in spectrum.values]
    basis, own, n = spectrum.vectors[d], spectrum.values[d], sizes[d]
    L, others = int(left.shape[0]), math.prod(sizes) // n
    rest = outer([*spectrum.values[:d], tf.ones_like(own[:, :1]), *spectrum.values[d + 1 :]])  # [S, O]
    chunk = largest_divisor(others, CHUNK // (L * n * n))

    def split(fields: tf.Tensor) -> tf.Tensor:
        """Return fields [L, B, G] by the elements of the other axes, [O/C, C, L, n, B]."""
        shape = [L, -1, math.prod(sizes[:d]), n, math.prod(sizes[d + 1 :])]
        parts = tf.transpose(tf.reshape(fields, shape), [2, 4, 0, 3, 1])
        return tf.reshape(parts, [others // chunk, chunk, L, n, -1])

    def some(total: tf.Tensor, parts: tuple[tf.Tensor, ...]) -> tf.Tensor:
        u, y, rest = parts  # [C, L, n, ·], [C, S, 1]
        e = rest * own  # [C, S, n]
        shrunk = 1.0 / (1.0 + level * e)  # [C, L, n]
        psi = tf.sqrt(e * shrunk)
        divided = shrunk[..., :, None] * shrunk[..., None, :] / (psi[..., :, None] + psi[..., None, :])
        found = tf.matmul(u, y, transpose_b=True) * divided + tf.linalg.diag(0.5 * level * shrunk)
        return total + tf.reduce_sum(rest[..., None] * found, axis=0)

    scales = tf.reshape(tf.transpose(rest), [others // chunk, chunk, -1, 1])
    parts = split(left), split(right), scales
    found = tf.foldl(some, parts, initializer=tf.zeros([L, n, n], own.dtype))
    found = 0.5 * (found + tf.linalg.matrix_transpose(found))
    found = tf.matmul(tf.matmul(basis, found), basis, transpose_b=True)
    return tf.reduce_sum(found, axis=0, keepdims=True) if own.shape[0] == 1 else found
