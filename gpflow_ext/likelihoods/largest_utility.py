"""Integrals over the largest of the utilities xₖ + gₖ of Gaussian xₖ and Gumbel gₖ, all independent.

Its value u has the distribution function Πₖ Ψₖ(u), and is that of the utility k with the density
ψₖ(u) Πⱼ≠ₖ Ψⱼ(u), where

    Ψₖ(u) = p(xₖ + gₖ < u) = E[exp(−exp(xₖ − u))],    ψₖ = dΨₖ/du.

The derivatives of Ψₖ in the mean of xₖ are sums over the same nodes, and those in its variance half of the
second ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.special
import tensorflow as tf
from tensorflow.python.eager import record  # that all tapes stop has no public name

from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.numerics.special import with_derivatives

REACH = 7.5  # standard deviations on each side of a latent function: the density has fallen by e⁻²⁸
_LONG_REACH = 8.5  # the same where differences of integrals matter: e⁻³⁶
_LARGEST = 80.0  # log rate that float32 can hold
WIDE = 2.5  # standard deviation from which a latent function is wider than a Gumbel variable
LATENT_NODES = 40
_GUMBEL_NODES = 16
_UTILITY_NODES = 144
_BATCH = 12
_TOUCHARD = (
    (1,),
    (0, -1),
    (0, -1, 1),
    (0, -1, 3, -1),
    (0, -1, 7, -6, 1),
    (0, -1, 15, -25, 10, -1),
)  # derivatives of e⁻ʳ in log r, times eʳ

Parts: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]


class Density(NamedTuple):
    """Which factors of a product are ψₖ(u) in place of Ψₖ(u)."""

    own: tf.Tensor  # bool [..., K]
    lift: tf.Tensor  # log of what such a factor is multiplied by, so that it does not underflow, [..., K]


class Products(NamedTuple):
    """Sums of products of Ψₖ(u), to be integrated over u by the trapezoid rule."""

    members: tf.Tensor  # which k are factors of each product, bool [..., S, K]
    signs: tuple[float, ...]  # of the products, S
    low: tf.Tensor  # ends of the integral, [...]
    high: tf.Tensor
    density: Density | None = None

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

        nodes = tf.constant(fractions(), mean.dtype)
        batches = one_by_one(at, nodes, fn_output_signature=(mean.dtype,) * 3)
        return [tf.reduce_sum(part, axis=0) for part in batches]

    def _first(self, u: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor) -> Parts:
        """Return the sum [U, ...] and its derivatives in means and variances, [U, ..., K]."""
        cdf, slope, bend = self._factors(u, mean, sd, 2)
        whole, others, _ = self._products(cdf)
        return whole, others * slope, 0.5 * others * bend

    def _second(self, u: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor) -> Parts:
        """Return the derivatives in two means, in a mean and a variance, in two variances, [U, ..., K, K]."""
        cdf, slope, bend, third, fourth = self._factors(u, mean, sd, 4)
        _, others, rest = self._products(cdf)

        def matrix(diagonal: tf.Tensor, left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
            return tf.linalg.set_diag(rest * left[..., None] * right[..., None, :], others * diagonal)

        mixed = 0.5 * matrix(third, slope, bend)
        return matrix(bend, slope, slope), mixed, 0.25 * matrix(fourth, bend, bend)

    def _factors(self, u: tf.Tensor, mean: tf.Tensor, sd: tf.Tensor, order: int) -> list[tf.Tensor]:
        """Return the factors at u and their derivatives in the mean up to some order, [U, ..., K]."""
        if self.density is None:
            return _cdf(u, self.low, mean, sd, order)
        own, lift = self.density
        cdf = _cdf(u, self.low, mean, sd, order + 1, lift)
        return [tf.where(own, -after, before) for before, after in itertools.pairwise(cdf)]

    def _products(self, cdf: tf.Tensor) -> Parts:
        """Return the products times the step [U, ...], and without one or two of the factors."""
        weight = tf.constant(self.signs, cdf.dtype) * self.step[..., None]
        log_cdf = tf.where(self.members, safe_log(cdf)[..., None, :], 0.0)  # [U, ..., S, K]
        log_whole = tf.reduce_sum(log_cdf, axis=-1)
        log_others = log_whole[..., None] - log_cdf
        log_rest = log_others[..., None] - log_cdf[..., None, :]
        one, two = self.members, self.members[..., None] & self.members[..., None, :]
        return (
            tf.reduce_sum(weight * tf.exp(log_whole), axis=-1),
            tf.reduce_sum(tf.where(one, weight[..., None] * tf.exp(log_others), 0.0), axis=-2),
            tf.reduce_sum(tf.where(two, weight[..., None, None] * tf.exp(log_rest), 0.0), axis=-3),
        )


def steady_range(mean: tf.Tensor, means: tf.Tensor, var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return whole numbers between which the largest of some utilities lies, up to e⁻³⁶: both ends [...].

    The nodes then stay where they are while the moments change by a little, and the error of the integral
    with them: it does not hide small differences from an ascent. The lower end is that for ``mean`` alone.
    """
    sd = tf.stop_gradient(tf.sqrt(var))
    count = mean.shape[-1]
    low, _ = utility_range(tf.stop_gradient(mean), sd[..., :count], _LONG_REACH)
    _, high = utility_range(tf.stop_gradient(means), sd, _LONG_REACH)
    return tf.floor(low), tf.math.ceil(high)


def rarity(low: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
    """Return by how much a narrow function stays below ``low`` [...] at least, 0 for a wide one: [..., K]."""
    sd = tf.stop_gradient(tf.sqrt(var))
    distance = low[..., None] - tf.stop_gradient(mean) - REACH * sd
    return tf.where(sd < WIDE, tf.maximum(distance, 0.0), 0.0)


def _cdf(
    u: tf.Tensor,
    low: tf.Tensor,
    mean: tf.Tensor,
    sd: tf.Tensor,
    order: int,
    lift: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Return Ψ(u) and its derivatives in the mean up to some order, [U, ..., K], for u [U, ...] >= low [...].

    The derivative in the variance is half the second one in the mean. Those of narrow functions are
    multiplied by exp(lift), lift [..., K].
    """
    z = np.linspace(-REACH, REACH, LATENT_NODES)
    weight = tf.constant(scipy.special.softmax(-0.5 * np.square(z)), u.dtype)
    # The rate e^(x-u) is a product: x - low is below 50 for narrow functions.
    above = (mean - low[..., None])[..., None] + tf.minimum(sd, WIDE)[..., None] * tf.constant(z, u.dtype)
    below = tf.exp(low - u)[..., None, None]
    rate = tf.exp(tf.minimum(above, _LARGEST)) * below
    lifted = rate if lift is None else tf.exp(tf.minimum(above + lift[..., None], _LARGEST)) * below
    power = tf.exp(-rate)
    narrow = [tf.tensordot(power, weight, 1)]
    for factor in [lifted, *[rate] * (order - 1)]:
        power *= factor
        narrow.append(tf.tensordot(power, weight, 1))
    # Derivatives of exp(-r) in log r.
    narrow = [
        sum(c * part for c, part in zip(row, narrow, strict=False) if c) for row in _TOUCHARD[: order + 1]
    ]

    def mixed() -> list[tf.Tensor]:
        pairs = zip(narrow, _cdf_by_gumbel(u[..., None] - mean, sd, order), strict=True)
        return [tf.where(sd < WIDE, one, other) for one, other in pairs]

    found: list[tf.Tensor] = tf.cond(tf.reduce_all(sd < WIDE), lambda: narrow, mixed)
    return found


def _cdf_by_gumbel(u: tf.Tensor, sd: tf.Tensor, order: int) -> list[tf.Tensor]:
    """Return E[Φ((u - g)/sd)] for sd >= WIDE, and derivatives in -u up to some order."""
    g, weight = (tf.constant(part, dtype=u.dtype) for part in gumbel_rule())
    sd = tf.maximum(sd, WIDE)[..., None]
    d = (u[..., None] - g) / sd
    found = [tf.tensordot(tf.math.erfc(-math.sqrt(0.5) * d), 0.5 * weight, 1)]
    power = tf.exp(-0.5 * tf.square(d)) / (-math.sqrt(2.0 * math.pi) * sd)
    last = tf.zeros_like(power)
    for n in range(order):  # Hermite polynomials times the density
        found.append(tf.tensordot(power, weight, 1))
        power, last = (d * power - n * last / sd) / sd, power
    return found


def fractions() -> npt.NDArray[np.float64]:
    """Return where the values of u lie between both ends, in batches that bound the memory, [·, U]."""
    return np.linspace(0.0, 1.0, _UTILITY_NODES).reshape(-1, _BATCH)


def safe_log(x: tf.Tensor) -> tf.Tensor:
    """Return log x, finite and with a finite derivative where x underflows to zero."""
    return tf.math.log(tf.maximum(x, float(np.finfo(x.dtype.as_numpy_dtype).tiny)))


@functools.cache
def gumbel_rule() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
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


def utility_range(mean: tf.Tensor, sd: tf.Tensor, reach: float = REACH) -> tuple[tf.Tensor, tf.Tensor]:
    """Return where the largest utility lies, up to about e^(-reach²/2): both ends [...].

    A Gumbel variable is above -log(reach²/2) with that probability; its right tail e⁻ᵘ carries a Gaussian
    with it, E[e^x] = exp(m + v/2), until the Gaussian's own tail is the longer one.
    """
    low = tf.reduce_max(mean - reach * sd, axis=-1) - math.log(0.5 * reach**2)
    tail = tf.where(sd < reach, 0.5 * (tf.square(sd) + reach**2), reach * sd)
    return low, tf.reduce_max(mean + tail, axis=-1)
