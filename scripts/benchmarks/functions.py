"""Functions of a posterior: CPU seconds of a million inputs, and the joint draws that they replace."""

from __future__ import annotations

import argparse
import functools
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
INDUCING, FUNCTIONS, WIDTH = 200, 100, 2
MILLION, JOINT = 10**6, 3000  # inputs of the functions, and of the joint draw
TARGETS = {"seconds": 10.0, "times": 50.0, "megabytes": 300.0}
TEXT = """\
S = {functions} functions of GPflow's `SVGP` (Bernoulli, squared exponential, {inducing} inducing points, {width} inputs) by
`gpx.sample_functions(svgp, {functions}, seed, num_features=F, dtype=...)`, at N inputs by `.numpy(X)`. CPU seconds of all threads, after
the first call, which draws and compiles; the best of the rounds, at a million inputs the only one. Memory is the growth of the process beyond the result of [S, N]. The joint
draw is GPflow's `predict_f_samples(X, {functions}, full_cov=True)` under `tf.function`; at a million inputs its covariance would
take 8 TB. Written by `python -m scripts.benchmarks functions`.
"""


def run(options: argparse.Namespace) -> list[Record]:
    """Time the functions at each size, and the joint draw."""
    import gpflow
    import tensorflow as tf

    import gpflow_ext as gpx

    rng = np.random.default_rng(0)
    Z, X = rng.uniform(-3.0, 3.0, [INDUCING, WIDTH]), rng.uniform(-3.0, 3.0, [max(options.sizes), WIDTH])
    kernel, likelihood = gpflow.kernels.SquaredExponential(2.0, [0.8, 1.5]), gpflow.likelihoods.Bernoulli()
    model = gpflow.models.SVGP(kernel, likelihood, Z, q_mu=rng.standard_normal([INDUCING, 1]))
    records = Shown()
    for dtype in (tf.float32, tf.float64):
        for features in (512, 1024):
            begin = time.process_time()
            draws = gpx.sample_functions(model, FUNCTIONS, 0, num_features=features, dtype=dtype)
            draws.numpy(X[:1])
            first = time.process_time() - begin
            for size in sorted({JOINT, *options.sizes}):
                before, inputs = _peak(), X[:size]
                call = functools.partial(draws.numpy, inputs)
                found = {"first": first, "cpu": _best(call, options.repeats if size < MILLION else 1)}
                if not any("megabytes" in each for each in records) and size >= MILLION:  # a peak falls never
                    result = FUNCTIONS * size * dtype.size / 2**20
                    found["megabytes"] = max(_peak() - before - result, 0.0)
                records.append(
                    {"by": "gpflow_ext", "dtype": dtype.name, "features": features, "size": size, **found}
                )
    rows = tf.constant(X[:JOINT])
    joint = tf.function(lambda: model.predict_f_samples(rows, FUNCTIONS, full_cov=True), autograph=False)
    begin = time.process_time()
    joint()
    first = time.process_time() - begin
    records.append(
        {
            "by": "GPflow",
            "dtype": "float64",
            "size": len(rows),
            "first": first,
            "cpu": _best(joint, options.repeats),
        }
    )
    return records


def _best(call: Callable[[], Any], rounds: int) -> float:
    found = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        found.append(time.process_time() - begin)
    return min(found)


def _peak() -> float:
    """Return the most memory that the process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("by", "dtype", "F", "N", "first call", "CPU s", "memory, MB")
    rows = [
        (
            record["by"], record["dtype"], str(record.get("features", "–")), f"{record['size']:,}",
            report.number(record["first"]), report.number(record["cpu"]),
            f"{record['megabytes']:.0f}" if "megabytes" in record else "–",
        )
        for record in records
    ]  # fmt: skip
    text = TEXT.format(functions=FUNCTIONS, inducing=INDUCING, width=WIDTH)
    parts = ["# Functions of a posterior\n", text, report.describe(where, "float32 and float64"), ""]
    return "\n".join([*parts, report.table(columns, rows), report.targets(verdicts(records))])


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    ours = {(each["dtype"], each.get("features"), each["size"]): each for each in records}
    million = ours.get(("float32", 512, MILLION))
    if million is not None:
        pairs = (("cpu", "seconds", "CPU seconds"), ("megabytes", "megabytes", "MB beyond the result"))
        for key, name, unit in pairs:
            value, most = million[key], TARGETS[name]
            found.append(
                (
                    f"a million inputs, float32, F = 512: {unit}",
                    f"{report.number(value)} of {most:g}",
                    value <= most,
                )
            )
    joint = next(each for each in records if each["by"] == "GPflow")
    for dtype, features in (("float32", 512), ("float64", 1024)):
        same = ours.get((dtype, features, joint["size"]))
        if same is not None:
            times = joint["cpu"] / same["cpu"]
            label = f"GPflow's joint draw at N = {joint['size']:,} over ours, {dtype}, F = {features}"
            found.append(
                (label, f"{report.number(times)} of {TARGETS['times']:g}", times >= TARGETS["times"])
            )
    return [(target, measured, "yes" if met else "no") for target, measured, met in found]
