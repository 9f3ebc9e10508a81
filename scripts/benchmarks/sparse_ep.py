"""The benchmark of SparseEP: convergence of the sites, the cost of a sweep and that of a minibatch step."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import gpflow
import numpy as np
import scipy.linalg
import scipy.special
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.recipe import ep
from gpflow_ext.sites import Sites
from gpflow_ext.training.gradient_descent import gradient_descent

from ..shared import report
from . import timing
from .kmm import drawn

ROWS, INDUCING = 2000, 100  # of the fixed problem
LARGE_INDUCING, MINIBATCH, INPUTS, STEPS = 200, 200, 8, 30  # of the minibatch steps
TOLERANCE = 1e-6  # change of a site, relative to 1 + |prec|, that counts as converged
Records = list[dict[str, Any]]

TEXT = """\
## Fixed hyperparameters

N = {rows:,}, M = {inducing}, ten inputs, probit, sites from zero until none changes by more than 1e-6 relative to 1 + |prec|.
`One site at a time` is a NumPy loop with rank-one updates of the M × M covariance, factorised afresh after each sweep;
both end at the same log Z. Median of {repeats} runs after an untimed call; the loop runs once.
"""

COSTS = """\
## One sweep

The same problem. A sweep at fixed hyperparameters consists of a product [M, N] × [N, M], a Cholesky factorisation of
M × M, a triangular solve of N columns, and elementwise work on N sites; `with hyperparameters` adds K_uf, its
triangular solve and the gradient.
"""

STOCHASTIC = """\
## A minibatch step

M = {inducing}, minibatches of {minibatch}, {inputs} inputs, drawn at random, hyperparameters and inducing inputs learnt by ADADELTA in both.
SVGP is GPflow's, with the same probit, and GPyTorch's where it is installed. Milliseconds are medians over {steps} interleaved steps; the first one, with compilation, is
a column of its own. The share is that of the operations per second of a {product} × {product} matrix product in the same rounds.
"""


def run(options: argparse.Namespace) -> Records:
    """Measure all three."""
    data = drawn(400 if options.quick else ROWS)
    inducing = min(INDUCING, len(data[0]) // 4)
    records = [fixed(data, inducing, options.repeats), costs(data, inducing, options.repeats)]
    for size in options.sizes:
        records += stochastic(size)
        print(f"N = {size}: done", flush=True)
    return records


def model_of(data: tuple[Any, Any], inducing: int) -> gpx.models.SparseEP:
    """Return the model of the fixed problem: the first rows are the inducing points."""
    kernel = gpflow.kernels.SquaredExponential(variance=7.0, lengthscales=4.5)
    likelihood = gpx.likelihoods.BernoulliProbit()
    return gpx.models.SparseEP(data, kernel, likelihood, inducing_variable=data[0][:inducing].copy())


def fixed(data: tuple[Any, Any], inducing: int, repeats: int) -> dict[str, Any]:
    """Time the sites to convergence, in parallel and one at a time."""
    model = model_of(data, inducing)
    matcher = MomentMatcher(model, model.trainable_variables, None, None, None)
    zeros = tf.zeros_like(model.nat1)
    sweeps = 0

    def parallel() -> float:
        nonlocal sweeps
        model.assign_sites(Sites(zeros, zeros))
        begin = time.perf_counter()
        _, violation = matcher.start()
        sweeps = 0
        while violation > TOLERANCE and sweeps < 200:
            _, violation = matcher.step()
            sweeps += 1
        return time.perf_counter() - begin

    begin = time.perf_counter()
    parallel()
    first_call = time.perf_counter() - begin
    seconds = [parallel() for _ in range(repeats)]
    objective = float(model.log_evidence())
    begin = time.perf_counter()
    sites, sequential_sweeps = one_at_a_time(model)
    sequential = time.perf_counter() - begin
    model.assign_sites(sites)
    return {
        "table": "fixed",
        "rows": len(data[0]),
        "inducing": inducing,
        "repeats": repeats,
        "first_call": first_call,
        "seconds": seconds,
        "sweeps": sweeps,
        "objective": objective,
        "sequential_seconds": sequential,
        "sequential_sweeps": sequential_sweeps,
        "sequential_objective": float(model.log_evidence()),
    }


def one_at_a_time(model: gpx.models.SparseEP) -> tuple[Sites, int]:
    """Return the sites of sequential expectation propagation for a probit without a mean, and the sweeps. O(NM²)."""
    prior = model.prior()
    A, residual = prior.A.numpy()[0], prior.residual.numpy()[:, 0]
    sign = 2.0 * model.data[1].numpy()[:, 0] - 1.0
    M, N = A.shape
    nat1, prec, C, h = np.zeros(N), np.zeros(N), np.eye(M), np.zeros(M)
    change, sweeps = np.inf, 0
    while change > TOLERANCE and sweeps < 200:
        change, sweeps = 0.0, sweeps + 1
        for n in range(N):
            Ca = C @ A[:, n]
            v, m = A[:, n] @ Ca, Ca @ h
            ratio = 1.0 - prec[n] * v
            cavity_mean, cavity_var = (m - nat1[n] * v) / ratio, v / ratio
            total = 1.0 + residual[n] + cavity_var
            z = sign[n] * cavity_mean / np.sqrt(total)
            slope = (
                sign[n]
                / np.sqrt(total)
                * np.exp(-0.5 * z**2 - 0.5 * np.log(2 * np.pi) - scipy.special.log_ndtr(z))
            )
            bend = slope**2 + slope * cavity_mean / total
            shrinkage = 1.0 - bend * cavity_var
            new_prec, new_nat1 = bend / shrinkage, (slope + bend * cavity_mean) / shrinkage
            step = new_prec - prec[n]
            change = max(change, max(abs(step), abs(new_nat1 - nat1[n])) / (1.0 + abs(prec[n])))
            C -= step / (1.0 + step * v) * np.outer(Ca, Ca)
            h += (new_nat1 - nat1[n]) * A[:, n]
            prec[n], nat1[n] = new_prec, new_nat1
        factor = scipy.linalg.cho_factor(np.eye(M) + (A * prec) @ A.T)
        C, h = scipy.linalg.cho_solve(factor, np.eye(M)), A @ nat1
    return Sites(tf.constant(nat1[:, None]), tf.constant(prec[:, None])), sweeps


def costs(data: tuple[Any, Any], inducing: int, repeats: int) -> dict[str, Any]:
    """Time a sweep beside the products and factorisations that it is made of."""
    model = model_of(data, inducing)
    A = model.prior().A[0]
    B = tf.eye(inducing, dtype=A.dtype) + tf.matmul(A, A, transpose_b=True)
    L = tf.linalg.cholesky(B)
    parts = {
        "product": tf.function(lambda: tf.matmul(A, A, transpose_b=True)),
        "Cholesky": tf.function(lambda: tf.linalg.cholesky(B)),
        "solve": tf.function(lambda: tf.linalg.triangular_solve(L, A)),
    }
    runs: dict[str, Callable[[], Any]] = {
        name: functools.partial(lambda part: part().numpy(), part) for name, part in parts.items()
    }
    runs["sweep"] = MomentMatcher(model, model.trainable_variables, None, None, None).step
    learning = model_of(data, inducing)
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.001)
    optimizer.build(learning.trainable_variables)
    runs["with hyperparameters"] = MomentMatcher(
        learning, learning.trainable_variables, optimizer, None, None
    ).step
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(2 + 5 * repeats):
        for name, call in runs.items():
            begin = time.perf_counter()
            call()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - begin)
    return {"table": "costs", "rows": len(data[0]), "inducing": inducing, "seconds": seconds}


def stochastic(size: int) -> Records:
    """Time the minibatch steps of SparseEP and of SVGP on ``size`` rows."""
    rng = np.random.default_rng(size)
    X = rng.standard_normal((size, INPUTS))
    Y = (X[:, :1] * X[:, 1:2] + 0.5 * rng.standard_normal((size, 1)) > 0.0).astype(float)
    count, batch = min(LARGE_INDUCING, size // 4), min(MINIBATCH, size // 4)
    Z, probit = X[:count].copy(), gpx.likelihoods.BernoulliProbit

    def options() -> dict[str, Any]:
        adadelta = gpflow.keras.tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-5)
        return {"minibatch_size": batch, "optimizer": adadelta, "seed": 0}

    def kernel() -> gpflow.kernels.Kernel:
        return gpflow.kernels.SquaredExponential(lengthscales=np.full(INPUTS, 2.0))

    def sparse_ep() -> timing.Step:
        model = gpx.models.SparseEP((X, Y), kernel(), probit(), inducing_variable=Z.copy())
        return ep(model, **options()).update

    def svgp() -> timing.Step:
        model = gpflow.models.SVGP(kernel(), probit(), Z.copy(), num_data=size)
        return gradient_descent(model, (X, Y), **options()).update

    def gpytorch() -> timing.Step:
        from . import peer_gpytorch

        return peer_gpytorch.step((X, Y), Z, 2.0, batch, 0)

    builders = {"SparseEP": sparse_ep, "GPflow SVGP": svgp}
    if importlib.util.find_spec("gpytorch") is not None:
        builders["GPyTorch SVGP"] = gpytorch
    shape = {"rows": size, "inducing": count, "minibatch": batch}
    return [
        {"table": "stochastic", **shape, **record}
        for record in timing.interleaved(builders, STEPS, ("SparseEP",))
    ]


def document(where: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the whole result as Markdown."""
    one = next(record for record in records if record["table"] == "fixed")
    parts = [
        "# SparseEP: speed\n",
        report.describe(where) + " Written by `python -m scripts.benchmarks sparse_ep`.\n",
    ]
    parts += [TEXT.format(**one), _fixed_table(one)]
    parts += [COSTS, _costs_table(next(record for record in records if record["table"] == "costs"))]
    steps = [record for record in records if record["table"] == "stochastic"]
    if steps:
        text = STOCHASTIC.format(
            inducing=LARGE_INDUCING,
            minibatch=MINIBATCH,
            inputs=INPUTS,
            steps=STEPS,
            product=f"{timing.PRODUCT_SIZE:,}",
        )
        parts += [text, _stochastic_table(steps)]
    return "\n".join(parts)


def _stochastic_table(records: Sequence[dict[str, Any]]) -> str:
    ours = {
        record["rows"]: report.median(record["seconds"])
        for record in records
        if record["method"] == "SparseEP"
    }
    rows = []
    for record in records:
        seconds = report.median(record["seconds"])
        share = f"{record['flops'] / seconds / record['rate']:.0%}" if record["flops"] else ""
        times = [report.number(1e3 * seconds), f"{seconds / ours[record['rows']]:.2f}", share]
        rows.append([f"{record['rows']:,}", record["method"], report.number(record["first_call"]), *times])
    return report.table(("N", "method", "first call, s", "ms", "times ours", "share"), rows)


def _fixed_table(record: dict[str, Any]) -> str:
    ours, loop = report.median(record["seconds"]), record["sequential_seconds"]
    rows = [
        [
            "gpflow_ext, parallel sweeps",
            report.number(record["first_call"]),
            report.number(ours),
            "1",
            str(record["sweeps"]),
            f"{record['objective']:.6f}",
        ],
        [
            "one site at a time",
            "",
            report.number(loop),
            report.number(loop / ours),
            str(record["sequential_sweeps"]),
            f"{record['sequential_objective']:.6f}",
        ],
    ]
    return report.table(("method", "first call, s", "s", "times ours", "sweeps", "log Z"), rows)


def _costs_table(record: dict[str, Any]) -> str:
    seconds = {name: report.median(values) for name, values in record["seconds"].items()}
    parts = sum(seconds[name] for name in ("product", "Cholesky", "solve"))
    rows = [
        [name, report.number(1e3 * value), f"{value / parts:.2f}"]
        for name, value in {**seconds, "product + Cholesky + solve": parts}.items()
    ]
    return report.table(("what", "ms", "/ product + Cholesky + solve"), rows)
