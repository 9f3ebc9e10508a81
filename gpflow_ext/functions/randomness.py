"""Random numbers of one seed: the same in every process, in a graph and out of it."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from gpflow_ext.numerics import philox

_PER_GROUP = 2**12  # streams of numbers that a group of functions may ask for


class Numbers:
    """Stateless random numbers, another stream at each call.

    Parameters
    ----------
    seed
        A whole number, or an int32 tensor [].
    group
        Groups have streams of their own; a number or an int32 tensor [].
    dtype
        Type of the numbers.
    """

    def __init__(self, seed: int | tf.Tensor, group: int | tf.Tensor, dtype: tf.DType) -> None:
        self._seed, self._first = tf.cast(seed, tf.int32), tf.cast(group, tf.int32) * _PER_GROUP
        self._asked, self.dtype = 0, dtype

    def normal(self, shape: Sequence[int | tf.Tensor], dtype: tf.DType | None = None) -> tf.Tensor:
        """Return standard normal numbers, in the type of all or another."""
        return philox.normal(shape, self._key(), dtype or self.dtype)

    def gamma(self, shape: Sequence[int | tf.Tensor], alpha: tf.Tensor | float) -> tf.Tensor:
        """Return gamma variates of rate 1."""
        return philox.gamma(shape, self._key(), tf.cast(alpha, self.dtype))

    def poisson(self, shape: Sequence[int | tf.Tensor], mean: tf.Tensor) -> tf.Tensor:
        """Return Poisson counts of means that broadcast with ``shape``."""
        return philox.poisson(shape, self._key(), tf.cast(mean, self.dtype))

    def uniform_below(self, shape: Sequence[int | tf.Tensor], most: int | tf.Tensor) -> tf.Tensor:
        """Return whole numbers 0, …, most − 1."""
        return philox.integers(shape, self._key(), 0, most)

    def _key(self) -> tf.Tensor:
        self._asked += 1
        return tf.stack([self._seed, self._first + self._asked])
