"""The experiments: tasks, measurements and text."""

from __future__ import annotations

import functools
import os
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

import gpflow_ext as gpx
from gpflow_ext.gprn.updates import Updates

from ...shared import jura as survey
from ...shared import report
from ...shared.journal import Journal
from . import field as images
from . import methods, verdicts
from .methods import Task
from .reading import READING

Array = npt.NDArray[Any]
SIZES = (1_000, 10_000, 100_000, 1_000_000)
TENSOR_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)


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
    numbers = nodes or usual
    for seed in range(seeds):
        task = make(seed)
        if quick:
            keep = slice(0, 40)
            task = Task(task.X, task.Y[:, keep], task.X_test, task.Y_test[:, keep], task.floor, 2, seed)
        jobs = [(methods.INDEPENDENT, 0), (methods.PCA, 0), (methods.LMC, numbers[-1]), (methods.OTHERS, 0)]
        impossible = methods.PARTLY_OBSERVED_ONLY if task.complete else methods.COMPLETE_ONLY
        jobs += [
            (method, K)
            for method in (methods.COLLAPSED, methods.TENSOR, methods.ROWS, methods.KERNELS)
            for K in numbers
        ]
        jobs += [(m, numbers[-1]) for m in (methods.JOINT, methods.ADAM, methods.MEAN_FIELD, methods.MIXTURE)]
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


def scaling(
    journal: Journal, sizes: Sequence[int], tensor_sizes: Sequence[int], rows: int, nodes: int
) -> None:
    """Measure seconds and memory against the number of outputs, both posteriors."""
    X = np.random.default_rng(0).uniform(-2.0, 2.0, (rows, 3))
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            journal.once({"of": "scaling", "outputs": size}, functools.partial(_step, folder, X, size, nodes))
        for size in tensor_sizes:
            journal.once(
                {"of": "scaling, tensor", "outputs": size}, functools.partial(_tensor_step, X, size, nodes)
            )


def _step(folder: str, X: Array, D: int, nodes: int) -> dict[str, float]:
    """Seconds of the pass over a memory-mapped file, of a sweep, of a bound with its gradient, of a prediction."""
    path, rng = Path(folder) / "Y.npy", np.random.default_rng(1)
    file: Any = np.lib.format.open_memmap(path, "w+", np.float32, (len(X), D))
    for first in range(0, D, 50_000):
        file[:, first : first + 50_000] = rng.standard_normal((len(X), min(50_000, D - first)), np.float32)
    del file
    begin = time.perf_counter()
    model = gpx.models.GPRNTensor(
        (X, path), gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential(), nodes
    )
    read = time.perf_counter() - begin
    updates = Updates(model, model.trainable_variables)
    found = {"pass": read, "sweep": _least(updates.sweep), "gradient": _least(updates.evaluate)}
    begin = time.perf_counter()
    mean, _ = model.predict_f(X[:10])
    assert np.isfinite(mean).all()
    return found | {"predict": time.perf_counter() - begin, "memory": _peak()}


def _tensor_step(X: Array, D: int, nodes: int) -> dict[str, float]:
    """Seconds of a step of Adam on all outputs."""
    Y = np.random.default_rng(1).standard_normal((len(X), D))
    kernel, weight_kernel = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential()
    model = gpx.models.GPRNTensor((X, Y), kernel, weight_kernel, nodes, posterior="tensor")
    optimizer = gpflow.keras.tf_keras.optimizers.Adam(0.01)
    times = gpx.fit(model, steps=12, optimizer=optimizer, progress=False).times
    return {"step": float(np.diff(times).min()), "memory": _peak()}


def _least(call: Callable[[], Any]) -> float:
    """Return the least seconds of some calls: what other processes take from this one only adds."""
    call()
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def _peak() -> float:
    """Largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _measured(
    method: str, task: Task, nodes: int, budget: float, show: Callable[[Array], None] | None
) -> dict[str, float | None]:
    """Run a method; JSON has no number that is not finite."""
    found = methods.run(method, task, nodes, budget, show)
    return {key: value if np.isfinite(value) else None for key, value in found.items()}


def text(journal: Journal) -> str:
    """Return what the journal holds, as Markdown."""
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
        '"node kernels" a\nkernel and a nugget for each node. Bounds and evidences compare on one set only. Differences from baselines: those '
        "of the\nnetwork that has the highest bound on each split, less than zero where it is better, with the standard error "
        "over the splits.\n"
    )
    for name, (make, _) in TASKS.items():
        lines += _table(journal, name, (make.__doc__ or "").strip())
    return "\n".join(lines + _scaling_text(journal))


def _table(journal: Journal, name: str, title: str) -> list[str]:
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
        cells = ["-" if s is None else f"{s:{form}}" for s, form in zip(scores, forms.values(), strict=True)]
        rows.append([label, *cells, str(len(own))])
    if not rows:
        return []
    columns = ["method", *(_NAMES[key] for key in forms), "seeds"]
    reading = [f"{READING[name]}\n"] if name in READING else []
    drawn = name in PICTURED and journal.find(of=name, method=methods.COLLAPSED, nodes=2, seed=0)
    picture = (
        [f"![Predicted by a network with two nodes, {PICTURED[name]}](gprn_{name}.png)\n"] if drawn else []
    )
    table = report.table(columns, rows)
    return [f"## {name}\n", f"{title}\n", table, *verdicts.by_the_bound(records), *reading, *picture]


def _scaling_text(journal: Journal) -> list[str]:
    found, tensor = journal.find(of="scaling"), journal.find(of="scaling, tensor")
    lines: list[str] = []
    records = [r for r in found if "pass" in r]
    if records:
        rows = [
            [
                f"{r['outputs']:,}",
                *(f"{r[key]:.3f}" for key in ("pass", "sweep", "gradient", "predict")),
                f"{r['memory']:.2f}",
            ]
            for r in records
        ]
        ratio = [
            (records[-1]["sweep"] + records[-1]["gradient"]) / (records[0]["sweep"] + records[0]["gradient"])
        ]
        columns = ["outputs", "pass", "sweep", "bound and gradient", "prediction at 10 inputs", "peak GiB"]
        lines += [
            "## Seconds against the number of outputs\n",
            "N = 100, K = 5, targets in a memory-mapped float32 file; sweep and gradient: the least of twenty.\n",
            report.table(columns, rows),
            f"A sweep and a gradient with the most outputs take {ratio[0]:.2f} times what they take with the fewest.\n",
        ]
    steps = [r for r in tensor if "step" in r]
    if len(steps) > 1:
        rows = [[f"{r['outputs']:,}", f"{r['step']:.3f}", f"{r['memory']:.2f}"] for r in steps]
        sizes, seconds = (np.log([r[key] for r in steps]) for key in ("outputs", "step"))
        slope, late = (
            np.polyfit(sizes[part], seconds[part], 1)[0] for part in (slice(None), slice(-3, None))
        )
        lines += [
            report.table(["outputs", "step of Adam, tensor posterior", "peak GiB"], rows),
            f"Slope of log seconds against log outputs: {slope:.2f}; from {steps[-3:][0]['outputs']:,} outputs on: "
            f"{late:.2f}. Arrays that outgrow the caches are also returned to the system at every step.\n",
        ]
    return lines
