"""The bound of the tensor-normal posterior at the best q(W), at a cost free of the outputs.

q(F) = MN(L_fM; L_fΣL_fᵀ, Ω) and q(W_d) = N(L_wŨ_d; t L_wΓ_NL_wᵀ ⊗ Γ_K). Given all else the best Ũ is the
mean of the optimal q(W) (`network.weights`), the best t a ratio of traces, and the bound `network.bound` less
what a Kronecker product costs as covariance of the T cells of the grid of outputs, padding included,

    Σ_d KL[N(0, tΓ_N ⊗ Γ_K) || N(0, B_d⁻¹)]
        = ½ [TNK log(Σ_d τ_d / TNK) − Σ_d log|B_d| − TK log|Γ_N| − TN log|Γ_K|],    t = TNK / Σ_d τ_d
    τ_d = tr Γ_N tr Γ_K + σ⁻² Σₙ o_nd sₙqₙ,    qₙ = tr(Γ_K E[fₙfₙᵀ]),    sₙ = lₙᵀΓ_Nlₙ

(derived in docs/derivations.md, section 11). At their optima Σ ∝ (I + Σₙ e^{αₙ} lₙlₙᵀ)⁻¹ with N numbers αₙ,
lₙ a row of L_f, and Γ_N likewise by rows of L_w and e^{βₙ} = ōₙqₙ / (σ² tr Γ_K), ōₙ the share of the cells
that are known in row n. What is left to train are M, α, Ω, Γ_K and the hyperparameters.

M moves with the kernel, although the targets hold F = L_fM where they are: so M = (I + AAᵀ)⁻¹Aξ, A = L_fᵀC,
and ξ is trained. F is the posterior mean of pseudo-targets C⁻ᵀξ of information CCᵀ, `network.information`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.gprn import network
from gpflow_ext.gprn.conditional import NetworkPrior
from gpflow_ext.gprn.network import Nodes, Patterns

_ALTERNATIONS = 5
_LEAST_SHARE = 1e-4  # of the largest eigenvalue of an information, which all others are at least


class Spread(NamedTuple):
    """Σ = (I + Σₙ e^{αₙ} lₙlₙᵀ)⁻¹ for rows lₙ: the variances lₙᵀΣlₙ [N], tr Σ and log|Σ|."""

    variances: tf.Tensor
    trace: tf.Tensor
    log_det: tf.Tensor


class Factors(NamedTuple):
    """What is trained besides M: α [N], and lower factors of Ω and Γ_K, [K, K]."""

    alpha: tf.Tensor
    omega: tf.Tensor
    column: tf.Tensor


def precision(rows: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Return the lower factor of I + Σₙ e^{αₙ} lₙlₙᵀ, [N, N]."""
    gram = tf.matmul(rows * tf.exp(alpha)[:, None], rows, transpose_a=True)
    return tf.linalg.cholesky(gram + tf.eye(rows.shape[1], dtype=rows.dtype))


def spread(rows: tf.Tensor, alpha: tf.Tensor) -> Spread:
    """Return the moments of Σ; tr Σ = N − Σₙ e^{αₙ} lₙᵀΣlₙ. O(N³)."""
    factor = precision(rows, alpha)
    half = tf.linalg.triangular_solve(factor, tf.transpose(rows))
    variances = tf.reduce_sum(tf.square(half), axis=0)
    trace = float(rows.shape[1]) - tf.reduce_sum(tf.exp(alpha) * variances)
    return Spread(variances, trace, -2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor))))


def scale_matrix(information: tf.Tensor) -> tf.Tensor:
    """Return C [N, N] with CCᵀ an information, whose small eigenvalues are raised. O(N³)."""
    values, vectors = tf.linalg.eigh(0.5 * (information + tf.transpose(information)))
    return vectors * tf.sqrt(tf.maximum(values, _LEAST_SHARE * tf.maximum(values[-1], 1.0)))


def whitened(chol: tf.Tensor, C: tf.Tensor, xi: tf.Tensor) -> tf.Tensor:
    """Return M [N, K] for ξ [N, K] and L_f. O(N³)."""
    A = tf.matmul(chol, C, transpose_a=True)
    factor = tf.linalg.cholesky(tf.matmul(A, A, transpose_b=True) + tf.eye(A.shape[0], dtype=A.dtype))
    return tf.linalg.cholesky_solve(factor, tf.matmul(A, xi))


def located(chol: tf.Tensor, C: tf.Tensor, M: tf.Tensor) -> tf.Tensor:
    """Return the ξ [N, K] of which M is that of `whitened`: C⁻¹L_f⁻ᵀM + CᵀL_fM. O(N³)."""
    pulled = tf.linalg.triangular_solve(chol, M, adjoint=True)
    return tf.linalg.solve(C, pulled) + tf.matmul(C, tf.matmul(chol, M), transpose_a=True)


def nodes(prior: NetworkPrior, M: tf.Tensor, factors: Factors) -> Nodes:
    """Return q(F). O(N³)."""
    own, (N, K) = spread(prior.nodes, factors.alpha), M.shape
    omega = tf.matmul(factors.omega, factors.omega, transpose_b=True)
    kl = own.trace * tf.linalg.trace(omega) + tf.reduce_sum(tf.square(M)) - float(N * K)
    kl -= float(K) * own.log_det + float(N) * _log_det(factors.omega)
    return Nodes(tf.matmul(prior.nodes, M), own.variances[:, None, None] * omega, 0.5 * kl)


def beta(patterns: Patterns, prior: NetworkPrior, q: Nodes, column: tf.Tensor, cells: float) -> tf.Tensor:
    """Return βₙ of the best Γ_N, [N]."""
    share = tf.linalg.matvec(patterns.observed, patterns.count, transpose_a=True) / cells
    least = np.finfo(share.dtype.as_numpy_dtype).tiny
    ratio = share * _quadratic(q, column) / (prior.noise * tf.reduce_sum(tf.square(column)))
    return tf.math.log(tf.maximum(ratio, least))


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
        Of q(F) and q(W).
    cells
        T, the number of cells of the grid of outputs, at least that of outputs.
    """
    q, (N, K) = nodes(prior, M, factors), M.shape
    exact, log_det = network.bound_and_log_det(patterns, prior.weights, prior.noise, q)
    own = spread(prior.weights, beta(patterns, prior, q, factors.column, cells))
    explained = tf.linalg.matvec(patterns.observed, own.variances * _quadratic(q, factors.column))
    total = cells * own.trace * tf.reduce_sum(tf.square(factors.column))
    total += tf.reduce_sum(patterns.count * explained) / prior.noise  # Σ_d τ_d
    size = cells * float(N * K)
    divergence = size * tf.math.log(total / size) - tf.reduce_sum(patterns.count * log_det)
    divergence -= cells * (float(K) * own.log_det + float(N) * _log_det(factors.column))
    return exact - 0.5 * divergence, size / total


def begin(patterns: Patterns, prior: NetworkPrior, prec: tf.Tensor, M: tf.Tensor, cells: float) -> Factors:
    """Return factors by alternation between their optima, for the sites of the nodes [N, K, K] and M [N, K].

    e^{αₙ} = tr(precₙΩ) / tr Ω,    Ω = N [tr Σ I + Σₙ vₙ precₙ]⁻¹
    Γ_K ∝ [T tr Γ_N I + σ⁻² Σₙ sₙ (Σ_d o_nd) E[fₙfₙᵀ]]⁻¹
    """
    eye = tf.eye(M.shape[1], dtype=M.dtype)
    factors = Factors(tf.zeros([M.shape[0]], M.dtype), eye, eye)
    count = tf.linalg.matvec(patterns.observed, patterns.count, transpose_a=True)
    for _ in range(_ALTERNATIONS):
        omega = tf.matmul(factors.omega, factors.omega, transpose_b=True)
        ratio = tf.reduce_sum(prec * omega, axis=[-2, -1]) / tf.linalg.trace(omega)
        alpha = tf.math.log(tf.maximum(ratio, _LEAST_SHARE))
        own = spread(prior.nodes, alpha)
        omega = _lower(float(M.shape[0]), own.trace * eye + tf.einsum("n,nkl->kl", own.variances, prec))
        q = nodes(prior, M, Factors(alpha, omega, eye))
        second = q.cov + q.mean[:, :, None] * q.mean[:, None, :]
        seen = spread(prior.weights, beta(patterns, prior, q, factors.column, cells))
        inner = tf.einsum("n,nkl->kl", seen.variances * count, second) / prior.noise
        factors = Factors(alpha, omega, _lower(cells, cells * seen.trace * eye + inner))
    return factors


def _lower(scale: float, precision: tf.Tensor) -> tf.Tensor:
    """Return the lower factor of scale·precision⁻¹, [K, K]."""
    eye = tf.eye(precision.shape[0], dtype=precision.dtype)
    inverse = tf.linalg.cholesky_solve(tf.linalg.cholesky(precision), eye)
    return tf.linalg.cholesky(0.5 * scale * (inverse + tf.transpose(inverse)))


def _quadratic(q: Nodes, column: tf.Tensor) -> tf.Tensor:
    """Return tr(Γ_K E[fₙfₙᵀ]) for a factor of Γ_K, [N]."""
    means = tf.reduce_sum(tf.square(tf.matmul(q.mean, column)), axis=1)
    return means + tf.einsum("nkl,kj,lj->n", q.cov, column, column)


def _log_det(factor: tf.Tensor) -> tf.Tensor:
    return 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
