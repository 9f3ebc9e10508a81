"""Signatures whose memory does not grow with the rows of a call: many rows are predicted block by block."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

_ELEMENTS = 2**21  # of the largest tensor of a block
_LEAST, _MOST = 64, 8192  # rows of a block
_BY_ROW = ("inputs", "targets", "exposure")  # arguments with a row for each row of the outputs


def in_blocks(function: Any) -> Callable[..., dict[str, tf.Tensor]]:
    """Return a function equivalent to a concrete function, with memory for one block of rows at a time.

    A call of one block is the call of the function.

    Parameters
    ----------
    function
        A concrete function of ``inputs`` [N, D], and maybe ``targets`` [N, P], ``exposure`` [N, 1] and
        arguments that hold for all rows, that returns a dictionary of tensors [N, ...], each row of which
        depends on that row alone.
    """
    rows = block_rows(function)
    [specs, _] = function.structured_input_signature
    names = [spec.name for spec in specs]

    def block(begin: tf.Tensor, arguments: tuple[tf.Tensor, ...]) -> dict[str, tf.Tensor]:
        parts = zip(names, arguments, strict=True)
        called: dict[str, tf.Tensor] = function(
            *(part[begin : begin + rows] if name in _BY_ROW else part for name, part in parts)
        )
        return called

    # Called, not inlined: few rows pass by one operation then, not by all those of the loop.
    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def loop(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
        N = tf.shape(arguments[0])[0]
        count = (N + rows - 1) // rows
        arrays = {
            key: tf.TensorArray(t.dtype, count, element_shape=t.shape, infer_shape=False)
            for key, t in function.structured_outputs.items()
        }

        def step(k: tf.Tensor, arrays: dict[str, tf.TensorArray]) -> tuple[tf.Tensor, dict[str, Any]]:
            found = block(k * rows, arguments)
            return k + 1, {key: array.write(k, found[key]) for key, array in arrays.items()}

        # One block at a time: side by side they would hold the memory of several.
        _, arrays = tf.while_loop(
            lambda k, _: k < count, step, (tf.constant(0), arrays), parallel_iterations=1
        )
        return {key: array.concat() for key, array in arrays.items()}

    def blocked(*given: tf.Tensor) -> dict[str, tf.Tensor]:
        # Here, where the tensors still have their names, rather than inside.
        arguments = tuple(tf.ensure_shape(t, spec.shape) for t, spec in zip(given, specs, strict=True))
        few = tf.shape(arguments[0])[0] <= rows
        found = tf.cond(few, lambda: function(*arguments), lambda: loop(*arguments))
        return {key: tf.ensure_shape(found[key], t.shape) for key, t in function.structured_outputs.items()}

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    vars(blocked)["__signature__"] = inspect.Signature(parameters)
    return blocked


def block_rows(function: Any) -> int:
    """Return how many rows a block takes so that no tensor of a concrete function has too many elements.

    What grows with the rows is what has one open axis; several are of something else.
    """
    widest = 1
    for op in function.graph.get_operations():
        for tensor in op.outputs:
            shape = tensor.shape
            if shape.rank and sum(size is None for size in shape) == 1:
                widest = max(widest, math.prod(size or 1 for size in shape))
    return min(max(_ELEMENTS // widest, _LEAST), _MOST)
