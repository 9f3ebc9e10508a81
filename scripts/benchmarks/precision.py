"""Precision: one step of GPR and of Laplace's method in float64, in float32, and with products in float32 alone."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import SquaredExponential
from gpflow.utilities.ops import square_distance

import gpflow_ext as gpx
from gpflow_ext.sites import site_method
from gpflow_ext.training import lbfgs
from gpflow_ext.training.site_iteration import SiteOptimum

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
Outcome = tuple[float, Sequence[tf.Tensor]]
FORMS = ("float64", "float32", "mixed")
METHODS = ("GPR", "GPLaplace")
WIDTH, NOISE, JITTER, UPDATES = 8, 0.1, 1e-5, 200
LITTLE = (0.9, 1.15)  # times as fast that count as no gain
TEXT = """\
N = {sizes} standard normal inputs of {width} columns, a squared exponential kernel of length scale 2; targets with noise of variance
{noise} for GPflow's `GPR`, binary ones with the logit for `GPLaplace`, whose step finds the mode from zero. A step is the log marginal
likelihood with its gradient, as L-BFGS asks for it. `mixed` takes the products of the Gram matrix in float32, and all else in float64:
the rest of the kernel, factorisations and solutions. CPU seconds of all threads, after the first call, which compiles; the median of the rounds.
Errors are those beside float64, of the gradient the largest, relative to its largest element. Jitter {jitter:g}. `Gram` is the Gram
matrix with its gradient alone. Written by `python -m scripts.benchmarks precision`.
"""


class SingleProducts(SquaredExponential):
    """A squared exponential whose distances are computed in float32, whatever the precision of all else."""

    def scaled_squared_euclid_dist(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        """Return the squares of scaled distances."""
        X, X2 = (None if each is None else tf.cast(self.scale(each), tf.float32) for each in (X, X2))
        return tf.cast(square_distance(X, X2), gpflow.default_float())


@contextlib.contextmanager
def computing_in(form: str) -> Iterator[None]:
    """Let GPflow use the float type of a form."""
    kind = np.float32 if form == "float32" else np.float64
    with gpflow.config.as_context(gpflow.config.Config(float=kind, jitter=JITTER)):
        yield


def problem(size: int) -> tuple[Any, Any, Any]:
    """Return inputs [N, D], real targets and binary ones, each [N, 1]."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal([size, WIDTH])
    f = np.sin(X @ rng.standard_normal([WIDTH, 3]) / 2.0).sum(axis=1, keepdims=True)
    Y = f + np.sqrt(NOISE) * rng.standard_normal([size, 1])
    return X, Y, (rng.uniform(size=[size, 1]) < 1.0 / (1.0 + np.exp(-3.0 * f))).astype(float)


def step_of(method: str, form: str, size: int) -> Callable[[], Outcome]:
    """Return a step of a new model."""
    X, *targets = (part.astype(gpflow.default_float()) for part in problem(size))
    kernel = (SingleProducts if form == "mixed" else SquaredExponential)(lengthscales=2.0)
    if method == "Gram":
        return lbfgs.Evaluation(
            lambda: tf.reduce_sum(kernel(tf.constant(X)) ** 2), kernel.trainable_variables
        )
    if method == "GPR":
        model = gpflow.models.GPR((X, targets[0]), kernel, noise_variance=NOISE)
        return lbfgs.Evaluation(model.training_loss, model.trainable_variables)
    return _laplace(gpx.models.GPLaplace((X, targets[1]), kernel, gpx.likelihoods.BernoulliLogit()))


def _laplace(model: gpx.models.GPLaplace) -> Callable[[], Outcome]:
    method = site_method(model.site_method)
    optimum, none = SiteOptimum(model, method, model.trainable_variables), model.sites

    def step() -> Outcome:
        model.assign_sites(none)
        found = optimum.evaluate(UPDATES, method.stationarity())
        return found.objective, found.gradient

    return step


def run(options: argparse.Namespace) -> list[Record]:
    """Time all forms in turn, and compare what they return."""
    records = Shown()
    for size in options.sizes:
        for method in (*METHODS, "Gram"):
            for record in compared(method, size, options.repeats):
                records.append({"step": method, "size": size, **record})
    return records


def compared(method: str, size: int, repeats: int) -> list[Record]:
    """Return a record for each form of a step."""
    steps: dict[str, Callable[[], Outcome]] = {}
    outcomes: dict[str, Outcome] = {}
    found: dict[str, Record] = {}
    for form in FORMS:
        with computing_in(form):
            steps[form] = step_of(method, form, size)
            found[form] = {"form": form, "first": _seconds(steps[form])[0], "seconds": []}
    for _ in range(repeats):
        for form, step in steps.items():
            with computing_in(form):
                seconds, outcomes[form] = _seconds(step)
                found[form]["seconds"].append(seconds)
    value, gradient = outcomes["float64"]
    exact = np.array([float(part) for part in gradient])
    for form, (other, parts) in outcomes.items():
        slope = np.array([float(part) for part in parts])
        found[form]["error"] = abs(other - value)
        found[form]["slope"] = float(np.max(np.abs(slope - exact)) / np.max(np.abs(exact)))
    return list(found.values())


def _seconds(step: Callable[[], Outcome]) -> tuple[float, Outcome]:
    begin = time.process_time()
    outcome = step()
    return time.process_time() - begin, outcome


def cost(records: Sequence[Record], step: str, form: str) -> float:
    """Return the seconds of a step."""
    return next(report.median(r["seconds"]) for r in records if (r["step"], r["form"]) == (step, form))


def judged(ratios: Sequence[float]) -> tuple[str, str, str]:
    """Return in words what steps gain that are as many times as fast, how their parts bear on it, and at what cost."""
    low, high = LITTLE
    if all(low <= ratio <= high for ratio in ratios):
        return "gain little", "since", "still cost"
    gain = "gain" if min(ratios) > high else "lose" if max(ratios) < low else "gain or lose by the method"
    return gain, "where", "cost"


def verdict(records: Sequence[Record]) -> str:
    """Return what the guide says, in two sentences."""
    pick = {(r["step"], r["form"]): r for r in records}
    times = [cost(records, step, "float64") / cost(records, step, "float32") for step in METHODS]
    mixed = [cost(records, step, "float64") / cost(records, step, "mixed") for step in METHODS]
    errors = [[report.number(pick[step, form]["error"], 2) for step in METHODS] for form in FORMS[1:]]
    gain, since, cost_of = judged(mixed)
    share = max(cost(records, "Gram", "float64") / cost(records, step, "float64") for step in METHODS)
    return (
        f"With {pick['GPR', 'float64']['size']:,} rows on a CPU, float32 makes a step of `GPR` {times[0]:.1f} and one of `GPLaplace` "
        f"{times[1]:.1f} times as fast, at errors of the log marginal likelihood of {errors[0][0]} and {errors[0][1]}. Products of the Gram "
        f"matrix in float32 with factorisations in float64 {gain} there, {mixed[0]:.2f} and {mixed[1]:.2f} times, {since} the whole "
        f"Gram matrix is at most {share:.0%} of a step, and {cost_of} errors of {errors[1][0]} and {errors[1][1]}."
    )


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("step", "N", "form", "first call", "CPU s", "times as fast", "error", "error of the gradient")
    rows = [
        (
            r["step"], f"{r['size']:,}", r["form"], report.number(r["first"]), report.number(report.median(r["seconds"])),
            f"{cost(_of(records, r), r['step'], 'float64') / report.median(r['seconds']):.2f}",
            *(("–", "–") if r["form"] == "float64" else (report.number(r["error"]), report.number(r["slope"]))),
        )
        for r in records
    ]  # fmt: skip
    sizes = " and ".join(f"{size:,}" for size in dict.fromkeys(r["size"] for r in records))
    text = TEXT.format(sizes=sizes, width=WIDTH, noise=NOISE, jitter=JITTER)
    parts = ["# Precision of a step\n", text, report.describe(where, "float32 and float64"), ""]
    last = [r for r in records if r["size"] == records[-1]["size"]]
    return "\n".join([*parts, report.table(columns, rows), "## Verdict\n", verdict(last), ""])


def _of(records: Sequence[Record], record: Record) -> list[Record]:
    return [each for each in records if each["size"] == record["size"]]
