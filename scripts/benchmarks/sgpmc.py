"""The benchmark of SGPMCFreeForm: effective draws in a second, and gradients, beside GPflow's SGPMC with TFP's HMC."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics import grids, philox
from gpflow_ext.sampling import diagnostics

from ..experiments.sgpmc import coal as accidents
from ..experiments.sgpmc import runs
from .sgpmc_page import (
    BURN_IN,
    CHAINS,
    INPUTS,
    LEAPFROGS,
    NUTS_SHARE,
    OURS,
    TARGET,
    Records,
    Sizes,
    document,
)
from .timing import Builder, interleaved

__all__ = ["document", "run"]

FULL, QUICK = (
    Sizes(1000, 100, 64, 15, 500, 12, 1000, 20),
    Sizes(40, 8, 8, 3, 40, 3, 40, 3),
)


def run(options: argparse.Namespace) -> Records:
    """Measure the problems of the options; what --out holds of the others is kept."""
    sizes = QUICK if options.quick else FULL
    problems: dict[str, Callable[[], SGPMCFreeForm]] = {
        "coal": coal,
        "binary": lambda: binary(sizes.rows, sizes.binary),
        "grid": lambda: grid(sizes.side, sizes.axis),
    }
    wanted = options.problems or list(problems)
    records, found = [], before(options.out) if options.problems else {}
    for name, build in problems.items():
        if name not in wanted:
            records += found.get(name, [])
            continue
        model = build()
        gpx.gaussian_approximation(model, free_inducing=False)
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        own: Records = []
        for record in interleaved(gradients(model, sizes.calls), options.repeats, OURS):
            record["seconds"] = [second / sizes.calls for second in record["seconds"]]
            record["flops"] = record["flops"] and record["flops"] / sizes.calls
            own.append({**record, "table": "gradient"})
        print(f"{name}: gradients done", flush=True)
        own += [{"table": "ess", **ours(model, sizes, chains)} for chains in (CHAINS, 1)]
        if name != "grid":  # its dense matrices would take an hour
            own += [{"table": "ess", **theirs(model, sizes)} for theirs in (gpflows, *others())]
        print(f"{name}: sampling done", flush=True)
        facts = {"problem": name, "date": date, "sizes": sizes._asdict(), "repeats": options.repeats}
        records += [{**record, **facts} for record in own]
    return records


def before(path: Path) -> dict[str, Records]:
    """Return what a page holds already, by problem."""
    lines = path.with_suffix(".jsonl").read_text("utf-8").splitlines()
    where, *records = map(json.loads, lines)
    found: dict[str, Records] = {}
    for record in records:
        dated = {"date": where["environment"]["date"], **record}
        found.setdefault(record["problem"], []).append(dated)
    return found


def others() -> list[Callable[[SGPMCFreeForm, Sizes], dict[str, Any]]]:
    """Return how other libraries sample, those that are installed."""
    if importlib.util.find_spec("numpyro") is None:
        return []
    from . import peer_numpyro

    return [lambda model, sizes: peer_numpyro.sample(model, BURN_IN, sizes.theirs // NUTS_SHARE)]


def coal() -> SGPMCFreeForm:
    """Return the model of the first split of the coal-mining data."""
    X, train, _, width = accidents.counts(accidents.dates(), 0)
    return accidents.build(X, train, width)


def binary(rows: int, inducing: int) -> SGPMCFreeForm:
    """Return a classifier with a length scale for each input, its data drawn from the model."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((rows, INPUTS))
    lengthscales = np.where(np.arange(INPUTS) < 3, 1.5, 20.0)  # three inputs matter
    truth = gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=lengthscales)
    f = np.linalg.cholesky(truth(X) + 1e-6 * np.eye(rows)) @ rng.standard_normal((rows, 1))
    Y = (f + rng.standard_normal((rows, 1)) > 0.0).astype(float)
    Z = gpx.inducing.kmeans(X, inducing, seed=0)
    start = runs.kernel(np.full(INPUTS, 4.0), (2.0, 0.3), (1.0, 0.3))
    return SGPMCFreeForm((X, Y), start, gpx.likelihoods.BernoulliProbit(), inducing_variable=Z)


def grid(side: int, axis: int) -> SGPMCFreeForm:
    """Return a log Gaussian Cox process on a square with a few hundred events."""
    rng = np.random.default_rng(2)
    axes = (np.arange(side) + 0.5) * 10.0 / side
    X = grids.grid(axes, axes)
    rate = np.exp(0.3 + np.sin(X[:, :1]) + np.cos(0.7 * X[:, 1:]))
    Y = rng.poisson(rate * (10.0 / side) ** 2).astype(float)
    likelihood = gpflow.likelihoods.Poisson(binsize=(10.0 / side) ** 2)
    inducing = (np.arange(axis) + 0.5) * 10.0 / axis
    Z = grids.grid(inducing, inducing)
    return SGPMCFreeForm((X, Y), runs.kernel(1.0, (1.75, 1.0), (1.2, 1.0)), likelihood, inducing_variable=Z)


def gradients(model: SGPMCFreeForm, calls: int) -> dict[str, Builder]:
    """Return makers of what evaluates each density a number of times."""
    where = gpx.coordinates.Conditional() if model.structure is None else gpx.coordinates.Rescaled()
    target, start = where.place(model.sampleable())
    found = {}
    for chains in (1, CHAINS):
        z = start(philox.normal([chains, target.num_dimensions], [0, 0], tf.float64))
        found[OURS[chains > 1]] = repeated(target, [z], calls)
    helper = helper_of(sgpmc(model))
    found["GPflow, 1 chain"] = repeated(helper.target_log_prob_fn, helper.current_state, calls)
    return found


def repeated(function: Callable[..., tf.Tensor], at: Any, calls: int) -> Builder:
    """Return a maker of what evaluates a log density and its gradient, compiled."""
    points = [tf.convert_to_tensor(part) for part in at]

    def build() -> Callable[[], None]:
        compiled = tf.function(lambda *x: tfp.math.value_and_gradient(function, x), autograph=False)

        def go() -> None:
            for _ in range(calls):
                value, _ = compiled(*points)
            np.asarray(value)

        return go

    return build


def sgpmc(model: SGPMCFreeForm) -> gpflow.models.SGPMC:
    """Return GPflow's model with copies of the same parts, at the same place."""
    parts = gpflow.utilities.deepcopy((model.kernel, model.likelihood, model.inducing_variable))
    theirs = gpflow.models.SGPMC(model.data, parts[0], parts[1], inducing_variable=parts[2])
    gpflow.set_trainable(theirs.inducing_variable, False)
    theirs.V.assign(model.V)
    return theirs


def helper_of(model: gpflow.models.SGPMC) -> gpflow.optimizers.SamplingHelper:
    """Return GPflow's bridge to TFP."""
    return gpflow.optimizers.SamplingHelper(model.log_posterior_density, model.trainable_parameters)


def ours(model: SGPMCFreeForm, sizes: Sizes, chains: int) -> dict[str, Any]:
    """Sample by the package."""
    begin = time.perf_counter()
    draws = gpx.sample(
        model,
        sizes.draws if chains == 1 else sizes.draws // 2,
        chains,
        tuning={"trials": sizes.trials, "max_leapfrogs": (1, 20 if model.structure is None else 50)},
        progress=False,
        check=False,
    )
    whole, found = time.perf_counter() - begin, draws.diagnose()
    record = runs.timed(OURS[chains > 1], found, whole - draws.seconds)
    return {**record, "gradients": found.gradients * chains}


def gpflows(model: SGPMCFreeForm, sizes: Sizes) -> dict[str, Any]:
    """Sample by GPflow's documented recipe."""
    theirs = sgpmc(model)
    helper = helper_of(theirs)
    inner = tfp.mcmc.HamiltonianMonteCarlo(
        helper.target_log_prob_fn, step_size=0.01, num_leapfrog_steps=LEAPFROGS
    )
    kernel = tfp.mcmc.SimpleStepSizeAdaptation(inner, BURN_IN, target_accept_prob=np.float64(TARGET))

    @tf.function(autograph=False)
    def chain(number: tf.Tensor, state: Any, results: Any) -> Any:
        return tfp.mcmc.sample_chain(
            number,
            state,
            previous_kernel_results=results,
            kernel=kernel,
            trace_fn=lambda _, r: tf.exp(tf.minimum(r.inner_results.log_accept_ratio, 0.0)),
            return_final_kernel_results=True,
        )

    tf.random.set_seed(0)
    begin = time.perf_counter()
    state = [tf.convert_to_tensor(part) for part in helper.current_state]
    states, _, results = chain(tf.constant(BURN_IN), state, kernel.bootstrap_results(state))
    middle = time.perf_counter()
    states, accepted, _ = chain(tf.constant(sizes.theirs), [part[-1] for part in states], results)
    accepted = accepted.numpy()
    seconds = time.perf_counter() - middle
    flat = np.concatenate([part.numpy().reshape(sizes.theirs, -1) for part in states], axis=1)
    stats = {
        "energy": np.zeros((1, sizes.theirs)),
        "divergent": np.zeros((1, sizes.theirs)),
        "accepted": accepted[None],
        "gradients": np.full(sizes.theirs, LEAPFROGS),
    }
    coordinates = {str(j): column[None] for j, column in enumerate(flat.T)}
    found = diagnostics.diagnose(coordinates, stats, seconds)
    return runs.timed("GPflow, 1 chain", found, middle - begin)
