"""The experiments: tasks, measurements and text."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx

from ...shared import jura as survey
from ...shared import report
from ...shared.journal import Journal
from . import convergence, methods, scaling, verdicts
from . import field as images
from .reading import READING
from .task import Task

Array = npt.NDArray[Any]


def heat(seed: int) -> Task:
    """Solutions of the heat equation, 64 × 64 points, 80 training and 20 test rows of the authors' training part."""
    (X, Y), (X_test, Y_test) = gpx.datasets.load("heat4096", seed=seed, test_fraction=0.2)
    return Task(X, Y, X_test, Y_test, floor=1e-8, steps=10, seed=seed)


def arabidopsis(seed: int) -> Task:
    """Expression of 800 genes over a day, 18 training and 4 test rows; each gene less its training mean."""
    (X, Y), (X_test, Y_test) = gpx.datasets.load("arabidopsis800", seed=seed, test_fraction=0.2)
    return _standardised(Task(X, Y, X_test, Y_test, seed=seed))


def sarcos(seed: int) -> Task:
    """Seven joint torques from 21 inputs, 200 training and 1,000 test rows drawn from the 4,449."""
    (X, Y), (X_test, Y_test) = gpx.datasets.load("sarcos_test4449", seed=seed, test_fraction=0.3)
    return _standardised(Task(X[:200], Y[:200], X_test[:1000], Y_test[:1000], seed=seed, steps=10), each=True)


def germany(seed: int) -> Task:
    """PM10 at 70 stations on 100 days; a fifth of the readings is held out, at random."""
    with np.load(Path(os.environ["GPFLOW_EXT_DATA"]) / "germany_pm10.npz") as file:
        day, Y = file["day"], file["Y"].astype(np.float64)
    rows = np.arange(3000 + 100 * seed, 3100 + 100 * seed)
    X, Y = ((day[rows] - day[rows].mean()) / 5.0)[:, None], np.log1p(Y[rows])
    Y = Y[:, (~np.isnan(Y)).sum(axis=0) >= 50]
    held = (np.random.default_rng(seed).uniform(size=Y.shape) < 0.2) & ~np.isnan(Y)
    task = Task(X, np.where(held, np.nan, Y), X, np.where(held, Y, np.nan), seed=seed, steps=8)
    return _standardised(task, each=True)


def jura(seed: int) -> Task:
    """Logarithms of cadmium, nickel and zinc at 359 places; cadmium is predicted at the 100 validation sites."""
    part, (_, log, hidden) = survey.problem(), survey.sites()
    middle, scale = log[~hidden, 0].mean(), log[~hidden, 0].std()
    Y_test = np.full_like(part.Y, np.nan)
    Y_test[hidden] = part.Y_test
    # Rough nodes, which the bound prefers to smooth ones.
    return Task(
        part.X,
        part.Y,
        part.X,
        Y_test,
        seed=seed,
        steps=50,
        measured=lambda Y: np.exp(middle + scale * Y),
        nodes=gpflow.kernels.Matern32,
    )


def generated(
    seed: int, stationary: bool = False, outputs: int = 200, rows: int = 60, width: int = 2
) -> Task:
    """Draws of a network with two nodes, or of independent GPs with one kernel; as many test rows."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (2 * rows, width))
    factors = [images.root(X, length) for length in (3.0, 1.2)]
    W = np.einsum("nm,mdk->ndk", factors[0], rng.standard_normal((2 * rows, outputs, 2)))
    F = factors[1] @ rng.standard_normal((2 * rows, 2))
    Y = W[:, :, 0] if stationary else np.einsum("ndk,nk->nd", W, F)
    Y = Y + 0.1 * rng.standard_normal(Y.shape)
    return Task(X[:rows], Y[:rows], X[rows:], Y[rows:], seed=seed)


def independent_data(seed: int) -> Task:
    """See `generated`."""
    return generated(seed, stationary=True)


def small(seed: int) -> Task:
    """See `generated`; forty outputs."""
    return _reduced(generated(seed))


def _reduced(task: Task) -> Task:
    """Keep forty outputs, for two steps."""
    return replace(task, Y=task.Y[:, :40], Y_test=task.Y_test[:, :40], steps=2)


def _standardised(task: Task, each: bool = False) -> Task:
    """Subtract the training mean of each output; divide by the deviation of each, or of all."""
    middle = np.nanmean(task.Y, axis=0)
    scale = np.nanstd(task.Y, axis=0) if each else np.nanstd(task.Y - middle)
    Y, Y_test = ((part - middle) / scale for part in (task.Y, task.Y_test))
    return Task(task.X, Y, task.X_test, Y_test, task.floor, task.steps, task.seed)


TASKS: dict[str, tuple[Callable[[int], Task], Sequence[int]]] = {  # task, numbers of nodes
    "heat": (heat, (1, 2, 4)),
    "generated": (generated, (1, 2)),
    "stationary": (independent_data, (1, 2)),
    "arabidopsis": (arabidopsis, (1, 2, 4)),
    "germany": (germany, (1, 2)),
    "jura": (jura, (1, 2, 3)),
    "sarcos": (sarcos, (1, 2)),
    "field": (images.field, (2,)),
}
MILLION = (methods.INDEPENDENT, methods.PCA, methods.COLLAPSED)  # methods that a million outputs allow
_FORMS = {"nrmse": ".4f", "nmae": ".4f", "nlpd": ".3f", "bound": ",.0f", "seconds": ".1f"}
_NAMES = {
    "mae": "MAE, mg/kg",
    "nrmse": "nRMSE",
    "nmae": "nMAE",
    "nlpd": "NLPD",
    "bound": "bound or evidence",
    "seconds": "seconds",
}
PICTURED = {"heat": "one simulated run each row", "field": "one test input each row"}


def compare(
    journal: Journal,
    name: str,
    seeds: int,
    chosen: Sequence[str] | None = None,
    quick: bool = False,
    folder: Path = Path(),
    nodes: Sequence[int] | None = None,
) -> None:
    """Measure the chosen methods, or all, on one task, as far as the journal lacks them.

    What the network with two nodes predicts of images goes as a picture into ``folder``, for the first seed.
    ``nodes`` replaces the numbers of nodes of the task.
    """
    wanted = [methods.BY_FLAG[flag] for flag in chosen or methods.BY_FLAG]
    make, usual = TASKS[name]
    numbers = nodes or (usual[-1:] if quick else usual)
    for seed in range(seeds):
        task = _reduced(make(seed)) if quick else make(seed)
        jobs = [(methods.INDEPENDENT, 0), (methods.PCA, 0), (methods.LMC, numbers[-1]), (methods.OTHERS, 0)]
        impossible = methods.PARTLY_OBSERVED_ONLY if task.complete else methods.COMPLETE_ONLY
        jobs += [
            (method, K)
            for method in (methods.COLLAPSED, methods.TENSOR, methods.ROWS, methods.KERNELS)
            for K in numbers
        ]
        jobs += [
            (m, numbers[-1])
            for m in (methods.JOINT, methods.CHOSEN, methods.ADAM, methods.MEAN_FIELD, methods.MIXTURE)
        ]
        for method, K in jobs:
            if method not in wanted or method in impossible or (name == "field" and method not in MILLION):
                continue
            key = {"of": name, "method": method, "nodes": K, "seed": seed}
            found = journal.find(of=name, method=methods.COLLAPSED, nodes=K, seed=seed)
            budget = found[0]["seconds"] if found else 0.0
            pictured = not quick and name in PICTURED and (method, K, seed) == (methods.COLLAPSED, 2, 0)
            show = (
                functools.partial(images.draw, folder / f"gprn_{name}.png", task.Y_test) if pictured else None
            )
            journal.once(key, functools.partial(_measured, method, task, K, budget, show))


def _measured(
    method: str, task: Task, nodes: int, budget: float, show: Callable[[Array], None] | None
) -> dict[str, float | None]:
    """Run a method; JSON has no number that is not finite."""
    found = methods.run(method, task, nodes, budget, show)
    return {key: value if np.isfinite(value) else None for key, value in found.items()}


def text(journal: Journal, recorded: bool = True) -> str:
    """Return what the journal holds, as Markdown; with what `READING` says, if it holds the ``recorded`` runs."""
    lines = ["# GPRNTensor: regression networks for many outputs\n"]
    lines.append("Written by `python -m scripts.experiments.gprn`, in one run or several:\n")
    lines += [
        f"- {record['of']}: {report.describe(record['environment'])}"
        for record in journal.records
        if "environment" in record
    ]
    lines.append(
        "\nnRMSE and nMAE: root mean squared and mean absolute error over all test targets, divided by their standard "
        "deviation.\nNLPD: mean of −log p(y) over them. Means over the seeds, which draw the test targets and the start. "
        'The tensor\nposterior trains by its own recipe until it settles, "Adam" by Adam(0.01) for the seconds that the '
        'collapsed one with as many\nnodes took, compilation included in both. "Joint": `fit(joint=True)`, the default; "collapsed" '
        'without. "Tensor" has\none covariance over the rows for all nodes, as in the paper, "rows per node" one for each, the default; '
        '"node kernels" a\nkernel and a nugget for each node. "Nodes chosen" holds out a fifth of the training targets, takes as many nodes as predict these best, and trains on all. Bounds and evidences compare on one set only. Differences from baselines: those '
        "of the\nnetwork that has the highest bound on each split, less than zero where it is better, with the standard error "
        "over the splits.\n"
    )
    for name, (make, _) in TASKS.items():
        lines += _table(journal, name, (make.__doc__ or "").strip(), recorded)
    return "\n".join(lines + convergence.document(journal) + scaling.document(journal))


def _table(journal: Journal, name: str, title: str, recorded: bool) -> list[str]:
    records = [record for record in journal.find(of=name) if "method" in record]
    rows, forms = [], dict(_FORMS)
    if any("mae" in record for record in records):
        forms = {"mae": ".3f"} | forms
    order = list(methods.BY_FLAG.values())
    for method, nodes in sorted(
        {(r["method"], r["nodes"]) for r in records}, key=lambda row: (order.index(row[0]), row[1])
    ):
        own = [r for r in records if (r["method"], r["nodes"]) == (method, nodes)]
        scores = [
            np.mean([r[key] for r in own]) if None not in [r[key] for r in own] else None for key in forms
        ]
        label = f"{method}, K = {nodes}" if nodes else method
        if "picked" in own[0]:
            label = f"{method}, K = {' or '.join(str(K) for K in sorted({r['picked'] for r in own}))}"
        cells = ["-" if s is None else f"{s:{form}}" for s, form in zip(scores, forms.values(), strict=True)]
        rows.append([label, *cells, str(len(own))])
    if not rows:
        return []
    columns = ["method", *(_NAMES[key] for key in forms), "seeds"]
    reading = [f"{READING[name]}\n"] if recorded and name in READING else []
    drawn = name in PICTURED and journal.find(of=name, method=methods.COLLAPSED, nodes=2, seed=0)
    picture = (
        [f"![Predicted by a network with two nodes, {PICTURED[name]}](gprn_{name}.png)\n"] if drawn else []
    )
    table = report.table(columns, rows)
    return [f"## {name}\n", f"{title}\n", table, *verdicts.of_networks(records), *reading, *picture]
