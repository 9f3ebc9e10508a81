"""The bound of the tensor-normal posterior at the best q(W), at a cost free of the outputs.

With one covariance over the rows for all nodes, q(F) = MN(L_fM; L_fΣL_fᵀ, Ω) and q(W_d) = N(L_wŨ_d;
t L_wΓ_NL_wᵀ ⊗ Γ_K). Given all else the best Ũ is the mean of the optimal q(W) (`network.weights`), the best t
a ratio of traces, and the bound `network.bound` less what a Kronecker product costs as covariance of the T
cells of the grid of outputs, padding included,

    Σ_d KL[N(0, tΓ_N ⊗ Γ_K) || N(0, B_d⁻¹)]
        = ½ [TNK log(Σ_d τ_d / TNK) − Σ_d log|B_d| − TK log|Γ_N| − TN log|Γ_K|],    t = TNK / Σ_d τ_d
    τ_d = tr Γ_N tr Γ_K + σ⁻² Σₙ o_nd sₙqₙ,    qₙ = tr(Γ_K E[fₙfₙᵀ]),    sₙ = lₙᵀΓ_Nlₙ

(derived in docs/derivations.md, section 11). At their optima Σ ∝ (I + Σₙ e^{αₙ} lₙlₙᵀ)⁻¹ with N numbers αₙ,
lₙ a row of L_f, and Γ_N likewise by rows of L_w and e^{βₙ} = ōₙqₙ / (σ² tr Γ_K), ōₙ the share of the cells
that are known in row n. What is left to train are M, α, Ω, Γ_K and the hyperparameters.

With one for each node the covariance of nodes k and l is S_kS_lᵀΩ_kl, and of their weights t G_kG_lᵀ(Γ_K)_kl:
S_kS_kᵀ = (I + Σₙ e^{α_nk} l_knl_knᵀ)⁻¹, S_k lower triangular, and G_k likewise by rows of L_w and e^{β_nk} =
ōₙE[f_nk²]e^{δ_nk}/σ².
Equal S_k and G_k are the matrix and the tensor normal; Ω = Γ_K = I with δ = 0 is the best of the fully
factorised posteriors, of which each node has a Σ_k = (I + σ⁻² Σₙ E[w_nk²] l_knl_knᵀ)⁻¹: both are within.

M moves with the kernel, although the targets hold F = L_fM where they are: so M = (I + AAᵀ)⁻¹Aξ, A = L_fᵀC,
and ξ is trained. F is the posterior mean of pseudo-targets C⁻ᵀξ of information CCᵀ, `network.information`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.gprn import blocks, network, tensor_normal
from gpflow_ext.gprn.conditional import NetworkPrior
from gpflow_ext.gprn.network import Nodes, Patterns
from gpflow_ext.numerics import linalg

_ALTERNATIONS = 5
_LEAST_SHARE = 1e-4  # of the largest eigenvalue of an information, which all others are at least


class Spread(NamedTuple):
    """Σ_j = S_jS_jᵀ = (I + Σₙ e^{α_nj} lₙlₙᵀ)⁻¹ of rows lₙ, for all nodes J = 1 or for each J = K.

    The halves S_jᵀlₙ [J, N, N], last the rows, and tr Σ_j and log|Σ_j|, each [J].
    """

    half: tf.Tensor
    trace: tf.Tensor
    log_det: tf.Tensor


class Factors(NamedTuple):
    """Trained variables other than M: α [N, J], lower factors of Ω and Γ_K, [K, K], and δ [N, J]."""

    alpha: tf.Tensor
    omega: tf.Tensor
    column: tf.Tensor
    delta: tf.Tensor


def _precision(rows: tf.Tensor, alpha: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return reversed rows [1 or K, N, N], and lower factors [J, N, N] of I + Σₙ e^{α_nj} lₙlₙᵀ of them.

    Reversed, since the factor S of its inverse is lower triangular then.
    """
    rows = tf.reverse(rows if rows.shape.rank == 3 else rows[None], [-1])
    gram = tf.matmul(rows * tf.exp(tf.transpose(alpha))[:, :, None], rows, transpose_a=True)
    return rows, tf.linalg.cholesky(gram + tf.eye(rows.shape[-1], dtype=rows.dtype))


def spread(rows: tf.Tensor, alpha: tf.Tensor) -> Spread:
    """Return the moments of all Σ_j; tr Σ = N − Σₙ e^{αₙ} lₙᵀΣlₙ. O(JN³)."""
    rows, factor = _precision(rows, alpha)
    rows = tf.broadcast_to(rows, [factor.shape[0], *rows.shape[1:]])
    half = tf.linalg.triangular_solve(factor, tf.linalg.matrix_transpose(rows))
    variances = tf.reduce_sum(tf.square(half), axis=1)
    trace = float(rows.shape[-1]) - tf.reduce_sum(tf.exp(tf.transpose(alpha)) * variances, axis=1)
    log_det = -2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)
    return Spread(half, trace, log_det)


def row_factor(rows: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Return the lower factors S_j of Σ_j, [J, N, N]. O(JN³)."""
    _, factor = _precision(rows, alpha)
    eye = tf.eye(factor.shape[-1], batch_shape=factor.shape[:1], dtype=factor.dtype)
    inverse = tf.linalg.triangular_solve(factor, eye)
    return tf.linalg.matrix_transpose(tf.reverse(inverse, [-2, -1]))


def scale_matrix(information: tf.Tensor) -> tf.Tensor:
    """Return C [N, N] with CCᵀ an information, whose small eigenvalues are raised. O(N³)."""
    values, vectors = tf.linalg.eigh(0.5 * (information + tf.transpose(information)))
    return vectors * tf.sqrt(tf.maximum(values, _LEAST_SHARE * tf.maximum(values[-1], 1.0)))


def whitened(chol: tf.Tensor, C: tf.Tensor, xi: tf.Tensor) -> tf.Tensor:
    """Return M [N, K] for ξ [N, K] and L_f. O(N³)."""
    A = tf.matmul(chol, C, transpose_a=True)
    factor = tf.linalg.cholesky(tf.matmul(A, A, transpose_b=True) + tf.eye(A.shape[-1], dtype=A.dtype))
    half = blocks.whitened(factor, blocks.applied(A, xi))
    return blocks.whitened(factor, half, adjoint=True)


def located(chol: tf.Tensor, C: tf.Tensor, M: tf.Tensor) -> tf.Tensor:
    """Return the ξ [N, K] of which M is that of `whitened`: C⁻¹L_f⁻ᵀM + CᵀL_fM. O(N³)."""
    pulled = blocks.whitened(chol, M, adjoint=True)
    return linalg.solve(C, pulled) + tf.matmul(C, blocks.applied(chol, M), transpose_a=True)


def nodes(prior: NetworkPrior, M: tf.Tensor, factors: Factors) -> Nodes:
    """Return q(F). O(JN³)."""
    own, (N, K) = spread(prior.nodes, factors.alpha), M.shape
    kl = _trace(own, factors.omega) - _log_dets(own, factors.omega) + tf.reduce_sum(tf.square(M))
    cov = tensor_normal.moments(own.half, factors.omega)
    return Nodes(blocks.applied(prior.nodes, M), cov, 0.5 * (kl - float(N * K)))


def beta(patterns: Patterns, prior: NetworkPrior, q: Nodes, factors: Factors, cells: float) -> tf.Tensor:
    """Return β of Γ_N, [N, J]: the best for all nodes, or for each that of independent nodes plus δ."""
    share = tf.linalg.matvec(patterns.observed, patterns.count, transpose_a=True) / cells
    least = np.finfo(share.dtype.as_numpy_dtype).tiny
    second = _second(q)
    if factors.alpha.shape[1] == 1:
        Gamma = tf.matmul(factors.column, factors.column, transpose_b=True)
        each = tf.reduce_sum(second * Gamma, axis=[-2, -1])[:, None] / tf.linalg.trace(Gamma)
    else:
        each = tf.linalg.diag_part(second)
    ratio = share[:, None] * each / prior.noise
    return tf.math.log(tf.maximum(ratio, least)) + factors.delta


def bound(
    patterns: Patterns, prior: NetworkPrior, M: tf.Tensor, factors: Factors, cells: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the lower bound of log p(Y | X), [], and t, []. O(P(NK)³).

    Parameters
    ----------
    patterns, prior
        The targets, and the prior without inducing inputs.
    M
        Means of the whitened nodes, [N, K].
    factors
        The factors of q(F) and q(W).
    cells
        T, the number of cells of the grid of outputs, at least that of outputs.
    """
    q, (N, K) = nodes(prior, M, factors), M.shape
    exact, log_det = network.bound_and_log_det(patterns, prior.weights, prior.noise, q)
    own = spread(prior.weights, beta(patterns, prior, q, factors, cells))
    each = tf.reduce_sum(tensor_normal.moments(own.half, factors.column) * _second(q), axis=[-2, -1])
    explained = tf.linalg.matvec(patterns.observed, each)
    total = cells * _trace(own, factors.column)
    total += tf.reduce_sum(patterns.count * explained) / prior.noise  # Σ_d τ_d
    size = cells * float(N * K)
    divergence = size * tf.math.log(total / size) - tf.reduce_sum(patterns.count * log_det)
    divergence -= cells * _log_dets(own, factors.column)
    return exact - 0.5 * divergence, size / total


def begin(
    patterns: Patterns, prior: NetworkPrior, prec: tf.Tensor, M: tf.Tensor, cells: float, separate: bool
) -> Factors:
    """Return factors for sites of the nodes [N, K, K] and M [N, K], ``separate`` with a Σ for each node.

    The better of those of independent nodes, where they may be, and of one Σ for all nodes that share a
    kernel, by alternation between their optima.
    """
    zero, eye = tf.zeros(M.shape, M.dtype), tf.eye(M.shape[1], dtype=M.dtype)
    found = []
    if separate:
        alpha = tf.math.log(tf.maximum(tf.linalg.diag_part(prec), _LEAST_SHARE))
        found.append(Factors(alpha, eye, eye, zero))
    if prior.nodes.shape.rank == 2:
        found.append(_alternated(patterns, prior, prec, M, cells))
    if len(found) == 2:
        found[1] = _for_each(patterns, prior, M, found[1], cells)
    values = [float(bound(patterns, prior, M, factors, cells)[0]) for factors in found]
    return found[int(np.argmax(np.nan_to_num(values, nan=-np.inf)))]


def _for_each(
    patterns: Patterns, prior: NetworkPrior, M: tf.Tensor, shared: Factors, cells: float
) -> Factors:
    """Return factors of one Σ and Γ_N for all nodes as those of one for each."""
    q, K = nodes(prior, M, shared), M.shape[1]
    alpha, wanted = tf.repeat(shared.alpha, K, axis=1), beta(patterns, prior, q, shared, cells)
    plain = Factors(alpha, shared.omega, shared.column, tf.zeros_like(alpha))
    return plain._replace(delta=wanted - beta(patterns, prior, q, plain, cells))


def _alternated(
    patterns: Patterns, prior: NetworkPrior, prec: tf.Tensor, M: tf.Tensor, cells: float
) -> Factors:
    """Return factors of one Σ for all nodes by alternation between their optima.

    e^{αₙ} = tr(precₙΩ) / tr Ω,    Ω = N [tr Σ I + Σₙ vₙ precₙ]⁻¹
    Γ_K ∝ [T tr Γ_N I + σ⁻² Σₙ sₙ (Σ_d o_nd) E[fₙfₙᵀ]]⁻¹
    """
    eye = tf.eye(M.shape[1], dtype=M.dtype)
    none = tf.zeros([M.shape[0], 1], M.dtype)
    factors = Factors(none, eye, eye, none)
    count = tf.linalg.matvec(patterns.observed, patterns.count, transpose_a=True)
    for _ in range(_ALTERNATIONS):
        omega = tf.matmul(factors.omega, factors.omega, transpose_b=True)
        ratio = tf.reduce_sum(prec * omega, axis=[-2, -1]) / tf.linalg.trace(omega)
        alpha = tf.math.log(tf.maximum(ratio, _LEAST_SHARE))[:, None]
        own = spread(prior.nodes, alpha)
        omega = _lower(float(M.shape[0]), own.trace * eye + tf.einsum("n,nkl->kl", _variances(own), prec))
        q = nodes(prior, M, Factors(alpha, omega, eye, none))
        seen = spread(prior.weights, beta(patterns, prior, q, factors, cells))
        inner = tf.einsum("n,nkl->kl", _variances(seen) * count, _second(q)) / prior.noise
        factors = Factors(alpha, omega, _lower(cells, cells * seen.trace * eye + inner), none)
    return factors


def _lower(scale: float, precision: tf.Tensor) -> tf.Tensor:
    """Return the lower factor of scale·precision⁻¹, [K, K]."""
    eye = tf.eye(precision.shape[0], dtype=precision.dtype)
    inverse = tf.linalg.cholesky_solve(tf.linalg.cholesky(precision), eye)
    return tf.linalg.cholesky(0.5 * scale * (inverse + tf.transpose(inverse)))


def _second(q: Nodes) -> tf.Tensor:
    """Return E[fₙfₙᵀ], [N, K, K]."""
    return q.cov + q.mean[:, :, None] * q.mean[:, None, :]


def _variances(own: Spread) -> tf.Tensor:
    """Return lₙᵀΣlₙ of the one Σ, [N]."""
    return tf.reduce_sum(tf.square(own.half[0]), axis=0)


def _trace(own: Spread, column: tf.Tensor) -> tf.Tensor:
    """Return Σ_k Γ_kk tr Σ_k for a factor of Γ [K, K]."""
    return tf.reduce_sum(own.trace * tf.reduce_sum(tf.square(column), axis=1))


def _log_dets(own: Spread, column: tf.Tensor) -> tf.Tensor:
    """Return Σ_k log|Σ_k| + N log|Γ| for a factor of Γ [K, K]."""
    N, K = own.half.shape[1], column.shape[0]
    half = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(column)))
    return float(K // own.half.shape[0]) * tf.reduce_sum(own.log_det) + 2.0 * float(N) * half
