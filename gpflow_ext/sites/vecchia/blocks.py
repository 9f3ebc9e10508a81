"""Rows in blocks, one after the other: what is held for each row is held for those of one block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes

ENTRIES = 2**18  # of the largest array of a block, 2 MiB, which caches hold
Shapes = Sequence[Sequence[Any]]
Step = Callable[[list[tf.Tensor], list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]
"""Map (a block of the rows, sums) to (what is found of each row, sums with those of the block)."""


def over(
    step: Step, rows: Sequence[tf.Tensor], entries: int, shapes: Shapes, sums: Sequence[tf.Tensor] = ()
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Return what a step finds of all rows, each [N, ...], and the sums.

    Parameters
    ----------
    step
        What is done with a block.
    rows
        What a step reads, each [N, ...].
    entries
        The numbers that the largest array of a step has for each row.
    shapes
        Those of what is found of a row, of double precision.
    sums
        What the first block adds to.
    """
    (N, *_), most = sizes(rows[0]), max(1, ENTRIES // max(entries, 1))
    if not isinstance(N, int):
        return _over_any(step, rows, tf.minimum(N, most), shapes, sums)
    size = min(N, most)
    count = (N - 1) // size
    first = N - count * size
    found, begun = step([row[:first] for row in rows], list(sums))
    if count == 0:
        return found, begun

    def body(k: tf.Tensor, sums: list[tf.Tensor], arrays: list[Any]) -> Any:
        start = first + k * size
        parts, sums = step([_slice(row, start, size) for row in rows], sums)
        return k + 1, sums, [array.write(k, part) for array, part in zip(arrays, parts, strict=True)]

    arrays = [tf.TensorArray(part.dtype, count, element_shape=[size, *part.shape[1:]]) for part in found]
    _, total, arrays = tf.while_loop(
        lambda k, *_: k < count, body, (tf.constant(0), begun, arrays), parallel_iterations=1
    )
    return [_joined(part, array.stack()) for part, array in zip(found, arrays, strict=True)], total


def _over_any(
    step: Step, rows: Sequence[tf.Tensor], size: tf.Tensor, shapes: Shapes, sums: Sequence[tf.Tensor]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """See `over`: of any number of rows; the graph has the step once."""
    N = sizes(rows[0])[0]
    count = (N + size - 1) // size
    arrays = [
        tf.TensorArray(tf.float64, count, infer_shape=False, element_shape=[None, *each]) for each in shapes
    ]

    def body(k: tf.Tensor, sums: list[tf.Tensor], arrays: list[Any]) -> Any:
        end = N - (count - 1 - k) * size
        parts, sums = step([row[tf.maximum(end - size, 0) : end] for row in rows], sums)
        return k + 1, sums, [array.write(k, part) for array, part in zip(arrays, parts, strict=True)]

    _, total, arrays = tf.while_loop(
        lambda k, *_: k < count, body, (tf.constant(0), list(sums), arrays), parallel_iterations=1
    )
    return [tf.ensure_shape(a.concat(), [None, *each]) for a, each in zip(arrays, shapes, strict=True)], total


def _slice(row: tf.Tensor, start: tf.Tensor, size: int) -> tf.Tensor:
    return tf.ensure_shape(row[start : start + size], [size, *row.shape[1:]])


def _joined(first: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return tf.concat([first, tf.reshape(others, [-1, *first.shape[1:]])], axis=0)
