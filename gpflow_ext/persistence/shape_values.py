"""Values of the tensors of a graph that describe shapes, as far as they are the same at every call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Values = np.ndarray[Any, Any]  # integers; None where one may differ from call to call


def constant_shapes(graph: tf.Graph, reshape: bool) -> dict[str, Values]:
    """Return by name the shapes to which something is broadcast that are the same at every call.

    With ``reshape`` also those to which something is reshaped, -1 in the place of one length that is not.
    """
    found = {}
    for op in graph.get_operations():
        if op.type not in ("BroadcastTo", "Reshape")[: 1 + reshape]:
            continue
        shape = op.inputs[1]
        values = _lengths(op.outputs[0])
        if values is None or None in values:
            values = _values(shape)
        if values is None or shape.op.type == "Const":
            continue
        free = sum(length is None for length in values)
        if free == 0 or (free == 1 and all(user.type == "Reshape" for user in shape.consumers())):
            known = [-1 if length is None else length for length in values]
            found[shape.name] = np.array(known, shape.dtype.as_numpy_dtype)
    return found


def _lengths(tensor: tf.Tensor) -> Values | None:
    return None if tensor.shape.rank is None else np.array(tensor.shape.as_list(), object)


def _values(tensor: tf.Tensor) -> Values | None:
    """Return the values of a vector or scalar of integers; ``None`` if it is computed in another way."""
    constant = tf.get_static_value(tensor)
    if constant is not None:
        return np.asarray(constant).astype(object)
    rule = _RULES.get(tensor.op.type)
    return rule(tensor.op.inputs) if rule else None


def _gather(inputs: Sequence[tf.Tensor]) -> Values | None:
    values, indices = _values(inputs[0]), tf.get_static_value(inputs[1])
    return None if values is None or indices is None else values[indices]


def _product(inputs: Sequence[tf.Tensor]) -> Values | None:
    values = _values(inputs[0])
    if values is None:
        return None
    return np.array(None if None in values else np.prod(values, dtype=int), object)


def _joined(parts: Sequence[tf.Tensor], join: Callable[[list[Values]], Values]) -> Values | None:
    values = [found for part in parts if (found := _values(part)) is not None]
    return join(values) if len(values) == len(parts) else None


_RULES: dict[str, Callable[[Sequence[tf.Tensor]], Values | None]] = {
    "Shape": lambda inputs: _lengths(inputs[0]),
    "GatherV2": _gather,
    "Prod": _product,
    "Pack": lambda inputs: _joined(inputs, np.stack),
    "ConcatV2": lambda inputs: _joined(inputs[:-1], np.concatenate),
}
