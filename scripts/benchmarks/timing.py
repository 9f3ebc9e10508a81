"""Steps timed in turn: the first call with its compilation, the later ones, and the operations that they execute."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

import gpflow
import numpy as np
import tensorflow as tf

from ..shared import flops

Step: TypeAlias = Callable[[], Any]
Builder: TypeAlias = Callable[[], Step]
"""Makes a model of its own and returns its step, which must end when its result is there."""

PRODUCT_SIZE = 1000  # of the matrix product that stands for what the machine can do


def interleaved(
    builders: Mapping[str, Builder], repeats: int, counted: Collection[str]
) -> list[dict[str, Any]]:
    """Time steps round after round, all in turn.

    Return a record for each: its name as ``method``, ``first_call`` in seconds with compilation, ``seconds`` of
    the later rounds, ``flops``, the operations of a step of the methods ``counted``, else ``None``, and ``rate``,
    the operations per second of a square matrix product in these rounds.
    """
    steps: dict[str, Step] = {"product": product()}
    records: list[dict[str, Any]] = []
    steps["product"]()
    for name, build in builders.items():
        steps[name] = build()
        records.append({"method": name, "first_call": _seconds(steps[name]), "seconds": []})
    products = []
    for _ in range(repeats):
        products.append(_seconds(steps["product"]))
        for record in records:
            record["seconds"].append(_seconds(steps[record["method"]]))
    steps.clear()
    rate = 2.0 * PRODUCT_SIZE**3 / float(np.median(products))
    for record in records:
        name = record["method"]
        record["flops"] = operations(builders[name]) if name in counted else None
        record["rate"] = rate
    return records


def operations(build: Builder) -> float:
    """Return the floating-point operations of one step, see `flops`."""
    with flops.counting() as counter:
        step = build()
        step()
        counter.reset()
        step()
        return counter.flops


def product() -> Step:
    """Return a product of two square matrices of GPflow's default float through TensorFlow."""
    rng = np.random.default_rng(0)
    matrix = tf.constant(rng.standard_normal((PRODUCT_SIZE, PRODUCT_SIZE)), gpflow.default_float())
    multiply = tf.function(lambda: tf.matmul(matrix, matrix))
    return lambda: multiply().numpy()


def _seconds(step: Step) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin
