"""Release custom gradients of finished graphs: TensorFlow registers each for ever, together with its graph.

``tf.custom_gradient`` in a graph enters a function that holds symbolic tensors, so the whole graph, into a
registry of the process. The gradients of a compiled function are taken while it is traced; afterwards what
its graph has entered is of no use and is taken out again.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops  # the registry has no public name


def registered() -> set[str]:
    """Return the names of all gradients that are registered now."""
    return set(_registry())


def forget(before: set[str], graph: Any) -> None:
    """Take out the gradients that have been registered since ``before`` by a graph or one inside it."""
    registry = _registry()
    for name in set(registry) - before:
        function = registry[name]["type"]
        if any(_is_inside(held, graph) for held in _graphs(function)):
            del registry[name]


def _registry() -> dict[str, Any]:
    return getattr(ops.gradient_registry, "_registry", {})


def _graphs(function: Any) -> Iterator[Any]:
    """Yield the graphs of the symbolic tensors that a function, or one that it calls, closes over."""
    waiting, seen = [function], set()
    while waiting:
        function = waiting.pop()
        if id(function) in seen:  # it calls itself
            continue
        seen.add(id(function))
        for cell in getattr(function, "__closure__", None) or ():
            held = cell.cell_contents
            for part in held if isinstance(held, (list, tuple)) else [held]:
                if isinstance(part, types.FunctionType):
                    waiting.append(part)
                elif isinstance(part, tf.Tensor) and hasattr(part, "graph"):
                    yield part.graph


def _is_inside(inner: Any, graph: Any) -> bool:
    while inner is not None and inner is not graph:
        inner = getattr(inner, "outer_graph", None)
    return inner is graph
