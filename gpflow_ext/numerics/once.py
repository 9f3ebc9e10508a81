"""Functions that a graph holds once and calls, in place of a copy of their operations for each use."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])

_made: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


def once(function: Function) -> Function:
    """Let a graph have a function once for all arguments of the same shapes; a decorator.

    It saves seconds where a function has loops, which are slow to trace, optimise and start. Arguments are
    tensors. To be differentiated only if need be: that traces it again.
    """

    @functools.wraps(function)
    def called(*tensors: tf.Tensor) -> Any:
        if tf.executing_eagerly():
            return function(*tensors)
        graph = _outermost(tf.compat.v1.get_default_graph())
        specs = tuple(tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors)
        made, key = _made.setdefault(graph, {}), (function, specs)
        if key not in made:
            with graph.as_default():  # the caller may be in a loop of it
                own = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})
                made[key] = own.get_concrete_function(*specs)
        return made[key](*tensors)

    return called  # type: ignore[return-value]


def _outermost(graph: Any) -> Any:
    """Return the graph of the function that is traced, for one of a loop, branch or function within it."""
    while graph.outer_graph.building_function:
        graph = graph.outer_graph
    return graph
