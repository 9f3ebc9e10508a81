"""A function of rows at those of them where it is needed, one block after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_BLOCK = 2**10  # rows, what is made of which stays in the cache


def at_rows(
    function: Callable[..., Sequence[tf.Tensor]],
    chosen: tf.Tensor,
    arrays: Sequence[tf.Tensor],
    shapes: Sequence[Sequence[Any]],
) -> list[tf.Tensor]:
    """Return function(*arrays) at the chosen rows, and zeros at the others; not to be differentiated.

    Cost and memory are those of the chosen rows and of a block. Shapes depend on the values, which XLA does
    not allow; see `devices.needs_fixed_shapes`.

    Parameters
    ----------
    function
        From the same B >= 0 rows of all arrays, [B, ...] each, to tensors [B, *shape]. It treats each row
        alone.
    chosen
        Booleans [N].
    arrays
        Tensors [N, ...].
    shapes
        The shape of a row of each result.
    """
    index = tf.where(chosen)
    count = tf.shape(index)[0]
    blocks = tf.maximum((count + _BLOCK - 1) // _BLOCK, 1)
    dtype = arrays[0].dtype
    parts = [tf.TensorArray(dtype, blocks, element_shape=[None, *s], infer_shape=False) for s in shapes]

    def block(k: tf.Tensor, parts: list[tf.TensorArray]) -> tuple[tf.Tensor, list[tf.TensorArray]]:
        rows = index[k * _BLOCK : (k + 1) * _BLOCK, 0]
        found = function(*(tf.gather(array, rows) for array in arrays))
        return k + 1, [part.write(k, new) for part, new in zip(parts, found, strict=True)]

    _, parts = tf.while_loop(lambda k, _: k < blocks, block, (0, parts), parallel_iterations=1)
    N = tf.size(chosen, tf.int64)
    full = (tf.concat([N[None], tf.constant(shape, tf.int64, [len(shape)])], axis=0) for shape in shapes)
    return [tf.scatter_nd(index, part.concat(), each) for part, each in zip(parts, full, strict=True)]
