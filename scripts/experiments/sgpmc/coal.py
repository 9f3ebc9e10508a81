"""The coal-mining experiment of Hensman et al. (2015), section 4.2, by the protocol of their released code."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import runs

Array = npt.NDArray[Any]

BINS, INDUCING, CHAINS, THIN, SPLITS = 100, 30, 10, 5, 10
PAPER = {"gaussian": -1.229, "free_form": -1.225}
TEXT = """\
## Coal-mining disasters

191 dates, a log Gaussian Cox process: counts in {bins} bins, {inducing} inducing points on a grid, a squared exponential
kernel with Gamma(1.1, rate 0.1) on its length scale and Gamma(1, rate 0.3) on its variance, zero mean. In each of
{splits} random splits 95 events are for training, 96 for testing; the score is the mean over the bins of the log
predictive density of the test counts. Gaussian: the variational q(v) at the most probable hyperparameters. Free
form: {chains} chains, tuned by Bayesian optimisation, {draws} draws of each, {thin} iterations apart.
"""


def dates() -> Array:
    """Return the dates of the events, in years."""
    path = Path(os.environ.get("GPFLOW_EXT_DATA", "")) / "coal_disasters.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            "The coal experiment splits the events themselves: set GPFLOW_EXT_DATA to a folder with "
            "coal_disasters.csv.gz, one column `date`."
        )
    return np.loadtxt(path, skiprows=1)


def counts(events: Array, seed: int) -> tuple[Array, Array, Array, float]:
    """Return inputs [B, 1], training and test counts [B, 1], and the width of a bin.

    The inputs are the right ends of the bins, as in the released code; the kernel is stationary.
    """
    edges = np.linspace(events.min(), events.max(), BINS + 1)
    order = np.random.RandomState(seed).permutation(len(events))
    train, test = (
        np.histogram(events[rows], edges)[0].astype(float)[:, None] for rows in (order[:95], order[95:])
    )
    return edges[1:, None], train, test, float(edges[1] - edges[0])


def build(X: Array, Y: Array, width: float) -> gpx.models.SGPMCFreeForm:
    """Return the untrained model."""
    kernel = runs.kernel(10.0, (1.1, 0.1), (1.0, 0.3))
    Z = np.linspace(X.min(), X.max(), INDUCING)[:, None]
    likelihood = gpflow.likelihoods.Poisson(binsize=width)
    return gpx.models.SGPMCFreeForm((X, Y), kernel, likelihood, inducing_variable=Z)


def measure(events: Array, seed: int, num_draws: int, trials: int) -> Record:
    """Approximate, sample and score one split."""
    X, train, test, width = counts(events, seed)
    model = build(X, train, width)
    gpx.gaussian_approximation(model, free_inducing=False)
    gaussian = runs.gaussian_log_density(model, (X, test))
    draws = gpx.sample(
        model,
        num_draws,
        CHAINS,
        thin=THIN,
        tuning={"trials": trials, "step_sizes": (1e-4, 1.0)},
        seed=seed,
        progress=False,
        check=False,
    )
    return {
        "gaussian": gaussian,
        "free_form": runs.free_form_log_density(model, draws, (X, test)),
        **runs.record(draws),
    }


def run(journal: Journal, splits: int, num_draws: int, trials: int) -> None:
    """Measure what the journal lacks."""
    events = dates()
    for seed in range(splits):
        key = {"experiment": "coal", "seed": seed, "thin": THIN}
        journal.once(key, functools.partial(measure, events, seed, num_draws, trials))
        print(f"coal, split {seed}: done", flush=True)


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = sorted(journal.find(experiment="coal", thin=THIN), key=lambda record: record["seed"])
    if not records:
        return []
    rows = [
        [
            str(one["seed"]),
            f"{one['gaussian']:.4f}",
            f"{one['free_form']:.4f}",
            *runs.cells(one),
        ]
        for one in records
    ]
    means = {name: float(np.mean([one[name] for one in records])) for name in PAPER}
    better = sum(one["free_form"] > one["gaussian"] for one in records)
    rows.append(["mean", *(f"{means[name]:.4f}" for name in PAPER), *[""] * len(runs.COLUMNS)])
    rows.append(["paper", *(f"{PAPER[name]:.3f}" for name in PAPER), *[""] * len(runs.COLUMNS)])
    columns = ("split", "Gaussian", "free form", *runs.COLUMNS)
    text = TEXT.format(
        bins=BINS, inducing=INDUCING, chains=CHAINS, thin=THIN, splits=len(records), draws=records[0]["draws"]
    )
    verdict = (
        f"The free form is better by {means['free_form'] - means['gaussian']:.4f} in the mean and in {better} of "
        f"{len(records)} splits (paper: 0.003 to 0.004, and in all).\n"
    )
    return [text, report.table(columns, rows), verdict]
