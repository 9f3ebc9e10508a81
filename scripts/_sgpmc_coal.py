"""The coal-mining experiment of Hensman et al. (2015), section 4.2, by the protocol of their released code."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import _report
import gpflow
import numpy as np
import tensorflow_probability as tfp
from _journal import Journal, Record

import gpflow_ext as gpx

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


def dates() -> np.ndarray:
    """Return the dates of the events, in years."""
    path = Path(os.environ.get("GPFLOW_EXT_DATA", "")) / "coal_disasters.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            "The coal experiment splits the events themselves: set GPFLOW_EXT_DATA to a folder with "
            "coal_disasters.csv.gz, one column `date`."
        )
    return np.loadtxt(path, skiprows=1)


def counts(events: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Return inputs [B, 1], training and test counts [B, 1], and the width of a bin.

    The inputs are the right ends of the bins, as in the released code; the kernel is stationary.
    """
    edges = np.linspace(events.min(), events.max(), BINS + 1)
    order = np.random.RandomState(seed).permutation(len(events))
    train, test = (
        np.histogram(events[rows], edges)[0].astype(float)[:, None] for rows in (order[:95], order[95:])
    )
    return edges[1:, None], train, test, float(edges[1] - edges[0])


def build(X: np.ndarray, Y: np.ndarray, width: float) -> gpx.models.SGPMCFreeForm:
    """Return the untrained model."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=10.0)
    kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(1.1), np.float64(0.1))
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(1.0), np.float64(0.3))
    Z = np.linspace(X.min(), X.max(), INDUCING)[:, None]
    likelihood = gpflow.likelihoods.Poisson(binsize=width)
    return gpx.models.SGPMCFreeForm((X, Y), kernel, likelihood, inducing_variable=Z)


def measure(events: np.ndarray, seed: int, num_draws: int, trials: int) -> Record:
    """Approximate, sample and score one split."""
    X, train, test, width = counts(events, seed)
    model = build(X, train, width)
    gpx.gaussian_approximation(model, free_inducing=False)
    gaussian = gpflow.models.SVGP(
        model.kernel, model.likelihood, model.inducing_variable, q_mu=model.q_mu, q_sqrt=model.q_sqrt
    )
    by_gaussian = float(np.mean(gaussian.predict_log_density((X, test))))
    draws = gpx.sample(
        model,
        num_draws,
        CHAINS,
        thin=THIN,
        tuning={"trials": trials},
        seed=seed,
        progress=False,
        check=False,
    )
    model.assign_draws(draws, most=2000)
    found = draws.diagnose()
    return {
        "gaussian": by_gaussian,
        "free_form": float(np.mean(model.predict_log_density((X, test)))),
        "draws": num_draws,
        "rhat": found.worst_rhat,
        "min_ess": found.min_ess,
        "ess_per_1000_gradients": found.ess_per_1000_gradients,
        "ess_per_second": found.ess_per_second,
        "divergences": found.divergences,
        "step_size": draws.setting.step_size,
        "max_leapfrogs": draws.setting.max_leapfrogs,
    }


def run(journal: Journal, splits: int, num_draws: int, trials: int) -> None:
    """Measure what the journal lacks."""
    events = dates()
    for seed in range(splits):
        key = {"experiment": "coal", "seed": seed, "thin": THIN}
        journal.once(key, lambda seed=seed: measure(events, seed, num_draws, trials))
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
            f"{one['rhat']:.3f}",
            f"{one['min_ess']:.0f}",
            _report.number(one["ess_per_1000_gradients"]),
            f"{one['step_size']:.3f}, {one['max_leapfrogs']}",
            str(one["divergences"]),
        ]
        for one in records
    ]
    means = {name: float(np.mean([one[name] for one in records])) for name in PAPER}
    better = sum(one["free_form"] > one["gaussian"] for one in records)
    rows.append(["mean", *(f"{means[name]:.4f}" for name in PAPER), *[""] * 5])
    rows.append(["paper", *(f"{PAPER[name]:.3f}" for name in PAPER), *[""] * 5])
    columns = (
        "split",
        "Gaussian",
        "free form",
        "R-hat",
        "min ESS",
        "min ESS / 1000 gradients",
        "ε, L_max",
        "divergences",
    )
    text = TEXT.format(
        bins=BINS, inducing=INDUCING, chains=CHAINS, thin=THIN, splits=len(records), draws=records[0]["draws"]
    )
    verdict = (
        f"The free form is better by {means['free_form'] - means['gaussian']:.4f} in the mean and in {better} of "
        f"{len(records)} splits (paper: 0.003 to 0.004, and in all).\n"
    )
    return [text, _report.table(columns, rows), verdict]


def header(where: Any) -> str:
    """Return the page's first lines."""
    return f"# Sparse MCMC: Hensman et al. (2015)\n\nWritten by `scripts/reproduce/sgpmc.py`, {_report.describe(where)}\n"
