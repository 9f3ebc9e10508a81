"""Seconds and memory of a step against the number of outputs."""

from __future__ import annotations

import functools
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.gprn.updates import Updates

from ...shared import report
from ...shared.journal import Journal, Record
from . import methods
from .mean_field import MeanField
from .mixture import Mixture
from .task import Task

Array = npt.NDArray[Any]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TENSOR_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
ROWS, NODES = 100, 5
PAPER_SIZES = (1_000, 3_000, 10_000, 30_000)  # the mixture holds all weights twice
_STEPS = {
    "tensor": "tensor posterior, a step of Adam",
    "mean_field": "fully factorised, a sweep",
    "mixture": "mixture, bound and gradient",
}


def measure(
    journal: Journal,
    sizes: Sequence[int],
    tensor_sizes: Sequence[int],
    paper_sizes: Sequence[int],
    rows: int,
    nodes: int,
) -> None:
    """Measure seconds and memory against the number of outputs: both posteriors, then the methods of the paper."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (rows, 3))
    with tempfile.TemporaryDirectory() as folder:
        for of, outputs, step in (
            ("scaling", sizes, functools.partial(_step, folder)),
            ("scaling, tensor", tensor_sizes, _tensor_step),
            ("scaling, paper", paper_sizes, _paper_steps),
        ):
            for size in outputs:
                journal.once({"of": of, "outputs": size}, functools.partial(_sized, step, X, size, nodes))


def _sized(step: Callable[..., Record], X: Array, D: int, nodes: int) -> Record:
    """Return what a measurement finds, with its numbers of rows and of nodes."""
    return {"rows": len(X), "nodes": nodes, **step(X, D, nodes)}


def _step(folder: str, X: Array, D: int, nodes: int) -> dict[str, float]:
    """Seconds of the pass over a memory-mapped file, of a sweep, of a bound with its gradient, of a prediction."""
    path, rng = Path(folder) / "Y.npy", np.random.default_rng(1)
    file: Any = np.lib.format.open_memmap(path, "w+", np.float32, (len(X), D))
    for first in range(0, D, 50_000):
        file[:, first : first + 50_000] = rng.standard_normal((len(X), min(50_000, D - first)), np.float32)
    del file
    begin = time.perf_counter()
    model = gpx.models.GPRNTensor(
        (X, path), gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential(), nodes
    )
    read = time.perf_counter() - begin
    updates = Updates(model, model.trainable_variables)
    found = {"pass": read, "sweep": _least(updates.sweep), "gradient": _least(updates.evaluate)}
    begin = time.perf_counter()
    mean, _ = model.predict_f(X[:10])
    assert np.isfinite(mean).all()
    return found | {"predict": time.perf_counter() - begin, "memory": _peak()}


def _tensor_step(X: Array, D: int, nodes: int) -> dict[str, float]:
    """Seconds and memory of a step of Adam on all outputs."""
    return {"step": _adam_step(X, D, nodes), "memory": _peak()}


def _adam_step(X: Array, D: int, nodes: int) -> float:
    """Return the least seconds of a step of Adam on the tensor posterior."""
    Y = np.random.default_rng(1).standard_normal((len(X), D))
    kernel, weight_kernel = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential()
    model = gpx.models.GPRNTensor((X, Y), kernel, weight_kernel, nodes, posterior="tensor")
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.01)
    times = gpx.fit(model, steps=12, optimizer=optimizer, progress=False).times
    return float(np.diff(times).min())


def _paper_steps(X: Array, D: int, nodes: int) -> dict[str, float]:
    """Return the seconds of a step of each of the paper's three variational methods, the mixture of two components."""
    rng = np.random.default_rng(1)
    Y, start = rng.standard_normal((len(X), D)), rng.standard_normal((len(X), nodes))
    model = methods.network(Task(X, Y, X[:1], Y[:1]), nodes)
    factorised, mixture = MeanField(model, X, Y, start), Mixture(model, X, Y, start, 2, 0)
    variables = [mixture.nodes, mixture.weights, mixture.log_scales, *model.trainable_variables]

    @tf.function(autograph=False)
    def gradient() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            bound = mixture.elbo()
        return tape.gradient(bound, variables, unconnected_gradients="zero")

    found = {"mixture": _least(gradient), "mean_field": _least(factorised.sweep)}
    return found | {"tensor": _adam_step(X, D, nodes)}


def _least(call: Callable[[], Any]) -> float:
    """Return the least seconds of some calls: what other processes take from this one only adds."""
    call()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _peak() -> float:
    """Largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def document(journal: Journal) -> list[str]:
    """Return what the journal holds, as Markdown."""
    passes = [r for r in journal.find(of="scaling") if "pass" in r]
    steps = [r for r in journal.find(of="scaling, tensor") if "step" in r]
    papers = [r for r in journal.find(of="scaling, paper") if "mixture" in r]
    lines = _passes(passes) if passes else []
    lines += _tensor(steps) if len(steps) > 1 else []
    return lines + (_papers(papers) if len(papers) > 1 else [])


def _passes(records: Sequence[Record]) -> list[str]:
    rows = [
        [
            f"{r['outputs']:,}",
            *(f"{r[key]:.3f}" for key in ("pass", "sweep", "gradient", "predict")),
            f"{r['memory']:.2f}",
        ]
        for r in records
    ]
    ratio = (records[-1]["sweep"] + records[-1]["gradient"]) / (records[0]["sweep"] + records[0]["gradient"])
    columns = ["outputs", "pass", "sweep", "bound and gradient", "prediction at 10 inputs", "peak GiB"]
    return [
        "## Seconds against the number of outputs\n",
        f"{_sizes(records)}, targets in a memory-mapped float32 file; sweep and gradient: the least of twenty.\n",
        report.table(columns, rows),
        f"A sweep and a gradient with the most outputs take {ratio:.2f} times what they take with the fewest.\n",
    ]


def _tensor(records: Sequence[Record]) -> list[str]:
    rows = [[f"{r['outputs']:,}", f"{r['step']:.3f}", f"{r['memory']:.2f}"] for r in records]
    return [
        report.table(["outputs", "step of Adam, tensor posterior", "peak GiB"], rows),
        f"Slope of log seconds against log outputs: {_slope(records, 'step'):.2f}; "
        f"from {records[-3:][0]['outputs']:,} outputs on: {_slope(records[-3:], 'step'):.2f}. "
        "Arrays that outgrow the caches are also returned to the system at every step.\n",
    ]


def _papers(records: Sequence[Record]) -> list[str]:
    rows = [[f"{r['outputs']:,}", *(f"{r[key]:.3f}" for key in _STEPS)] for r in records]
    slopes = ["slope of the logarithms", *(f"{_slope(records, key):.2f}" for key in _STEPS)]
    return [
        "The variational methods that the paper compares, on the same sizes in one run, "
        f"{_sizes(records)}. Their steps are not "
        "equally far: a sweep updates every factor in closed form, a step of Adam moves a little. By the paper's counts "
        "the fully factorised one costs O(NK²D), the mixture of Q components O(QN²KD), the tensor posterior O(NDK).\n",
        report.table(["outputs", *_STEPS.values()], [*rows, slopes]),
    ]


def _sizes(records: Sequence[Record]) -> str:
    """Return the numbers of rows and of nodes, those of the full form where a record names none."""
    return f"N = {records[0].get('rows', ROWS)}, K = {records[0].get('nodes', NODES)}"


def _slope(records: Sequence[Record], key: str) -> float:
    outputs, seconds = (np.log([r[name] for r in records]) for name in ("outputs", key))
    return float(np.polyfit(outputs, seconds, 1)[0])
