"""Inducing points and the free form, after Figure 1 of Hensman et al. (2015): a binary task of 18 inputs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import runs

DATA, POSITIVE = "vehicle", ("opel", "saab")
INDUCING, SPLITS, CHAINS = (5, 10, 20, 50, 100), 5, 4
TUNING: dict[str, Any] = {"trials": 12, "samples": 15, "max_leapfrogs": (1, 20)}
TEXT = """\
## Inducing points and the free form

Whether a silhouette is one of a car (`{data}`, {rows} rows for training, as many for testing, 18 inputs, standardised; the
`image` data of the paper, with as many inputs and 1,000 rows, were not available). A probit likelihood, a length scale for each
input, Gamma(1.1, rate 1) on length scales and variance. Z by k-means, or optimised from there under the Gaussian approximation.
The score is the mean log predictive density of the test rows: means over {splits} random splits and their standard errors.
"""


def data(seed: int) -> tuple[Any, Any]:
    """Return training and test rows, half of all each."""
    split = gpx.datasets.load(DATA, test_fraction=0.5, seed=seed)
    labels = split.labels or ()
    positive = [labels.index(name) for name in POSITIVE]
    train, test = ((X, np.isin(Y, positive).astype(float)) for X, Y in (split.train, split.test))
    return train, test


def measure(inducing: int, free: bool, seed: int, num_draws: int) -> Record:
    """Approximate, sample and score."""
    train, test = data(seed)
    kernel = runs.kernel(np.full(train[0].shape[1], 3.0), (1.1, 1.0), (1.1, 1.0))
    Z = gpx.inducing.kmeans(train[0], inducing, seed=seed)
    likelihood = gpx.likelihoods.BernoulliProbit()
    model = gpx.models.SGPMCFreeForm(train, kernel, likelihood, inducing_variable=Z)
    gpx.gaussian_approximation(model, steps=200, free_inducing=free)
    gaussian = runs.gaussian_log_density(model, test)
    draws = gpx.sample(model, num_draws, CHAINS, tuning=TUNING, seed=seed, progress=False, check=False)
    return {
        "rows": len(train[0]),
        "gaussian": gaussian,
        "free_form": runs.free_form_log_density(model, draws, test),
        **runs.record(draws),
    }


def run(journal: Journal, folder: Path, num_draws: int, splits: int, quick: bool) -> None:
    """Measure what the journal lacks."""
    for seed in range(splits):
        for inducing in (3,) if quick else INDUCING:
            for free in (False, True):
                key = {"experiment": "binary", "inducing": inducing, "free": free, "seed": seed}
                journal.once(key, functools.partial(measure, inducing, free, seed, num_draws))
                print(
                    f"binary, split {seed}, M = {inducing}, Z {'free' if free else 'held'}: done", flush=True
                )
    if grouped(journal):
        draw(folder / "sgpmc_inducing.png", grouped(journal))


def grouped(journal: Journal) -> dict[tuple[bool, int], dict[str, tuple[float, float]]]:
    """Return means and standard errors over the splits by (whether Z was freed, M)."""
    found = {}
    records = journal.find(experiment="binary")
    for free, inducing in sorted({(one["free"], one["inducing"]) for one in records}):
        of = [one for one in records if (one["free"], one["inducing"]) == (free, inducing)]
        scores = {
            "gaussian": np.array([one["gaussian"] for one in of]),
            "free_form": np.array([one["free_form"] for one in of]),
        }
        scores["gain"] = scores["free_form"] - scores["gaussian"]
        found[free, inducing] = {
            name: (float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(of))) if len(of) > 1 else 0.0)
            for name, values in scores.items()
        }
    return found


def draw(path: Path, found: dict[tuple[bool, int], dict[str, tuple[float, float]]]) -> None:
    """Draw the score of the free form, and its gain over the Gaussian, against M."""
    figure, axes = runs.figure(path, 9.0, 3.6, columns=2)
    for ax, name in zip(axes, ("free_form", "gain"), strict=True):
        for free, label in ((True, "Z optimised"), (False, "Z by k-means")):
            counts = [inducing for freed, inducing in found if freed is free]
            means, errors = zip(*(found[free, inducing][name] for inducing in counts), strict=True)
            ax.errorbar(counts, means, errors, marker="o", capsize=3, label=label)
        ax.set_xscale("log")
        ax.set_xticks(counts, [str(count) for count in counts])
        ax.set_xlabel("inducing points")
    axes[0].set_ylabel("log density of test rows, free form")
    axes[1].set_ylabel("free form less Gaussian")
    axes[1].axhline(0.0, color="0.7", linewidth=1)
    axes[0].legend()
    figure.savefig(path, dpi=100)


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = journal.find(experiment="binary")
    if not records:
        return []
    rows = []
    for (free, inducing), of in grouped(journal).items():
        scores = [f"{of[name][0]:.4f} ± {of[name][1]:.4f}" for name in ("gaussian", "free_form", "gain")]
        same = [one for one in records if (one["free"], one["inducing"]) == (free, inducing)]
        worst = max(one["rhat"] for one in same)
        speed = float(np.mean([one["ess_per_1000_gradients"] for one in same]))
        rows.append(
            [
                f"{inducing}, {'optimised' if free else 'k-means'}",
                *scores,
                f"{worst:.3f}",
                report.number(speed),
            ]
        )
    splits = len({one["seed"] for one in records})
    columns = ("M, Z", "Gaussian", "free form", "gain", "worst R-hat", "mean of min ESS / 1000 gradients")
    text = TEXT.format(data=DATA, rows=records[0]["rows"], splits=splits)
    picture = "![Log density of test rows against the number of inducing points](sgpmc_inducing.png)\n"
    return [text, report.table(columns, rows), picture]
