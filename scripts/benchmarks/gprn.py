"""The benchmark of GPRNTensor: a training step against the number of outputs, beside GPflow's models of many outputs."""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.gprn.recipe import gprn as gprn_recipe
from gpflow_ext.gprn.updates import Updates
from gpflow_ext.training import lbfgs
from gpflow_ext.training.gradient_descent import gradient_descent

from ..shared import report
from . import timing

Array = npt.NDArray[Any]

ROWS, NODES, INPUTS = 100, 5, 3
OURS, TENSOR = "gpflow_ext, collapsed", "gpflow_ext, tensor normal"
GPR, LMC = "GPflow GPR, independent outputs", "GPflow SVGP, linear coregionalisation"
MOST = {TENSOR: 10_000, GPR: 100_000, LMC: 100_000}  # outputs that are measured
Records = list[dict[str, Any]]

TEXT = """\
N = {rows}, K = {nodes}, {inputs} inputs, random targets. A step is, for `collapsed`, one closed-form update of the nodes and
one evaluation of the bound with its gradient. For the others it is one evaluation with its gradient, by Adam for `tensor normal` and
`SVGP` (K latent functions, M = N inducing points). These are different models: `GPR` has independent outputs that share
one kernel, `SVGP` has correlations that do not change with the input. Targets of `collapsed` are a memory-mapped float32 file, read
once when the model is made: that pass has its own column. Medians of {repeats} interleaved steps; the share is that of the
operations per second of a {product} × {product} matrix product in the same rounds (a median of {rate:.0f} GFLOP/s).
"""


def run(options: argparse.Namespace) -> Records:
    """Measure all sizes."""
    shape = (20, 2) if options.quick else (ROWS, NODES)
    records = []
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            data = targets(Path(folder), shape[0], size)
            builders = {
                OURS: functools.partial(collapsed, *data, shape[1]),
                TENSOR: functools.partial(tensor, *data, shape[1]),
                GPR: functools.partial(independent, *data),
                LMC: functools.partial(coregionalised, *data, shape[1]),
            }
            chosen = {name: build for name, build in builders.items() if size <= MOST.get(name, size)}
            begin = time.perf_counter()
            network(*data, shape[1])
            passed = time.perf_counter() - begin
            for record in timing.interleaved(chosen, options.repeats, (OURS, TENSOR, GPR)):
                mine = {"pass": passed} if record["method"] == OURS else {}
                records.append({"table": "step", "outputs": size, "shape": shape, **record, **mine})
        print(f"D = {size}: done", flush=True)
    return records


def targets(folder: Path, rows: int, outputs: int) -> tuple[Array, Path]:
    """Return inputs, and the file with the targets."""
    rng, path = np.random.default_rng(0), folder / "Y.npy"
    file: Any = np.lib.format.open_memmap(path, "w+", np.float32, (rows, outputs))
    for begin in range(0, outputs, 50_000):
        file[:, begin : begin + 50_000] = rng.standard_normal(
            (rows, min(50_000, outputs - begin)), np.float32
        )
    del file
    return rng.uniform(-2.0, 2.0, (rows, INPUTS)), path


def network(
    X: Array, path: Path, nodes: int, posterior: Literal["collapsed", "tensor"] = "collapsed"
) -> gpx.models.GPRNTensor:
    """Return the untrained network."""
    kernel, weight_kernel = (
        gpflow.kernels.SquaredExponential(lengthscales=np.ones(INPUTS)) for _ in range(2)
    )
    return gpx.models.GPRNTensor((X, path), kernel, weight_kernel, nodes, posterior=posterior)


def collapsed(X: Array, path: Path, nodes: int) -> timing.Step:
    """Return a sweep with an evaluation of the bound and its gradient."""
    model = network(X, path, nodes)
    updates = Updates(model, model.trainable_variables)

    def step() -> None:
        updates.sweep()
        updates.evaluate()

    return step


def tensor(X: Array, path: Path, nodes: int) -> timing.Step:
    """Return a step of Adam on everything."""
    model = network(X, path, nodes, "tensor")
    return gprn_recipe(model, optimizer=tf_keras.optimizers.Adam(0.01)).update


def independent(X: Array, path: Path) -> timing.Step:
    """Return an evaluation of the evidence of GPflow's GPR and its gradient."""
    data = X, np.load(path).astype(np.float64)
    model = gpflow.models.GPR(data, gpflow.kernels.SquaredExponential(lengthscales=np.ones(INPUTS)))
    return lbfgs.Evaluation(model.training_loss, model.trainable_variables)


def coregionalised(X: Array, path: Path, nodes: int) -> timing.Step:
    """Return a step of Adam for GPflow's SVGP with linear coregionalisation."""
    Y = tf.constant(np.load(path).astype(np.float64))
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=np.ones(INPUTS)) for _ in range(nodes)]
    mixing = np.random.default_rng(1).standard_normal((Y.shape[1], nodes))
    model = gpflow.models.SVGP(
        gpflow.kernels.LinearCoregionalization(kernels, mixing),
        gpflow.likelihoods.Gaussian(),
        gpflow.inducing_variables.SharedIndependentInducingVariables(
            gpflow.inducing_variables.InducingPoints(X)
        ),
        num_latent_gps=nodes,
    )
    gpflow.set_trainable(model.inducing_variable, False)
    optimizer = tf_keras.optimizers.Adam(0.01)
    return gradient_descent(model, (X, Y.numpy()), optimizer=optimizer).update


def document(where: dict[str, Any], records: Records) -> str:
    """Return the report."""
    rows, nodes = records[0]["shape"]
    text = TEXT.format(
        rows=rows,
        nodes=nodes,
        inputs=INPUTS,
        repeats=len(records[0]["seconds"]),
        product=f"{timing.PRODUCT_SIZE:,}",
        rate=report.median([record["rate"] for record in records]) / 1e9,
    )
    heading = f"{report.describe(where)} Written by `python -m scripts.benchmarks gprn`.\n"
    return "\n".join(["# GPRNTensor: a step against the number of outputs\n", heading, text, _table(records)])


def _table(records: Records) -> str:
    ours = {
        record["outputs"]: report.median(record["seconds"]) for record in records if record["method"] == OURS
    }
    rows = [
        [
            f"{record['outputs']:,}",
            record["method"],
            report.number(record["pass"]) if "pass" in record else "",
            report.number(record["first_call"]),
            report.number(report.median(record["seconds"])),
            report.number(report.median(record["seconds"]) / ours[record["outputs"]], 2),
            f"{record['flops'] / report.median(record['seconds']) / record['rate']:.0%}"
            if record["flops"]
            else "",
        ]
        for record in records
    ]
    columns = (
        "D",
        "method",
        "pass, s",
        "first call, s",
        "step, s",
        "times ours",
        "share of the product's rate",
    )
    return report.table(columns, rows)
