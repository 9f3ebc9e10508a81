"""Samplers side by side, after table 1 and the supplement of Hensman et al. (2015): ESS, ESS in a second, R-hat."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import coal as accidents
from . import runs, toy

Model = gpx.models.SGPMCFreeForm
CHAINS = 10
SAMPLERS: dict[str, dict[str, Any]] = {
    "HMC": {},
    "HMC, whitened": {"precondition": None},  # the paper's coordinates
    "Gibbs": {"tuner": "gibbs"},
    "Gibbs, vb": {"tuner": "gibbs", "precondition": "vb"},
}
TEXT = """\
## Samplers

{chains} chains of {draws} draws after tuning. HMC: tuned by Bayesian optimisation, in the coordinates that `gpx.sample` takes by
default; whitened: with the isotropic mass of the paper. Gibbs: the paper's baseline, v by HMC (L_max = 20) and θ by
Metropolis–Hastings in turn, its steps tuned by what is accepted; a gradient of v with θ held is cheaper, therefore compare
effective draws in a second. `vb`: v in the coordinates of the Gaussian approximation. The smallest ESS of all coordinates.

`coal`: Poisson, M = {coal}. `binary`: whether a silhouette is one of a car (`vehicle`, half of the rows, 18 inputs), probit,
Gamma(1.1, rate 1) on length scales and variance, M = {binary}, one length scale or one for each input (ARD).
`classes`: the three classes above, inducing points by k-means; tuned by {trials} trials of {samples} iterations with L_max up to {most}.
The robust maximum is not log-concave: where R-hat stays high in `classes, ARD`, one chain of several is in another mode of the
length scales.
"""
BINARY_INDUCING, POSITIVE = 50, ("opel", "saab")


def coal() -> Model:
    """Return the model of the first split of the coal-mining data."""
    X, train, _, width = accidents.counts(accidents.dates(), 0)
    return accidents.build(X, train, width)


def binary(ard: bool) -> Model:
    """Return the model of the first split of the silhouettes."""
    split = gpx.datasets.load("vehicle", test_fraction=0.5, seed=0)
    positive = [(split.labels or ()).index(name) for name in POSITIVE]
    train = split.train[0], np.isin(split.train[1], positive).astype(float)
    lengths = np.full(train[0].shape[1], 3.0) if ard else 3.0
    kernel = runs.kernel(lengths, (1.1, 1.0), (1.1, 1.0))
    Z = gpx.inducing.kmeans(train[0], BINARY_INDUCING, seed=0)
    return Model(train, kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=Z)


PROBLEMS: dict[str, Callable[[], Model]] = {
    "coal": coal,
    "binary": lambda: binary(False),
    "binary, ARD": lambda: binary(True),
    "classes": lambda: toy.build(False),
    "classes, ARD": lambda: toy.build(True),
}


def measure(model: Model, sampler: str, num_draws: int, quick: bool) -> Record:
    """Sample by one sampler from the Gaussian approximation on."""
    options = dict(SAMPLERS[sampler])
    gibbs = "Gibbs" in sampler
    if quick:
        options["tuning"] = {"rounds": 2, "iterations": 3} if gibbs else {"trials": 3, "samples": 3}
    elif model.num_latent_gps > 1 and not gibbs:
        options["tuning"] = runs.TUNING
    draws = gpx.sample(model, num_draws, CHAINS, progress=False, check=False, seed=1, **options)
    return {**runs.record(draws), "seconds": draws.seconds, "shrinkage": shrinkage(draws)}


def shrinkage(draws: gpx.Draws) -> list[list[float]]:
    """Return the largest R-hat of all coordinates after ever more draws, with the numbers of these."""
    import arviz

    found = []
    for count in np.unique(np.geomspace(8, draws.num_draws, 12).astype(int)):
        values = draws.coordinates().values()
        found.append([int(count), max(float(arviz.rhat(value[:, :count])) for value in values)])
    return found


def run(journal: Journal, folder: Path, num_draws: int, quick: bool, problems: Sequence[str]) -> None:
    """Measure what the journal lacks of some of the problems."""
    for problem in problems:
        model = None
        for sampler in SAMPLERS:
            key = {"experiment": "samplers", "problem": problem, "sampler": sampler}
            if journal.find(**key):
                continue
            if model is None:
                model = PROBLEMS[problem]()
                gpx.gaussian_approximation(model, steps=200, free_inducing=False)
            journal.once(key, functools.partial(measure, model, sampler, num_draws, quick))
            print(f"{problem}, {sampler}: done", flush=True)
        draw(folder / "sgpmc_shrinkage.png", journal.find(experiment="samplers"))


def draw(path: Path, records: list[Record]) -> None:
    """Draw the worst R-hat against the number of draws, one panel for each problem."""
    problems = list(dict.fromkeys(one["problem"] for one in records))
    figure, axes = runs.figure(path, 2.6 * len(problems), 3.4, columns=len(problems))
    for ax, problem in zip(np.atleast_1d(axes), problems, strict=True):
        for one in records:
            if one["problem"] == problem:
                counts, values = zip(*one["shrinkage"], strict=True)
                seconds = np.array(counts) * one["seconds"] / one["draws"]
                ax.plot(seconds, np.array(values) - 1.0, marker=".", label=one["sampler"])
        ax.set(xscale="log", yscale="log", title=problem, xlabel="seconds")
        ax.axhline(0.01, color="0.7", linewidth=1)
    np.atleast_1d(axes)[0].set_ylabel("largest R-hat of all coordinates, less 1")
    handles = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=90)


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = journal.find(experiment="samplers")
    if not records:
        return []
    order = [(problem, sampler) for problem in PROBLEMS for sampler in SAMPLERS]
    records = sorted(records, key=lambda one: order.index((one["problem"], one["sampler"])))
    rows = [
        [f"{one['problem']}: {one['sampler']}", report.number(one["ms_per_gradient"]), *runs.cells(one)]
        for one in records
    ]
    counts = [one["draws"] for one in records]
    text = TEXT.format(
        chains=CHAINS,
        draws=" to ".join(str(end) for end in sorted({min(counts), max(counts)})),
        coal=accidents.INDUCING,
        binary=BINARY_INDUCING,
        trials=runs.TUNING["trials"],
        samples=runs.TUNING["samples"],
        most=runs.TUNING["max_leapfrogs"][1],
    )
    columns = ("", f"ms per gradient of {CHAINS} chains", *runs.COLUMNS)
    return [
        text,
        report.table(columns, rows),
        "![Worst R-hat against seconds of sampling](sgpmc_shrinkage.png)\n",
    ]
