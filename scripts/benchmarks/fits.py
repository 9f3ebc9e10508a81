"""What a user pays: imports, the first fit with its compilation, and the next ones, beside other libraries."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..shared import every_class, report
from .shown import Shown

METHODS = ("GPLaplace", "VGPKMM", "scikit-learn", "GPBoost")
MODULES = {"GPBoost": "gpboost", "scikit-learn": "sklearn"}
FOLDS = 10
SAME = 1e-3  # relative: objectives of one approximation that differ by less are the same optimum
Record = dict[str, Any]


def run(options: argparse.Namespace) -> list[Record]:
    """Measure each contender in processes of its own."""
    records = Shown()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "ionosphere.npz"
        if 351 in options.sizes:
            _store(data)
        for task in tasks(options.sizes, options.quick):
            records.append(measure({**task, "data": str(data)}, options.threads))
    for kind in list(every_class.KINDS)[: 2 if options.quick else None]:
        records.append(_worker("fits_classes", {"kind": kind}, options.threads))
    return records


def tasks(sizes: Sequence[int], quick: bool) -> list[Record]:
    """Return what to measure."""
    installed = [name for name in METHODS if name not in MODULES or importlib.util.find_spec(MODULES[name])]
    found = []
    for size in sizes:
        for learn in (False, True) if size == 351 or quick else (True,):
            found += [{"method": m, "size": size, "learn": learn, "folds": 0} for m in installed]
    if 351 in sizes:
        validated = [name for name in installed if name != "GPBoost"]
        for learn in (False, True):
            found += [{"method": m, "size": 351, "learn": learn, "folds": FOLDS} for m in validated]
    return found


def measure(task: Mapping[str, Any], threads: int | None) -> Record:
    """Run the worker of a contender and return its record."""
    record = _worker("fits_worker", task, threads)
    record.pop("data")
    return record


def _worker(module: str, task: Mapping[str, Any], threads: int | None) -> Record:
    number = str(threads or os.cpu_count() or 1)
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    command = [sys.executable, "-m", f"scripts.benchmarks.{module}", json.dumps(task)]
    shown = subprocess.run(
        command,
        env={**os.environ, **dict.fromkeys(names, number)},
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode:
        raise RuntimeError(f"{task} failed:\n{shown.stderr[-2000:]}")
    record: Record = json.loads(shown.stdout.splitlines()[-1])
    return record


def _store(path: Path) -> None:
    from gpflow_ext import datasets

    X, Y = datasets.load("ionosphere", test_fraction=0.0, seed=0).train
    np.savez(path, X=X, y=Y[:, 0])


def document(where: Mapping[str, Any], records: Sequence[Record]) -> str:
    """Return the page."""
    contenders = [record for record in records if "kind" not in record]
    single = [record for record in contenders if not record["folds"]]
    parts = [
        "# What a fit costs\n",
        "Binary classification with a logistic likelihood and a squared exponential kernel, from the same start; "
        "GPLaplace, scikit-learn and GPBoost maximise the same objective, VGPKMM a bound. Each in a process of its own: the imports, the "
        "first fit with all compilation, a second one of new objects, and a third one with a twentieth fewer rows. "
        "Times are in seconds; `fresh process` is the imports and the first fit together. Size 351 is the ionosphere "
        "data, the others are drawn from the model. Written by `python -m scripts.benchmarks fits`.\n",
        report.describe(where),
        "",
    ]
    for size in dict.fromkeys(record["size"] for record in single):
        for learn in (False, True):
            chosen = [r for r in single if r["size"] == size and r["learn"] == learn]
            if chosen:
                parts += [
                    f"## N = {size}, hyperparameters {'learnt' if learn else 'fixed'}\n",
                    _table(chosen),
                ]
    folds = [record for record in contenders if record["folds"]]
    if folds:
        parts += [f"## Ionosphere in {FOLDS} folds\n", _folds(folds)]
    kinds = [record for record in records if "kind" in record]
    if kinds:
        parts += [
            "## Every class of models\n",
            f"{every_class.ROWS} rows, {every_class.NETWORK_ROWS} for networks and images, {every_class.INDUCING} inducing points where "
            "there are any, a few steps of the default recipe. A second model of other data and a third one with a "
            "twentieth fewer rows follow in the same process. Times are CPU seconds. `compiled` are those of the "
            "second model's compiled functions, in so many `calls`, `all else` those of everything else that `fit` and the constructors "
            "do. `first scores` and the column after it are those of `gpx.metrics.evaluate`. `traces` counts the "
            "functions traced for the first model, `again` those for the second, `fewer` those for the third: more "
            "than none where a model has a variable for each row.\n",
            _kinds(kinds),
        ]
    return "\n".join([*parts, report.targets(verdicts(records))])


def _table(records: Iterable[Record]) -> str:
    columns = (
        "",
        "imports",
        "first fit",
        "second",
        "fewer rows",
        "fresh process",
        "evaluations",
        "objective",
    )
    rows = [
        (
            r["method"],
            report.number(r["imports"]),
            *(report.number(seconds) for seconds in r["seconds"]),
            report.number(r["imports"] + r["seconds"][0]),
            "–" if r["evaluations"] is None else str(r["evaluations"]),
            f"{r['objective']:.4f}",
        )
        for r in records
    ]
    return report.table(columns, rows)


def _folds(records: Iterable[Record]) -> str:
    rows = [
        (r["method"], "learnt" if r["learn"] else "fixed", *(report.number(s) for s in r["seconds"]))
        for r in records
    ]
    return report.table(("", "hyperparameters", "first", "second"), rows)


def _kinds(records: Iterable[Record]) -> str:
    rows = [
        (
            r["kind"],
            report.number(r["seconds"][0]),
            report.number(r["seconds"][1]),
            report.number(r["seconds"][2]),
            report.number(r["compiled"][1]),
            str(r["calls"][1]),
            report.number(_rest(r)),
            report.number(r["scored"][0]),
            report.number(r["scored"][1]),
            *map(str, r["traces"]),
        )
        for r in records
    ]
    columns = (
        "", "first fit", "second", "fewer rows", "compiled", "calls", "all else", "first scores", "second", "traces",
        "again", "fewer",
    )  # fmt: skip
    return report.table(columns, rows)


def _rest(record: Record) -> float:
    """Return the seconds of a fit beside its compiled functions, the less of the second one and the third."""
    return float(min(a - b for a, b in zip(record["seconds"][1:], record["compiled"][1:], strict=True)))


def verdicts(records: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return each target, what was measured, and whether it is met."""
    found: list[tuple[str, str, str]] = []

    def add(what: str, value: float | None, limit: float | None) -> None:
        if value is not None and limit is not None:
            found.append(
                (what, f"{report.number(value)} of {report.number(limit)}", "yes" if value <= limit else "no")
            )

    for name in METHODS[:2]:
        for learn, place, most in ((True, 0, 1.5), (True, 1, 0.25), (False, 1, 0.05)):
            which = f"{'first' if place == 0 else 'second'} fit, {'learnt' if learn else 'fixed'}"
            add(f"{name}, N = 351: {which}", _seconds(records, name, 351, learn, place), most)
        for learn in (False, True):
            what = f"{name}: {FOLDS} folds, {'learnt' if learn else 'fixed'}"
            add(what, _seconds(records, name, 351, learn, 0, FOLDS), 2.5)
    for size in (500, 1000, 2000):
        theirs = _seconds(records, "scikit-learn", size, True, 1)
        for name, share in (("GPLaplace", 2.0 / 3.0), ("VGPKMM", 1.0)):
            limit = None if theirs is None or size == 500 else share * theirs
            label = "2/3 of scikit-learn's" if share < 1.0 else "scikit-learn's"
            add(
                f"{name}, N = {size}: learnt, in {label} seconds",
                _seconds(records, name, size, True, 1),
                limit,
            )
        fresh = {m: _fresh(records, m, size) for m in ("GPLaplace", "scikit-learn")}
        add(f"GPLaplace, N = {size}: a fresh process, imports included, in scikit-learn's", *fresh.values())
    for record in records:
        if "kind" in record:
            add(f"{record['kind']}: a second fit beside what is compiled", _rest(record), 0.05)
            further = record["traces"][1 : 2 if record["by_rows"] else None]
            add(f"{record['kind']}: traces of further fits", max(further), 0)
    for size in dict.fromkeys(r["size"] for r in records if "kind" not in r):
        add(f"N = {size}: the same optimum, relative difference", _spread(records, size), SAME)
    return found


def _find(records: Sequence[Record], **key: Any) -> Record | None:
    return next((r for r in records if key.items() <= r.items()), None)


def _seconds(
    records: Sequence[Record], method: str, size: int, learn: bool, place: int, folds: int = 0
) -> float | None:
    record = _find(records, method=method, size=size, learn=learn, folds=folds)
    return None if record is None else float(record["seconds"][place])


def _fresh(records: Sequence[Record], method: str, size: int) -> float | None:
    record = _find(records, method=method, size=size, learn=True, folds=0)
    return None if record is None else float(record["imports"] + record["seconds"][0])


def _spread(records: Sequence[Record], size: int) -> float | None:
    """Return how far the learnt objectives of the Laplace approximations lie apart."""
    same = [_find(records, method=m, size=size, learn=True, folds=0) for m in METHODS if m != "VGPKMM"]
    values = [record["objective"] for record in same if record is not None]
    return (max(values) - min(values)) / abs(max(values)) if len(values) > 1 else None
