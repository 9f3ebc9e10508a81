"""Ordered levels, counts and several classes of 5,000 rows at the defaults: whether a fit takes a minute on two cores."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

from .. import _cli
from ..shared import report
from .auto import machines
from .defaults_tables import LINEAR, Part
from .resumable import add_options, guarded, measure_and_write, parsed

SECONDS = 60.0  # of a fit on two cores
TEST = 1000  # rows that are predicted
QUICK = {"rows": 100, "tables": ["drawn levels"]}
ESTIMATORS = {"ordinal": "GPOrdinal", "count": "GPCountRegressor", "multiclass": "GPClassifier"}
MODELS = ("SparseEP", "SVGPRobustMax")  # of the benchmark of defaults, with inducing points
Record = Mapping[str, Any]


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(prog="python -m scripts.benchmarks.minute", description=__doc__)
    new.add_argument(
        "--rows", type=_cli.positive, default=5000, metavar="N", help="training rows (default: 5000)"
    )
    new.add_argument("--tables", nargs="+", choices=[*DRAWN, *REAL], help="some of them (default: all)")
    add_options(new, "minute")
    return new


def _functions(rows: int) -> tuple[np.random.Generator, Any, Any]:
    """Return the generator, inputs [N, 8] and four functions of them, [N, 4]."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 8))
    first = np.sin(1.5 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    second, third = np.cos(X[:, 1]) * X[:, 4], X[:, 5] + 0.5 * X[:, 0] ** 2
    return rng, X, np.stack([first, second, third, 0.5 * X[:, 2] * X[:, 6]], axis=1)


def _levels(rows: int) -> Part:
    rng, X, F = _functions(rows + TEST)
    y = np.digitize(F[:, 0] + 0.5 * rng.logistic(size=len(F)), [-1.5, -0.5, 0.5, 1.5])
    return _split("ordinal", X, y, rows)


def _counts(rows: int) -> Part:
    rng, X, F = _functions(rows + TEST)
    return _split("count", X, rng.poisson(np.exp(0.5 + 0.7 * F[:, 0])), rows)


def _classes(rows: int) -> Part:
    rng, X, F = _functions(rows + TEST)
    return _split("multiclass", X, np.argmax(2.0 * F + rng.gumbel(size=F.shape), axis=1), rows)


def _houses(rows: int) -> Part:
    """Return the fifths of the values of Californian blocks of houses."""
    from gpflow_ext import datasets

    (X, Y), _ = datasets.load("california_housing", seed=0, test_fraction=0.0, missing="drop")
    y = np.digitize(Y[:, 0], np.quantile(Y, [0.2, 0.4, 0.6, 0.8]))
    return _split("ordinal", X, y, rows)


def _ages(rows: int) -> Part:
    """Return the ages of the same blocks in whole years, which are at most 52."""
    from gpflow_ext import datasets

    (X, Y), _ = datasets.load(
        "california_housing",
        seed=0,
        test_fraction=0.0,
        missing="drop",
        target="housing_median_age",
        task="count",
    )
    return _split("count", X, Y[:, 0], rows)


def _digits(rows: int) -> Part:
    from gpflow_ext import datasets

    (X, Y), (X_test, Y_test) = datasets.load("mnist", task="multiclass")
    chosen = np.random.default_rng(0).permutation(len(X))[:rows]
    return Part("multiclass", X[chosen], Y[chosen], X_test[:TEST], Y_test[:TEST])


def _split(task: str, X: Any, y: Any, rows: int) -> Part:
    Y, end = np.asarray(y, float)[:, None], rows + TEST
    return Part(task, X[:rows], Y[:rows], X[rows:end], Y[rows:end])


DRAWN: dict[str, Callable[[int], Part]] = {
    "drawn levels": _levels,
    "drawn counts": _counts,
    "drawn classes": _classes,
}
REAL: dict[str, Callable[[int], Part]] = {
    "values of houses": _houses,
    "ages of houses": _ages,
    "MNIST": _digits,
}


def run(options: argparse.Namespace, journal: Any) -> None:
    """Measure what the journal lacks, each fit in a process of its own."""
    for table in options.tables or [*DRAWN, *REAL]:
        task = (DRAWN | REAL)[table](options.rows).task
        models = [*MODELS[: 2 if task == "multiclass" else 1]] if table in DRAWN else []
        for name in (ESTIMATORS[task], *models, LINEAR):
            key = {"table": table, "task": task, "rows": options.rows, "model": name}
            journal.once(
                key, functools.partial(guarded, functools.partial(_alone, table, options.rows, name))
            )
            print(table, name, flush=True)


def _alone(table: str, rows: int, name: str) -> Record:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, table, rows, name).result()


def measured(table: str, rows: int, name: str) -> Record:
    """Fit and score one contender; seconds of the wall and of the processor, compilation included."""
    from . import defaults_models, defaults_peers

    part = (DRAWN | REAL)[table](rows)
    if name == LINEAR:
        found = defaults_peers.peers(part)
        other = found.get(LINEAR) or found["multinomial logistic regression"]
        return defaults_peers.measure(other, part)
    if name in MODELS:
        return defaults_models.measure(defaults_models.ours(part)[name], part, SECONDS)
    return _of_estimator(name, part)


def _of_estimator(name: str, part: Part) -> Record:
    from gpflow_ext import estimators

    estimator, y = getattr(estimators, name)(), part.Y_test[:, 0]
    begin, cpu = time.perf_counter(), time.process_time()
    estimator.fit(part.X, part.Y[:, 0])
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    if part.task == "count":
        density = estimator.score_samples(part.X_test, y)
    else:
        chances = estimator.predict_proba(part.X_test)[np.arange(len(y)), y.astype(int)]
        density = np.log(np.maximum(chances, 1e-300))
    result = estimator.result_
    fitted = {"objective": float(result.objective[-1]), "status": result.status.name, "steps": result.steps}
    return {**spent, **fitted, "nlpd": -float(np.mean(density))}


def text(records: Iterable[Record]) -> str:
    """Return the page."""
    found = list(records)
    fits = [each for each in found if "table" in each]
    rows = [
        [each["table"], each["model"], *(["–"] * 3 if "failed" in each else _numbers(each)), _end(each)]
        for each in fits
    ]
    columns = ["table", "model", "seconds", "CPU seconds", "NLPD", "ended"]
    return "\n".join([
        "# Five thousand rows in a minute",
        "",
        "Ordered levels, counts and several classes at the defaults: the estimators, and of the models that [the benchmark of "
        "defaults](benchmark_defaults.md) takes those with inducing points. A dense `VGPKMM`, of cubic cost, is not for so many rows, and the "
        "estimators do not take it. Five levels, counts and four classes of eight inputs are drawn from known functions; the fifths of the "
        "values of Californian houses, their ages in years and MNIST's digits are real. Seconds are those of a fit with its compilation, in a "
        "fresh process, without imports; other load of the machine prolongs them, CPU seconds less. NLPD is that of "
        f"{TEST:,} test rows, beside that of a linear model. A model's fit is ended after {SECONDS:g} seconds. By `python -m scripts.benchmarks.minute`.",
        "",
        *machines(found),
        report.table(columns, rows),
        report.targets(verdicts(fits)),
    ])  # fmt: skip


def _numbers(record: Record) -> list[str]:
    return [
        report.number(record["seconds"]),
        report.number(record["cpu"]),
        f"{record['nlpd']:.3f}",
    ]


def _end(record: Record) -> str:
    return str(record.get("failed", record.get("status", "–")))


def verdicts(fits: Sequence[Record]) -> list[tuple[str, str, str]]:
    """Return whether each fit of the package takes a minute, and whether its NLPD is below the linear model's."""
    found = []
    linear = {each["table"]: each for each in fits if each["model"] == LINEAR}
    for each in fits:
        if each["model"] == LINEAR or "failed" in each:
            continue
        name = f"{each['table']}, {each['model']}, {each['rows']:,} rows"
        met = each["seconds"] <= SECONDS and each.get("status") != "OUT_OF_TIME"
        says = f"{report.number(each['seconds'])} s, {report.number(each['cpu'])} CPU s"
        found.append((f"{name}: within {SECONDS:g} seconds", says, "yes" if met else "no"))
        other = linear.get(each["table"], {})
        if "nlpd" in other:
            less = each["nlpd"] - other["nlpd"]
            found.append(
                (f"{name}: NLPD below the linear model's", f"{less:+.3f}", "yes" if less < 0.0 else "no")
            )
    return found


def main() -> None:
    """Measure and write."""
    measure_and_write(parsed(arguments(), QUICK), "minute", run, text)


if __name__ == "__main__":
    _cli.run(main)
