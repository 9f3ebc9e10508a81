"""Expectations of the softmax and of log Σ exp for independent Gaussians, integrals over one variable.

Softmax is the choice of the largest of the utilities xₖ + gₖ with independent Gumbel gₖ. A K-dimensional
expectation is one over the value u of that largest utility, whose distribution is the product of

    Ψₖ(u) = p(xₖ + gₖ < u) = E[exp(−exp(xₖ − u))]
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.special
import tensorflow as tf

from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.special import with_derivatives

_REACH = 7.5  # standard deviations on each side of a latent function: the density has fallen by e⁻²⁸
_DROP = 28.0  # its logarithm, also that of the Gumbel tails
_WIDE = 2.5  # standard deviation from which a latent function is wider than a Gumbel variable
_LATENT_NODES = 40
_GUMBEL_NODES = 16
_UTILITY_NODES = 144
_BATCH = 12
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
    low, high = (tf.stop_gradient(end)[..., None] for end in _utility_range(mean, sd))  # [..., 1]

    def at(fraction: tf.Tensor) -> tf.Tensor:
        """Return log ψₖ + Σⱼ≠ₖ log Ψⱼ for each of several u, [U, ..., K]."""
        u = low + (high - low) * tf.reshape(fraction, [-1] + [1] * mean.shape.rank)
        pairs = zip(_by_latent(u - mean, sd), _by_gumbel(u - mean, sd), strict=True)
        log_cdf, log_density = (tf.where(sd < _WIDE, narrow, wide) for narrow, wide in pairs)
        return log_density - log_cdf + tf.reduce_sum(log_cdf, axis=-1, keepdims=True)

    log_p = tf.map_fn(at, tf.constant(_fractions(), mean.dtype))
    return tf.nn.log_softmax(tf.reduce_logsumexp(log_p, axis=[0, 1]))


def expected_lse(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return E[log Σₖ exp(xₖ)] for independent xₖ ~ N(mₖ, vₖ).

    The largest utility given x is a Gumbel variable about log Σ exp(xₖ), so that this is its mean less γ,

        E[log Σₖ exp(xₖ)] = u₁ − γ − ∫ᵘ¹ Πₖ Ψₖ(u) du    for u₁ beyond which Πₖ Ψₖ is one,

    by the trapezoid rule in u. The derivatives are those of the quadrature.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K], var >= 0.

    Returns
    -------
    Tensor [...]. Absolute error in float64, in any mixture of variances: 1e-9 up to 25, 2e-7 up to 100, 2e-5
    up to 300; larger ones do no harm where all are within a factor of 100 of each other. Cost of about
    144·80·K exponentials, as much again for the derivatives, and memory of 12·40·K numbers per row.
    """
    var += tf.stop_gradient(positive_variance(var) - var)
    low, high = map(tf.stop_gradient, _utility_range(mean, tf.sqrt(var)))
    nodes, step = tf.constant(_fractions(), mean.dtype), (high - low) / (_UTILITY_NODES - 1)

    def below(fraction: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return Σ Πₖ Ψₖ over several u, [...]."""
        u = (low + (high - low) * tf.reshape(fraction, [-1] + [1] * low.shape.rank))[..., None]
        sd = tf.sqrt(var)
        log_cdf = tf.where(sd < _WIDE, _by_latent(u - mean, sd)[0], _by_gumbel(u - mean, sd)[0])
        return tf.reduce_sum(tf.exp(tf.reduce_sum(log_cdf, axis=-1)), axis=0)

    def slopes_below(fraction: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch((mean, var))
            total = below(fraction, mean, var)
        return tape.gradient(total, (mean, var))

    def slopes() -> tuple[tf.Tensor, tf.Tensor]:
        parts = tf.map_fn(slopes_below, nodes, fn_output_signature=(mean.dtype, mean.dtype))
        by_mean, by_var = (-step[..., None] * tf.reduce_sum(part, axis=0) for part in parts)
        return by_mean, by_var

    # Derivatives of its own are for those who map this in a graph: a tape would keep every node of them.
    own = [tf.stop_gradient(part) if tf.executing_eagerly() else part for part in (mean, var)]
    total = tf.reduce_sum(tf.map_fn(lambda fraction: below(fraction, *own), nodes), axis=0)
    value = high - np.euler_gamma - step * (total - 0.5)  # the weight of the last node, at u₁, is a half
    return with_derivatives(value[..., None], mean, var, slopes)[..., 0]


def _fractions() -> npt.NDArray[np.float64]:
    """Return where the values of u lie between both ends, in batches that bound the memory, [·, U]."""
    return np.linspace(0.0, 1.0, _UTILITY_NODES).reshape(-1, _BATCH)


def _by_latent(u: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return log Ψ and log ψ at u of x + g, x ~ N(0, sd²), for sd <= _WIDE: E[exp(-r)] and E[r exp(-r)].

    Here r = e^(x-u), and the nodes are those of x.
    """
    z = tf.constant(np.linspace(-_REACH, _REACH, _LATENT_NODES), dtype=u.dtype)
    weight = tf.nn.softmax(-0.5 * tf.square(z))
    log_rate = tf.minimum(tf.minimum(sd, _WIDE)[..., None] * z - u[..., None], _CERTAIN)
    size = tf.stop_gradient(tf.minimum(tf.reduce_max(log_rate, axis=-1, keepdims=True), 0.0))
    scaled = tf.exp(log_rate - size)  # a rate that underflows would lose its share of ψ
    survival = weight * tf.exp(-scaled * tf.exp(size))
    log_density = size[..., 0] + _safe_log(tf.reduce_sum(scaled * survival, axis=-1))
    return _safe_log(tf.reduce_sum(survival, axis=-1)), log_density


def _by_gumbel(u: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same for sd >= _WIDE: E[Φ((u - g)/sd)] and its derivative, by Gauss's rule for g."""
    g, weight = (tf.constant(part, dtype=u.dtype) for part in _gumbel_rule())
    sd = tf.maximum(sd, _WIDE)
    d = (u[..., None] - g) / sd[..., None]
    cdf = tf.reduce_sum(weight * 0.5 * tf.math.erfc(-math.sqrt(0.5) * d), axis=-1)
    density = tf.reduce_sum(weight * tf.exp(-0.5 * tf.square(d)), axis=-1) / (math.sqrt(2.0 * math.pi) * sd)
    return _safe_log(cdf), _safe_log(density)


def _safe_log(x: tf.Tensor) -> tf.Tensor:
    """Return log x, finite and with a finite derivative where x underflows to zero."""
    return tf.math.log(tf.maximum(x, float(np.finfo(x.dtype.as_numpy_dtype).tiny)))


@functools.cache
def _gumbel_rule() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return nodes and weights of Gauss's rule for a Gumbel variable, by Lanczos on a fine grid."""
    grid = np.linspace(-4.2, 45.0, 20001)
    basis = [np.sqrt(scipy.special.softmax(-grid - np.exp(-grid)))]
    diagonal, off = [], []
    for _ in range(_GUMBEL_NODES):
        new = grid * basis[-1]
        diagonal.append(new @ basis[-1])
        for _ in range(2):  # twice, for orthogonality to rounding
            for vector in basis:
                new = new - (new @ vector) * vector
        off.append(np.linalg.norm(new))
        basis.append(new / off[-1])
    nodes, vectors = scipy.linalg.eigh_tridiagonal(diagonal, off[:-1])
    return nodes, vectors[0] ** 2


def _utility_range(mean: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where the largest utility lies, up to about e⁻²⁸: both ends [...].

    A Gumbel variable is above -log 28 with that probability; its right tail e⁻ᵘ carries a Gaussian with it,
    E[e^x] = exp(m + v/2), until the Gaussian's own tail is the longer one.
    """
    low = tf.reduce_max(mean - _REACH * sd, axis=-1) - math.log(_DROP)
    tail = tf.where(sd < _REACH, 0.5 * (tf.square(sd) + _REACH**2), _REACH * sd)
    return low, tf.reduce_max(mean + tail, axis=-1)
