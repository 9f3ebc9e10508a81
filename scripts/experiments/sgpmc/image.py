"""Inducing points and the free form, Figure 1 of Hensman et al. (2015) and its supplement: regions of images in two classes."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

import gpflow_ext as gpx

from ...shared import report, segments
from ...shared.journal import Journal, Record
from . import runs

INDUCING, SPLITS, CHAINS, PRIOR = (5, 10, 20, 50, 100), 10, 4, (1.1, 1.0)
MORE_STARTS = 20  # of the Gaussian approximation, where chains have not
AGAIN = "image, more starts"
SETTING, WARM_UP, SHAPE = gpx.Setting(0.2, 20), 50, (1000, 1019)
KERNELS = {"ARD": "A length scale for each input", "RBF": "One length scale"}
SCORES = ("gaussian", "free_form", "sparse_ep", "evidence")
TEXT = """\
## Inducing points and the free form

The `image` set: {about}
{training:,} rows for training and {testing:,} for testing, as in the paper. A probit likelihood,
a squared exponential kernel with Gamma(1.1, rate 1) on length scales and variance. Z by k-means, or optimised from there under
the approximation of each column. The score is the mean log predictive density of the test rows. Where there are several random
splits (paper: ten), it is their mean with its standard error. `gain`: the free form less the Gaussian, split by split.
{chains} chains of {draws} draws after {warm_up}, with one setting for all runs. SparseEP: the sparse expectation propagation of
Hernández-Lobato & Hernández-Lobato (2016), with the same priors, and without priors as in its paper.
"""


def measure(ard: bool, inducing: int, free: bool, seed: int, num_draws: int, shape: Sequence[int]) -> Record:
    """Approximate, sample, run expectation propagation, and score."""
    begin = time.process_time()
    train, test, Z, lengths = problem(ard, inducing, seed, shape)
    flat = gpflow.kernels.SquaredExponential(lengthscales=lengths)
    return {
        **sample(ard, inducing, free, seed, num_draws, shape),
        "sparse_ep": sparse_ep(train, test, runs.kernel(lengths, PRIOR, PRIOR), Z, free),
        "evidence": sparse_ep(train, test, flat, Z, free),
        "processor": time.process_time() - begin,
    }


def problem(ard: bool, inducing: int, seed: int, shape: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """Return the training and the test rows of a split, inducing points by k-means, and length scales to start from."""
    train, test = segments.parts(seed, *shape)
    Z = gpx.inducing.kmeans(train[0], inducing, seed=seed)
    lengths = np.full(train[0].shape[1], 3.0) if ard else 3.0
    return train, test, Z, lengths


def sample(
    ard: bool,
    inducing: int,
    free: bool,
    seed: int,
    num_draws: int,
    shape: Sequence[int],
    starts: int | None = None,
) -> Record:
    """Approximate, from the best of ``starts``, sample from there, and score both."""
    train, test, Z, lengths = problem(ard, inducing, seed, shape)
    model = gpx.models.SGPMCFreeForm(
        train, runs.kernel(lengths, PRIOR, PRIOR), gpx.likelihoods.BernoulliProbit(), inducing_variable=Z
    )
    fitted = gpx.gaussian_approximation(model, steps=200, free_inducing=free, starts=starts, seed=seed)
    gaussian = runs.gaussian_log_density(model, test)
    options: dict[str, Any] = {"tuner": SETTING, "warm_up": WARM_UP, "seed": seed, "check": False}
    draws = gpx.sample(model, num_draws, CHAINS, progress=False, **options)
    return {
        "bound": float(fitted.objective[-1]),
        "gaussian": gaussian,
        "free_form": runs.free_form_log_density(model, draws, test),
        **runs.record(draws),
    }


def sparse_ep(train: Any, test: Any, kernel: gpflow.kernels.Kernel, Z: Any, free: bool) -> float:
    """Return the mean log density of test rows by `SparseEP`."""
    model = gpx.models.SparseEP(train, kernel, gpx.likelihoods.BernoulliProbit(), inducing_variable=Z.copy())
    gpflow.set_trainable(model.inducing_variable, free)
    gpx.fit(model, progress=False)
    return float(np.mean(model.predict_log_density(test)))


def run(journal: Journal, folder: Path, num_draws: int, splits: int, quick: bool) -> None:
    """Measure what the journal lacks."""
    shape = (100, 100) if quick else SHAPE
    numbers = (3,) if quick else INDUCING[::-1]  # the large ones, which the claim is about, first
    cells = itertools.product(numbers, range(splits), KERNELS, (False, True))
    for inducing, seed, kernel, free in cells:
        key = {"experiment": "image", "kernel": kernel, "inducing": inducing, "free": free, "seed": seed}
        ard = kernel == "ARD"
        journal.once(key, functools.partial(measure, ard, inducing, free, seed, num_draws, shape))
        print(f"image, {kernel}, M = {inducing}, split {seed}, free = {free}: done", flush=True)
    if not quick:
        again(journal, num_draws)
    if journal.find(experiment="image"):
        draw(folder / "sgpmc_image.png", journal)


def again(journal: Journal, num_draws: int) -> None:
    """Begin the chains that have not mixed anew, from the best of more starts of the Gaussian approximation."""
    for kernel, inducing, free, seed in sorted(unmixed(journal.find(experiment="image"))):
        key = {"experiment": AGAIN, "kernel": kernel, "inducing": inducing, "free": free, "seed": seed}
        arguments = kernel == "ARD", inducing, free, seed, num_draws, SHAPE, MORE_STARTS
        journal.once(key, functools.partial(sample, *arguments))
        print(f"{AGAIN}, {kernel}, M = {inducing}, split {seed}, free = {free}: done", flush=True)


Cell = tuple[bool, int]


def grouped(journal: Journal, kernel: str) -> dict[Cell, dict[str, tuple[float, float]]]:
    """Return means and standard errors over the splits by (whether Z was freed, M)."""
    found = {}
    records = journal.find(experiment="image", kernel=kernel)
    for free, inducing in sorted({(one["free"], one["inducing"]) for one in records}):
        of = [one for one in records if (one["free"], one["inducing"]) == (free, inducing)]
        scores = {name: np.array([one[name] for one in of]) for name in SCORES}
        scores["gain"] = scores["free_form"] - scores["gaussian"]
        found[free, inducing] = {
            name: (values.mean(), values.std(ddof=1) / np.sqrt(len(of)) if len(of) > 1 else np.nan)
            for name, values in scores.items()
        }
    return found


def draw(path: Path, journal: Journal) -> None:
    """Draw the score of the free form, and its gain over the Gaussian, against M."""
    figure, axes = runs.figure(path, 9.0, 6.4, rows=2, columns=2)
    for row, (kernel, title) in zip(axes, KERNELS.items(), strict=True):
        found = grouped(journal, kernel)
        for ax, name in zip(row, ("free_form", "gain"), strict=True):
            for free, label in ((True, "Z optimised"), (False, "Z by k-means")):
                counts = [inducing for freed, inducing in found if freed is free]
                means, errors = zip(*(found[free, inducing][name] for inducing in counts), strict=True)
                ax.errorbar(counts, means, errors, marker="o", capsize=3, label=label)
            ax.set(xscale="log", xlabel="inducing points", title=title)
            ax.set_xticks(counts, [str(count) for count in counts])
            ax.xaxis.set_minor_formatter("")
        row[0].set_ylabel("log density of test rows, free form")
        row[1].set_ylabel("free form less Gaussian")
        row[1].axhline(0.0, color="0.7", linewidth=1)
    axes[0][0].legend()
    figure.savefig(path, dpi=100)


def document(journal: Journal) -> list[str]:
    """Return the tables of what the journal holds, as Markdown."""
    records = journal.find(experiment="image")
    if not records:
        return []
    text = TEXT.format(
        about=segments.ABOUT,
        training=SHAPE[0],
        testing=SHAPE[1],
        chains=CHAINS,
        warm_up=WARM_UP,
        draws=records[0]["draws"],
    )
    parts = [text]
    for kernel, title in KERNELS.items():
        parts += [f"{title} ({kernel}):\n", _table(records, kernel, grouped(journal, kernel))]
    parts += [_unmixed(records), *_again(records, journal.find(experiment=AGAIN))]
    parts.append(_found({kernel: grouped(journal, kernel) for kernel in KERNELS}))
    return [*parts, "![Log density of test rows against the number of inducing points](sgpmc_image.png)\n"]


def _table(
    records: list[Record], kernel: str, found: Mapping[Cell, Mapping[str, tuple[float, float]]]
) -> str:
    rows = []
    for (free, inducing), of in found.items():
        same = [
            one
            for one in records
            if (one["kernel"], one["free"], one["inducing"]) == (kernel, free, inducing)
        ]
        rows.append(
            [
                f"{inducing}, {'optimised' if free else 'k-means'}",
                *(_cell(*of[name]) for name in ("gaussian", "free_form", "gain", "sparse_ep", "evidence")),
                str(len(same)),
                f"{max(one['rhat'] for one in same):.3f}",
                f"{min(one['min_ess'] for one in same):.0f}",
                report.number(float(np.mean([one["processor"] for one in same]))),
            ]
        )
    columns = (
        "M, Z",
        "Gaussian",
        "free form",
        "gain",
        "SparseEP",
        "SparseEP, no priors",
        "splits",
        "worst R-hat",
    )
    return report.table((*columns, "least ESS", "CPU s"), rows)


def _cell(mean: float, error: float) -> str:
    return f"{mean:.4f}" if np.isnan(error) else f"{mean:.4f} ± {error:.4f}"


def unmixed(records: Iterable[Record]) -> set[tuple[str, int, bool, int]]:
    """Return kernel, number of points, whether they are optimised, and split of the chains that have not mixed."""
    return {
        (one["kernel"], one["inducing"], one["free"], one["seed"])
        for one in records
        if not report.mixed({"rhat": one["rhat"], "ess": one["min_ess"]})
    }


def _name(kernel: str, inducing: int, free: bool, seed: int) -> str:
    return f"{kernel}, {inducing} {'optimised points' if free else 'points by k-means'}, split {seed}"


def _again(records: Iterable[Record], renewed: list[Record]) -> list[str]:
    """Compare chains that had not mixed with those from the best of more starts."""
    if not renewed:
        return []
    fields = ("kernel", "inducing", "free", "seed")
    before = {tuple(one[field] for field in fields): one for one in records}
    rows = []
    for one in renewed:
        cell = tuple(one[field] for field in fields)
        for start, of in (("one", before[cell]), (f"best of {MORE_STARTS}", one)):
            bound = f"{of['bound']:.1f}" if "bound" in of else "not recorded"
            scores = (
                f"{of['gaussian']:.4f}",
                f"{of['free_form']:.4f}",
                f"{of['rhat']:.3f}",
                f"{of['min_ess']:.0f}",
            )
            rows.append([_name(*cell), start, bound, *scores])
    columns = ("chains", "starts", "bound", "Gaussian", "free form", "worst R-hat", "least ESS")
    mixed = len(renewed) - len(unmixed(renewed))
    text = (
        "The same chains, begun where the Gaussian approximation has the highest bound of several starts "
        f"(`gaussian_approximation(starts=...)`), nothing else changed: {mixed} of {len(renewed)} mix then. "
        "The tables above keep one start for all.\n"
    )
    return [text, report.table(columns, rows)]


def _unmixed(records: Iterable[Record]) -> str:
    """Name the chains that have not mixed."""
    named = [_name(*cell) for cell in sorted(unmixed(records))]
    return (
        f"Not mixed (R-hat above {report.MOST_RHAT}, or fewer than {report.LEAST_ESS:.0f} effective draws): "
        f"{'; '.join(named) or 'none'}.\n"
    )


def _found(found: Mapping[str, Mapping[Cell, Mapping[str, tuple[float, float]]]]) -> str:
    """Say where the paper's two claims hold."""
    sentences = []
    for kernel, cells in found.items():
        counts = [inducing for free, inducing in cells if free]
        better = [M for M in counts if cells[True, M]["free_form"][0] > cells[False, M]["free_form"][0]]
        gains = [M for M in counts if cells[True, M]["gain"][0] > 0.0]
        sure = [M for M in gains if cells[True, M]["gain"][0] > 2.0 * cells[True, M]["gain"][1]]
        sentences.append(
            f"{kernel}: optimised inducing points are better at {len(better)} of {len(counts)} numbers of them. With these "
            f"the free form is better than the Gaussian at {_listed(gains)}, by more than two standard errors at {_listed(sure)}."
        )
    return "\n".join(sentences) + "\n"


def _listed(counts: list[int]) -> str:
    return "M = " + ", ".join(str(count) for count in counts) if counts else "none"
