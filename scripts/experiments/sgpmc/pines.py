"""A log Gaussian Cox process on grids of a square, after section 4.2 of Hensman et al. (2015), with a known intensity."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.numerics.grids import grid

from ...shared import report
from ...shared.journal import Journal, Record
from . import runs

Array = npt.NDArray[Any]

SIDE = 10.0  # of the square, as the paper scales the pine saplings'
TRUTH = {"lengthscale": 1.0, "variance": 0.8, "mean": 0.0}
GRIDS = (
    (32, 15, "rescaled"),
    (64, 15, "rescaled"),
    (32, 15, "vb"),
    (32, 15, None),
    (512, 15, "rescaled"),
)  # cells, inducing, coordinates
CHAINS, FINEST, FIXED = 10, 512, gpx.Setting(0.4, 10)
TEXT = """\
## A point pattern on a square

{events} points of a log Gaussian Cox process on a square of side 10, its log intensity drawn from a Gaussian process with length
scale {lengthscale:g} and variance {variance:g}. The pine saplings of the paper (126 points) were not available. Counts in the cells of a grid,
inducing points on a grid, a squared exponential kernel with Gamma(1.75, rate 1) on its length scale and Gamma(1.2, rate 1)
on its variance, a constant mean with N(0, 1). Both being grids, the Kronecker structure is used. {chains} chains, tuned by
Bayesian optimisation; on the finest grid a tenth of the draws, with the setting given in the table. Coordinates: `None` are the
whitened ones of the paper, `vb` those of the Gaussian approximation of v, `rescaled` the same, but following the length scale
and the variance.
`expected` is the posterior mean of ∫ intensity, `error` the root mean squared error of the posterior mean of the log
intensity, `covered` the share of cells whose true log intensity is within two standard deviations.

The paper needs 3.4 s (32 × 32) and 4.7 s (64 × 64) for an effective draw on its machine.
"""


def pattern(cells: int = 512) -> tuple[Array, Array]:
    """Return events [E, 2], and the true log intensity in the cells of a grid [cells, cells]."""
    rng = np.random.default_rng(3)
    axis = (np.arange(cells) + 0.5) * SIDE / cells
    gram = np.exp(-0.5 * (axis[:, None] - axis) ** 2 / TRUTH["lengthscale"] ** 2) + 1e-8 * np.eye(cells)
    factor = np.linalg.cholesky(gram)
    log_rate = (
        TRUTH["mean"] + np.sqrt(TRUTH["variance"]) * factor @ rng.standard_normal(gram.shape) @ factor.T
    )
    width = SIDE / cells
    counts = rng.poisson(np.exp(log_rate) * width**2)
    corners = np.repeat(np.stack(np.nonzero(counts), axis=1), counts[counts > 0], axis=0)
    return (corners + rng.uniform(size=corners.shape)) * width, log_rate


def build(events: Array, cells: int, inducing: int) -> gpx.models.SGPMCFreeForm:
    """Return the untrained model."""
    counted = gpx.datasets.grid_counts(events, cells, [(0.0, SIDE)] * 2)
    axis = (np.arange(inducing) + 0.5) * SIDE / inducing
    mean = gpflow.functions.Constant(float(np.log(len(events) / SIDE**2)))
    mean.c.prior = runs.normal()
    return gpx.models.SGPMCFreeForm(
        (counted.X, counted.Y),
        runs.kernel(1.0, (1.75, 1.0), (1.2, 1.0)),
        gpflow.likelihoods.Poisson(binsize=counted.cell),
        mean,
        inducing_variable=grid(axis, axis),
    )


def coarse(fine: Array, cells: int) -> Array:
    """Return the log of the mean intensity in larger cells."""
    block = len(fine) // cells
    return np.log(np.exp(fine).reshape(cells, block, cells, block).mean(axis=(1, 3)))


def measure(path: Path, case: tuple[int, int, Any], num_draws: int, trials: int) -> Record:
    """Sample one grid."""
    cells, inducing, precondition = case
    events, truth = pattern()
    model = build(events, cells, inducing)
    gpx.gaussian_approximation(model)
    fixed = cells == FINEST
    draws = gpx.sample(
        model,
        num_draws // 10 if fixed else num_draws,
        CHAINS,
        tuner=FIXED if fixed else "bayesopt",
        precondition=precondition,
        tuning=None if fixed else {"trials": trials},
        warm_up=50,
        progress=False,
        check=False,
    )
    model.assign_draws(draws, most=200)
    mean, var = (part.numpy().reshape(cells, cells) for part in model.predict_f(model.data[0]))
    rate = rates(model)
    true = coarse(truth, cells)
    if case == GRIDS[1]:
        draw(path, events, true, rate.reshape(cells, cells), np.sqrt(var))
    return {
        "events": len(events),
        "expected": float(rate.sum() * (SIDE / cells) ** 2),
        "error": float(np.sqrt(np.mean((mean - true) ** 2))),
        "covered": float(np.mean(np.abs(mean - true) < 2.0 * np.sqrt(var))),
        **runs.record(draws),
    }


def rates(model: gpx.models.SGPMCFreeForm) -> Array:
    """Return the posterior mean of the intensity at the data, [N]."""
    means, variances = model.density.moments(model.held(), tf.constant(model.data[0]))
    return np.exp(means.numpy() + 0.5 * variances.numpy()).mean(axis=(0, 2))


def draw(path: Path, events: Array, truth: Array, rate: Array, deviation: Array) -> None:
    """Draw events, the true and the posterior mean intensity, and the posterior deviation of its logarithm."""
    figure, axes = runs.figure(path, 15.0, 3.9, columns=4)
    extent = (0.0, SIDE, 0.0, SIDE)
    axes[0].plot(*events.T, "k.", markersize=2)
    axes[0].set_aspect("equal")
    axes[0].set(xlim=extent[:2], ylim=extent[2:])
    highest = max(np.exp(truth).max(), rate.max())
    for ax, field, top in (
        (axes[1], np.exp(truth), highest),
        (axes[2], rate, highest),
        (axes[3], deviation, None),
    ):
        shown = ax.imshow(field.T, origin="lower", extent=extent, vmin=0.0, vmax=top)
        figure.colorbar(shown, ax=ax, shrink=0.85)
    titles = ("events", "true intensity", "posterior mean intensity", "deviation of its logarithm")
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title)
    figure.savefig(path, dpi=90)


def run(journal: Journal, folder: Path, num_draws: int, trials: int, quick: bool) -> None:
    """Measure what the journal lacks."""
    for case in ((16, 4, "rescaled"),) if quick else GRIDS:
        cells, inducing, precondition = case
        key = {"experiment": "pines", "cells": cells, "inducing": inducing, "precondition": str(precondition)}
        journal.once(key, functools.partial(measure, folder / "sgpmc_pattern.png", case, num_draws, trials))
        print(f"point pattern, {cells} x {cells} cells: done", flush=True)


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    order = [str(precondition) for _, _, precondition in GRIDS]
    records = sorted(
        journal.find(experiment="pines"),
        key=lambda one: (one["cells"], order.index(one["precondition"])),
    )
    if not records:
        return []
    rows = [
        [
            f"{one['cells']} × {one['cells']}, {one['inducing']} × {one['inducing']}, {one['precondition']}",
            f"{one['expected']:.1f}",
            f"{one['error']:.3f}",
            f"{100 * one['covered']:.0f} %",
            report.number(one["ms_per_gradient"]),
            report.number(1.0 / one["ess_per_second"]),
            *runs.cells(one),
        ]
        for one in records
    ]
    columns = ("cells, inducing points, coordinates", "expected", "error", "covered", f"ms per gradient of {CHAINS} chains", "s per effective draw", *runs.COLUMNS)  # fmt: skip
    text = TEXT.format(events=records[0]["events"], chains=CHAINS, **TRUTH)
    picture = "![Point pattern, true and inferred intensity, 64 × 64 cells](sgpmc_pattern.png)\n"
    found = any(one["cells"] == GRIDS[1][0] for one in records)
    return [text, report.table(columns, rows), *([picture] if found else [])]
