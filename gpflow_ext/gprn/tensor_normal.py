"""Matrix- and tensor-normal distributions through their Kronecker factors, Li, Xing, Kirby & Zhe (2020).

TN(U; Γ₁, …, Γ_R) is the Gaussian of a tensor with axes n₁, …, n_R whose row-major vectorisation has the
covariance Γ₁ ⊗ … ⊗ Γ_R; R = 2 is the matrix normal. Each Γ is given by a lower factor G, Γ = GGᵀ. In a
Gaussian process regression network the weights W have the axes (N, d₁, …, d_M, K) and the nodes F (N, K).
The scale of the whole may be moved between the factors: only their product is identified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

_ALWAYS_FILLED = 256  # outputs up to which a grid has no empty cell


def kl(mean: tf.Tensor, factors: Sequence[tf.Tensor], chol: tf.Tensor | None = None) -> tf.Tensor:
    """Return KL[TN(mean; GGᵀ, …) || N(0, K ⊗ I ⊗ … ⊗ I)], a scalar.

        ½ [‖L⁻¹G₁‖² Π‖G_r‖² + ‖L⁻¹U‖² − n + (n/n₁) log|K| − Σ_r (n/n_r) log|Γ_r|],    n = Π n_r

    Only traces and diagonals of the factors are needed: O(Σ n_r²) and the size of the mean, with ``chol``
    also O(n₁² n).

    Parameters
    ----------
    mean
        U with its first axis of length n₁, the others in any shape. Entries that are left out count as zero.
    factors
        Lower triangular G_r, each [n_r, n_r], with positive diagonals. The first may be [n_R, n₁, n₁], one
        for each place k of the last axis, between which covariances are G_kG_lᵀ(Γ_R)_kl instead.
    chol
        L, the lower factor of K [n₁, n₁]; ``None`` for a whitened tensor, K = I.
    """
    sizes = [int(factor.shape[-1]) for factor in factors]
    total = math.prod(sizes)
    first, rows = factors[0], tf.reshape(mean, [sizes[0], -1])
    log_det = tf.zeros([], mean.dtype)
    if chol is not None:
        first, rows = tf.linalg.triangular_solve(chol, first), tf.linalg.triangular_solve(chol, rows)
        log_det = 2.0 * (total // sizes[0]) * _sum_log_diag(chol)
    trace = tf.reduce_sum(tf.square(first), axis=[-2, -1])
    separate = len(first.shape) == 3
    if separate:
        trace = tf.reduce_sum(trace * tf.reduce_sum(tf.square(factors[-1]), axis=1))
    for factor in factors[1 : -1 if separate else None]:
        trace *= tf.reduce_sum(tf.square(factor))
    for factor in factors:
        log_det -= 2.0 * (total // math.prod(factor.shape[:-1])) * _sum_log_diag(factor)
    return 0.5 * (trace + tf.reduce_sum(tf.square(rows)) - float(total) + log_det)


def sample(mean: tf.Tensor, factors: Sequence[tf.Tensor], noise: tf.Tensor) -> tf.Tensor:
    """Return U + noise ×₁ G₁ ×₂ … ×_R G_R, draws of the tensor normal. O(n Σ n_r) for each.

    Parameters
    ----------
    mean
        U [n₁, …, n_R].
    factors
        G_r [n_r, n_r].
    noise
        Standard normal numbers [..., n₁, …, n_R].
    """
    rank, lead = len(factors), noise.shape.rank - len(factors)
    for axis, factor in enumerate(factors):
        last = [i for i in range(lead + rank) if i != lead + axis] + [lead + axis]
        back = [last.index(i) for i in range(lead + rank)]
        moved = tf.transpose(noise, last)
        noise = tf.transpose(tf.linalg.matmul(moved, factor, transpose_b=True), back)
    return mean + noise


def diagonal(factors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the diagonal of Γ₁ ⊗ … ⊗ Γ_R, [n]. O(n)."""
    result = tf.ones([1], factors[0].dtype)
    for factor in factors:
        variances = tf.reduce_sum(tf.square(factor), axis=-1)
        result = tf.reshape(result[:, None] * variances, [-1])
    return result


def moments(half: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    """Return the covariances hₖₙᵀhₗₙ Γ_kl of K columns in each row, [N, K, K].

    Parameters
    ----------
    half
        Gᵀlₙ for the rows of the factor of the prior, [J, R, N]: J = 1 for all columns or K for each.
    column
        Lower factor of Γ, [K, K].
    """
    Gamma = tf.matmul(column, column, transpose_b=True)
    if half.shape[0] == 1:
        return tf.reduce_sum(tf.square(half[0]), axis=0)[:, None, None] * Gamma
    return tf.einsum("krn,lrn->nkl", half, half) * Gamma


def expected_squares(
    Y: tf.Tensor,
    U: tf.Tensor,
    weight_cov: tf.Tensor,
    output_var: tf.Tensor,
    mean: tf.Tensor,
    node_cov: tf.Tensor,
    observed: tf.Tensor | None = None,
) -> tf.Tensor:
    """Return E‖yₙ − Wₙfₙ‖² for independent tensor-normal W and matrix-normal F, [N].

    In closed form, with rₙ = yₙ − Uₙmₙ, the covariances Cₙ = (Γ_N)ₙₙΓ_K of weights and Vₙ = ΣₙₙΩ of nodes, or
    those of `moments`, and t = tr(Γ₁ ⊗ … ⊗ Γ_M):

        ‖rₙ‖² + tr(Vₙ UₙᵀUₙ) + t tr(Cₙ (mₙmₙᵀ + Vₙ))

    (derived in docs/derivations.md, section 11). Where outputs are missing all sums over d leave them out.
    O(NDK²).

    Parameters
    ----------
    Y
        Targets [N, D]; zero where they are missing.
    U
        Mean of W, [N, D, K].
    weight_cov
        C, [N, K, K].
    output_var
        The diagonal of Γ₁ ⊗ … ⊗ Γ_M at the outputs, [D].
    mean, node_cov
        Mean [N, K] of F, and V [N, K, K].
    observed
        1 where a target is known and 0 where it is missing, [N, D]; ``None`` when all are known.
    """
    seen = U if observed is None else U * observed[:, :, None]
    residual = Y - tf.linalg.matvec(seen, mean)
    second = tf.matmul(seen, seen, transpose_a=True)  # [N, K, K]
    spread = tf.reduce_sum(second * node_cov, axis=[1, 2])
    trace = tf.reduce_sum(output_var) if observed is None else tf.linalg.matvec(observed, output_var)
    through = tf.reduce_sum(weight_cov * (node_cov + mean[:, :, None] * mean[:, None, :]), axis=[1, 2])
    return tf.reduce_sum(tf.square(residual), axis=1) + spread + trace * through


def output_shape(num_outputs: int) -> tuple[int, int]:
    """Return (d₁, d₂), as near to a square as may be, with d₁d₂ ≥ D.

    d₁d₂ = D if D has a divisor in [√D/2, √D], or is at most 256: cells beyond D hold no targets, but share
    the covariances of the others, which lowers the bound, the more so the fewer outputs there are.
    """
    root = math.isqrt(num_outputs)
    for rows in range(root, 0, -1):
        if num_outputs % rows == 0 and (4 * rows**2 >= num_outputs or num_outputs <= _ALWAYS_FILLED):
            return rows, num_outputs // rows
    return root, -(-num_outputs // root)


def _sum_log_diag(factor: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
