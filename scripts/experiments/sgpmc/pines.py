"""The pine saplings of Hensman et al. (2015), section 4.3: a log Gaussian Cox process on grids of a square."""

from __future__ import annotations

import functools
import os
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

SIDE = 10.0  # of the square, as the paper scales it
FULL, SPARSE, FINER = (32, 32, "rescaled"), (32, 15, "rescaled"), (64, 15, "rescaled")
GRIDS = (
    SPARSE,
    FULL,
    FINER,
    (32, 15, "vb"),
    (32, 15, None),
    (512, 15, "rescaled"),
)  # cells, inducing, coordinates
CHAINS, FINEST, FIXED = 10, 512, gpx.Setting(0.4, 10)
DIGITS = 6  # of the intensities in the records
TEXT = """\
## Pine saplings

{events} locations in a square of side 10, a log Gaussian Cox process: counts in the cells of a grid, inducing points on a grid.
The kernel is squared exponential, with Gamma(1.75, rate 1) on its length scale and Gamma(1.2, rate 1) on its variance, the mean a
constant with N(0, 1). With an inducing point in each cell the run is full MCMC, without an approximation. Both grids have Kronecker
structure, which is used. {chains} chains, tuned by Bayesian optimisation; on the finest grid a tenth of the draws, with the
setting given in the table. Coordinates: `None` are the whitened ones of the paper, `vb` those of the Gaussian approximation of
v, `rescaled` the same, but following the length scale and the variance.
`expected` is the posterior mean of the integral of the intensity. `from full` is the root mean squared difference of the posterior
mean intensity from that of full MCMC, relative to the mean intensity. Length scale and variance are posterior means ± deviations.

The paper needs 3.4 s (32 × 32) and 4.7 s (64 × 64) for an effective draw on its machine, and 554 s by full MCMC (32 × 32).
It finds the agreement of full and sparse sampling very close.
"""


def saplings() -> Array:
    """Return the locations [127, 2] in the square; the paper's file has one of its 126 trees twice."""
    path = Path(os.environ.get("GPFLOW_EXT_DATA", "")) / "pines.csv.gz"
    if not path.is_file():
        raise FileNotFoundError(
            "The pine saplings are missing: set GPFLOW_EXT_DATA to a folder with pines.csv.gz, whose first "
            "columns u and v are in the unit square."
        )
    return SIDE * np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1))


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


def measure(case: tuple[int, int, Any], num_draws: int, trials: int) -> Record:
    """Sample one grid."""
    cells, inducing, precondition = case
    events = saplings()
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
    rate = rates(model)
    return {
        "events": len(events),
        "expected": float(rate.sum() * (SIDE / cells) ** 2),
        "lengthscale": runs.moments(draws.values["kernel.lengthscales"]),
        "variance": runs.moments(draws.values["kernel.variance"]),
        **runs.record(draws),
        **({} if fixed else {"rate": [float(f"{value:.{DIGITS}g}") for value in rate]}),
    }


def rates(model: gpx.models.SGPMCFreeForm) -> Array:
    """Return the posterior mean of the intensity at the data, [N]."""
    means, variances = model.density.moments(model.held(), tf.constant(model.data[0]))
    return np.exp(means.numpy() + 0.5 * variances.numpy()).mean(axis=(0, 2))


def draw(path: Path, events: Array, fields: dict[str, Array]) -> None:
    """Draw events and posterior mean intensities [cells, cells], as in the paper's Figure 3."""
    figure, axes = runs.figure(path, 4.0 * (1 + len(fields)), 3.9, columns=1 + len(fields))
    extent = (0.0, SIDE, 0.0, SIDE)
    axes[0].plot(*events.T, "k.", markersize=3)
    axes[0].set_aspect("equal")
    axes[0].set(xlim=extent[:2], ylim=extent[2:], title="pine saplings")
    highest = max(field.max() for field in fields.values())
    for ax, (title, field) in zip(axes[1:], fields.items(), strict=True):
        shown = ax.imshow(field.T, origin="lower", extent=extent, vmin=0.0, vmax=highest)
        ax.set_title(title)
    figure.colorbar(shown, ax=axes[1:], shrink=0.85, label="intensity")
    figure.savefig(path, dpi=90)


def run(journal: Journal, folder: Path, num_draws: int, trials: int, quick: bool) -> None:
    """Measure what the journal lacks, and draw."""
    saplings()
    for case in ((16, 4, "rescaled"),) if quick else GRIDS:
        cells, inducing, precondition = case
        key = {
            "experiment": "saplings",
            "cells": cells,
            "inducing": inducing,
            "precondition": str(precondition),
        }
        journal.once(key, functools.partial(measure, case, num_draws, trials))
        print(f"pine saplings, {cells} x {cells} cells, {inducing} x {inducing}: done", flush=True)
    names = {"full MCMC, 32 × 32": FULL, "225 inducing points, 32 × 32": SPARSE, "225, 64 × 64": FINER}
    found = {name: _record(journal, case) for name, case in names.items()}
    if all(found.values()):
        fields = {name: np.reshape(one["rate"], (one["cells"],) * 2) for name, one in found.items() if one}
        draw(folder / "sgpmc_pines.png", saplings(), fields)


def _record(journal: Journal, case: tuple[int, int, Any]) -> Record | None:
    cells, inducing, precondition = case
    key = {"cells": cells, "inducing": inducing, "precondition": str(precondition)}
    return next(iter(journal.find(experiment="saplings", **key)), None)


def away(rate: Any, full: Any) -> float:
    """Return the root mean squared difference of two intensities, relative to the mean of the second."""
    return float(np.sqrt(np.mean((np.asarray(rate) - full) ** 2)) / np.mean(full))


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    found = {
        (one["cells"], one["inducing"], one["precondition"]): one
        for one in journal.find(experiment="saplings")
    }
    order = [(cells, inducing, str(precondition)) for cells, inducing, precondition in GRIDS]
    records = [found[case] for case in (*order, *(found.keys() - order)) if case in found]
    if not records:
        return []
    full = _record(journal, FULL)
    rows = [
        [
            f"{one['cells']} × {one['cells']}, {one['inducing']} × {one['inducing']}, {one['precondition']}",
            f"{one['expected']:.1f}",
            f"{100 * away(one['rate'], full['rate']):.1f} %" if full and one["cells"] == FULL[0] else "–",
            *("{:.3f} ± {:.3f}".format(*one[name]) for name in ("lengthscale", "variance")),
            report.number(one["ms_per_gradient"]),
            report.number(1.0 / one["ess_per_second"]),
            *runs.cells(one),
        ]
        for one in records
    ]
    columns = ("cells, inducing points, coordinates", "expected", "from full", "length scale", "variance", f"ms per gradient of {CHAINS} chains", "s per effective draw", *runs.COLUMNS)  # fmt: skip
    sparse, verdict = _record(journal, SPARSE), []
    if full and sparse:
        verdict.append(
            f"Here it is not: by full MCMC the length scale is {full['lengthscale'][0]:.2f}, a cell's side is "
            f"{SIDE / FULL[0]:.2f} and the inducing points are {SIDE / SPARSE[1]:.2f} apart. Their bound favours length scales that "
            f"they resolve, and the narrow clusters are smoothed over. An effective draw takes "
            f"{report.number(sparse['ess_per_second'] / full['ess_per_second'])} times as long by full MCMC.\n"
        )
    text = TEXT.format(events=records[0]["events"], chains=CHAINS)
    picture = "![Pine saplings, and posterior mean intensities of three runs](sgpmc_pines.png)\n"
    shown = all(_record(journal, case) for case in (FULL, SPARSE, FINER))
    return [text, report.table(columns, rows), *verdict, *([picture] if shown else [])]
