"""Recursions over time in chunks: one chain of N steps runs as C parallel chains of n steps.

A linear recursion is first run from zero within all chunks at once, then from chunk to chunk, and once more
within all chunks from their true initial states: about twice the work of one chain, in n + C steps instead
of N, memory O(N) times that of a state.

Values over time are [n, ..., C]: row k of column c is the time cn + k, and what stands between are the axes
of a small vector or matrix and that of the latent functions, [d, L] or [d, d, L]. The chunks are the last
axis, so that arithmetic on small matrices is arithmetic on long rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.batched import sizes

_ONE_CHUNK = 64  # data up to which there is only one
_LANES = 8  # the number of chunks is a multiple of it
_UNROLLED = 4  # the largest matrices whose products are written out term by term

Step = Callable[[Any, list[tf.Tensor]], tuple[Any, Sequence[tf.Tensor]]]
"""Map (carry, the rows of one time) to (carry, outputs)."""


def chunk_count(num_data: Any) -> Any:
    """Return C for N data: 1, or a multiple of 8 near √N; a number where N is one, else a scalar tensor."""
    if isinstance(num_data, int):
        return 1 if num_data <= _ONE_CHUNK else _LANES * int(np.ceil(np.sqrt(num_data) / _LANES))
    lanes = _LANES * tf.cast(tf.math.ceil(tf.sqrt(tf.cast(num_data, tf.float64)) / _LANES), tf.int32)
    return tf.where(num_data <= _ONE_CHUNK, 1, lanes)


def is_one(chunks: Any) -> bool:
    """Tell whether there is known to be one chunk."""
    return isinstance(chunks, int) and chunks == 1


def lay(values: tf.Tensor, chunks: Any) -> tf.Tensor:
    """Return values in the order of time [N, ...] as [n, ..., C], the last one repeated to fill up."""
    (N, *rest), axes = sizes(values), values.shape.rank
    n = -(-N // chunks)
    filled = tf.concat([values, tf.repeat(values[-1:], n * chunks - N, axis=0)], axis=0)
    return tf.transpose(tf.reshape(filled, [chunks, n, *rest]), [*range(1, axes + 1), 0])


def unlay(values: tf.Tensor, num_data: Any) -> tf.Tensor:
    """Undo `lay`: [n, ..., C] to [N, ...]."""
    n, *rest, C = sizes(values)
    moved = tf.transpose(values, [values.shape.rank - 1, *range(values.shape.rank - 1)])
    return tf.reshape(moved, [C * n, *rest])[:num_data]


def before(values: tf.Tensor) -> tf.Tensor:
    """Return the value of the time before each, [n, ..., C]; zero before the first."""
    last = values[-1]
    entering = tf.concat([tf.zeros_like(last[..., :1]), last[..., :-1]], axis=-1)
    return tf.concat([entering[None], values[:-1]], axis=0)


def scan(
    step: Step, carry: Any, rows: Sequence[tf.Tensor], outputs: int, reverse: bool = False
) -> tuple[Any, list[tf.Tensor]]:
    """Run all chunks side by side from ``carry``; return where they end, and the outputs [n, ...] by time.

    Parameters
    ----------
    step
        What is done at a time.
    carry
        Nested tensors [..., C].
    rows
        What a step reads, each [n, ..., C].
    outputs
        How many tensors a step returns besides the carry.
    reverse
        Whether time runs backwards.
    """
    n, like = sizes(rows[0])[0], tf.nest.flatten(carry)

    def body(k: tf.Tensor, carry: Any, arrays: Any) -> Any:
        at = n - 1 - k if reverse else k
        carry, found = step(carry, [tf.gather(row, at) for row in rows])
        carry = tf.nest.pack_sequence_as(
            carry,
            [tf.ensure_shape(new, old.shape) for new, old in zip(tf.nest.flatten(carry), like, strict=True)],
        )
        return k + 1, carry, [array.write(at, part) for array, part in zip(arrays, found, strict=True)]

    arrays = [tf.TensorArray(rows[0].dtype, n) for _ in range(outputs)]
    _, carry, arrays = tf.while_loop(
        lambda k, *_: k < n, body, (tf.constant(0), carry, arrays), maximum_iterations=n
    )
    return carry, [array.stack() for array in arrays]


def along_chunks(
    step: Callable[[tf.Tensor, list[tf.Tensor]], tf.Tensor],
    start: tf.Tensor,
    maps: Sequence[tf.Tensor],
    reverse: bool = False,
) -> tf.Tensor:
    """Return the state that each chunk begins with, [..., C], from the first's and the maps of all chunks.

    Parameters
    ----------
    step
        Maps (the state at the beginning of a chunk, what its map is made of) to the state at its end.
    start
        State at the start of the first chunk, or with ``reverse`` of the last, [...].
    maps
        Each [..., C].
    """
    rows = [tf.transpose(part, [part.shape.rank - 1, *range(part.shape.rank - 1)]) for part in maps]
    _, (states,) = scan(lambda state, row: (step(state, row), [state]), start, rows, 1, reverse)
    return tf.transpose(states, [*range(1, states.shape.rank), 0])


def matmul(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply small matrices that come first: [i, j, ...] by [j, k, ...] to [i, k, ...]."""
    width = a.shape[1]
    if width <= _UNROLLED:
        return _sum([outer(x, y) for x, y in zip(tf.unstack(a, axis=1), tf.unstack(b), strict=True)])
    return tf.einsum("ij...,jk...->ik...", a, b)


def matvec(a: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Multiply [i, j, ...] by [j, ...] to [i, ...]."""
    width = a.shape[1]
    if width <= _UNROLLED:
        return _sum([column * y for column, y in zip(tf.unstack(a, axis=1), tf.unstack(x), strict=True)])
    return tf.reduce_sum(a * x[None], axis=1)


def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply [j, ...] by [j, ...] to [...]."""
    if a.shape[0] <= _UNROLLED:
        return _sum([x * y for x, y in zip(tf.unstack(a), tf.unstack(b), strict=True)])
    return tf.reduce_sum(a * b, axis=0)


def transpose(a: tf.Tensor) -> tf.Tensor:
    """Transpose small matrices [i, j, ...] to [j, i, ...]."""
    return tf.transpose(a, [1, 0, *range(2, a.shape.rank)])


def symmetric(a: tf.Tensor) -> tf.Tensor:
    """Return the symmetric part of [i, i, ...]."""
    return 0.5 * (a + transpose(a))


def outer(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply [i, ...] by [j, ...] to [i, j, ...]."""
    return tf.expand_dims(a, 1) * tf.expand_dims(b, 0)


def _sum(terms: list[tf.Tensor]) -> tf.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total
