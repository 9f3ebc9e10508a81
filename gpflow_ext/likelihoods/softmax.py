"""Expectations of the softmax and of log Σ exp for independent Gaussians, integrals over one variable.

Softmax is the choice of the largest of the utilities xₖ + gₖ with independent Gumbel gₖ. A K-dimensional
expectation is one over the value u of that largest utility, whose distribution is the product of

    Ψₖ(u) = p(xₖ + gₖ < u) = E[exp(−exp(xₖ − u))]
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.special
import tensorflow as tf
from tensorflow.python.eager import record  # that all tapes stop has no public name

from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.numerics.special import with_derivatives

_REACH = 7.5  # standard deviations on each side of a latent function: the density has fallen by e⁻²⁸
_LONG_REACH = 8.5  # the same where differences of integrals matter: e⁻³⁶
_LARGEST = 80.0  # log rate that float32 can hold
_WIDE = 2.5  # standard deviation from which a latent function is wider than a Gumbel variable
_LATENT_NODES = 40
_GUMBEL_NODES = 16
_UTILITY_NODES = 144
_BATCH = 12
_TOUCHARD = (
    (1,),
    (0, -1),
    (0, -1, 1),
    (0, -1, 3, -1),
    (0, -1, 7, -6, 1),
)  # derivatives of e⁻ʳ in log r, times eʳ
_CERTAIN = 50.0  # log rate from which exp(-rate) is zero: e⁵⁰ does not overflow

Parts: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


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

    log_p = one_by_one(at, tf.constant(_fractions(), mean.dtype))
    return tf.nn.log_softmax(tf.reduce_logsumexp(log_p, axis=[0, 1]))


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
    low, high = _steady_range(mean, mean, var)
    product = _Products(tf.ones_like(mean, tf.bool)[..., None, :], (1.0,), low, high)
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
    low, high = _steady_range(mean, means, variances)
    return _Products(tf.stack([before, after], axis=-2), (1.0, -1.0), low, high).integral(means, variances)


class _Products(NamedTuple):
    """Sums of products of Ψₖ(u), to be integrated over u by the trapezoid rule."""

    members: tf.Tensor  # which k are factors of each product, bool [..., S, K]
    signs: tuple[float, ...]  # of the products, S
    low: tf.Tensor  # ends of the integral, [...]
    high: tf.Tensor

    @property
    def step(self) -> tf.Tensor:
        """Distance of the nodes, [...]."""
        return (self.high - self.low) / (_UTILITY_NODES - 1)

    def integral(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return the integral [...] for moments [..., K], all nodes with the same weight.

        Its first and second derivatives are integrals as well; further ones are derivatives of these.
        """
        value, *first = self._unrecorded(self._first, mean, var)
        # A graph leaves out what nobody asks for.
        known = None if tf.executing_eagerly() else self._unrecorded(self._second, mean, var)

        @tf.custom_gradient
        def second(mean: tf.Tensor, var: tf.Tensor) -> Any:
            def grad(*upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                with tf.GradientTape() as tape:
                    tape.watch((mean, var))
                    recorded = self._summed(self._second, mean, var)
                by_mean, by_var = tape.gradient(recorded, (mean, var), upstream)
                return by_mean, by_var

            return tuple(known or self._unrecorded(self._second, mean, var)), grad

        @tf.custom_gradient
        def slopes(mean: tf.Tensor, var: tf.Tensor) -> Any:
            def grad(by_mean: tf.Tensor, by_var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                means, mixed, variances = second(mean, var)
                to_mean = tf.linalg.matvec(means, by_mean) + tf.linalg.matvec(mixed, by_var)
                to_var = tf.linalg.matvec(mixed, by_mean, transpose_a=True)
                return to_mean, to_var + tf.linalg.matvec(variances, by_var)

            return tuple(first), grad

        return with_derivatives(value[..., None], mean, var, lambda: slopes(mean, var))[..., 0]

    def _unrecorded(self, parts: Callable[..., Parts], mean: tf.Tensor, var: tf.Tensor) -> list[tf.Tensor]:
        """Return what `_summed` does; a tape would keep every node, or trace all loops again for itself."""
        with record.stop_recording():
            return self._summed(parts, mean, var)

    def _summed(self, parts: Callable[..., Parts], mean: tf.Tensor, var: tf.Tensor) -> list[tf.Tensor]:
        """Return three integrals by their parts at several u."""
        shape = [-1] + [1] * self.low.shape.rank

        def at(fraction: tf.Tensor) -> Parts:
            u = self.low + (self.high - self.low) * tf.reshape(fraction, shape)
            one, two, three = (tf.reduce_sum(part, axis=0) for part in parts(u, mean, tf.sqrt(var)))
            return one, two, three

        nodes = tf.constant(_fractions(), mean.dtype)
        batches = one_by_one(at, nodes, fn_output_signature=(mean.dtype,) * 3)
        return [tf.reduce_sum(part, axis=0) for part in batches]

    def _first(self, u: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor) -> Parts:
        """Return the sum [U, ...] and its derivatives in means and variances, [U, ..., K]."""
        cdf, slope, bend = _cdf(u, self.low, mean, sd, 2)
        whole, others, _ = self._products(cdf)
        return whole, others * slope, 0.5 * others * bend

    def _second(self, u: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor) -> Parts:
        """Return the derivatives in two means, in a mean and a variance, in two variances, [U, ..., K, K]."""
        cdf, slope, bend, third, fourth = _cdf(u, self.low, mean, sd, 4)
        _, others, rest = self._products(cdf)

        def matrix(diagonal: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
            return tf.linalg.set_diag(rest * left[..., None] * right[..., None, :], others * diagonal)

        mixed = 0.5 * matrix(third, slope, bend)
        return matrix(bend, slope, slope), mixed, 0.25 * matrix(fourth, bend, bend)

    def _products(self, cdf: tf.Tensor) -> Parts:
        """Return the products times the step [U, ...], and without one or two of the factors."""
        weight = tf.constant(self.signs, cdf.dtype) * self.step[..., None]
        log_cdf = tf.where(self.members, _safe_log(cdf)[..., None, :], 0.0)  # [U, ..., S, K]
        log_whole = tf.reduce_sum(log_cdf, axis=-1)
        log_others = log_whole[..., None] - log_cdf
        log_rest = log_others[..., None] - log_cdf[..., None, :]
        one, two = self.members, self.members[..., None] & self.members[..., None, :]
        return (
            tf.reduce_sum(weight * tf.exp(log_whole), axis=-1),
            tf.reduce_sum(tf.where(one, weight[..., None] * tf.exp(log_others), 0.0), axis=-2),
            tf.reduce_sum(tf.where(two, weight[..., None, None] * tf.exp(log_rest), 0.0), axis=-3),
        )


def _steady_range(mean: tf.Tensor, means: tf.Tensor, var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whole numbers between which the largest of some utilities lies, up to e⁻³⁶: both ends [...].

    The nodes then stay where they are while the moments change by a little, and the error of the integral
    with them: it does not hide small differences from an ascent. The lower end is that for ``mean`` alone.
    """
    sd = tf.stop_gradient(tf.sqrt(var))
    count = mean.shape[-1]
    low, _ = _utility_range(tf.stop_gradient(mean), sd[..., :count], _LONG_REACH)
    _, high = _utility_range(tf.stop_gradient(means), sd, _LONG_REACH)
    return tf.floor(low), tf.math.ceil(high)


def _cdf(u: tf.Tensor, low: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor, order: int) -> list[tf.Tensor]:
    """Return Ψ(u) and its derivatives in the mean up to some order, [U, ..., K], for u [U, ...] >= low [...].

    The derivative in the variance is half the second one in the mean.
    """
    z = np.linspace(-_REACH, _REACH, _LATENT_NODES)
    weight = tf.constant(scipy.special.softmax(-0.5 * np.square(z)), u.dtype)
    # The rate e^(x-u) is a product: x - low is below 50 for narrow functions.
    above = (mean - low[..., None])[..., None] + tf.minimum(sd, _WIDE)[..., None] * tf.constant(z, u.dtype)
    rate = tf.exp(tf.minimum(above, _LARGEST)) * tf.exp(low - u)[..., None, None]
    narrow, power = [], tf.exp(-rate)
    for _ in range(order + 1):
        narrow.append(tf.linalg.matvec(power, weight))
        power *= rate
    # Derivatives of exp(-r) in log r.
    narrow = [
        sum(c * part for c, part in zip(row, narrow, strict=False) if c) for row in _TOUCHARD[: order + 1]
    ]

    def mixed() -> list[tf.Tensor]:
        pairs = zip(narrow, _cdf_by_gumbel(u[..., None] - mean, sd, order), strict=True)
        return [tf.where(sd < _WIDE, one, other) for one, other in pairs]

    found: list[tf.Tensor] = tf.cond(tf.reduce_all(sd < _WIDE), lambda: narrow, mixed)
    return found


def _cdf_by_gumbel(u: tf.Tensor, sd: tf.Tensor, order: int) -> list[tf.Tensor]:
    """Return E[Φ((u - g)/sd)] for sd >= _WIDE, and derivatives in -u up to some order."""
    g, weight = (tf.constant(part, dtype=u.dtype) for part in _gumbel_rule())
    sd = tf.maximum(sd, _WIDE)[..., None]
    d = (u[..., None] - g) / sd
    found = [tf.linalg.matvec(tf.math.erfc(-math.sqrt(0.5) * d), 0.5 * weight)]
    power = tf.exp(-0.5 * tf.square(d)) / (-math.sqrt(2.0 * math.pi) * sd)
    last = tf.zeros_like(power)
    for n in range(order):  # Hermite polynomials times the density
        found.append(tf.linalg.matvec(power, weight))
        power, last = (d * power - n * last / sd) / sd, power
    return found


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


def _utility_range(mean: tf.Tensor, sd: tf.Tensor, reach: float = _REACH) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where the largest utility lies, up to about e^(-reach²/2): both ends [...].

    A Gumbel variable is above -log(reach²/2) with that probability; its right tail e⁻ᵘ carries a Gaussian
    with it, E[e^x] = exp(m + v/2), until the Gaussian's own tail is the longer one.
    """
    low = tf.reduce_max(mean - reach * sd, axis=-1) - math.log(0.5 * reach**2)
    tail = tf.where(sd < reach, 0.5 * (tf.square(sd) + reach**2), reach * sd)
    return low, tf.reduce_max(mean + tail, axis=-1)
