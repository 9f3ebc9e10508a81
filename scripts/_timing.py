"""Steps timed in turn: the first call with its compilation, the later ones, and the operations that they execute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import _flops
import numpy as np
import tensorflow as tf

Step: TypeAlias = Callable[[], Any]
Builder: TypeAlias = Callable[[], Step]
"""Makes a model of its own and returns its step, which must end when its result is there."""

PRODUCT_SIZE = 2000  # of the matrix product that stands for what the machine can do


def interleaved(builders: Mapping[str, Builder], repeats: int) -> list[dict[str, Any]]:
    """Time steps round after round, all in turn.

    Return a record for each: its name as ``method``, ``first_call`` in seconds with compilation, ``seconds`` of
    the later rounds, and ``flops``, the operations of a step, ``None`` where TensorFlow executes none.
    """
    steps, records = {}, []
    for name, build in builders.items():
        steps[name] = build()
        records.append({"method": name, "first_call": _seconds(steps[name]), "seconds": []})
    for _ in range(repeats):
        for record in records:
            record["seconds"].append(_seconds(steps[record["method"]]))
    steps.clear()
    for record in records:
        record["flops"] = operations(builders[record["method"]]) or None
    return records


def operations(build: Builder) -> float:
    """Return the floating-point operations of one step, see `_flops`."""
    with _flops.counting() as counter:
        step = build()
        step()
        counter.reset()
        step()
        return counter.flops


def product_rate(dtype: str, repeats: int = 5) -> float:
    """Return the operations per second of a square matrix product through TensorFlow."""
    size = PRODUCT_SIZE
    matrix = tf.constant(np.random.default_rng(0).standard_normal((size, size)), dtype)
    product = tf.function(lambda: tf.matmul(matrix, matrix))
    product()
    return 2.0 * size**3 / float(np.median([_seconds(lambda: product().numpy()) for _ in range(repeats)]))


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
