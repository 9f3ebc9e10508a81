"""The rates of coal-mining disasters beside exact sampling: Figure 2 of Hensman et al. (2015)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

import gpflow_ext as gpx

from ...shared import report
from ...shared.journal import Journal, Record
from . import coal, runs

Array = npt.NDArray[Any]

CHAINS, PARTS = 10, (0.025, 0.5, 0.975)
NAMES = {"lengthscale": "kernel.lengthscales", "variance": "kernel.variance"}
GAUSSIAN, FREE_FORM, EXACT = "Gaussian", "free form", "exact"
TEXT = """\
## Coal-mining disasters, beside exact sampling

All 191 events in the bins, model and priors above. Gaussian: q(v) at the most probable hyperparameters. Free form: {inducing} inducing
points. Exact: one inducing point in each of the {bins} bins, so that nothing is approximated but by sampling. {chains} chains, tuned by
Bayesian optimisation, {draws} draws of each. Differences are between the rates of a method and the exact ones, relative to the mean of
the exact rate over the bins: root mean square of the posterior means, and of the ends of the 95 % intervals. The paper has (12.06, 0.55)
for the length scale and the variance of the Gaussian approximation.
"""


def build(exact: bool) -> gpx.models.SGPMCFreeForm:
    """Return the untrained model of all events, inducing points on a grid or at all data."""
    X, train, test, width = coal.counts(coal.dates(), 0)
    model = coal.build(X, train + test, width)
    if not exact:
        return model
    return gpx.models.SGPMCFreeForm(model.data, model.kernel, model.likelihood, inducing_variable=X)


def rates(mean: Array, var: Array, seed: int = 0, samples: int = 20) -> dict[str, list[float]]:
    """Return posterior mean and 95 % interval of exp(f), bin by bin, for Gaussians of f [S, N]."""
    rng = np.random.default_rng(seed)
    drawn = np.exp(mean + np.sqrt(var) * rng.standard_normal((samples, *mean.shape)))
    low, middle, high = np.quantile(drawn.reshape(-1, mean.shape[-1]), PARTS, axis=0)
    exact_mean = np.exp(mean + 0.5 * var).mean(axis=0)
    parts = {"mean": exact_mean, "low": low, "median": middle, "high": high}
    return {name: [float(f"{value:.6g}") for value in part] for name, part in parts.items()}


def gaussian() -> Record:
    """Approximate by a Gaussian."""
    model = build(exact=False)
    gpx.gaussian_approximation(model, free_inducing=False)
    mean, var = (part.numpy()[:, 0] for part in runs.gaussian(model).predict_f(model.data[0]))
    kernel = model.kernel
    return {
        **rates(mean[None], var[None], samples=20_000),
        "lengthscale": [float(kernel.lengthscales.numpy()), 0.0],
        "variance": [float(kernel.variance.numpy()), 0.0],
    }


def sampled(exact: bool, num_draws: int, trials: int) -> Record:
    """Sample, with inducing points on a grid or at all data."""
    model = build(exact)
    gpx.gaussian_approximation(model, free_inducing=False)
    tuning = {"trials": trials, "step_sizes": (1e-4, 1.0)}
    draws = gpx.sample(
        model, num_draws, CHAINS, thin=coal.THIN, tuning=tuning, seed=1, progress=False, check=False
    )
    model.assign_draws(draws, most=2000)
    means, variances = model.density.moments(model.held(), tf.constant(model.data[0]))
    return {
        **rates(means.numpy()[..., 0], variances.numpy()[..., 0]),
        **{name: runs.moments(draws.values[path]) for name, path in NAMES.items()},
        "shown": {name: draws.flat(400)[path].ravel().tolist() for name, path in NAMES.items()},
        **runs.record(draws),
    }


def run(journal: Journal, folder: Path, num_draws: int, trials: int) -> None:
    """Measure what the journal lacks, and draw."""
    for name, measure in (
        (GAUSSIAN, gaussian),
        (FREE_FORM, functools.partial(sampled, False, num_draws, trials)),
        (EXACT, functools.partial(sampled, True, num_draws, trials)),
    ):
        journal.once({"experiment": "coal rates", "method": name}, measure)
        print(f"coal rates, {name}: done", flush=True)
    draw(folder / "sgpmc_coal.png", found(journal))


def found(journal: Journal) -> dict[str, Record]:
    """Return the records by method."""
    records = {one["method"]: one for one in journal.find(experiment="coal rates")}
    return {name: records[name] for name in (GAUSSIAN, FREE_FORM, EXACT) if name in records}


def draw(path: Path, records: dict[str, Record]) -> None:
    """Draw the rates a bin of each method with the counts, and draws of length scale and variance."""
    figure, axes = runs.figure(path, 11.0, 3.8, columns=2)
    X, train, test, width = coal.counts(coal.dates(), 0)
    axes[0].bar(X[:, 0], (train + test)[:, 0] / width, width=width, color="0.85", label="events")
    for number, (name, one) in enumerate(records.items()):
        axes[0].plot(X[:, 0], one["mean"], color=f"C{number}", label=name)
        for end in ("low", "high"):
            axes[0].plot(X[:, 0], one[end], color=f"C{number}", linewidth=0.8, linestyle="--")
        if "shown" in one:
            axes[1].plot(*(one["shown"][each] for each in NAMES), ".", color=f"C{number}", markersize=3)
        else:
            axes[1].plot(one["lengthscale"][0], one["variance"][0], "*", color=f"C{number}", markersize=12)
    axes[0].set(xlabel="year", ylabel="events a year; dashed: 95 % intervals")
    axes[1].set(xlabel="length scale, years", ylabel="variance", xscale="log", yscale="log")
    axes[1].xaxis.set_minor_formatter("{x:g}")
    for axis in (axes[1].xaxis, axes[1].yaxis):
        axis.set_major_formatter("{x:g}")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=100)


def away(one: Record, exact: Record, *parts: str) -> float:
    """Return the root mean squared difference of parts of the rates, relative to the mean exact rate."""
    differences = [np.subtract(one[part], exact[part]) for part in parts]
    return float(np.sqrt(np.mean(np.square(differences))) / np.mean(exact["mean"]))


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = found(journal)
    if EXACT not in records:
        return []
    exact = records[EXACT]
    rows = [
        [
            name,
            *("{:.2f} ± {:.2f}".format(*one[each]) if one[each][1] else f"{one[each][0]:.2f}" for each in NAMES),
            *("–" if one is exact else f"{100 * away(one, exact, *parts):.1f} %" for parts in (["mean"], ["low", "high"])),
            *(runs.cells(one) if "rhat" in one else [""] * len(runs.COLUMNS)),
        ]
        for name, one in records.items()
    ]  # fmt: skip
    columns = (
        "method",
        "length scale",
        "variance",
        "rates from exact",
        "intervals from exact",
        *runs.COLUMNS,
    )
    text = TEXT.format(inducing=coal.INDUCING, bins=coal.BINS, chains=CHAINS, draws=exact["draws"])
    picture = "![Rates by three methods, and draws of length scale and variance](sgpmc_coal.png)\n"
    return [text, report.table(columns, rows), picture]
