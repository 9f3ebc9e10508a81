"""The probability that one of several Gaussian variables is the largest, by nodes graded to deviations."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_NUM_NODES = 80
_REACH = 8.5  # the window ends where the integrand has fallen by ½·_REACH² = 36 nats
_MODE_STEPS = 6
_END_STEPS = 4
_TAIL_DEPTH = 5
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


def log_integral(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return log P by nodes graded towards the steepest factor, and what returns its derivatives."""
    sd = tf.sqrt(var)
    nodes = _Nodes(*map(tf.stop_gradient, _nodes(tf.stop_gradient(mean), tf.stop_gradient(sd), own)))
    z = ((nodes.centre[..., None] - mean)[..., None] + nodes.offset[..., None, :]) / sd[..., None]
    mask = own[..., None]
    log_cdf, mills = _log_cdf(z)
    terms = nodes.log_weight + tf.reduce_sum(tf.where(mask, -0.5 * tf.square(z), log_cdf), axis=-2)
    own_log_sd = tf.reduce_sum(tf.where(own, tf.math.log(sd), 0.0), axis=-1)
    value = tf.reduce_logsumexp(terms, axis=-1) - own_log_sd - _LOG_ROOT_2PI

    def slopes(crossed: bool = False) -> tuple[tf.Tensor, ...]:
        return _weighted(tf.nn.softmax(terms), z, mills, own, sd, crossed)

    return tf.minimum(value, 0.0), slopes


def _weighted(
    weight: tf.Tensor, z: tf.Tensor, mills: tf.Tensor, own: tf.Tensor, sd: tf.Tensor, crossed: bool = False
) -> tuple[tf.Tensor, ...]:
    """Return Σⱼ wⱼ ∂ log integrand(xⱼ) in the means and in the variances, [..., K].

    Where asked for, also Σⱼ wⱼ times the products of those in two means, [..., K, K].
    """
    mask, share = own[..., None], weight[..., None, :]  # [..., K, 1], [..., 1, J]
    slope = tf.where(mask, z, -mills)
    by_mean = tf.reduce_sum(share * slope, axis=-1) / sd
    by_var = tf.reduce_sum(share * tf.where(mask, tf.square(z) - 1.0, -mills * z), axis=-1)
    by_var /= 2.0 * tf.square(sd)
    if not crossed:
        return by_mean, by_var
    products = tf.matmul(share * slope, slope, transpose_b=True)
    return by_mean, by_var, products / (sd[..., None] * sd[..., None, :])


class _Nodes(NamedTuple):
    """Quadrature nodes x = centre + offset."""

    centre: tf.Tensor  # [...]
    offset: tf.Tensor  # [..., J]
    log_weight: tf.Tensor  # [..., J]


def _nodes(mean: tf.Tensor, sd: tf.Tensor, own: tf.Tensor) -> _Nodes:
    """Place the nodes, evenly spaced in asinh of the distance from the steepest factor's mean in its sd."""

    def log_integrand(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return its value [...], the slopes of its factors [..., K], and minus its curvature [...]."""
        z = (x[..., None] - mean) / sd
        log_cdf, mills = _log_cdf(z)
        slope = tf.where(own, -z, mills) / sd
        unit = own | (z < -10.0)  # where z + mills would cancel
        bend = tf.where(unit, tf.ones_like(z), mills * (z + mills)) / tf.square(sd)
        value = tf.where(own, -0.5 * tf.square(z), log_cdf)
        return tf.reduce_sum(value, axis=-1), slope, tf.reduce_sum(bend, axis=-1)

    mode = tf.reduce_sum(tf.where(own, mean, 0.0), axis=-1)
    own_sd = tf.reduce_sum(tf.where(own, sd, 0.0), axis=-1)

    def towards_mode(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        _, slope, bend = log_integrand(x)
        return k + 1, x + tf.reduce_sum(slope, axis=-1) / bend

    def inwards(k: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        value, slope, _ = log_integrand(tf.stack([low, high]))
        slope = tf.reduce_sum(slope, axis=-1)
        fallen = tf.unstack(top - value)
        root = tf.sqrt(2.0 * tf.maximum(fallen[0], 0.5 * _REACH**2))
        low += root * (root - _REACH) / slope[0]
        return k + 1, low, high + tf.maximum(fallen[1] - 0.5 * _REACH**2, 0.0) / slope[1]

    # The slope is convex: from the left Newton's method does not overshoot. The ends come from outside and go
    # never beyond, as the curvature falls from left to right.
    _, mode = tf.while_loop(lambda k, _: k < _MODE_STEPS, towards_mode, (0, mode))
    top, _, _ = log_integrand(mode)
    ends = 0, mode - _REACH * own_sd, mode + _REACH * own_sd
    _, low, high = tf.while_loop(lambda k, *_: k < _END_STEPS, inwards, ends)
    _, slope, _ = log_integrand(low)
    steepest = tf.one_hot(tf.argmax(slope, axis=-1), mean.shape[-1] or tf.shape(mean)[-1], True, False)
    centre = tf.clip_by_value(tf.reduce_sum(tf.where(steepest, mean, 0.0), axis=-1), low, high)
    scale = tf.reduce_sum(tf.where(steepest, sd, 0.0), axis=-1)[..., None]
    begin, stop = (tf.asinh((x - centre)[..., None] / scale) for x in (low, high))
    u = begin + (stop - begin) * tf.constant(np.linspace(0.0, 1.0, _NUM_NODES), dtype=mean.dtype)
    log_weight = tf.math.log(scale * tf.cosh(u) * (stop - begin) / (_NUM_NODES - 1))
    return _Nodes(centre, scale * tf.sinh(u), log_weight)


def _tail_from(dtype: tf.DType) -> float:
    """Return how many standard deviations below zero Φ nears underflow."""
    return 30.0 if dtype == tf.float64 else 11.0


def _log_cdf(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return log Φ and φ/Φ: by erfc down to where it nears underflow, then by the continued fraction.

    A tenth of the cost of `log_ndtr`, which also keeps z + φ/Φ exact.
    """
    tail_from = _tail_from(z.dtype)
    body, tail = tf.maximum(z, -tail_from), tf.maximum(-z, tail_from)
    log_body = tf.math.log(0.5 * tf.math.erfc(-math.sqrt(0.5) * body))
    ratio = tail
    for level in range(_TAIL_DEPTH, 0, -1):
        ratio = tail + level / ratio
    log_tail = -0.5 * tf.square(tail) - _LOG_ROOT_2PI - tf.math.log(ratio)
    in_tail = z < -tail_from
    mills = tf.where(in_tail, ratio, tf.exp(-0.5 * tf.square(body) - _LOG_ROOT_2PI - log_body))
    return tf.where(in_tail, log_tail, log_body), mills
