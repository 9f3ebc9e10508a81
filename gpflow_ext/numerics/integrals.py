"""Log expectations of log-concave functions under a Gaussian, with nodes concentrated where they bend."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.special import Elementwise

_NUM_NODES = 128
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


class Window(NamedTuple):
    """Where an integrand lives; lengths in standard deviations of the Gaussian, every field [...].

    The nodes are ``centre + scale·sinh(u)``, evenly spaced in u: dense within ``scale`` of the centre.
    """

    centre: tf.Tensor  # the point x where the nodes are densest
    z: tf.Tensor  # (centre - mean)/sd, which the caller knows without cancellation
    scale: tf.Tensor
    low: tf.Tensor  # the ends, counted from the centre: low <= 0 <= high
    high: tf.Tensor
    share: tf.Tensor  # variance of the integrand about its peak over that of the Gaussian, roughly; in [0, 1]


def positive_variance(var: tf.Tensor) -> tf.Tensor:
    """Return the variance, or the rounding of its dtype where it is smaller."""
    return tf.maximum(var, float(np.finfo(var.dtype.as_numpy_dtype).eps))


def log_expectation(log_f: Elementwise, mean: tf.Tensor, var: tf.Tensor, window: Window) -> tf.Tensor:
    """Return log E[exp(log_f(x))], x ~ N(mean, var), elementwise.

    Trapezoid rule in u, which converges geometrically: the integrand and all its derivatives vanish at the
    ends of the window. A node moves with the moments by a share of what keeps its z = (x - mean)/sd: then
    derivatives of any order are those of the integral, whatever the share (docs/derivations.md, section 10).
    At that of the window their terms do not cancel, however narrow the integrand.

    Parameters
    ----------
    log_f
        Elementwise function of [..., 128].
    mean, var
        Tensors of one shape [...], var > 0.
    window
        Outside the window the integrand has fallen below rounding.

    Returns
    -------
    Tensor [...].
    """
    centre, z, scale, low, high, share = (tf.stop_gradient(field)[..., None] for field in window)
    fraction = tf.constant(np.linspace(0.0, 1.0, _NUM_NODES), dtype=mean.dtype)
    first, last = tf.asinh(low / scale), tf.asinh(high / scale)
    u = first + (last - first) * fraction
    offset = scale * tf.sinh(u)
    weight = scale * tf.cosh(u) * (last - first) / (_NUM_NODES - 1)
    sd = tf.sqrt(var)[..., None]
    z += offset
    held = tf.stop_gradient(sd)
    move, stretch = mean[..., None] - tf.stop_gradient(mean[..., None]), sd - held  # zero, with a gradient
    x = centre + held * offset + share * (move + stretch * z)
    spacing = held + share * stretch
    terms = log_f(x) - 0.5 * tf.square((spacing * z - (1.0 - share) * move) / sd) + tf.math.log(weight)
    return tf.reduce_logsumexp(terms + tf.math.log(spacing / sd), axis=-1) - _LOG_ROOT_2PI
