"""Random numbers that depend on nothing but a seed, alike in a plain graph and under XLA, on any device.

Unless an algorithm is named, TensorFlow's choice depends on the device and the compiler, and so does its
conversion of bits to floating-point numbers. The integers of Philox agree, so all draws here use them, and
all draws of the package are made here. `gamma` and `poisson` are the exceptions: TensorFlow draws them by
Philox on a CPU and a GPU, and XLA not at all.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import tensorflow as tf

_PHILOX = "philox"  # Salmon et al. (2011)


class Among(NamedTuple):
    """Some rows of more, which all have the draws of the whole."""

    rows: tf.Tensor  # their numbers, [n]
    number: int  # of all

    def all(self, shape: tf.Tensor) -> tf.Tensor:
        """Return the shape of all rows."""
        return tf.concat([[self.number], shape[1:]], axis=0)


def split(seed: tf.Tensor, number: int = 2) -> list[tf.Tensor]:
    """Return new seeds, each [2], of one [2]."""
    return tf.unstack(tf.random.split(seed, number, alg=_PHILOX))


def fold_in(seed: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Return another seed [2] for each number."""
    return tf.random.fold_in(seed, number, alg=_PHILOX)


def uniform(shape: Any, seed: tf.Tensor, dtype: tf.DType, among: Among | None = None) -> tf.Tensor:
    """Return draws that are uniform on [0, 1), of 53 bits, or 24 in single precision."""
    if among is not None:
        return tf.gather(uniform(among.all(shape), seed, dtype), among.rows)
    integer, width, kept = (tf.uint64, 64, 53) if dtype == tf.float64 else (tf.uint32, 32, 24)
    bits = tf.random.stateless_uniform(shape, seed, None, None, integer, alg=_PHILOX)
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(width - kept, integer)), dtype) * 0.5**kept


def normal(shape: Any, seed: tf.Tensor, dtype: tf.DType, among: Among | None = None) -> tf.Tensor:
    """Return draws from N(0, 1) (Box & Muller 1958); they agree to rounding."""
    radius, angle = (uniform(shape, part, dtype, among) for part in split(seed))
    return tf.sqrt(-2.0 * tf.math.log1p(-radius)) * tf.cos(2.0 * math.pi * angle)


def integers(shape: Any, seed: tf.Tensor, low: int, high: int | tf.Tensor) -> tf.Tensor:
    """Return numbers from low, …, high − 1."""
    return tf.random.stateless_uniform(shape, seed, low, high, dtype=tf.int32, alg=_PHILOX)


def gamma(shape: Any, seed: tf.Tensor, alpha: tf.Tensor) -> tf.Tensor:
    """Return gamma variates of rate 1."""
    return tf.random.stateless_gamma(shape, seed, alpha, dtype=alpha.dtype)


def poisson(shape: Any, seed: tf.Tensor, mean: tf.Tensor) -> tf.Tensor:
    """Return Poisson counts of means that broadcast with ``shape``."""
    return tf.random.stateless_poisson(shape, seed, mean, dtype=mean.dtype)
