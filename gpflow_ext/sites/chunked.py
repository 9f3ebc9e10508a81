"""Recursions over time in chunks: one chain of N steps runs as C parallel chains of n steps.

A linear recursion is first run from zero within all chunks at once, then from chunk to chunk, and once more
within all chunks from their true initial states: about twice the work of one chain, in 2n + C steps instead
of N, memory O(N) times that of a state.

Values over time are [n, ..., C]: row k of column c is the time cn + k, and what stands between are the axes
of a small vector or matrix and that of the latent functions, [d, L] or [d, d, L]. The chunks are the last
axis, so that arithmetic on small matrices is arithmetic on long rows. Of long series XLA is given these entry
by entry; see `small`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.numerics.devices import graphs_for_xla
from gpflow_ext.sites.small import WRITTEN_OUT, Entries, Small

_ONE_CHUNK = 64  # data up to which there is only one, where XLA compiles for their number
_ONE_OPEN = 8  # the same where graphs are for any number
_LONG = 512  # chunks from which XLA computes entry by entry
_LANES = 8  # the number of chunks is a multiple of it
_TOGETHER = 4  # of them, whose numbers are multiplied before the logarithm is taken, which takes longer

Step = Callable[[Any, list[Any]], tuple[Any, Sequence[Any]]]
"""Map (carry, the rows of one time) to (carry, outputs)."""


def chunk_count(num_data: Any) -> Any:
    """Return C for N data: 1, or a multiple of 8 near 2√N; a number where N is one, else a scalar tensor.

    What is done from chunk to chunk is done once, and is less than what is done twice within them.
    """
    if isinstance(num_data, int):
        return 1 if num_data <= _ONE_CHUNK else _LANES * int(np.ceil(2.0 * np.sqrt(num_data) / _LANES))
    lanes = _LANES * tf.cast(tf.math.ceil(2.0 * tf.sqrt(tf.cast(num_data, tf.float64)) / _LANES), tf.int32)
    return tf.where(num_data <= _ONE_OPEN, 1, lanes)


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


def sum_of_logs(values: tf.Tensor) -> tf.Tensor:
    """Return the sum of the logarithms of positive values [n, L, C], of four chunks' product each, []."""
    n, L, C = sizes(values)
    if not is_one(C):
        together = _TOGETHER if isinstance(C, int) else tf.where(C > 1, _TOGETHER, 1)
        values = tf.reduce_prod(tf.reshape(values, [n, L, together, C // together]), axis=2)
    return tf.reduce_sum(tf.math.log(values))


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
        Nested tensors [..., L, C].
    rows
        What a step reads, each [n, ..., L, C].
    outputs
        How many tensors a step returns besides the carry.
    reverse
        Whether time runs backwards.
    """
    if not _pays(tf.nest.flatten(carry)):
        return _scan(step, carry, rows, outputs, reverse)

    def by_entries(parts: list[list[tf.Tensor]], row: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
        state = map(_together, parts, flat)
        new, found = step(tf.nest.pack_sequence_as(carry, list(state)), [_apart(part) for part in row])
        return [_parts(part) for part in tf.nest.flatten(new)], [_whole(part) for part in found]

    flat = [_apart(part) for part in tf.nest.flatten(carry)]
    ends, found = _scan(by_entries, [_parts(part) for part in flat], rows, outputs, reverse)
    whole = [_whole(_together(*pair)) for pair in zip(ends, flat, strict=True)]
    return tf.nest.pack_sequence_as(carry, whole), found


def _pays(carry: list[tf.Tensor]) -> bool:
    """Tell whether XLA is to compute a step entry by entry: it takes longer to compile."""
    small = all(part.shape[0] <= WRITTEN_OUT for part in carry)
    return small and (carry[0].shape[-1] or 0) >= _LONG and bool(graphs_for_xla())


def _apart(part: tf.Tensor) -> Small:
    """Take a vector [d, L, C] or a matrix [d, d, L, C] apart; a number [L, C] is left as it is."""
    return Entries.of(part, part.shape.rank - 2) if part.shape.rank > 2 else part


def _parts(part: Small) -> list[tf.Tensor]:
    return list(part.parts) if isinstance(part, Entries) else [part]


def _together(parts: Sequence[tf.Tensor], like: Small) -> Small:
    return Entries(like.shape, parts) if isinstance(like, Entries) else parts[0]


def _whole(part: Small) -> tf.Tensor:
    return part.whole() if isinstance(part, Entries) else part


def _scan(
    step: Step, carry: Any, rows: Sequence[tf.Tensor], outputs: int, reverse: bool
) -> tuple[Any, list[tf.Tensor]]:
    """See `scan`: of tensors as they are."""
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
    _, (states,) = _scan(lambda state, row: (step(state, row), [state]), start, rows, 1, reverse)
    return tf.transpose(states, [*range(1, states.shape.rank), 0])
