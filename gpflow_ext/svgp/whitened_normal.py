"""A whitened Gaussian q(v) of K latent functions: its moments, its natural parameters and steps in them.

E[v] is [M, K], and Var[v] = RRᵀ with lower triangular R [K, M, M], or [1, M, M] where the functions share
it. Precisions are kept with v in reversed order: the inverse of their lower Cholesky factor, reversed and
transposed, is R.
"""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.numerics import linalg, triangular
from gpflow_ext.sites import Projection, products


def precision(root: tf.Tensor) -> tf.Tensor:
    """Return (RRᵀ)⁻¹ for lower triangular R [1 or K, M, M]. O(KM³)."""
    inverse = triangular.inverse(root)
    return tf.matmul(inverse, inverse, transpose_a=True)


def marginals(prior: Projection, mean: tf.Tensor, root: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance of q(f), each [B, K], for E[v] [M, K] and R [1 or K, M, M]. O(KM²B)."""
    at = prior.mean + products.matvec(prior.A, mean, transpose=True)
    var = prior.residual + triangular.squared_norms(root, prior.A)
    return at, tf.broadcast_to(var, tf.shape(at))


def site_weights(by_var: tf.Tensor, factors: int) -> tf.Tensor:
    """Return wₙ = −2 ∂/∂vₙ for each factor of Var[v], from the derivatives [B, K] in the variances of q(f).

    K functions that share Var[v] have the sufficient statistics v_k and Σ_k v_kv_kᵀ: the natural gradient in
    their precision is the mean of those of the functions, [B, 1], and so are the weights in their means.
    """
    apart = tf.reshape(by_var, [tf.shape(by_var)[0], factors, -1])
    return -2.0 * tf.reduce_mean(apart, axis=-1)


def natural_step(
    nat1: tf.Tensor, prec: tf.Tensor, gram: tf.Tensor, pull: tf.Tensor, length: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Take a natural-gradient step of a whitened q(v). O(KM³).

    Parameters
    ----------
    nat1, prec
        Var[v]⁻¹E[v] [M, K], and Var[v]⁻¹ [1 or K, M, M], v in reversed order, its lower triangle.
    gram, pull
        Σₙ wₙ aₙaₙᵀ, as prec, and Σₙ aₙ (gₙ + wₙ aₙᵀE[v]), as nat1; see `svgp.natural_gradient`.
    length
        γ.

    Returns
    -------
    nat1, prec, E[v] and the lower triangular factor of Var[v] after it, and whether they are finite.
    """
    nat1 = (1.0 - length) * nat1 + length * pull
    prec = (1.0 - length) * prec + length * gram
    prec = tf.linalg.set_diag(prec, tf.linalg.diag_part(prec) + length)
    return nat1, prec, *moments(nat1, prec)


def moments(nat1: tf.Tensor, prec: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return E[v] [M, K], the lower factors [1 or K, M, M] of Var[v], and whether they are finite, [].

    They are those of a Gaussian with the natural parameters Var[v]⁻¹E[v] [M, K] and Var[v]⁻¹ [1 or K, M, M],
    its order reversed and only its lower triangle read. O(KM³).
    """
    root, finite = root_of(prec)
    mean = products.matvec(root, products.matvec(root, nat1, transpose=True))
    return mean, root, finite & tf.reduce_all(tf.math.is_finite(mean))


def root_of(prec: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the factors of Var[v] for precisions as `moments` takes them, and whether they are finite."""
    chol, finite = linalg.cholesky(prec)
    return tf.reverse(tf.linalg.matrix_transpose(triangular.inverse(chol)), [-1, -2]), finite


def divergence(mean: tf.Tensor, root: tf.Tensor) -> tf.Tensor:
    """Return Σ_k KL[q(v_k) || N(0, I)] for E[v] [M, K] and R [1 or K, M, M], []. O(KM²)."""
    log_det = tf.reduce_sum(tf.math.log(tf.square(tf.linalg.diag_part(root))))
    spread = tf.reduce_sum(tf.square(root)) - log_det
    functions = mean.shape[1] // root.shape[0]  # of one factor
    return 0.5 * (functions * spread + tf.reduce_sum(tf.square(mean)) - tf.cast(tf.size(mean), mean.dtype))
