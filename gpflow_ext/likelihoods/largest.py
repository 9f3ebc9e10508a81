"""The probability that one of several independent Gaussian variables is the largest, and its derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.special import log_ndtr, with_derivatives

_NUM_NODES = 80
_EVEN_NODES = (64, 192)  # evenly spaced, where they are enough
_REACH = 8.5  # the window ends where the integrand has fallen by ½·_REACH² = 36 nats
_MODE_STEPS = 6
_END_STEPS = 4
_TAIL_DEPTH = 5
_ONCE = "probability_largest is differentiable once; log_probability_largest is twice"
_LOG_ROOT_2PI = 0.5 * math.log(2.0 * math.pi)


class SecondOrder(NamedTuple):
    """A function of the moments of K Gaussian variables with its derivatives."""

    value: tf.Tensor  # [...]
    by_mean: tf.Tensor  # [..., K]
    by_var: tf.Tensor  # [..., K]
    by_means: tf.Tensor  # the second ones in the means, [..., K, K], or those in each alone, [..., K]


def log_probability_largest(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return log p(f_y > max_{k≠y} fₖ) for independent fₖ ~ N(mₖ, vₖ), also where it underflows.

        P = ∫ N(x; m_y, v_y) ∏_{k≠y} Φ((x − mₖ)/√vₖ) dx,    Φ((m_y − mₖ)/√(v_y + vₖ)) for K = 2

    The integrand is log-concave. The trapezoid rule runs between the points where it has fallen by 36 nats,
    with nodes graded towards the steepest of its factors, so that variances may differ by 1e6.

    Parameters
    ----------
    mean, var
        Moments of one shape [..., K].
    own
        Whether k = y, booleans that broadcast with [..., K].

    Returns
    -------
    Tensor [...], differentiable twice. First derivatives are the integrals of the derivatives at the same
    nodes. The cost is 80·K evaluations of Φ, and the memory a few times as many numbers.
    """
    own = tf.broadcast_to(own, tf.shape(mean))
    var = positive_variance(var)
    if mean.shape[-1] == 2:
        sign = 2.0 * tf.cast(own, mean.dtype) - 1.0
        return log_ndtr(tf.reduce_sum(sign * mean, axis=-1) / tf.sqrt(tf.reduce_sum(var, axis=-1)))
    value, slopes = _graded(from_largest(mean), var, own)
    return with_derivatives(value[..., None], mean, var, slopes)[..., 0]


def _graded(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return log P by nodes graded towards the steepest factor, and `_weighted` at these nodes."""
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


def probability_largest(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return p(f_y > max_{k≠y} fₖ) as `log_probability_largest` does, faster if deviations are similar.

    The nodes are then evenly spaced over the window where f_y can be the largest. Absolute errors are below
    1e-9 in float64; derivatives vanish where the probability is below 1e-16. Differentiable once.
    """
    if mean.shape[-1] == 2:
        return tf.exp(log_probability_largest(mean, var, own))
    own = tf.broadcast_to(own, tf.shape(mean))
    var = positive_variance(var)
    value, *slopes = _integrals(mean, var, own)
    slopes = [tf.raw_ops.PreventGradient(input=slope, message=_ONCE) for slope in slopes]
    return with_derivatives(value[..., None], mean, var, lambda: (slopes[0], slopes[1]))[..., 0]


def largest_to_second_order(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> SecondOrder:
    """Return `probability_largest` with its first derivatives and the second ones in the means.

    All are integrals at the same nodes. Since ∂P/∂vₖ = ½ ∂²P/∂mₖ², only products of the slopes of two
    factors are new, at O(K²) a node (docs/derivations.md, section 10). Not to be differentiated.
    """
    own = tf.broadcast_to(own, tf.shape(mean))
    var = positive_variance(var)
    if mean.shape[-1] == 2:
        return _larger_of_two(mean, var, own)
    value, by_mean, by_var, by_means = _integrals(mean, var, own, crossed=True)
    return SecondOrder(value, by_mean, by_var, tf.linalg.set_diag(by_means, 2.0 * by_var))


def _integrals(
    mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor, crossed: bool = False
) -> tuple[tf.Tensor, ...]:
    """Return P and what `_weighted` makes of its terms, by the fewest nodes that do."""
    mean = from_largest(mean)

    def evenly(number: int) -> tuple[tf.Tensor, ...]:
        weight, z, mills = _evenly(mean, var, own, number)
        return tf.reduce_sum(weight, axis=-1), *_weighted(weight, z, mills, own, tf.sqrt(var), crossed)

    def graded() -> tuple[tf.Tensor, ...]:
        log_value, weighted = _graded(mean, var, own)
        value, (by_mean, by_var, *further) = tf.exp(log_value), weighted(crossed)
        products = (value[..., None, None] * each for each in further)
        return value, value[..., None] * by_mean, value[..., None] * by_var, *products

    found: tuple[tf.Tensor, ...] = with_nodes(mean, var, evenly, graded)
    return found


def _larger_of_two(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> SecondOrder:
    """Return Φ(z), z = (m_y − mₖ)/s, s² = v_y + vₖ, with its derivatives."""
    sign = 2.0 * tf.cast(own, mean.dtype) - 1.0
    s = tf.sqrt(tf.reduce_sum(var, axis=-1, keepdims=True))
    z = tf.reduce_sum(sign * mean, axis=-1, keepdims=True) / s
    slope = tf.exp(-0.5 * tf.square(z) - _LOG_ROOT_2PI) / s
    bend = -z * slope / s
    value = 0.5 * tf.math.erfc(-math.sqrt(0.5) * z[..., 0])
    by_var = 0.5 * bend * tf.ones_like(mean)
    return SecondOrder(value, sign * slope, by_var, (sign * bend)[..., None] * sign[..., None, :])


def with_nodes(
    mean: tf.Tensor, var: tf.Tensor, evenly: Callable[[int], Any], graded: Callable[[], Any]
) -> Any:
    """Return the quadrature by the fewest evenly spaced nodes that do for all rows, or by graded ones.

    Enough are nodes 0.7 standard deviations of the narrowest class apart that reaches into the window.
    """
    sd = tf.sqrt(var)
    low, high = _window(mean, sd)
    in_reach = mean + _REACH * sd > low[..., None]
    narrowest = tf.reduce_min(tf.where(in_reach, sd, float("inf")), axis=-1)
    needed = 1.0 + tf.reduce_max((high - low) / (0.7 * narrowest))
    few, many = _EVEN_NODES
    return tf.cond(
        needed <= few,
        lambda: evenly(few),
        lambda: tf.cond(needed <= many, lambda: evenly(many), graded),
    )


def from_largest(mean: tf.Tensor) -> tf.Tensor:
    """Return the means [..., K] less the largest: nodes near zero keep more digits than nodes near those."""
    return mean - tf.stop_gradient(tf.reduce_max(mean, axis=-1, keepdims=True))


def _window(mean: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the ends [...] between which the largest of fₖ ~ N(mₖ, vₖ) lies, up to a chance of 1e-16."""
    return tf.reduce_max(mean - _REACH * sd, axis=-1), tf.reduce_max(mean + _REACH * sd, axis=-1)


def _spread(
    mean: tf.Tensor, sd: tf.Tensor, low: tf.Tensor, high: tf.Tensor, number: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return z = (x − mₖ)/sₖ, Φ(z) and √2π φ(z) at nodes from ``low`` to ``high``, [..., K, J]."""
    share = tf.constant(np.linspace(0.0, 1.0, number), mean.dtype)
    x = low[..., None] + (high - low)[..., None] * share
    z = (x[..., None, :] - mean[..., None]) / sd[..., None]
    z = tf.maximum(z, -_tail_from(z.dtype))  # where Φ underflows the product is zero anyway
    return z, 0.5 * tf.math.erfc(-math.sqrt(0.5) * z), tf.exp(-0.5 * tf.square(z))


def probabilities_largest(mean: tf.Tensor, var: tf.Tensor, number: int) -> tf.Tensor:
    """Return p(fₖ is the largest) for all k, [..., K], by the density of the largest.

        p_y = ∫ N(x; m_y, v_y)/Φ((x − m_y)/s_y) ∏ₖ Φ((x − mₖ)/sₖ) dx

    One evaluation of Φ for a class and node serves all K integrals, which are normalised.
    """
    sd = tf.sqrt(var)
    _, cdf, density = _spread(mean, sd, *_window(mean, sd), number)
    share = tf.reduce_prod(cdf, axis=-2, keepdims=True) * density / cdf
    total = tf.reduce_sum(share, axis=-1) / sd
    return total / tf.reduce_sum(total, axis=-1, keepdims=True)


def _evenly(
    mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor, number: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the terms of p(f_y is the largest) at evenly spaced nodes, [..., J], and z and φ/Φ there."""
    sd = tf.sqrt(var)
    own_mean, own_sd = (tf.reduce_sum(tf.where(own, part, 0.0), axis=-1) for part in (mean, sd))
    low, high = _window(mean, sd)
    high = tf.maximum(low, tf.minimum(high, own_mean + _REACH * own_sd))
    z, cdf, density = _spread(mean, sd, low, high, number)
    step = (high - low) / ((number - 1) * math.sqrt(2.0 * math.pi) * own_sd)
    weight = step[..., None] * tf.reduce_prod(tf.where(own[..., None], density, cdf), axis=-2)  # [..., J]
    mills = density / (math.sqrt(2.0 * math.pi) * cdf)
    return weight, z, mills


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
