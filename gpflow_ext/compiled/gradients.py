"""Release custom gradients with their graphs: TensorFlow registers each for ever, together with its graph.

``tf.custom_gradient`` in a graph enters a function that holds symbolic tensors, so the whole graph, into a
registry of the process. What the graphs of a compiled function have entered they hold themselves instead. One
of them may be that of a ``tf.function`` of another module, as ``tfp.math.lbeta`` is, which outlives the
others and whose gradient is taken elsewhere too.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops  # the registry has no public name

_HELD = "_gpflow_ext_gradients"  # attribute of a graph


def registered() -> set[str]:
    """Return the names of all gradients that are registered now."""
    return set(_registry())


def release(before: set[str], graph: Any) -> None:
    """Let gradients that a graph or those inside it have registered since ``before`` go with their graphs."""
    registry = _registry()
    for name in set(registry) - before:
        function = registry[name]["type"]
        inside = [held for held in _graphs(function) if _is_inside(held, graph)]
        if inside:
            registry[name]["type"] = _held(name, function, max(inside, key=_depth))


def _held(name: str, function: Callable[..., Any], graph: Any) -> Callable[..., Any]:
    """Let a graph hold a registered function, and return what calls it from there."""
    setattr(graph, _HELD, {**getattr(graph, _HELD, {}), name: function})
    weakref.finalize(graph, _registry().pop, name, None).atexit = False
    return functools.partial(_call, weakref.ref(graph), name)


def _call(graph: weakref.ref[Any], name: str, *arguments: Any) -> Any:
    return getattr(graph(), _HELD)[name](*arguments)


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


def _depth(graph: Any) -> int:
    """Return in how many graphs a graph is."""
    outer = getattr(graph, "outer_graph", None)
    return 0 if outer is None else 1 + _depth(outer)
