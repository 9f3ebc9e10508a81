"""The benchmark of dual sites: test scores over the CPU seconds of training, beside GPflow's loops and SparseEP."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.training.gradient import Minibatches

from ..shared import report

INDUCING, MINIBATCH, MARKS = 200, 200, 24
NOISE, JITTER = 1e-3, 1e-4
LEVEL = 0.15  # test NLL on MNIST whose seconds are compared
RATES = (0.01, 0.03, 0.1)  # of GPflow's Adam
BUDGETS = {"mnist_odd_even": 2.5, "airline_2008": 10.0}  # CPU seconds of a run
TITLES = {"mnist_odd_even": "MNIST, odd against even", "airline_2008": "Airline delays, 2008"}
TEST_ROWS = 20_000  # at most
SHOWN = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)  # of the budget
OURS, ADAM, NATURAL = "dual", "GPflow SVGP, Adam", "GPflow SVGP, natural gradients"
Records = list[dict[str, Any]]
Data = tuple[Any, Any]
After = Callable[[int], None]
Train = Callable[[Any, Data, Any, int, After], None]
"""Train on data from inducing points by minibatches of a seed, and call after each step."""

TEXT = """\
M = {inducing}, minibatches of {batch}, the same of each seed for all but SparseEP. A squared exponential has a length scale
for each input that starts at the median distance of the inducing points; noise {noise} in the latent function, probit; float32, jitter {jitter}. Seconds are CPU
seconds of one process with one thread. They begin after the first step, in which a method compiles, and exclude evaluations. {busy}

`dual` and `SparseEP` are `gpx.fit` with its defaults. GPflow's loops are its `SVGP` with Adam, and with `NaturalGradient(0.1)` for q and Adam for the rest, both
steps in one `tf.function`; the number in a name is the rate of Adam. `log` moves variance and length scales by their logarithms in place of GPflow's softplus. A GPflow user can do
this with a transform, and it makes the largest difference.
"""


class Finished(Exception):
    """Ends a training whose time is spent."""


class Tracer:
    """Takes the test score at geometrically spaced CPU seconds of a training, from the end of its first step."""

    def __init__(self, score: Callable[[], Mapping[str, float]], budget: float) -> None:
        self._score, self._marks = score, np.geomspace(budget / 60.0, budget, MARKS)
        self._spent, self._since = 0.0, time.process_time()
        self.record: dict[str, Any] = {"seconds": [], "steps": [], "nll": [], "error": []}

    def __call__(self, step: int) -> None:
        """Score if it is time; raise `Finished` at the end."""
        now = time.process_time()
        if step == 1:
            self.record["first_call"] = now - self._since
            self._score()
        else:
            self._spent += now - self._since
            while (
                len(self.record["seconds"]) < MARKS
                and self._spent >= self._marks[len(self.record["seconds"])]
            ):
                for name, value in {"seconds": self._spent, "steps": step, **self._score()}.items():
                    self.record[name].append(value)
        if len(self.record["seconds"]) == MARKS:
            raise Finished
        self._since = time.process_time()


def run(options: argparse.Namespace) -> Records:
    """Measure both sets, the minibatches of each of ``repeats`` seeds."""
    records: Records = []
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=JITTER)):
        for name, budget in BUDGETS.items():
            train, test, Z = drawn(name, 2000 if options.quick else None)
            budget = min(budget / 10.0 if options.quick else budget, options.cap)
            shape = {
                "rows": len(train[0]),
                "test_rows": len(test[0]),
                "inputs": train[0].shape[1],
                "budget": budget,
            }
            for seed, (method, (build, fit)) in itertools.product(
                range(options.repeats), methods(name).items()
            ):
                traced = trace(build, fit, train, test, Z, budget, seed)
                records.append({"set": name, "method": method, "seed": seed, **shape, **traced})
                print(progress(records[-1]), flush=True)
    return records


def drawn(name: str, rows: int | None) -> tuple[Data, Data, Any]:
    """Return the training part, at most `TEST_ROWS` of the test part, and inducing points, all float32."""
    parts = gpx.datasets.load(name, seed=0, test_fraction=0.1)
    train, test = ([np.asarray(part[:rows], np.float32) for part in pair] for pair in parts)
    count = min(INDUCING, len(train[0]) // 4)
    Z = train[0][np.random.default_rng(0).choice(len(train[0]), count, replace=False)]
    return (train[0], train[1]), (test[0][:TEST_ROWS], test[1][:TEST_ROWS]), Z


def trace(
    build: Callable[[Data, Any], Any], fit: Train, train: Data, test: Data, Z: Any, budget: float, seed: int
) -> dict[str, Any]:
    """Return the trace of a method."""
    model = build(train, Z)
    predict = tf.function(model.predict_f)

    def score() -> dict[str, float]:
        mean, var = predict(test[0])
        density = model.likelihood.predict_log_density(test[0], mean, var, test[1])
        wrong = (mean > 0.0) != (test[1] > 0.5)
        return {
            "nll": -float(tf.reduce_mean(density)),
            "error": float(tf.reduce_mean(tf.cast(wrong, mean.dtype))),
        }

    tracer = Tracer(score, budget)
    with contextlib.suppress(Finished):
        fit(model, train, Z, seed, tracer)
    return tracer.record


def methods(name: str) -> dict[str, tuple[Callable[[Data, Any], Any], Train]]:
    """Return how each method makes its model and trains it."""
    held = {f"{OURS}, follow=False": (svgp, functools.partial(by_fit, recipe="dual", follow=False))}
    mnist = name == "mnist_odd_even"
    found: dict[str, tuple[Callable[[Data, Any], Any], Train]] = {
        OURS: (svgp, functools.partial(by_fit, recipe="dual")),
        **held,
        "SparseEP": (sparse_ep, by_fit),
    }
    for label, natural in ((NATURAL, True), (ADAM, False)):
        for rate in RATES if mnist else RATES[:2]:
            loop = functools.partial(by_gpflow, natural=natural, rate=rate)
            found[f"{label} {rate}"] = (svgp, loop)
            if mnist:
                found[f"{label} {rate}, log"] = (functools.partial(svgp, log=True), loop)
    return found


def kernel_of(Z: Any, log: bool = False) -> gpflow.kernels.Kernel:
    """Return the kernel, its length scales at the median distance of the inducing points."""
    squares = (Z.astype(float) ** 2).sum(1)
    squared = squares[:, None] + squares - 2.0 * Z.astype(float) @ Z.T
    length = np.sqrt(np.median(np.maximum(squared, 0.0)[np.triu_indices(len(Z), 1)]))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=np.full(Z.shape[1], length))
    if log:
        for part in ("variance", "lengthscales"):
            value = getattr(kernel, part).numpy()
            setattr(kernel, part, gpflow.Parameter(value, transform=tfp.bijectors.Exp()))
    return kernel + gpflow.kernels.White(NOISE)


def svgp(train: Data, Z: Any, log: bool = False) -> gpflow.models.SVGP:
    """Return GPflow's model."""
    probit = gpx.likelihoods.BernoulliProbit()
    return gpflow.models.SVGP(kernel_of(Z, log), probit, Z.copy(), num_data=len(train[0]))


def sparse_ep(train: Data, Z: Any) -> gpx.models.SparseEP:
    """Return the same model for expectation propagation."""
    probit = gpx.likelihoods.BernoulliProbit()
    return gpx.models.SparseEP(train, kernel_of(Z), probit, inducing_variable=Z.copy())


def by_fit(model: Any, train: Data, Z: Any, seed: int, after: After, **options: Any) -> None:
    """Train by `gpflow_ext.fit`."""
    data = train if isinstance(model, gpflow.models.SVGP) else None
    gpx.fit(
        model,
        data,
        minibatch_size=MINIBATCH,
        steps=10**9,
        seed=seed,
        monitor=after,
        progress=False,
        **options,
    )


def by_gpflow(
    model: Any, train: Data, Z: Any, seed: int, after: After, *, natural: bool, rate: float
) -> None:
    """Train as GPflow's documentation does."""
    if natural:
        for part in (model.q_mu, model.q_sqrt):
            gpflow.set_trainable(part, False)
    variables = model.trainable_variables
    newton, adam = gpflow.optimizers.NaturalGradient(gamma=0.1), tf_keras.optimizers.Adam(rate)
    adam.build(variables)

    @tf.function
    def step(batch: Any) -> None:
        loss = functools.partial(model.training_loss, batch)
        if natural:
            newton.minimize(loss, [(model.q_mu, model.q_sqrt)])
        adam.minimize(loss, variables)

    for number, batch in enumerate(Minibatches(train, MINIBATCH, seed), 1):
        step(batch)
        after(number)


def progress(record: Mapping[str, Any]) -> str:
    """Return what is printed of a run: when it reached the level, and where it ended."""
    time, end = reached(record), f"test NLL {record['nll'][-1]:.3f} after {record['seconds'][-1]:.2f} CPU s"
    level = "never" if time is None else f"after {time:.2f} CPU s"
    return f"{record['set']}, {record['method']}, seed {record['seed']}: {end}; {LEVEL} {level}"


def reached(record: Mapping[str, Any]) -> float | None:
    """Return the seconds at which the level was first seen."""
    return next((t for t, nll in zip(record["seconds"], record["nll"], strict=True) if nll <= LEVEL), None)


def document(where: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the whole result as Markdown."""
    load = where["load"] or 0.0
    busy = f"Others used the machine (load {load}): take the seconds as ratios." if load > 1.5 else ""
    text = TEXT.format(inducing=INDUCING, batch=MINIBATCH, noise=NOISE, jitter=JITTER, busy=busy)
    head = (
        report.describe(where, "float32") + " Written by `python -m scripts.benchmarks dual --threads 1`.\n"
    )
    picture = "![Test scores against CPU seconds: dual sites, SparseEP and the best loops of GPflow](benchmark_dual.png)\n"
    parts = ["# Dual sites: test scores over time\n", picture, head, text]
    for name in BUDGETS:
        found = [record for record in records if record["set"] == name]
        sizes = "{rows:,} rows, {test_rows:,} test rows, {inputs} inputs".format(**found[0])
        parts += [
            f"## {TITLES[name]}\n",
            f"{sizes}. Mean test NLL over the seeds at CPU seconds.\n",
            _table(found),
        ]
        parts += [_verdict(found), *([_levels(found)] if name == "mnist_odd_even" else [])]
    return "\n".join([*parts, report.targets(verdicts(records))])


def verdicts(records: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met; the loops of GPflow at their best rates."""
    mnist = _by_method([record for record in records if record["set"] == "mnist_odd_even"])
    found = []
    if OURS in mnist:
        loops = [name for name in mnist if name.startswith(NATURAL)]
        plain = [name for name in loops if not name.endswith("log")]
        for label, names in (("", plain), (", by logarithms", loops)):
            times = [_level(mnist[name]) for name in names] or [np.inf]
            share, known = _level(mnist[OURS]) / min(times), np.isfinite(min(times))
            share = share if known else _level(mnist[OURS]) / mnist[OURS][0]["budget"]
            what = f"MNIST: seconds to {LEVEL}, of those of natural gradients at their best rate{label}"
            measured = f"{'' if known else 'less than '}{share:.2f} of 0.33"
            found.append((what, measured, "yes" if share <= 1.0 / 3.0 else "no"))
    for name in BUDGETS:
        methods = _by_method([record for record in records if record["set"] == name])
        adam = [_means(each) for other, each in methods.items() if other.startswith(ADAM)]
        if OURS in methods and adam:
            behind = int((np.min(adam, axis=0) < _means(methods[OURS])).sum())
            what = f"{TITLES[name]}: behind Adam at its best rate, of {MARKS} times"
            found.append((what, f"{behind} of 0", "no" if behind else "yes"))
    return found


def _level(records: Records) -> float:
    """Return the median seconds to the level, infinite where it is not reached."""
    return report.median([reached(record) for record in records])


def _by_method(records: Sequence[dict[str, Any]]) -> dict[str, Records]:
    """Return the records of each method, one of each seed."""
    names = dict.fromkeys(record["method"] for record in records)
    return {name: [record for record in records if record["method"] == name] for name in names}


def _means(records: Records) -> Any:
    """Return the mean NLL at each mark."""
    return np.mean([record["nll"] for record in records], axis=0)


def _table(records: Sequence[dict[str, Any]]) -> str:
    marks = np.geomspace(1.0 / 60.0, 1.0, MARKS)
    places = [int(np.argmin(abs(marks - share))) for share in SHOWN]
    seconds = records[0]["budget"] * marks[places]
    rows = []
    for name, each in _by_method(records).items():
        steps = np.median([1e3 * record["seconds"][-1] / (record["steps"][-1] - 1) for record in each])
        rows.append([name, f"{steps:.1f}", *(f"{nll:.3f}" for nll in _means(each)[places])])
    return report.table(("method", "ms a step", *(f"{time:.2g} s" for time in seconds)), rows)


def _verdict(records: Sequence[dict[str, Any]]) -> str:
    """Say at how many times each other method had a lower mean NLL."""
    ours, ahead = _means(_by_method(records)[OURS]), []
    for name, each in _by_method(records).items():
        marks = int((_means(each) < ours).sum())
        if marks and name != OURS:
            ahead.append(f"{name} at {marks}")
    found = "; ".join(ahead) or "none at any"
    return f"Of {MARKS} times at which the scores are taken, these have a lower mean NLL than `{OURS}`: {found}.\n"


def _levels(records: Sequence[dict[str, Any]]) -> str:
    """Return the seconds to the level, and their ratio to ours."""
    found = {name: [reached(record) for record in each] for name, each in _by_method(records).items()}
    ours, budget = report.median(found[OURS]), records[0]["budget"]
    rows = []
    for name, seconds in found.items():
        shown = ", ".join("–" if t is None else f"{t:.2f}" for t in seconds)
        theirs = report.median(seconds)
        ratio = f"{theirs / ours:.1f}" if np.isfinite(theirs) else f"> {budget / ours:.1f}"
        rows.append([name, shown, ratio if np.isfinite(ours) else ""])
    title = f"CPU seconds to a test NLL of {LEVEL}, of each seed, and times `{OURS}`:\n"
    return title + "\n" + report.table(("method", "s", "times ours"), rows)
