"""What TensorFlow computes on, and what compiles it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_MAPPED = "loop_body"  # TensorFlow's name for the scope of what it maps


def has_accelerator() -> bool:
    """Tell whether TensorFlow sees a GPU or a TPU."""
    return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))


def graphs_for_xla() -> list[tuple[Any, Any]]:
    """Return the graphs that are being traced for XLA to compile, with the contexts that say so."""
    found = ((graph, graph._get_control_flow_context()) for graph in _graphs())
    return [(graph, context) for graph, context in found if context is not None]


def needs_fixed_shapes() -> bool:
    """Tell whether shapes must be the same whatever the values: for XLA, or within ``tf.vectorized_map``."""
    scopes = (part for graph in _graphs() for part in graph.get_name_scope().split("/"))
    return bool(graphs_for_xla()) or any(part.startswith(_MAPPED) for part in scopes)


def _graphs() -> Iterator[Any]:
    """Yield the graph that is being traced and those around it."""
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)
