"""What TensorFlow computes on, and what compiles it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_fixed_shapes = contextvars.ContextVar("fixed_shapes", default=False)


def has_accelerator() -> bool:
    """Tell whether TensorFlow sees a GPU or a TPU."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def graphs_for_xla() -> list[tuple[Any, Any]]:
    """Return the graphs that are being traced for XLA to compile, with the contexts that say so."""
    found = []
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if (context := graph._get_control_flow_context()) is not None:
            found.append((graph, context))
        graph = getattr(graph, "outer_graph", None)
    return found


@contextlib.contextmanager
def fixed_shapes() -> Iterator[None]:
    """Within, let this thread trace functions whose shapes are the same whatever the values."""
    before = _fixed_shapes.set(True)
    try:
        yield
    finally:
        _fixed_shapes.reset(before)


def needs_fixed_shapes() -> bool:
    """Tell whether shapes must be the same whatever the values: for XLA, or within `fixed_shapes`."""
    return _fixed_shapes.get() or bool(graphs_for_xla())
