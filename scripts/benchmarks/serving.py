"""The benchmark of serving: one prediction by an exported model beside the arithmetic that it cannot do without."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import scipy.special
import tensorflow as tf

import gpflow_ext as gpx

from ..shared import report

INPUTS, CALLS, LENGTHSCALE = 10, 200, 3.0
Records = list[dict[str, Any]]

TEXT = """\
# Serving: speed

{where} Written by `python -m scripts.benchmarks serving`.

One row with {inputs} inputs through the `serving_default` of an exported dense `VGPKMM` with a probit likelihood and N training
rows, as `tf.saved_model.load` gives it: from a tensor in to tensors out. `arithmetic` is the work that no implementation can
avoid, in NumPy: N squared distances and their exponentials, the product with a matrix [N, N], two dot products, Φ. `empty` is
TensorFlow's call of a graph with the same input and outputs that computes nothing. The target is 1.2 times the sum of
both. Microseconds are medians of {repeats} interleaved rounds of {calls} calls.

{table}
"""


class Empty(tf.Module):
    """Outputs of the same shapes as those of a classifier, without computing any."""

    @tf.function(input_signature=[tf.TensorSpec([None, INPUTS], tf.float64, "inputs")])
    def predict(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return parts of the inputs."""
        one, two = inputs[:, :1], inputs[:, :2]
        return {"mean": one, "variance": one, "probabilities": two, "class": one, "is_finite": one}


def run(options: argparse.Namespace) -> Records:
    """Measure for each number of training rows."""
    records = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            runs, operations = prepare(size, Path(folder))
            microseconds = interleaved(runs, options.repeats)
        records.append({"size": size, "operations": operations, "microseconds": microseconds})
        print(f"N = {size}: done", flush=True)
    return [{**record, "repeats": options.repeats} for record in records]


def prepare(size: int, folder: Path) -> tuple[dict[str, Callable[[], Any]], int]:
    """Return what is timed, and the number of operations in the cached graph."""
    rng = np.random.default_rng(size)
    X, row = rng.standard_normal((size, INPUTS)), rng.standard_normal((1, INPUTS))
    Y = (X[:, :1] + 0.3 * rng.standard_normal((size, 1)) > 0.0).astype(float)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=LENGTHSCALE)
    gpflow.set_trainable(kernel, False)
    model = gpx.models.VGPKMM((X, Y), kernel, gpx.likelihoods.BernoulliProbit())
    gpx.fit(model, progress=False)
    loaded = {
        profile: tf.saved_model.load(str(gpx.export(model, folder / profile, profile=profile)))
        for profile in ("cached", "exact")
    }
    tf.saved_model.save(empty := Empty(), str(folder / "empty"), signatures=empty.predict)
    loaded["empty"] = tf.saved_model.load(str(folder / "empty"))
    runs = {name: caller(module, tf.constant(row)) for name, module in loaded.items()}
    runs["arithmetic"] = arithmetic(model, X, row)
    np.testing.assert_allclose(runs["cached"]()["mean"], runs["arithmetic"](), rtol=1e-6)
    library = loaded["cached"].signatures["serving_default"].graph.as_graph_def().library
    return runs, sum(len(function.node_def) for function in library.function)


def caller(module: Any, row: tf.Tensor) -> Callable[[], Any]:
    """Return the call of a loaded module's signature, which stays alive with it."""
    function = module.signatures["serving_default"]

    def call(module: Any = module) -> Any:
        return function(inputs=row)

    return call


def arithmetic(model: Any, X: Any, row: Any) -> Callable[[], Any]:
    """Return the prediction of one row by NumPy, with all that can be known before."""
    alpha, root, *_ = (part.numpy() for part in model.posterior().cache)
    alpha, root = alpha[:, 0], root[0]
    centres = X / LENGTHSCALE
    squares, variance = 0.5 * (centres**2).sum(1), float(model.kernel.variance.numpy())

    def predict() -> Any:
        x = row[0] / LENGTHSCALE
        cross = variance * np.exp(centres @ x - squares - 0.5 * (x @ x))
        mean, spread = cross @ alpha, variance - ((root @ cross) ** 2).sum()
        return scipy.special.ndtr(mean / np.sqrt(1.0 + spread))

    return predict


def interleaved(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the microseconds of a call in each round, after an untimed one."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(repeats + 1):
        for name, call in runs.items():
            calls = CALLS if name != "exact" else 5
            gc.disable()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            elapsed = time.perf_counter() - begin
            gc.enable()
            if number:
                found[name].append(1e6 * elapsed / calls)
    return found


def document(where: dict[str, Any], records: Records) -> str:
    """Return the table."""
    columns = ("N", "operations", "arithmetic", "empty", "cached", "times the sum", "exact")
    rows = []
    for record in records:
        middle = {name: report.median(values) for name, values in record["microseconds"].items()}
        ratio = middle["cached"] / (middle["arithmetic"] + middle["empty"])
        timed = (report.number(middle[name]) for name in ("arithmetic", "empty", "cached"))
        rows.append(
            [
                str(record["size"]),
                str(record["operations"]),
                *timed,
                f"{ratio:.2f}",
                report.number(middle["exact"]),
            ]
        )
    return TEXT.format(
        where=report.describe(where),
        inputs=INPUTS,
        repeats=records[0]["repeats"],
        calls=CALLS,
        table=report.table(columns, rows),
    )
