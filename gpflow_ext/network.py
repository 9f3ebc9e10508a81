"""Gaussian process regression networks with the weights integrated out, at a cost free of the outputs.

yₙ = Wₙfₙ + ε with ε ~ N(0, σ²I), the K nodes f_k ~ GP(0, k_f) and all weights w_dk ~ GP(0, k_w), N data and D
outputs (Wilson et al. 2012). All is whitened, F = L_f F̃ and W_d = L_w W̃_d. Given q(F) with means mₙ and
covariances Sₙ the optimal q(W) has independent outputs with one common covariance B⁻¹,

    B = I + σ⁻² Σₙ (lₙlₙᵀ ⊗ E[fₙfₙᵀ]) = R + σ⁻² CCᵀ,    R = I + σ⁻² Σₙ (lₙlₙᵀ ⊗ Sₙ),    C[:, n] = lₙ ⊗ mₙ,

lₙ the n-th row of L_w, and the bound sees the targets only through the Gram matrix G = YYᵀ:

    bound = Σ_d log N(y_d; 0, CᵀR⁻¹C + σ²I) − D/2 log|R| − KL[q(F) || p(F)]

R = I where F is known: CᵀC = K_w ∘ FFᵀ, the exact marginal likelihood given F. No difference of large
numbers occurs, so the bound keeps its digits for small σ² and in single precision. The optimal q(F) given
q(W) has Gaussian sites: q(F) ∝ p(F) Πₙ exp(nat1ₙᵀfₙ − ½ fₙᵀprecₙfₙ).

Where targets are missing, outputs with the same missing rows form a pattern, and each pattern has its own B:
the leading axis P. O(P(NK)³) time and O(P(NK)²) memory, nothing in D.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

_START_DEVIATION = 0.1  # of the further nodes at the start, at most


class Patterns(NamedTuple):
    """What the bound needs of the targets, by pattern of missing rows.

    ``observed`` [P, N] is 1 where the outputs of the pattern are known, else 0; ``gram`` [P, N, N] is the sum
    of y_d y_dᵀ over these outputs, missing targets as zero; ``count`` [P] is their number.
    """

    observed: tf.Tensor
    gram: tf.Tensor
    count: tf.Tensor


class Nodes(NamedTuple):
    """q(F): means [N, K], the covariance [N, K, K] of each datum's nodes, and KL[q(F) || p(F)]."""

    mean: tf.Tensor
    cov: tf.Tensor
    kl: tf.Tensor


class NodeFactor(NamedTuple):
    """q(F̃) = N(mean, (LLᵀ)⁻¹): the whitened mean [N, K] and L [NK, NK], in the order (n, k)."""

    mean: tf.Tensor
    chol: tf.Tensor


class Weights(NamedTuple):
    """The optimal q(W̃_d) = N(T y_d, (LLᵀ)⁻¹) of each pattern: T [P, NK, N] and L [P, NK, NK]."""

    smoother: tf.Tensor
    chol: tf.Tensor


def start(draws: tf.Tensor, chol: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return nodes to start from, [N, K]: F₁ = 1 and scaled draws, which is almost independent regression.

    The contribution of a further node starts with the variance of the noise, or with a hundredth of that of
    the first node: a larger one would spoil the fit of data with little noise.

    Parameters
    ----------
    draws
        Of the prior of the further nodes, [N, K − 1].
    chol
        L_w [N, N].
    noise
        σ², [].
    """
    variance = tf.reduce_sum(tf.square(chol)) / float(chol.shape[0])
    scale = tf.minimum(tf.sqrt(noise / variance), tf.constant(_START_DEVIATION, noise.dtype))
    return tf.concat([tf.ones([draws.shape[0], 1], draws.dtype), scale * draws], axis=1)


def node_factor(chol: tf.Tensor, nat1: tf.Tensor, prec: tf.Tensor) -> NodeFactor:
    """Return q(F̃) for the factor L_f [N, N] of the prior and sites [N, K], [N, K, K]. O((NK)³)."""
    num_data, K = nat1.shape
    H = _gram(chol, prec)
    factor = tf.linalg.cholesky(H + tf.eye(num_data * K, dtype=H.dtype))
    pulled = tf.reshape(tf.matmul(chol, nat1, transpose_a=True), [-1, 1])
    return NodeFactor(tf.reshape(tf.linalg.cholesky_solve(factor, pulled), [num_data, K]), factor)


def nodes(chol: tf.Tensor, nat1: tf.Tensor, prec: tf.Tensor) -> Nodes:
    """Return q(F) for the factor L_f [N, N] of the prior and sites [N, K], [N, K, K]. O((NK)³).

    tr S̃ = NK − Σₙ tr(precₙSₙ) saves the trace of an inverse in the KL divergence.
    """
    q = node_factor(chol, nat1, prec)
    cov = _blocks(q.chol, chol)
    trace = -tf.reduce_sum(prec * cov)  # tr S̃ − NK
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(q.chol)))
    kl = 0.5 * (trace + tf.reduce_sum(tf.square(q.mean)) + log_det)
    return Nodes(tf.matmul(chol, q.mean), cov, kl)


def bound(patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, q: Nodes) -> tf.Tensor:
    """Return the lower bound of log p(Y | X) with the optimal q(W), a scalar. O(P(NK)³).

    Parameters
    ----------
    patterns
        The targets.
    chol
        L_w [N, N].
    noise
        σ², [].
    q
        Any q(F), with its KL divergence.
    """
    R, C = _uncertain(patterns, chol, noise, q)
    factor = tf.linalg.cholesky(R)
    Z = tf.linalg.triangular_solve(factor, C)
    explained = tf.matmul(Z, Z, transpose_a=True)
    penalty = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)
    return log_marginal(patterns, explained, noise) - tf.reduce_sum(patterns.count * penalty) - q.kl


def log_marginal(patterns: Patterns, cov: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return Σ_d log N(y_d; 0, cov + σ²I) over the targets that are known, a scalar. O(PN³).

    Parameters
    ----------
    cov
        Covariance [P, N, N] or [N, N] of the signal; rows and columns of missing targets are not read.
    """
    observed = patterns.observed
    seen = observed[:, :, None] * observed[:, None, :]
    diagonal = noise * observed + (1.0 - observed)
    factor = tf.linalg.cholesky(tf.linalg.diag(diagonal) + seen * cov)
    half = tf.linalg.triangular_solve(factor, patterns.gram)
    fit = tf.linalg.trace(tf.linalg.triangular_solve(factor, tf.linalg.matrix_transpose(half)))
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)
    constant = tf.reduce_sum(observed, axis=-1) * np.log(2.0 * np.pi)
    return -0.5 * tf.reduce_sum(fit + patterns.count * (log_det + constant))


def weights(patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, q: Nodes) -> Weights:
    """Return the optimal q(W) given q(F). O(P(NK)³)."""
    R, C = _uncertain(patterns, chol, noise, q)
    factor = tf.linalg.cholesky(R + tf.matmul(C, C, transpose_b=True) / noise)
    return Weights(tf.linalg.cholesky_solve(factor, C / noise), factor)


def node_sites(
    patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, w: Weights
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the sites nat1 [N, K] and prec [N, K, K] of the optimal q(F) given q(W). O(P(NK)³).

    precₙ = σ⁻² E[WₙᵀWₙ],    nat1ₙ = σ⁻² E[Wₙ]ᵀyₙ,    both sums over the outputs known at n
    """
    P, num_data = patterns.observed.shape
    size = w.chol.shape[-1]
    K = size // num_data
    T = tf.matmul(chol, tf.reshape(w.smoother, [P, num_data, K * num_data]))
    T = tf.reshape(T, [P, num_data, K, num_data])
    by_gram = tf.matmul(T, patterns.gram[:, None])  # [P, N, K, N]
    second = tf.matmul(by_gram, T, transpose_b=True)
    second += patterns.count[:, None, None, None] * _blocks(w.chol, chol)
    first = tf.reduce_sum(T * patterns.gram[:, :, None, :], axis=-1)  # [P, N, K]
    observed = patterns.observed
    prec = tf.reduce_sum(second * observed[:, :, None, None], axis=0) / noise
    nat1 = tf.reduce_sum(first * observed[:, :, None], axis=0) / noise
    return nat1, 0.5 * (prec + tf.linalg.matrix_transpose(prec))


def _uncertain(
    patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, q: Nodes
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return R [P, NK, NK] and C [P, NK, N]."""
    num_data, K = q.mean.shape
    observed = patterns.observed
    R = _gram(chol, observed[:, :, None, None] * q.cov) / noise
    C = tf.transpose(chol)[:, None, :] * tf.transpose(q.mean)[None, :, :]  # [N, K, N]
    C = tf.reshape(C, [num_data * K, num_data]) * observed[:, None, :]
    return R + tf.eye(num_data * K, dtype=R.dtype), C


def _gram(chol: tf.Tensor, inner: tf.Tensor) -> tf.Tensor:
    """Return Σᵢ lᵢlᵢᵀ ⊗ Aᵢ for the rows lᵢ of L [N, N] and A [..., N, K, K], as [..., NK, NK]. O(N³K²)."""
    num_data, K = inner.shape[-3], inner.shape[-1]
    lead = inner.shape[:-3]
    right = inner[..., None] * chol[:, None, None, :]  # [..., i, k, l, m]
    full = tf.matmul(chol, tf.reshape(right, [*lead, num_data, -1]), transpose_a=True)
    full = tf.linalg.matrix_transpose(tf.reshape(full, [*lead, num_data, K, K, num_data]))
    return tf.reshape(full, [*lead, num_data * K, num_data * K])


def half(factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
    """Return F⁻¹(A ⊗ I) for F [..., NK, NK] and A [N, X], as [..., NK, X, K]. O((NK)² XK)."""
    size, (num_data, columns) = factor.shape[-1], A.shape
    K = size // num_data
    rhs = A[:, None, :, None] * tf.eye(K, dtype=A.dtype)[None, :, None, :]
    rhs = tf.reshape(rhs, [size, -1])
    rhs = tf.broadcast_to(rhs, [*factor.shape[:-2], size, tf.shape(rhs)[-1]])
    solved = tf.linalg.triangular_solve(factor, rhs)
    return tf.reshape(solved, [*factor.shape[:-2], size, -1 if columns is None else columns, K])


def _blocks(factor: tf.Tensor, chol: tf.Tensor) -> tf.Tensor:
    """Return the K × K blocks on the diagonal of (L ⊗ I)(FFᵀ)⁻¹(L ⊗ I)ᵀ, [..., N, K, K]. O((NK)³)."""
    solved = half(factor, tf.transpose(chol))
    return tf.einsum("...rnk,...rnl->...nkl", solved, solved)
