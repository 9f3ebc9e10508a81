"""The probability that one of several Gaussian variables is the largest, by evenly spaced nodes.

    P = ∫ N(x; m_y, v_y) ∏_{k≠y} Φ((x − mₖ)/√vₖ) dx

The trapezoid rule converges geometrically. Where K deviations are alike its nodes must be closer by K^(−1/4);
with (Σ sₖ⁻⁴)^(−1/4) for the distance this holds whatever they are, see docs/derivations.md, section 10.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

_CHUNK = 32  # nodes that are summed at a time


class Rule(NamedTuple):
    """What a precision asks for."""

    reach: float  # standard deviations between a mean and the ends of the window
    spacing: float  # of the nodes, times (Σ sₖ⁻⁴)^(−1/4)
    certain: float  # from where on Φ is one


class Interval(NamedTuple):
    """Where the nodes of each row lie."""

    low: tf.Tensor  # [B]
    high: tf.Tensor  # [B]
    number: tf.Tensor  # of nodes that suffice for all rows, [], not a whole one


_RULES = {tf.float64: Rule(7.5, 0.62, 7.5), tf.float32: Rule(6.0, 0.87, 5.5)}


def rule(dtype: tf.DType) -> Rule:
    """Return the rule by which P and its derivatives are right to 1e-9 in float64, and to 1e-7 in float32."""
    return _RULES[dtype]


def of_all(mean: tf.Tensor, sd: tf.Tensor) -> Interval:
    """Return where the largest of fₖ ~ N(mₖ, sₖ²) [..., K] lies, all but surely."""
    low, high = _ends(mean, sd)
    return Interval(low, high, _needed(mean, sd, low, high))


def of_own(mean: tf.Tensor, sd: tf.Tensor, own: tf.Tensor) -> Interval:
    """Return where f_y can be the largest."""
    low, high = _ends(mean, sd)
    end = tf.reduce_sum(tf.where(own, mean + rule(mean.dtype).reach * sd, 0.0), axis=-1)
    high = tf.maximum(low, tf.minimum(high, end))
    return Interval(low, high, _needed(mean, sd, low, high))


def _ends(mean: tf.Tensor, sd: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    reach = rule(mean.dtype).reach
    return tf.reduce_max(mean - reach * sd, axis=-1), tf.reduce_max(mean + reach * sd, axis=-1)


def _needed(mean: tf.Tensor, sd: tf.Tensor, low: tf.Tensor, high: tf.Tensor) -> tf.Tensor:
    reach, spacing, _ = rule(mean.dtype)
    within = mean + reach * sd > low[..., None]
    narrowest = tf.reduce_min(tf.where(within, sd, float("inf")), axis=-1)
    share = tf.where(within, narrowest[..., None] / sd, 0.0)
    distance = spacing * narrowest * tf.reduce_sum(share**4, axis=-1) ** -0.25
    return 2.0 + tf.reduce_max((high - low) / distance)


def integrals(
    mean: tf.Tensor, sd: tf.Tensor, own: tf.Tensor, where: Interval, number: int | tf.Tensor, crossed: bool
) -> list[tf.Tensor]:
    """Return P [B] and its derivatives in means and variances, [B, K], by a number of nodes. O(K) a node.

    Where ``crossed``, also those in two different means, [B, K, K], at O(K²) a node. A number that is a
    tensor is split up, so that the memory is that of some nodes at a time.
    """
    chunks = 1 if isinstance(number, int) else (number + _CHUNK - 1) // _CHUNK
    size = (number + chunks - 1) // chunks
    step = (where.high - where.low) / tf.cast(size * chunks - 1, mean.dtype)
    mask = own[..., None]

    def add(k: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        nodes = tf.cast(size * k + tf.range(size), mean.dtype)
        z, cdf, density = _at_nodes(mean, sd, where.low[:, None] + step[:, None] * nodes)
        term = tf.reduce_prod(tf.where(mask, density, cdf), axis=-2, keepdims=True)
        slope = tf.where(mask, z, -density / cdf)
        share = term * slope
        terms = [tf.reduce_sum(part, axis=-1) for part in (term[:, 0], share, share * z)]
        if crossed:
            terms.append(tf.matmul(share, slope, transpose_b=True))
        return k + 1, [old + new for old, new in zip(sums, terms, strict=True)]

    zeros = tf.zeros_like(mean)
    begin = [zeros[:, 0], zeros, zeros] + ([zeros[..., None] * zeros[:, None]] if crossed else [])
    if isinstance(number, int):
        _, sums = add(0, begin)
    else:
        _, sums = tf.while_loop(lambda k, _: k < chunks, add, (0, begin), parallel_iterations=1)
    weight = (step / tf.reduce_sum(tf.where(own, sd, 0.0), axis=-1))[:, None]
    value = weight[:, 0] * sums[0]
    by_mean = weight * sums[1] / sd
    by_var = (weight * sums[2] - tf.where(own, value[:, None], 0.0)) / (2.0 * tf.square(sd))
    products = (weight[..., None] * each / (sd[..., None] * sd[:, None]) for each in sums[3:])
    return [value, by_mean, by_var, *products]


def _at_nodes(mean: tf.Tensor, sd: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return z = (x − mₖ)/sₖ, Φ(z) and φ(z) at nodes [..., J], each [..., K, J]."""
    least = -30.0 if x.dtype == tf.float64 else -11.0  # where Φ nears underflow the product is zero anyway
    mean, sd = (tf.expand_dims(part, -1) for part in (mean, sd))  # of slices ONNX needs the rank, in branches
    z = tf.maximum((tf.expand_dims(x, -2) - mean) / sd, least)
    return z, 0.5 * tf.math.erfc(-math.sqrt(0.5) * z), tf.exp(-0.5 * tf.square(z)) / math.sqrt(2.0 * math.pi)


def probabilities(mean: tf.Tensor, sd: tf.Tensor, where: Interval, number: int) -> tf.Tensor:
    """Return p(fₖ is the largest) for all k, [..., K], by the density of the largest.

        p_y = ∫ N(x; m_y, v_y)/Φ((x − m_y)/s_y) ∏ₖ Φ((x − mₖ)/sₖ) dx

    One evaluation of Φ for a class and node serves all K integrals, which are normalised.
    """
    share = tf.constant(np.linspace(0.0, 1.0, number), mean.dtype)
    low, high = (tf.expand_dims(end, -1) for end in (where.low, where.high))
    x = low + (high - low) * share
    _, cdf, density = _at_nodes(mean, sd, x)
    share = tf.reduce_prod(cdf, axis=-2, keepdims=True) * density / cdf
    total = tf.reduce_sum(share, axis=-1) / sd
    return total / tf.reduce_sum(total, axis=-1, keepdims=True)
