"""Integrals of Student's t density under a Gaussian, N(m, v), as mixtures over precisions and exponentials.

With z = (y − f)/s, c = νs², δ = y − m:

    t(y | f) = ∫ Ga(w; ν/2, ν/2) N(y; f, s²/w) dw    so    E[t] = ∫ Ga(w; ν/2, ν/2) N(δ; 0, v + s²/w) dw
    log(1 + a) = ∫ (1 − e⁻ᵃᵘ) e⁻ᵘ du/u               so    E[log(1 + z²/ν)] = ∫ (1 − g(u)) e⁻ᵘ du/u
    g(u) = E[exp(−u z²/ν)] = (1 + 2uv/c)^−½ exp(−uδ²/(c + 2uv))

Both integrands are smooth in log w and log u however narrow the density is, and so are trapezoid sums there.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.special
import tensorflow as tf

MOST_DEGREES = 1000.0  # which the nodes of log w resolve: where f is up to 1e5 scales wide
_NODES = 56  # of log u
_MIXTURE, _MOST = 128, 512  # nodes of log w from 1 to 50 degrees of freedom, and outside of that at most
_SMALL = 1e-4  # u relative to 1/(1 + E[z²]/ν), below which 1 − g is linear
_LARGE = math.log(40.0)  # log u above which e⁻ᵘ vanishes
_LEFT_OUT = 1e-18  # of the mass of w


def expected_log_density(shift: tf.Tensor, var: tf.Tensor, scale: tf.Tensor, df: float) -> tf.Tensor:
    """Return E[log t(y | f)] for y − m = ``shift`` and variances v ≥ 0, [...].

    It is right to seven digits, or six where ``shift`` is 1e5 scales.

    Parameters
    ----------
    shift, var
        Of one shape [...].
    scale
        s, which broadcasts with them.
    df
        Degrees of freedom ν, at most `MOST_DEGREES`.
    """
    dtype, c = shift.dtype, df * tf.square(scale)
    square = (var + tf.square(shift)) / c
    low = tf.math.log(tf.constant(_SMALL, dtype)) - tf.math.log1p(tf.stop_gradient(square))
    step = (_LARGE - low) / (_NODES - 1)
    u = tf.exp(low[..., None] + step[..., None] * tf.constant(np.arange(_NODES), dtype))
    spread = 2.0 * u * (var / c)[..., None]
    exponent = -0.5 * tf.math.log1p(spread) - u * (tf.square(shift) / c)[..., None] / (1.0 + spread)
    found = step * tf.reduce_sum(-tf.math.expm1(exponent) * tf.exp(-u), axis=-1)
    found += step * square * tf.exp(low) / tf.math.expm1(step)  # all nodes to the left, where it is linear
    half = 0.5 * (df + 1.0)
    constant = math.lgamma(half) - math.lgamma(0.5 * df) - 0.5 * math.log(df * math.pi)
    return constant - tf.math.log(scale) - half * found


def log_expected_density(shift: tf.Tensor, var: tf.Tensor, scale: tf.Tensor, df: float) -> tf.Tensor:
    """Return log E[t(y | f)] of the same, [...], to eight digits, or six where ``shift`` is 1e4 scales.

    Where the deviation of f is 1e6 scales, and ν above 50, three to four are left.
    The nodes of log w reach from where y is an outlier, or the Gaussian is wide, to where w has no mass.
    """
    dtype, a = shift.dtype, 0.5 * df
    count = min(_MOST, int(_MIXTURE * max(1.0, 1.0 / df, math.sqrt(df / 50.0))))
    left = -math.log(scipy.special.gammaincinv(a + 0.5, _LEFT_OUT) / (a + 0.5))
    right = math.log(scipy.special.gammainccinv(a, _LEFT_OUT) / a)
    unit = tf.square(scale)
    outlying = tf.math.log((df + 1.0) / (df + tf.square(shift) / unit))
    low = tf.stop_gradient(tf.minimum(outlying, -tf.math.log1p(var / unit))) - left
    step = (right - low) / (count - 1)
    x = low[..., None] + step[..., None] * tf.constant(np.arange(count), dtype)
    total = var[..., None] + (unit + tf.zeros_like(var))[..., None] * tf.exp(-x)
    terms = a * (x - tf.exp(x)) - 0.5 * (tf.math.log(total) + tf.square(shift)[..., None] / total)
    constant = a * math.log(a) - math.lgamma(a) - 0.5 * math.log(2.0 * math.pi)
    return tf.reduce_logsumexp(terms, axis=-1) + tf.math.log(step) + constant
