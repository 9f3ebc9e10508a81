"""What TensorFlow computes on, and what compiles it."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_mapping = contextvars.ContextVar("mapping", default=False)


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
def mapping() -> Iterator[None]:
    """Within, say that what is traced is for ``tf.vectorized_map``."""
    before = _mapping.set(True)
    try:
        yield
    finally:
        _mapping.reset(before)


def needs_fixed_shapes() -> bool:
    """Tell whether what is traced must have the same shapes whatever the values: for XLA, or to be mapped."""
    return _mapping.get() or bool(graphs_for_xla())
