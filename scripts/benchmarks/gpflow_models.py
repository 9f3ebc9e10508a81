"""GPflow's own models: `gpflow_ext.fit` beside GPflow's optimiser, from the same start and to the same objective."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..shared import report
from .shown import Shown

Record = dict[str, Any]
Build = Callable[[], tuple[Any, Any]]
"""Return a new model, and the data that it does not hold."""

COLLAPSED = ("VGP, Bernoulli", "VGP, Poisson", "SVGP, Bernoulli", "SVGP, free points")
SEVERAL = ("GPRFITC, free points", "SVGP, diagonal, free points")  # have many optima: on several sets of data
SEEDS = 5  # of those
TIMES = 3.0  # GPflow's seconds over ours, for those
NEAR = 1e-3  # nats: an objective that is lower by less is the same


def cases(size: int, seed: int = 0) -> dict[str, Build]:
    """Return the models on data (X [N, 2], Y [N, 1]) about f = sin 2x₁ + x₂/2, with 30 inducing points."""
    import gpflow

    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (size, 2))
    f = np.sin(2.0 * X[:, :1]) + 0.5 * X[:, 1:]
    real = X, f + 0.3 * rng.standard_normal(f.shape)
    binary = X, (rng.uniform(size=f.shape) < 1.0 / (1.0 + np.exp(-3.0 * f))).astype(float)
    counts = X, rng.poisson(np.exp(f)).astype(float)
    models, likelihoods = gpflow.models, gpflow.likelihoods

    def kernel() -> Any:
        return gpflow.kernels.SquaredExponential(variance=1.0, lengthscales=[1.0, 1.0])

    def points() -> Any:
        return X[:30].copy()

    def svgp(learn: bool, **options: Any) -> Any:
        model = models.SVGP(kernel(), likelihoods.Bernoulli(), points(), num_data=size, **options)
        gpflow.set_trainable(model.inducing_variable, learn)
        return model

    def opper_archambeau() -> Any:
        return models.VGPOpperArchambeau(binary, kernel(), likelihoods.Bernoulli())

    return {
        "GPR": lambda: (models.GPR(real, kernel()), None),
        "SGPR": lambda: (models.SGPR(real, kernel(), points()), None),
        "GPRFITC, free points": lambda: (models.GPRFITC(real, kernel(), points()), None),
        "VGP, Bernoulli": lambda: (models.VGP(binary, kernel(), likelihoods.Bernoulli()), None),
        "VGP, Poisson": lambda: (models.VGP(counts, kernel(), likelihoods.Poisson()), None),
        "VGPOpperArchambeau": lambda: (opper_archambeau(), None),
        "SVGP, Bernoulli": lambda: (svgp(False), binary),
        "SVGP, free points": lambda: (svgp(True), binary),
        "SVGP, diagonal": lambda: (svgp(False, q_diag=True), binary),
        "SVGP, diagonal, free points": lambda: (svgp(True, q_diag=True), binary),
    }


def run(options: argparse.Namespace) -> list[Record]:
    """Fit each model by both."""
    records = Shown()
    for size, seed in itertools.product(options.sizes, range(1 if options.quick else SEEDS)):
        for name, build in cases(size, seed).items():
            if seed and name not in SEVERAL:
                continue
            pair = {"ours": ours(build), "theirs": theirs(build, options.quick)}
            records.append({"model": name, "size": size, "seed": seed} | pair)
    return records


def ours(build: Build) -> Record:
    """Return the seconds of first and second fit, the objective after each step of this, and evaluations."""
    import gpflow_ext as gpx
    from gpflow_ext.training import lbfgs

    seconds, counted = [], [0]
    initialise = lbfgs.Run.__init__

    def counting(self: Any, coordinates: Any, evaluate: Any, *rest: Any, **more: Any) -> None:
        def once() -> Any:
            counted[0] += 1
            return evaluate()

        initialise(self, coordinates, once, *rest, **more)

    lbfgs.Run.__init__ = counting  # type: ignore[method-assign]
    try:
        for _ in range(2):
            model, data = build()
            counted[0], begin = 0, time.perf_counter()
            result = gpx.fit(model, data, progress=False)
            seconds.append(time.perf_counter() - begin)
    finally:
        lbfgs.Run.__init__ = initialise  # type: ignore[method-assign]
    before = seconds[1] - result.seconds  # what comes before the first step
    return {
        "seconds": seconds,
        "objective": float(result.objective[-1]),
        "evaluations": counted[0],
        "status": result.status.name,
        "trace": [[before + float(t), float(v)] for t, v in zip(result.times, result.objective, strict=True)],
    }


def theirs(build: Build, quick: bool) -> Record:
    """Return the seconds, objective and evaluations of GPflow's optimiser, which compiles each time."""
    import gpflow

    model, data = build()
    closure = model.training_loss if data is None else model.training_loss_closure(data)
    begin = time.perf_counter()
    found = gpflow.optimizers.Scipy().minimize(
        closure,
        model.trainable_variables,
        options={"maxiter": 100 if quick else 5000, "maxfun": 10**6},
    )
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "objective": -float(found.fun), "evaluations": int(found.nfev)}


def until(record: Record) -> float | None:
    """Return our seconds until GPflow's objective, if we reach it."""
    target = record["theirs"]["objective"] - NEAR
    return next((seconds for seconds, value in record["ours"]["trace"] if value >= target), None)


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("", "N", "data", "first fit", "second fit", "evaluations", "objective", "GPflow", "evaluations",
               "objective", "ours, to GPflow's objective", "times ours")  # fmt: skip
    rows = []
    for record in records:
        mine, other, reached = record["ours"], record["theirs"], until(record)
        rows.append((
            record["model"], str(record["size"]), str(record["seed"]), *(report.number(part) for part in mine["seconds"]),
            str(mine["evaluations"]), f"{mine['objective']:.4f}", report.number(other["seconds"]),
            str(other["evaluations"]), f"{other['objective']:.4f}",
            "–" if reached is None else report.number(reached),
            "–" if reached is None else report.number(other["seconds"] / reached),
        ))  # fmt: skip
    return "\n".join([
        "# GPflow's own models\n",
        "`gpflow_ext.fit` with its defaults, and `gpflow.optimizers.Scipy` with up to 5,000 iterations, from the same start: "
        "a squared exponential with two length scales of 1, 30 inducing points. Seconds are those of a whole fit, as "
        "a user pays for it. GPflow compiles each new model again, `fit` only the first of a structure. An evaluation "
        "computes the objective with its gradient; for VGP and SVGP ours is at the optimal q. The last columns are "
        f"our seconds in the second fit until GPflow's objective less {NEAR:g}, and the ratio of GPflow's seconds to "
        "them; a dash means that we end lower. With free inducing points there are many optima, and valleys where "
        f"both may run out of their budget: {SEEDS} data sets were tried there, and the median counts. Written by "
        "`python -m scripts.benchmarks gpflow_models`.\n",
        report.describe(where),
        "",
        report.table(columns, rows),
        report.targets(verdicts(records)),
    ])  # fmt: skip


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found = []
    ratios: dict[tuple[str, int], list[float]] = {}
    for record in records:
        reached = until(record)
        ratio = 0.0 if reached is None else record["theirs"]["seconds"] / reached
        ratios.setdefault((record["model"], record["size"]), []).append(ratio)
    for (name, size), each in ratios.items():
        least, ratio = TIMES if name in COLLAPSED else 1.0, float(np.median(each))
        of = f"; reached in {np.count_nonzero(each)} of {len(each)}" if len(each) > 1 else ""
        found.append((
            f"{name}, N = {size}: GPflow's seconds over ours, to its objective{', median' if of else ''}",
            f"{report.number(ratio)} of {report.number(least)}{of}",
            "yes" if ratio >= least else "no",
        ))  # fmt: skip
    return found
