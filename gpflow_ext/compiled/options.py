"""Let TensorFlow optimise a graph at its first call in one pass, in half the time of two, or not at all.

The second pass finds nothing in the graphs of this package: their later calls take the same time. Otherwise
the user's options, ``tf.config.optimizer``, apply.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context  # the options of one call have no public name


@contextlib.contextmanager
def one_pass(optimise: bool = True) -> Iterator[None]:
    """Within, let first calls of functions by this thread optimise graphs in one pass, or not at all."""
    eager = context.context()
    before = eager.function_call_options
    eager.function_call_options = _in_one_pass(before.config_proto_serialized, before.executor_type, optimise)
    try:
        yield
    finally:
        eager.function_call_options = before


@functools.cache
def _in_one_pass(serialized: bytes, executor: str | None, optimise: bool) -> context.FunctionCallOptions:
    config = config_pb2.ConfigProto.FromString(serialized)
    rewriting = config.graph_options.rewrite_options
    rewriting.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewriting.disable_meta_optimizer |= not optimise
    return context.FunctionCallOptions(executor, config)
