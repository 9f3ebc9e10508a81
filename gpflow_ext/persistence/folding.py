"""Constant folding: compute what does not depend on the arguments of a traced function once, at export."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_SMALL = 16  # tensors up to this size stay constants of the graph, from which static shapes are inferred
_SAME_AT_EVERY_CALL = frozenset(("Placeholder", "ReadVariableOp"))  # although TensorFlow calls them stateful
_NO_VALUES = (tf.resource, tf.variant)


class Store:
    """The variables of the folded functions of one model; equal values are stored once."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, tuple[int, ...], bytes], tf.Variable] = {}

    def hold(self, value: tf.Tensor) -> Any:
        """Return what stands for a value in a graph: a variable if it is large, else the value itself."""
        array = value.numpy()  # bytes, where the value is one text
        if not value.dtype.is_floating or array.size <= _SMALL:
            return array
        key = (array.dtype.str, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in self._held:
            self._held[key] = tf.Variable(array, trainable=False)
        return self._held[key]


def fold(function: Any, store: Store) -> Callable[..., dict[str, tf.Tensor]] | None:
    """Return a function equivalent to a concrete function, with all that its arguments do not affect folded.

    The tensors that cross the cut are evaluated now, by the operations of the function itself, so the results
    stay the same. Factorisations of what is known, parameters behind a bijector, the nodes of quadratures:
    all that lies before the cut, whatever the model.

    Parameters
    ----------
    function
        A concrete function that returns a dictionary of tensors.
    store
        Where the variables go.

    Returns
    -------
    A function to trace with the arguments of the old one; ``None`` where a variable crosses the cut itself,
    as in a lookup of rows that depend on the arguments.
    """
    graph, outputs = function.graph, {k: _source(t) for k, t in function.structured_outputs.items()}
    count = len(function.inputs) - len(function.captured_inputs)
    arguments, captures = function.inputs[:count], function.inputs[count:]
    shapes = _known_shapes(graph)
    moving = _moving(graph, {t.op.name for t in arguments}, shapes)
    kept = _needed([t.op for t in outputs.values()], moving, shapes)
    used = [t for op in kept for t in _inputs(op)] + list(outputs.values())
    crossing = {t.name: t for t in used if t.op.name not in moving or t.name in shapes}
    if any(t.dtype in _NO_VALUES for t in crossing.values()):
        return None
    still = {op.name for op in graph.get_operations()} - moving - {t.op.name for t in captures}
    captured = {t.name: value for t, value in zip(captures, function.captured_inputs, strict=True)}

    def evaluate() -> list[tf.Tensor]:
        capture = tf.compat.v1.get_default_graph().capture
        known = {name: capture(value) for name, value in captured.items()}
        known |= {name: tf.constant(value) for name, value in shapes.items()}
        return _replay(_part(graph, still), known, list(crossing))

    # Called as a concrete function: TensorFlow takes several exports for one function that is traced again.
    once = tf.function(evaluate, autograph=False).get_concrete_function()
    held = [store.hold(value) for value in once()]
    rest = _part(graph, {op.name for op in kept} - {t.op.name for t in arguments})

    def replay(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        known = dict(zip(crossing, map(tf.convert_to_tensor, held), strict=True))
        known |= {t.name: value for t, value in zip(arguments, inputs, strict=True)}
        return dict(zip(outputs, _replay(rest, known, [t.name for t in outputs.values()]), strict=True))

    names = [t.op.name for t in arguments]
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    vars(replay)["__signature__"] = inspect.Signature(parameters)
    return replay


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """Return what a tensor is a copy of: functions with custom gradients copy all they were given."""
    while tensor.op.type == "IdentityN":
        tensor = tensor.op.inputs[tensor.value_index]
    return tensor


def _inputs(op: tf.Operation) -> list[tf.Tensor]:
    return [_source(t) for t in op.inputs]


def _known_shapes(graph: tf.Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors that say to what shape something is broadcast, where it is one at every call."""
    found = {}
    for op in graph.get_operations():
        if op.type == "BroadcastTo" and op.outputs[0].shape.is_fully_defined():
            shape = _inputs(op)[1]
            found[shape.name] = np.array(op.outputs[0].shape, shape.dtype.as_numpy_dtype)
    return found


def _moving(graph: tf.Graph, arguments: Iterable[str], shapes: Mapping[str, Any]) -> set[str]:
    """Return the names of the operations whose result may differ from call to call."""
    moving = set(arguments)
    for op in graph.get_operations():  # every operation comes after its inputs
        random = op.op_def.is_stateful and op.type not in _SAME_AT_EVERY_CALL
        listed = any(t.dtype == tf.variant for t in op.outputs)  # a list of tensors is not a value to store
        if random or listed or any(t.op.name in moving and t.name not in shapes for t in _inputs(op)):
            moving.add(op.name)
    return moving


def _needed(ends: Iterable[tf.Operation], moving: set[str], shapes: Mapping[str, Any]) -> list[tf.Operation]:
    """Return the moving operations that ``ends`` depend on."""
    found: dict[str, tf.Operation] = {}
    todo = list(ends)
    while todo:
        op = todo.pop()
        if op.name in moving and op.name not in found:
            found[op.name] = op
            todo += [*(t.op for t in _inputs(op) if t.name not in shapes), *op.control_inputs]
    return list(found.values())


def _part(graph: tf.Graph, names: set[str]) -> Any:
    """Return the definition of some of the operations of a graph."""
    definition = graph.as_graph_def()
    nodes = [node for node in definition.node if node.name in names]
    del definition.node[:]
    for node in nodes:
        op = graph.get_operation_by_name(node.name)
        inputs = [t.name for t in _inputs(op)]
        inputs += [f"^{other.name}" for other in op.control_inputs if other.name in names]
        del node.input[:]
        node.input.extend(inputs)
        node.attr.pop("_class", None)  # names operations that may be gone
        definition.node.append(node)
    return definition


def _replay(definition: Any, known: Mapping[str, Any], wanted: Sequence[str]) -> list[tf.Tensor]:
    """Return the ``wanted`` tensors of a definition, some of whose tensors are ``known``."""
    used = {name for node in definition.node for name in node.input}
    inputs = {name: value for name, value in known.items() if name in used}
    computed = [name for name in wanted if name not in known]
    results = tf.graph_util.import_graph_def(definition, inputs, computed, name="folded")
    found = dict(zip(computed, results or (), strict=True))
    return [known[name] if name in known else found[name] for name in wanted]
