"""Training data by rows: arrays in memory, or a dataset of any size that is only ever read in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data import checks
from gpflow_ext.data.order import shuffled

CHUNK = 2048  # rows held at a time in a sum over all data
PIECE = 512  # rows at a time where each piece is a call of a compiled function
SHUFFLE_BUFFER = 10_000  # rows of a dataset from which a minibatch is drawn

Batch: TypeAlias = tuple[tf.Tensor, tf.Tensor, tf.Tensor]
"""Row numbers [R], inputs [R, D] and targets [R, P]."""


class Rows(Protocol):
    """Data in a fixed order, numbered from 0."""

    @property
    def num_data(self) -> int:
        """N."""

    def batches(self, size: int, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the minibatches of an epoch from number ``first`` on; each row lies in one of them.

        They depend on ``size``, ``seed`` and ``epoch`` alone. The last may be smaller.
        """

    def pieces(self) -> Iterator[Batch]:
        """Yield all rows in order, `PIECE` at a time; the last piece may be smaller."""

    def total(self, initial: Any, function: Callable[[Batch], Any]) -> Any:
        """Return ``initial`` plus the sum of a function over all data, `CHUNK` rows at a time."""


class ArrayRows:
    """Arrays X [N, D] and Y [N, P]. An epoch is a uniform permutation of them."""

    def __init__(self, X: tf.Tensor, Y: tf.Tensor) -> None:
        self._X, self._Y = X, Y

    @property
    def num_data(self) -> int:
        """N; not inside a graph that leaves it open."""
        return int(self._X.shape[0])

    @property
    def arrays(self) -> tuple[tf.Tensor, tf.Tensor]:
        """X and Y."""
        return self._X, self._Y

    def order(self, seed: int, epoch: int) -> checks.Array:
        """Return the rows of an epoch in its order, [N]."""
        return np.random.default_rng([seed, epoch]).permutation(self.num_data)

    def batches(self, size: int, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """See `Rows`."""
        order = self.order(seed, epoch)
        for begin in range(first * size, self.num_data, size):
            rows = tf.constant(order[begin : begin + size])
            yield rows, tf.gather(self._X, rows), tf.gather(self._Y, rows)

    def pieces(self) -> Iterator[Batch]:
        """See `Rows`."""
        for begin in range(0, self.num_data, PIECE):
            part = slice(begin, min(begin + PIECE, self.num_data))
            yield tf.range(part.start, part.stop, dtype=tf.int64), self._X[part], self._Y[part]

    def total(self, initial: Any, function: Callable[[Batch], Any]) -> Any:
        """See `Rows`. All shapes are static, as XLA needs them, where N is."""
        number = tf.shape(self._X)[0] if self._X.shape[0] is None else self.num_data

        def add(state: Any, begin: Any, size: Any) -> Any:
            rows = begin + tf.range(size)
            parts = (tf.slice(part, [begin, 0], [size, part.shape[1]]) for part in (self._X, self._Y))
            return tf.nest.map_structure(tf.add, state, function((rows, *parts)))

        whole, rest = number // CHUNK, number % CHUNK
        state = initial if isinstance(rest, int) and not rest else add(initial, whole * CHUNK, rest)
        if isinstance(whole, int) and not whole:
            return state
        _, state = tf.while_loop(
            lambda i, _: i < whole,
            lambda i, state: (i + 1, add(state, i * CHUNK, CHUNK)),
            (tf.constant(0), state),
            parallel_iterations=1,
            maximum_iterations=whole,
        )
        return state


class DatasetRows:
    """A dataset of single rows (x [D], y [P]) that gives the same rows in the same order each time.

    An epoch is shuffled through a buffer of `SHUFFLE_BUFFER` rows: a minibatch mixes rows from a stretch of
    about that length, so a dataset whose order is not random should be shuffled once when it is written.

    Parameters
    ----------
    dataset
        The dataset; it is read once to count its rows and to check them.
    check_targets
        Raises ``ValueError`` for targets [R, P] that the model cannot use.

    Raises
    ------
    ValueError
        When the elements are not pairs of vectors, there are none, or a row is not finite or not accepted.
    """

    def __init__(self, dataset: tf.data.Dataset, check_targets: Callable[[checks.Array], None]) -> None:
        spec = dataset.element_spec
        if not (isinstance(spec, tuple) and len(spec) == 2 and all(_is_vector(part) for part in spec)):
            raise ValueError(f"A dataset must yield single rows (x [D], y [P]); its elements are {spec}.")
        self.width = int(spec[0].shape[0])
        dtype = gpflow.default_float()
        self._dataset = dataset.map(lambda x, y: (tf.cast(x, dtype), tf.cast(y, dtype)))
        self.num_data = 0
        head: tuple[checks.Array, checks.Array] | None = None
        for X, Y in self._dataset.batch(CHUNK).as_numpy_iterator():
            try:
                checks.check_data((X, Y))
                check_targets(Y)
            except ValueError as error:
                raise ValueError(f"in the dataset's rows from {self.num_data} on: {error}") from None
            head = head or (X, Y)
            self.num_data += len(X)
        if head is None:
            raise ValueError("The dataset is empty.")
        self.head = head  # its first rows

    def __deepcopy__(self, memo: Any) -> DatasetRows:
        return self

    def batches(self, size: int, seed: int, epoch: int, first: int = 0) -> Iterator[Batch]:
        """See `Rows`. Where ``first`` > 0 the minibatches before are read and dropped."""
        mixed = int(np.random.default_rng([seed, epoch]).integers(2**31))
        buffer = min(self.num_data, SHUFFLE_BUFFER)
        order = shuffled(self._dataset.enumerate(), buffer, mixed)
        for rows, (X, Y) in order.batch(size).skip(first).prefetch(2):
            yield rows, X, Y

    def pieces(self) -> Iterator[Batch]:
        """See `Rows`."""
        for rows, (X, Y) in self._dataset.enumerate().batch(PIECE).prefetch(1):
            yield rows, X, Y

    def total(self, initial: Any, function: Callable[[Batch], Any]) -> Any:
        """See `Rows`. Not differentiable."""

        def add(state: Any, batch: Any) -> Any:
            rows, (X, Y) = batch
            return tf.nest.map_structure(tf.add, state, function((rows, X, Y)))

        return self._dataset.enumerate().batch(CHUNK).prefetch(1).reduce(initial, add)


def _is_vector(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.shape.rank == 1 and spec.shape[0] is not None
