"""Convolutional kernels: CPU seconds of a step's sums over patches, beside GPflow's own kernel."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
SIDE, PATCH, INDUCING = 28, 5, 500
TARGET = 5.0  # times GPflow's sums of a step
SUMS = ("K_uf", "diagonal of K_ff")
TEXT = """\
N random images of {side} x {side} pixels, seven tenths of them blank, patches of {patch} x {patch}, P = 576, and {inducing} inducing patches; float32, one length
scale, weights of the patches trained. A step of stochastic variational inference takes both sums with their gradients. CPU milliseconds of
all threads, the best of the rounds, under `tf.function`. `Convolutional` gives GPflow's numbers; `TranslationInsensitive` is not in GPflow.
Written by `python -m scripts.benchmarks convolution`.
"""


def run(options: argparse.Namespace) -> list[Record]:
    """Time both sums for each number of images."""
    import gpflow
    import tensorflow as tf

    import gpflow_ext as gpx

    records = Shown()
    rng = np.random.default_rng(0)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        Z = rng.uniform(size=[INDUCING, PATCH**2]).astype(np.float32)
        patches = gpflow.inducing_variables.InducingPatches(Z)
        located = gpx.LocatedPatches(Z, rng.uniform(0.0, SIDE - PATCH, [INDUCING, 2]).astype(np.float32))
        kinds = {
            "Convolutional": (gpx.kernels.Convolutional, patches),
            "TranslationInsensitive": (gpx.kernels.TranslationInsensitive, located),
            "GPflow": (gpflow.kernels.Convolutional, patches),
        }
        for size in options.sizes:
            pixels = rng.uniform(size=[size, SIDE**2])
            X = tf.constant(pixels * (rng.uniform(size=pixels.shape) < 0.3), tf.float32)
            for name, (kind, points) in kinds.items():
                kernel = kind(gpflow.kernels.SquaredExponential(), [SIDE, SIDE], [PATCH, PATCH])
                for what, value in zip(SUMS, _sums(kernel, points, X), strict=True):
                    variables = [*kernel.trainable_variables, *points.trainable_variables]
                    found = _timed(value, variables, options.repeats)
                    records.append({"size": size, "by": name, "sum": what, **found})
    return records


def _sums(kernel: Any, points: Any, X: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from gpflow.covariances import Kuf

    return lambda: Kuf(points, kernel, X), lambda: kernel(X, full_cov=False)


def _timed(value: Callable[[], Any], variables: list[Any], rounds: int) -> Record:
    """Return CPU milliseconds of a sum, and of it with its gradient."""
    import tensorflow as tf

    def gradient() -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.sin(value()))
        return tape.gradient(total, variables, unconnected_gradients="zero")

    found = {}
    for name, function in (("forward", value), ("gradient", gradient)):
        call, times = tf.function(function, autograph=False), []
        call()
        for _ in range(rounds):
            begin = time.process_time()
            call()
            times.append(time.process_time() - begin)
        found[name] = 1e3 * min(times)
    return found


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("N", "by", "sum", "forward, ms", "with gradient, ms")
    rows = [
        (
            str(each["size"]),
            each["by"],
            each["sum"],
            *(report.number(each[name]) for name in ("forward", "gradient")),
        )
        for each in records
    ]
    text = TEXT.format(side=SIDE, patch=PATCH, inducing=INDUCING)
    parts = [
        "# Convolutional kernels\n",
        text,
        report.describe(where, "float32"),
        "",
        report.table(columns, rows),
    ]
    return "\n".join([*parts, report.targets(verdicts(records))])


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return the target for each number of images, what was measured, and whether it is met."""
    found = []
    for size in sorted({each["size"] for each in records}):
        steps = {
            name: sum(each["gradient"] for each in records if each["by"] == name and each["size"] == size)
            for name in ("GPflow", "Convolutional")
        }
        times = steps["GPflow"] / steps["Convolutional"]
        label = f"both sums with gradients, N = {size}: GPflow's over ours"
        found.append((label, f"{report.number(times)} of {TARGET:g}", "yes" if times >= TARGET else "no"))
    return found
