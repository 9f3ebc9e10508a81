"""Expectations of the softmax and of log Σ exp for independent Gaussians, integrals over one variable.

Softmax is the choice of the largest of the utilities xₖ + gₖ with independent Gumbel gₖ. A K-dimensional
expectation is one over the value u of that largest utility, whose distribution is the product of

    Ψₖ(u) = p(xₖ + gₖ < u) = E[exp(−exp(xₖ − u))]
"""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from gpflow_ext.likelihoods.largest_utility import (
    LATENT_NODES,
    REACH,
    WIDE,
    Density,
    Products,
    fractions,
    gumbel_rule,
    rarity,
    safe_log,
    steady_range,
    utility_range,
)
from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.mapped import one_by_one

_CERTAIN = 50.0  # log rate from which exp(-rate) is zero: e⁵⁰ does not overflow


def log_expected_softmax(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return log E[softmax(x)] for independent xₖ ~ N(mₖ, vₖ), normalised.

        E[softmaxₖ] = ∫ ψₖ(u) Πⱼ≠ₖ Ψⱼ(u) du,    ψⱼ = dΨⱼ/du,

    by the trapezoid rule in u, and by a quadrature of each xⱼ or gⱼ, whichever is the narrower.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K], var >= 0.

    Returns
    -------
    Tensor [..., K]. Absolute error of the probabilities in float64: that stated by
    `gpflow_ext.likelihoods.MultinomialLogit`.
    Cost of about 144·120·K exponentials and memory of 12·40·K numbers per row.
    """
    sd = tf.sqrt(positive_variance(var))
    low, high = (tf.stop_gradient(end)[..., None] for end in utility_range(mean, sd))  # [..., 1]

    def at(fraction: tf.Tensor) -> tf.Tensor:
        """Return log ψₖ + Σⱼ≠ₖ log Ψⱼ for each of several u, [U, ..., K]."""
        u = low + (high - low) * tf.reshape(fraction, [-1] + [1] * mean.shape.rank)
        pairs = zip(_by_latent(u - mean, sd), _by_gumbel(u - mean, sd), strict=True)
        log_cdf, log_density = (tf.where(sd < WIDE, narrow, wide) for narrow, wide in pairs)
        return log_density - log_cdf + tf.reduce_sum(log_cdf, axis=-1, keepdims=True)

    log_p = one_by_one(at, tf.constant(fractions(), mean.dtype))
    return tf.nn.log_softmax(tf.reduce_logsumexp(log_p, axis=[0, 1]))


def log_expected_probability(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return log E[softmaxₖ(x)] of one k, the own one, for independent xₖ ~ N(mₖ, vₖ).

    The integral of `log_expected_softmax`. Its first and second derivatives, by which expectation propagation
    matches moments, are such integrals as well.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K], var >= 0.
    own
        Which k it is, bool [..., K].

    Returns
    -------
    Tensor [...], with the errors of the probabilities of `log_expected_softmax`. Cost of about 144·40·K
    exponentials, derivatives included, and memory of 12·40·K numbers per row.
    """
    mean -= tf.stop_gradient(tf.reduce_max(mean, axis=-1, keepdims=True))  # large ones would cancel
    var += tf.stop_gradient(positive_variance(var) - var)
    low, high = steady_range(mean, mean, var)
    lift = tf.where(own, rarity(low, mean, var), 0.0)
    whole = tf.ones_like(own)[..., None, :]
    value = Products(whole, (1.0,), low, high, Density(own, lift)).integral(mean, var)
    return safe_log(value) - tf.reduce_sum(lift, axis=-1)


def expected_lse(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return E[log Σₖ exp(xₖ)] for independent xₖ ~ N(mₖ, vₖ).

    The largest utility given x is a Gumbel variable about log Σ exp(xₖ), so that this is its mean less γ,

        E[log Σₖ exp(xₖ)] = u₁ − γ − ∫ᵘ¹ Πₖ Ψₖ(u) du    for u₁ beyond which Πₖ Ψₖ is one,

    by the trapezoid rule in u. Its first and second derivatives are such integrals as well.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K], var >= 0.

    Returns
    -------
    Tensor [...]. Absolute error in float64, in any mixture of variances: 1e-9 up to 25, 2e-7 up to 100, 2e-5
    up to 300; larger ones do no harm where all are within a factor of 100 of each other. Cost of about
    144·40·K exponentials, derivatives included, and memory of 12·40·K numbers per row.
    """
    var += tf.stop_gradient(positive_variance(var) - var)
    low, high = steady_range(mean, mean, var)
    product = Products(tf.ones_like(mean, tf.bool)[..., None, :], (1.0,), low, high)
    return high - np.euler_gamma + 0.5 * product.step - product.integral(mean, var)  # at u₁ its weight is ½


def expected_lse_rise(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor, rise: tf.Tensor) -> tf.Tensor:
    """Return E[log Σₖ exp(xₖ + δ 1[k is own]) − log Σₖ exp(xₖ)] for independent xₖ ~ N(mₖ, vₖ).

    The integrals of `expected_lse` differ in one factor, Ψ of the own k,

        ∫ (Ψ(u) − Ψ(u − δ)) Πₖ Ψₖ(u) du    with the product over all other k.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K], var >= 0.
    own
        Which k is the own one, bool [..., K].
    rise
        δ >= 0, [].

    Returns
    -------
    Tensor [...]. The error is that of `expected_lse`, the cost that of one with K + 1 terms.
    """
    mean -= tf.stop_gradient(tf.reduce_max(mean, axis=-1, keepdims=True))  # large ones would cancel
    var += tf.stop_gradient(positive_variance(var) - var)
    own_mean, own_var = (
        tf.reduce_sum(tf.where(own, part, 0.0), axis=-1, keepdims=True) for part in (mean, var)
    )
    means, variances = tf.concat([mean, own_mean + rise], axis=-1), tf.concat([var, own_var], axis=-1)
    before = tf.concat([tf.ones_like(own), tf.zeros_like(own[..., :1])], axis=-1)
    after = tf.concat([tf.logical_not(own), tf.ones_like(own[..., :1])], axis=-1)
    low, high = steady_range(mean, means, variances)
    return Products(tf.stack([before, after], axis=-2), (1.0, -1.0), low, high).integral(means, variances)


def _by_latent(u: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return log Ψ and log ψ at u of x + g, x ~ N(0, sd²), for sd <= WIDE: E[exp(-r)] and E[r exp(-r)].

    Here r = e^(x-u), and the nodes are those of x.
    """
    z = tf.constant(np.linspace(-REACH, REACH, LATENT_NODES), dtype=u.dtype)
    weight = tf.nn.softmax(-0.5 * tf.square(z))
    log_rate = tf.minimum(tf.minimum(sd, WIDE)[..., None] * z - u[..., None], _CERTAIN)
    size = tf.stop_gradient(tf.minimum(tf.reduce_max(log_rate, axis=-1, keepdims=True), 0.0))
    scaled = tf.exp(log_rate - size)  # a rate that underflows would lose its share of ψ
    survival = weight * tf.exp(-scaled * tf.exp(size))
    log_density = size[..., 0] + safe_log(tf.reduce_sum(scaled * survival, axis=-1))
    return safe_log(tf.reduce_sum(survival, axis=-1)), log_density


def _by_gumbel(u: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same for sd >= WIDE: E[Φ((u - g)/sd)] and its derivative, by Gauss's rule for g."""
    g, weight = (tf.constant(part, dtype=u.dtype) for part in gumbel_rule())
    sd = tf.maximum(sd, WIDE)
    d = (u[..., None] - g) / sd[..., None]
    cdf = tf.reduce_sum(weight * 0.5 * tf.math.erfc(-math.sqrt(0.5) * d), axis=-1)
    density = tf.reduce_sum(weight * tf.exp(-0.5 * tf.square(d)), axis=-1) / (math.sqrt(2.0 * math.pi) * sd)
    return safe_log(cdf), safe_log(density)
