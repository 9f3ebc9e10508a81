"""The probability that one of several independent Gaussian variables is the largest, and its derivatives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.likelihoods import largest_evenly, largest_graded
from gpflow_ext.numerics.devices import needs_fixed_shapes
from gpflow_ext.numerics.integrals import positive_variance
from gpflow_ext.numerics.some_rows import at_rows
from gpflow_ext.numerics.special import log_ndtr, with_derivatives

_FIXED = (48, 80, 192)  # evenly spaced nodes, beyond which graded ones are fewer
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
    value, slopes = largest_graded.log_integral(from_largest(mean), var, own)
    return with_derivatives(value[..., None], mean, var, slopes)[..., 0]


def probability_largest(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tf.Tensor:
    """Return p(f_y > max_{k≠y} fₖ) as `log_probability_largest` does, faster by far.

    Rows where all classes but y and one other are out of the question need no quadrature. The others have
    evenly spaced nodes over the window where f_y can be the largest, as many as their deviations ask for.
    Absolute errors, those of derivatives in units of a deviation too, are below 1e-9 in float64 and 1e-6 in
    float32. Differentiable once.
    """
    if mean.shape[-1] == 2:
        return tf.exp(log_probability_largest(mean, var, own))
    own = tf.broadcast_to(own, tf.shape(mean))
    value, *slopes = _by_rows(mean, var, own, crossed=False)

    @tf.custom_gradient
    def once(*of: tf.Tensor) -> Any:
        def grad(*_: tf.Tensor) -> None:
            raise LookupError("probability_largest is differentiable once; log_probability_largest is twice")

        return slopes, grad

    return with_derivatives(value[..., None], mean, var, lambda: tuple(once(mean, var)))[..., 0]


def largest_to_second_order(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> SecondOrder:
    """Return `probability_largest` with its first derivatives and the second ones in the means.

    All are integrals at the same nodes. Since ∂P/∂vₖ = ½ ∂²P/∂mₖ², only products of the slopes of two
    factors are new, at O(K²) a node (docs/derivations.md, section 10). Not to be differentiated.
    """
    own = tf.broadcast_to(own, tf.shape(mean))
    if mean.shape[-1] == 2:
        return _larger_of_two(mean, positive_variance(var), 2.0 * tf.cast(own, mean.dtype) - 1.0)
    return SecondOrder(*_by_rows(mean, var, own, crossed=True))


def _by_rows(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor, crossed: bool) -> list[tf.Tensor]:
    """Return P with its derivatives as in `SecondOrder`, those in two means where ``crossed``."""
    shape, K = tf.shape(mean), mean.shape[-1]
    mean, var, own = (tf.reshape(part, [-1, K]) for part in (mean, positive_variance(var), own))
    shapes = [[], [K], [K], *([[K, K]] if crossed else [])]
    if needs_fixed_shapes():
        found = _integrals(mean, var, own, crossed=crossed)
    else:
        mean, var = tf.stop_gradient(mean), tf.stop_gradient(var)
        sign, hard = _nearest(mean, var, own)
        by_nodes = at_rows(functools.partial(_integrals, crossed=crossed), hard, (mean, var, own), shapes)
        masks = (tf.reshape(hard, [-1, *(1 for _ in ends)]) for ends in shapes)
        closed = _larger_of_two(mean, var, sign)
        found = [tf.where(*parts) for parts in zip(masks, by_nodes, closed, strict=False)]
    return [
        tf.reshape(part, [*tf.unstack(shape)[:-1], *ends]) for part, ends in zip(found, shapes, strict=True)
    ]


def _nearest(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return 1 for y, −1 for its likeliest rival, else 0, [R, K], and in which rows there are others.

    Where f_y exceeds all other rivals for certain, P is the probability that it exceeds that one, but for the
    sum of those of the others. It is zero where that one exceeds f_y for certain.
    """
    own_mean, own_var = (
        tf.reduce_sum(tf.where(own, part, 0.0), axis=-1, keepdims=True) for part in (mean, var)
    )
    far = tf.constant(np.inf, mean.dtype)
    ahead = tf.where(own, far, (own_mean - mean) / tf.sqrt(own_var + var))
    nearest = tf.one_hot(tf.argmin(ahead, axis=-1), mean.shape[-1], True, False)
    next_to = tf.reduce_min(tf.where(nearest, far, ahead), axis=-1)
    certain = largest_evenly.rule(mean.dtype).certain
    hard = (next_to < certain) & (tf.reduce_min(ahead, axis=-1) > -certain)
    return tf.cast(own, mean.dtype) - tf.cast(nearest, mean.dtype), hard


def _integrals(mean: tf.Tensor, var: tf.Tensor, own: tf.Tensor, crossed: bool) -> list[tf.Tensor]:
    """Return P with its derivatives, [B, ...], by as many nodes as the worst row asks for."""
    mean, sd = from_largest(mean), tf.sqrt(var)
    where = largest_evenly.of_own(mean, sd, own)

    def evenly(number: int | tf.Tensor) -> list[tf.Tensor]:
        return largest_evenly.integrals(mean, sd, own, where, number, crossed)

    def graded() -> list[tf.Tensor]:
        log_value, slopes = largest_graded.log_integral(mean, var, own)
        value, (by_mean, by_var, *products) = tf.exp(log_value), slopes(crossed)
        scaled = (value[:, None, None] * each for each in products)
        return [value, value[:, None] * by_mean, value[:, None] * by_var, *scaled]

    if needs_fixed_shapes():
        found = _by_fewest(where.number, evenly, graded, _FIXED[1:])
    else:
        few = where.number <= _FIXED[-1]
        number = tf.cast(tf.maximum(where.number, 2.0), tf.int32)  # of no rows it is −∞
        found = tf.cond(few, lambda: evenly(number), graded)
    value, by_mean, by_var, *products = found
    return [value, by_mean, by_var, *(tf.linalg.set_diag(each, 2.0 * by_var) for each in products)]


def _larger_of_two(mean: tf.Tensor, var: tf.Tensor, sign: tf.Tensor) -> SecondOrder:
    """Return Φ(z), z = (m_y − mₖ)/s, s² = v_y + vₖ, with its derivatives; ``sign`` is 1 at y, −1 at k."""
    s = tf.sqrt(tf.reduce_sum(tf.abs(sign) * var, axis=-1, keepdims=True))
    z = tf.reduce_sum(sign * mean, axis=-1, keepdims=True) / s
    slope = tf.exp(-0.5 * tf.square(z) - _LOG_ROOT_2PI) / s
    bend = -z * slope / s
    value = 0.5 * tf.math.erfc(-math.sqrt(0.5) * z[..., 0])
    by_var = 0.5 * bend * tf.abs(sign)
    return SecondOrder(value, sign * slope, by_var, (sign * bend)[..., None] * sign[..., None, :])


def probabilities_largest(mean: tf.Tensor, var: tf.Tensor, graded: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Return p(fₖ is the largest) for all k, [..., K], by as many nodes as the worst row asks for.

    They are evenly spaced, or where those are too many it is what ``graded`` returns.
    """
    mean, sd = from_largest(mean), tf.sqrt(var)
    where = largest_evenly.of_all(mean, sd)
    return _by_fewest(where.number, lambda n: largest_evenly.probabilities(mean, sd, where, n), graded)


def _by_fewest(
    number: tf.Tensor,
    evenly: Callable[[int], Any],
    graded: Callable[[], Any],
    fixed: Sequence[int] = _FIXED,
) -> Any:
    """Return what the fewest of some numbers of nodes give that are at least ``number``, or graded ones."""
    if not fixed:
        return graded()
    few, *more = fixed
    return tf.cond(number <= few, lambda: evenly(few), lambda: _by_fewest(number, evenly, graded, more))


def from_largest(mean: tf.Tensor) -> tf.Tensor:
    """Return the means [..., K] less the largest: nodes near zero keep more digits than nodes near those."""
    return mean - tf.stop_gradient(tf.reduce_max(mean, axis=-1, keepdims=True))
