"""State-space priors: a sweep, Laplace's method and variational inference against the number of counts."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
METHODS = ("GPLaplace", "VGPKMM")
PEER = "BAYESNEWTON_PYTHON"  # names the interpreter of an environment with BayesNewton
GAIN = 1e-8  # relative, of an iteration of the peer, that ends it: what `fit` calls none
ROUNDS = 3
TARGETS = {"sweep": 0.25, "GPLaplace": 4.0, "VGPKMM": 8.0}  # CPU seconds at a million
MILLION = 10**6
NEW = 1000  # times that are predicted
SLOPE, ALLOWED = 1.0, 0.05


def counts(size: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return times [N, 1], a hundred to a length scale of one, and counts about exp(sin t/3 + ½ sin 2.1t)."""
    X = 0.01 * np.arange(size, dtype=float)[:, None]
    rate = np.exp(np.sin(X / 3.0) + 0.5 * np.sin(2.1 * X))
    return X, np.random.default_rng(0).poisson(rate).astype(float)


def run(options: argparse.Namespace) -> list[Record]:
    """Time everything at each size."""
    records = Shown()
    for size in options.sizes:
        data = counts(size)
        records.append({"size": size, "method": "sweep", "by": "gpflow_ext", **sweep(data)})
        for method in METHODS:
            records.append({"size": size, "method": method, "by": "gpflow_ext", **ours(method, data)})
        records.append({"size": size, "method": "predictions", "by": "gpflow_ext", **predictions(data)})
        for record in peer(data, options.cap):
            records.append({"size": size, "by": "BayesNewton", **record})
    return records


def best_of(call: Callable[[], Any]) -> Record:
    """Return wall and CPU seconds of the round with the least CPU seconds."""
    found = []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        found.append({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})
    return min(found, key=lambda each: each["cpu"])


def model_of(method: str, data: Any) -> Any:
    """Return a model with its hyperparameters held."""
    import gpflow

    import gpflow_ext as gpx

    kernel, likelihood = gpflow.kernels.Matern32(), gpflow.likelihoods.Poisson()
    model = getattr(gpx.models, method)(data, kernel, likelihood, prior="markov")
    gpflow.set_trainable(model, False)
    return model


def sweep(data: Any) -> Record:
    """Time α, Σα, the marginal variances and the log determinant for given precisions, under XLA.

    And the gradient of the log normaliser in the hyperparameters, the prior built again.
    """
    import gpflow
    import tensorflow as tf

    from gpflow_ext.sites import Sites, condition

    model = model_of("VGPKMM", data)
    gpflow.set_trainable(model.kernel, True)
    sites = Sites(tf.sin(tf.constant(data[0])), tf.ones_like(tf.constant(data[0])))
    swept = tf.function(condition, jit_compile=True, autograph=False)

    @tf.function(jit_compile=True, autograph=False)
    def gradient(sites: Sites) -> Any:
        with tf.GradientTape() as tape:
            value = model.prior().log_normaliser(sites)
        return tape.gradient(value, model.trainable_variables)

    prior = tf.function(model.prior, jit_compile=True, autograph=False)()
    begin = time.perf_counter()
    swept(prior, sites).kl.numpy()
    first = time.perf_counter() - begin
    once = best_of(lambda: swept(prior, sites).kl.numpy())
    gradient(sites)
    return {"first": first, **once, "gradient": best_of(lambda: [part.numpy() for part in gradient(sites)])}


def ours(method: str, data: Any) -> Record:
    """Time fits of new models, after the first, which compiles."""
    import gpflow_ext as gpx

    found: Record = {}

    def fit() -> None:
        result = gpx.fit(model_of(method, data), progress=False)
        found.update(
            steps=len(result.objective), objective=float(result.objective[-1]), status=result.status.name
        )

    begin = time.perf_counter()
    fit()
    return {"first": time.perf_counter() - begin, **best_of(fit), **found}


def predictions(data: Any) -> Record:
    """Time predictions of a trained model, with all that they need of the data."""
    import gpflow_ext as gpx

    model, new = model_of("GPLaplace", data), np.linspace(0.0, data[0][-1], NEW)
    gpx.fit(model, progress=False)

    def predict() -> None:
        model.predict_f(new)[0].numpy()

    begin = time.perf_counter()
    predict()
    return {"first": time.perf_counter() - begin, **best_of(predict)}


def peer(data: Any, cap: float) -> list[Record]:
    """Return BayesNewton's records, none where no interpreter with it is named or it takes too long."""
    python = os.environ.get(PEER)
    if not python:
        return []
    script = Path(__file__).with_name("peer_bayesnewton.py")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.npz"
        np.savez(file, X=data[0], Y=data[1], gain=GAIN)
        try:
            run = subprocess.run(
                [python, str(script), str(file)],
                capture_output=True,
                text=True,
                check=True,
                timeout=10.0 * cap,
            )
        except subprocess.TimeoutExpired:
            return []
    return [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("N", "", "by", "first", "CPU s", "wall s", "steps", "objective")
    rows = [
        (
            f"{record['size']:,}", record["method"], record["by"],
            *(report.number(record[name]) for name in ("first", "cpu", "wall")),
            str(record.get("steps", "–")), f"{record['objective']:.3f}" if "objective" in record else "–",
        )
        for record in records
    ]  # fmt: skip
    peers = any(record["by"] == "BayesNewton" for record in records)
    named = (
        "BayesNewton 1.3.4 runs under JAX 0.4.13 in an environment of its own, iterations of length one until the energy "
        f"changes by {GAIN:g} of it; its energy of Laplace's method is its own."
        if peers
        else f"BayesNewton was not run: {PEER} named no interpreter that has it."
    )
    return "\n".join([
        "# State space\n",
        "![CPU seconds of a second fit against the number of data](benchmark_state_space.png)\n",
        'Counts at N regular times, a hundred to a length scale, with `prior="markov"`, Matérn-3/2 and Poisson; '
        "hyperparameters are fixed. A sweep computes α, Σα, marginal variances and the log determinant at given "
        "precisions. The other rows are whole fits of new models, as a user pays for them: the best of three after "
        "the first, which compiles, under XLA from 5,000 data upwards. CPU seconds are those of all threads; where "
        "the load exceeds the cores, wall seconds are those of a busy machine. Predictions are those of a trained "
        f"model at {NEW:,} new times, the passes over its data included. "
        f"{named} Written by `python -m scripts.benchmarks state_space`.\n",
        report.describe(where).replace(", no XLA.", "."),
        "",
        report.table(columns, rows),
        report.targets(verdicts(records)),
    ])  # fmt: skip


def slope(records: Sequence[Record], method: str) -> float | None:
    """Return that of log CPU seconds over log N from 100,000 data on, where XLA compiles all."""
    found = [
        (record["size"], record["cpu"])
        for record in records
        if record["method"] == method and record["by"] == "gpflow_ext" and record["size"] >= 10**5
    ]
    if len(found) < 2:
        return None
    sizes, seconds = np.log(np.array(found)).T
    return float(np.polyfit(sizes, seconds, 1)[0])


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    at = {(record["method"], record["by"]): record for record in records if record["size"] == MILLION}
    for method, most in TARGETS.items():
        record = at.get((method, "gpflow_ext"))
        if record is None:
            continue
        met = record["cpu"] <= most
        found.append(
            (f"{method}, N = 1,000,000: CPU seconds", f"{report.number(record['cpu'])} of {most:g}", met)
        )
        other = at.get((method, "BayesNewton"))
        if other is not None:
            ratio = other["cpu"] / record["cpu"]
            found.append(
                (
                    f"{method}, N = 1,000,000: BayesNewton's over ours",
                    f"{report.number(ratio)} of 1",
                    ratio >= 1,
                )
            )
    once = at.get(("sweep", "gpflow_ext"))
    if once is not None:
        ratio = once["gradient"]["cpu"] / once["cpu"]
        found.append(
            ("gradient in the hyperparameters, in sweeps", f"{report.number(ratio)} of 3", ratio <= 3.0)
        )
    for method in TARGETS:
        value = slope(records, method)
        if value is not None:
            met = abs(value - SLOPE) <= ALLOWED
            found.append(
                (f"{method}: slope of log CPU seconds", f"{value:.3f} of {SLOPE:g} ± {ALLOWED:g}", met)
            )
    return [(target, measured, "yes" if met else "no") for target, measured, met in found]
