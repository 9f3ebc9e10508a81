"""E[log(1 + eˣ)] under a Gaussian in closed form: the logistic distribution as a scale mixture of normals.

A logistic variable is 2Kz with z standard normal and K of Kolmogorov's distribution (Andrews & Mallows 1974,
Stefanski 1991). Hence log(1 + eˣ) = ∫ E[max(0, x + s z)] p(s) ds, and under x ~ N(m, v), with r² = s² + v,

    E[log(1 + eˣ)] = ∫ {m Φ(m/r) + r φ(m/r)} p(s) ds,      ∂/∂m = ∫ Φ(m/r) p(s) ds,
                                                          ∂/∂v = ½ ∫ φ(m/r)/r p(s) ds.

The density of log s falls faster than exponentially on both sides, so that the trapezoid rule in log s
reaches the rounding of float64 with 32 nodes, whatever m and v.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.numerics.special import broadcast, with_derivatives

Array = npt.NDArray[np.float64]

NUM_NODES = 32
_LOWEST, _HIGHEST = 0.175, 6.5  # of K: its density has fallen to e⁻³⁶ and e⁻⁸⁰ of a typical value


def expected_llp(mean: Any, var: Any) -> tf.Tensor:
    """Return E[log(1 + eˣ)] for x ~ N(mean, var), elementwise, to rounding.

    Value and derivatives are those of one mixture of normals, so ∂²/∂mean² = 2 ∂/∂var holds exactly.

    Parameters
    ----------
    mean, var
        Tensors of one floating dtype that broadcast with each other, var >= 0.

    Returns
    -------
    Tensor of the broadcast shape. In float64 the absolute error is below 1e-14 relative to 1 + |E|; in the
    tail, where the value itself vanishes, the relative error is 1e-10 at a mean of -12 and 1e-4 at -30.
    """
    mean, var = broadcast(mean, var)
    variances, weights = (tf.constant(part, mean.dtype) for part in scale_mixture())
    size = tf.where(mean < 0.0, -mean, mean)  # tf.abs has derivative 0 at 0; the right derivative is wanted
    r = tf.sqrt(variances + tf.maximum(var, 0.0)[..., None])
    z = size[..., None] / r
    density = weights * tf.exp(-0.5 * tf.square(z)) / math.sqrt(2.0 * math.pi)
    tail = 0.5 * weights * tf.math.erfc(math.sqrt(0.5) * z)
    at_minus_size = tf.reduce_sum(r * (density - z * tail), axis=-1)

    def slopes() -> tuple[tf.Tensor, tf.Tensor]:
        below = tf.reduce_sum(tail, axis=-1)
        return tf.where(mean < 0.0, below, 1.0 - below), 0.5 * tf.reduce_sum(density / r, axis=-1)

    return with_derivatives(tf.maximum(mean, 0.0) + at_minus_size, mean, var, slopes)


@functools.cache
def scale_mixture() -> tuple[Array, Array]:
    """Return the variances s² and the weights of the mixture, each [32]; the weights sum to one."""
    log_k, spacing = np.linspace(math.log(_LOWEST), math.log(_HIGHEST), NUM_NODES, retstep=True)
    k = np.exp(log_k)
    weights = spacing * k * kolmogorov_density(k)
    return 4.0 * k**2, weights / weights.sum()


def kolmogorov_density(k: Array) -> Array:
    """Return the density of Kolmogorov's distribution at ``k`` > 0, [K], by whichever series converges."""
    j = np.arange(1, 20)[:, None]
    right = 8.0 * k * np.sum((-1.0) ** (j + 1) * j**2 * np.exp(-2.0 * j**2 * k**2), axis=0)
    odd = (math.pi * (2 * j - 1)) ** 2
    terms = (odd / (4.0 * k**4) - 1.0 / k**2) * np.exp(-odd / (8.0 * k**2))
    return np.where(k > 0.9, right, math.sqrt(2.0 * math.pi) * np.sum(terms, axis=0))
