"""Gaussian process regression networks with the weights integrated out, at a cost free of the outputs.

yₙ = Wₙfₙ + ε with ε ~ N(0, σ²I), the K nodes f_k ~ GP(0, k_f) and all weights w_dk ~ GP(0, k_w), N data and D
outputs (Wilson et al. 2012). All is whitened, F = L_f F̃ and W_d = L_w W̃_d. Given q(F) with means mₙ and
covariances Sₙ the optimal q(W) has independent outputs with one common covariance B⁻¹,

    B = I + σ⁻² Σₙ (lₙlₙᵀ ⊗ E[fₙfₙᵀ]) = R + σ⁻² CCᵀ,    R = I + σ⁻² Σₙ (lₙlₙᵀ ⊗ Sₙ),    C[:, n] = lₙ ⊗ mₙ,

lₙ the n-th row of L_w, and the bound sees the targets only through their Gram matrix YYᵀ = QQᵀ, of which any
root Q [N, R] is kept, R ≤ N:

    bound = Σ_d log N(y_d; 0, CᵀR⁻¹C + σ²I) − D/2 log|R| − KL[q(F) || p(F)]

(derived in docs/derivations.md, section 11). R = I where F is known: CᵀC = K_w ∘ FFᵀ, the exact marginal
likelihood given F. No difference of large numbers occurs, so the bound keeps its digits for small σ² and in
single precision. The optimal q(F) given q(W) has Gaussian sites: q(F) ∝ p(F) Πₙ exp(nat1ₙᵀfₙ − ½ fₙᵀprecₙfₙ).

With M inducing inputs gₙ = lₙᵀg̃ + rₙ for both kinds of functions, lₙ a row of (L⁻¹K_zx)ᵀ [N, M] and rₙ
independent with the variances that remain: all matrices are of size MK, and `sparse_bound` is linear in N.

Where targets are missing, outputs with the same missing rows form a pattern, and each pattern has its own B:
the leading axis P. So has each output where outputs have weights w_dk ~ GP(0, a_d²k_w) and noise σ²r_d of
their own: with W_d = a_d L_w W̃_d, a_d lₙ stands for lₙ and σ²r_d for σ² in all of this. O(P(NK)³) time and
O(P(NK)²) memory, nothing in D; with inducing inputs O(PN(MK)²) and O(PNMK²).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.gprn import blocks
from gpflow_ext.numerics import triangular

_START_DEVIATION = 0.1  # of the further nodes at the start, at most
_SHRINKING = 0.1  # of the largest element of K_w: smaller ones say little of the nodes


class Patterns(NamedTuple):
    """Sufficient statistics of the targets for the bound, by pattern of missing rows.

    ``observed`` [P, N] is 1 where the outputs of the pattern are known, else 0; ``root`` [P, N, R] is a root
    of the sum of y_d y_dᵀ over these outputs, missing targets as zero; ``count`` [P] is their number.
    ``amplitude`` [P] is a, by which their weights exceed those of the prior, and ``relative`` [P] is r, the
    variance of their noise over σ².
    """

    observed: tf.Tensor
    root: tf.Tensor
    count: tf.Tensor
    amplitude: tf.Tensor | float = 1.0
    relative: tf.Tensor | float = 1.0

    def noise(self, variance: tf.Tensor) -> tf.Tensor:
        """Return σ²r of each pattern, [..., P], for σ² [...]."""
        return variance[..., None] * self.relative * tf.ones_like(self.count)

    def gain(self) -> tf.Tensor:
        """Return a of each pattern, [P]."""
        return self.amplitude * tf.ones_like(self.count)


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
        Draws of the prior of the further nodes, [N, K − 1].
    chol
        L_w [N, N].
    noise
        σ², [].
    """
    variance = tf.reduce_sum(tf.square(chol)) / float(chol.shape[0])
    scale = tf.minimum(tf.sqrt(noise / variance), tf.constant(_START_DEVIATION, noise.dtype))
    return tf.concat([tf.ones([draws.shape[0], 1], draws.dtype), scale * draws], axis=1)


def known(F: tf.Tensor) -> Nodes:
    """Return q(F) of nodes that are known, [N, K]; its KL divergence is left out."""
    N, K = F.shape
    return Nodes(F, tf.zeros([N, K, K], F.dtype), tf.zeros([], F.dtype))


def moment_nodes(patterns: Patterns, gram: tf.Tensor, noise: tf.Tensor, num_nodes: int) -> tf.Tensor:
    """Return nodes by the method of moments, [N, K]; they are determined up to a rotation. O(N³).

    E[YYᵀ]/D = K_w ∘ FFᵀ + σ²I gives FFᵀ elementwise, and its K largest eigenvalues F: principal components
    where K_w is one. Each product is divided by the number of outputs that are known in both rows; where K_w
    is small, what it says of FFᵀ is shrunk to zero. Nodes beyond the number of data are zero.

    Parameters
    ----------
    patterns
        The targets.
    gram
        K_w [N, N].
    noise
        σ², [].
    num_nodes
        K.
    """
    of_signal = 1.0 / tf.square(patterns.gain())  # as if all outputs had the weights of the prior
    products = tf.einsum("p,pnr,pmr->nm", of_signal, patterns.root, patterns.root)
    noise = tf.reduce_sum(patterns.count * of_signal * patterns.noise(noise)) / tf.reduce_sum(patterns.count)
    pairs = tf.einsum("p,pn,pm->nm", patterns.count, patterns.observed, patterns.observed)
    moment = products / tf.maximum(pairs, 1.0)
    moment -= noise * tf.eye(gram.shape[0], dtype=gram.dtype)
    least = _SHRINKING * tf.reduce_max(tf.abs(gram))
    eigenvalues, vectors = tf.linalg.eigh(moment * gram / (tf.square(gram) + tf.square(least)))
    roots = tf.sqrt(tf.maximum(eigenvalues[-num_nodes:], 0.0))
    F = tf.reverse(vectors[:, -num_nodes:] * roots, [1])
    F = tf.pad(F, [[0, 0], [0, max(0, num_nodes - F.shape[1])]])
    one = tf.ones([], F.dtype)
    return F * tf.where(tf.reduce_sum(F, axis=0) < 0.0, -one, one)


def node_factor(rows: tf.Tensor, nat1: tf.Tensor, prec: tf.Tensor) -> NodeFactor:
    """Return q(F̃) for rows lₙ of L_f [..., N, N or M], K or one, and sites [N, K], [N, K, K]. O((NK)³)."""
    H = blocks.gram(rows, prec)
    factor = tf.linalg.cholesky(H + tf.eye(H.shape[-1], dtype=H.dtype))
    pulled = tf.reshape(blocks.pulled(rows, nat1), [-1, 1])
    return NodeFactor(tf.reshape(tf.linalg.cholesky_solve(factor, pulled), [-1, nat1.shape[-1]]), factor)


def nodes(rows: tf.Tensor, nat1: tf.Tensor, prec: tf.Tensor, residual: tf.Tensor | float = 0.0) -> Nodes:
    """Return q(F) for rows lₙ of L_f [..., N, N or M], K or one, and sites [N, K], [N, K, K]. O((NK)³).

    tr S̃ = MK − Σₙ tr(precₙSₙ) saves the trace of an inverse in the KL divergence. ``residual`` are the
    variances [N] or [K, N] that inducing inputs leave.
    """
    q = node_factor(rows, nat1, prec)
    cov = blocks.on_diagonal(q.chol, rows)
    trace = -tf.reduce_sum(prec * cov)  # tr S̃ − MK
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(q.chol)))
    kl = 0.5 * (trace + tf.reduce_sum(tf.square(q.mean)) + log_det)
    return Nodes(blocks.applied(rows, q.mean), cov + blocks.diagonal(residual, prec), kl)


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
    return _bound(patterns, chol, noise, q)[0]


def bound_and_log_det(
    patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, q: Nodes
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same, and log|B| = log|R| + log|I + σ⁻²CᵀR⁻¹C| of each pattern, [P]. O(P(NK)³)."""
    value, log_det, explained = _bound(patterns, chol, noise, q)
    inner = explained / patterns.noise(noise)[:, None, None] + tf.eye(chol.shape[0], dtype=chol.dtype)
    half = tf.linalg.diag_part(tf.linalg.cholesky(inner))
    return value, log_det + 2.0 * tf.reduce_sum(tf.math.log(half), axis=-1)


def _bound(
    patterns: Patterns, chol: tf.Tensor, noise: tf.Tensor, q: Nodes
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the bound, log|R| [P] and CᵀR⁻¹C [P, N, N]."""
    R, C = _uncertain(patterns, chol, noise, q)
    log_det, explained = triangular.log_det_and_gram(R, C)
    value = log_marginal(patterns, explained, noise) - 0.5 * tf.reduce_sum(patterns.count * log_det)
    return value - q.kl, log_det, explained


def sparse_bound(
    patterns: Patterns, rows: tf.Tensor, residual: tf.Tensor, noise: tf.Tensor, q: Nodes
) -> tf.Tensor:
    """Return the lower bound with inducing inputs, a scalar. O(PN(MK)² + PNMKR).

        −½ Σ_d [N log 2πσ² + log|B| + σ⁻²‖y_d‖² − σ⁻⁴‖L_B⁻¹Cy_d‖² + σ⁻² Σₙ sₙ tr E[fₙfₙᵀ]] − KL[q(F) || p(F)]

    Parameters
    ----------
    patterns, noise
        As for `bound`.
    rows, residual
        (L⁻¹K_zx)ᵀ [N, M] of the weights, and s, the variances that remain, [N].
    q
        Any q(F), with what remains of the nodes in its covariances.
    """
    R, C = _uncertain(patterns, rows, noise, q)
    each = patterns.noise(noise)[:, None]
    factor = tf.linalg.cholesky(R + tf.matmul(C, C, transpose_b=True) / each[:, :, None])
    pulled = tf.linalg.triangular_solve(factor, tf.matmul(C, patterns.root)) / each[:, :, None]
    fit = tf.reduce_sum(tf.square(patterns.root), axis=[-2, -1]) / each[:, 0]
    fit -= tf.reduce_sum(tf.square(pulled), axis=[-2, -1])
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)
    second = tf.linalg.trace(q.cov) + tf.reduce_sum(tf.square(q.mean), axis=-1)  # tr E[fₙfₙᵀ]
    left = tf.square(patterns.gain())[:, None] * residual * second / each
    rows_of = tf.reduce_sum(patterns.observed * (tf.math.log(2.0 * np.pi * each) + left), axis=-1)
    return -0.5 * tf.reduce_sum(fit + patterns.count * (log_det + rows_of)) - q.kl


def log_marginal(patterns: Patterns, cov: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return Σ_d log N(y_d; 0, cov + σ²I) over the targets that are known, [...]. O(PN³).

    Parameters
    ----------
    cov
        Covariance [..., P or 1, N, N] or [N, N] of the signal; rows and columns of missing targets are not
        read.
    noise
        σ², [...].
    """
    observed = patterns.observed
    factor = tf.linalg.cholesky(noisy(observed, cov, patterns.noise(noise)))
    lead = tf.shape(factor)[:-2]
    root = tf.broadcast_to(patterns.root, tf.concat([lead, tf.shape(patterns.root)[1:]], axis=0))
    fit = tf.reduce_sum(tf.square(tf.linalg.triangular_solve(factor, root)), axis=[-2, -1])
    log_det = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)), axis=-1)
    constant = tf.reduce_sum(observed, axis=-1) * np.log(2.0 * np.pi)
    return -0.5 * tf.reduce_sum(fit + patterns.count * (log_det + constant), axis=-1)


def noisy(observed: tf.Tensor, cov: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return the covariances of the targets of each pattern, [..., P, N, N], the identity where missing.

    ``noise`` is that of each pattern, [..., P].
    """
    seen = observed[:, :, None] * observed[:, None, :]
    return tf.linalg.diag(noise[..., None] * observed + (1.0 - observed)) + seen * cov


def log_likelihood(patterns: Patterns, gram: tf.Tensor, F: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return log p(Y | F) with the weights integrated out exactly, [...]. O(PN³).

        Σ_d log N(y_d; 0, a_d² K_w ∘ FFᵀ + σ²r_d I)

    Parameters
    ----------
    gram
        K_w, [..., N, N].
    F
        Nodes [..., N, K]; only FFᵀ enters, so that a rotation of them changes nothing.
    noise
        σ², [...].
    """
    cov = gram * tf.matmul(F, F, transpose_b=True)
    return log_marginal(patterns, tf.square(patterns.gain())[:, None, None] * cov[..., None, :, :], noise)


def information(patterns: Patterns, gram: tf.Tensor, F: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Return the Fisher information of `log_likelihood` about a column of F, mean of the K, [N, N]. O(PKN³).

        Σ_d ½ tr(S⁻¹ ∂S S⁻¹ ∂S) = Σ_d [H ∘ Hᵀ + S⁻¹ ∘ (ΓᵀS⁻¹Γ)],    S = a_d² K_w ∘ FFᵀ + σ²r_d I

    with Γ = a_d² diag(f_k)K_w and H = ΓᵀS⁻¹. Arguments as for `log_likelihood`, without leading axes.
    """
    gram = tf.square(patterns.gain())[:, None, None] * gram  # [P, N, N]
    cov = gram * tf.matmul(F, F, transpose_b=True)
    factor = tf.linalg.cholesky(noisy(patterns.observed, cov, patterns.noise(noise)))
    seen = patterns.observed[:, :, None] * patterns.observed[:, None, :]
    inverse = seen * tf.linalg.cholesky_solve(factor, tf.eye(F.shape[0], batch_shape=[1], dtype=F.dtype))
    gamma = tf.transpose(F)[:, None, :, None] * gram  # [K, P, N, N]
    H = tf.matmul(gamma, inverse, transpose_a=True)
    each = H * tf.linalg.matrix_transpose(H) + inverse * tf.matmul(H, gamma)
    return tf.reduce_sum(patterns.count[:, None, None] * tf.reduce_mean(each, axis=0), axis=0)


def rotation(F: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return the orthogonal R [..., K, K] for which FR is nearest to ``like``, both [..., N, K]."""
    _, left, right = tf.linalg.svd(tf.matmul(F, like, transpose_a=True))
    return tf.matmul(left, right, transpose_b=True)


def weights(patterns: Patterns, rows: tf.Tensor, noise: tf.Tensor, q: Nodes) -> Weights:
    """Return the optimal q(W) given q(F). O(P(NK)³)."""
    R, C = _uncertain(patterns, rows, noise, q)
    each = patterns.noise(noise)[:, None, None]
    factor = tf.linalg.cholesky(R + tf.matmul(C, C, transpose_b=True) / each)
    return Weights(tf.linalg.cholesky_solve(factor, C / each), factor)


def node_sites(
    patterns: Patterns, rows: tf.Tensor, noise: tf.Tensor, w: Weights, residual: tf.Tensor | float = 0.0
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the sites nat1 [N, K] and prec [N, K, K] of the optimal q(F) given q(W). O(P(NK)³).

    precₙ = σ⁻² E[WₙᵀWₙ],    nat1ₙ = σ⁻² E[Wₙ]ᵀyₙ,    both sums over the outputs known at n

    ``residual`` are the variances [N] that inducing inputs leave of a weight with the variance of the prior.
    """
    P, (num_data, M) = patterns.observed.shape[0], rows.shape
    K = w.chol.shape[-1] // M
    by_root = tf.reshape(tf.matmul(w.smoother, patterns.root), [P, M, -1])
    U = tf.reshape(tf.matmul(rows, by_root), [P, num_data, K, -1])  # means of the weights times a rotation
    second = tf.matmul(U, U, transpose_b=True)
    cov = blocks.on_diagonal(w.chol, rows)
    second += patterns.count[:, None, None, None] * (cov + blocks.diagonal(residual, cov))
    first = tf.linalg.matvec(U, patterns.root)  # [P, N, K]
    share = patterns.observed * (patterns.gain() / patterns.noise(noise))[:, None]  # a/σ² where known
    prec = tf.reduce_sum(second * (patterns.gain()[:, None] * share)[:, :, None, None], axis=0)
    nat1 = tf.reduce_sum(first * share[:, :, None], axis=0)
    return nat1, 0.5 * (prec + tf.linalg.matrix_transpose(prec))


def _uncertain(
    patterns: Patterns, rows: tf.Tensor, noise: tf.Tensor, q: Nodes
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return R [P, MK, MK] and C [P, MK, N]; M = N without inducing inputs."""
    observed, gain = patterns.observed, patterns.gain()[:, None]
    share = observed * tf.square(gain) / patterns.noise(noise)[:, None]
    R = blocks.gram(rows, share[:, :, None, None] * q.cov)
    C = tf.transpose(rows)[:, None, :] * tf.transpose(q.mean)[None, :, :]  # [M, K, N]
    C = tf.reshape(C, [R.shape[-1], rows.shape[0]]) * (gain * observed)[:, None, :]
    return R + tf.eye(R.shape[-1], dtype=R.dtype), C
