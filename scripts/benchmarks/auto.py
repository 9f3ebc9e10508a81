"""`gpx.auto` and the estimators at their defaults on public tables, beside other libraries."""

from __future__ import annotations

import argparse
import collections
import functools
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .. import _cli
from ..shared import report
from .resumable import add_options, guarded, measure_and_write, parsed

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.auto --threads 1                  one split of each table
  python -m scripts.benchmarks.auto --quick                                           a minute, into runs/
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.auto --splits 3 --rows 1000 --budget 60
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.auto --tables kin40k airline_2008 --rows 100000 --budget 120
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.auto --models auto estimator --again   these two, after a change
  GPFLOW_EXT_DATA=data python -m scripts.benchmarks.auto --page                       the page alone, from the journal

One line for each table, split and contender goes to the .jsonl beside the page as it is measured, and a rerun skips
what is there. A table with more rows than --rows is cut to as many of its training part.
"""
OURS = ("auto", "estimator")
QUICK = {"tables": ["diabetes"], "rows": 50, "budget": 10.0}
_PLAIN, _ORDERED = (
    ("linear", "scikit-learn GP"),
    "multinomial logistic regression",
)  # the last for ordered classes
_CUT = 1000  # training rows of a table that is cut
_TESTED, _TESTED_MOST = (
    1000,
    10_000,
)  # test rows of a cut table; and of others as many as training rows, at most


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.benchmarks.auto",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--tables", nargs="+", metavar="NAME", help="some of them (default: all of one output)")
    new.add_argument(
        "--models", nargs="+", metavar="NAME", help="auto, estimator, linear, ... (default: all)"
    )
    new.add_argument(
        "--splits", type=_cli.positive, default=1, metavar="K", help="of each table (default: 1)"
    )
    new.add_argument(
        "--rows", type=_cli.positive, default=300, metavar="N", help="training rows at most (default: 300)"
    )
    new.add_argument(
        "--budget", type=_cli.above_zero, default=60.0, metavar="S", help="seconds of auto (default: 60)"
    )
    add_options(new, "auto")
    return new


def run(options: argparse.Namespace, journal: Any) -> None:
    """Measure what the journal lacks."""
    from . import defaults_tables as tables

    for split in range(options.splits):
        for table in options.tables or tables.TABLES:
            part = tables.load(
                table, split, options.rows, most_test=max(_TESTED, min(options.rows, _TESTED_MOST))
            )
            if part.task == "outputs" or (split and table in tables.FIXED):
                continue
            where = {"table": table, "split": split, "rows": len(part.X), "task": part.task}
            for name, measure in contenders(part, options.budget).items():
                if options.models and name not in options.models:
                    continue
                journal.once({**where, "model": name}, functools.partial(guarded, measure))
            print(f"{table}, split {split}: done", flush=True)


def contenders(part: Any, budget: float) -> dict[str, Callable[[], Mapping[str, Any]]]:
    """Return how each contender is measured on one part."""
    from . import defaults_peers as peers

    found: dict[str, Callable[[], Mapping[str, Any]]] = {
        "auto": functools.partial(by_auto, part, budget),
        "estimator": functools.partial(by_estimator, part),
    }
    for name, fit in peers.peers(part).items():
        found[name] = functools.partial(peers.measure, fit, part)
    return found


def by_auto(part: Any, budget: float) -> Mapping[str, Any]:
    """Let `auto` choose on the training part."""
    import numpy as np

    import gpflow_ext as gpx

    rows, test_rows = np.arange(len(part.X)), np.arange(len(part.X_test))
    exposed = part.task == "count" and part.Y.shape[1] == 2
    split = gpx.datasets.Split(
        train=(part.X, part.Y[:, :1]),
        test=(part.X_test, part.Y_test[:, :1]),
        name="table",
        task=part.task,
        feature_names=tuple(f"x{n}" for n in range(part.X.shape[1])),
        target="y",
        labels=None if part.task in ("count", "regression") else tuple(map(str, range(part.num_classes))),
        scaler=gpx.datasets.Scaler.identity(part.X.shape[1]),
        seed=0,
        sha256="",
        source="",
        notes=(),
        rows=(rows, test_rows),
        exposure=(part.Y[:, 1:], part.Y_test[:, 1:]) if exposed else None,
    )
    begin, cpu = time.perf_counter(), time.process_time()
    best = gpx.auto(split, budget=budget, progress=False)
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    return {
        **spent,
        **gpx.metrics.evaluate(best.model, (part.X_test, part.Y_test)),
        "chosen": " & ".join(best.table["candidate"][best.table["weight"] > 0.0]),
    }


def by_estimator(part: Any) -> Mapping[str, Any]:
    """Fit the estimator of the task at its defaults."""
    import gpflow_ext as gpx
    from gpflow_ext.estimators.candidates import ESTIMATORS

    begin, cpu = time.perf_counter(), time.process_time()
    model = ESTIMATORS[part.task](standardise=False)
    exposed = {"exposure": part.Y[:, 1]} if part.Y.shape[1] == 2 else {}
    model.fit(part.X, part.Y[:, 0], **exposed)
    spent = {"seconds": time.perf_counter() - begin, "cpu": time.process_time() - cpu}
    return {**spent, **gpx.metrics.evaluate(model.model_, (part.X_test, part.Y_test))}


def text(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the page."""
    import numpy as np

    records = list(records)
    found = [record for record in records if "model" in record]
    names = sorted(dict.fromkeys(record["model"] for record in found), key=_place)
    peers = [name for name in names if name not in OURS]
    lines = [
        "# auto and the estimators on public tables",
        "",
        "By `python -m scripts.benchmarks.auto`, which resumes from the journal beside this page. NLPD on test rows, in "
        "nats, the mean over splits; real targets are standardised. The lowest of a row is bold. `auto` compares "
        "kernels within its budget; `estimator` is `GPClassifier`, `GPRegressor`, `GPOrdinal` or `GPCountRegressor` "
        "with nothing set. Seconds as paid, in brackets: those of `auto` include compilation, and what it has compiled the "
        "estimators need not compile again. Tables with more than 1,000 training rows are whole and come last. There is one split of "
        "them, a larger budget, up to 10,000 test rows, and neither an estimator nor a peer that decomposes the kernel matrix of all "
        "rows. Where `auto` chose several candidates it averaged them; the number is that of splits. Records are of the commits below. The split of the whole tables was looked at while "
        "the order of candidates, the size of minibatches, their recipe and the time of the last training were chosen. It is no test of these. Split 0 of five of the binary tables was looked at "
        "when the kernels that `auto` compares were chosen after the first of these measurements. Later their order, and that several "
        "are averaged, were chosen by cross-validation inside the training part of split 0 of twelve tables, which holds rows that "
        "other splits test on.",
        "",
        *machines(records),
        "| table | rows | " + " | ".join(names) + " | chosen by auto |",
        "|---|---|" + "---|" * (len(names) + 1),
    ]
    lost = []
    keys = list(dict.fromkeys((record["table"], record["rows"]) for record in found))
    for table, rows in sorted(keys, key=lambda key: key[1] > _CUT):  # the large ones last
        of_table = [record for record in found if (record["table"], record["rows"]) == (table, rows)]
        scores = {name: _mean(of_table, name, "nlpd") for name in names}
        best = min(value for value in scores.values() if value == value)
        cells = []
        for name in names:
            value, seconds = scores[name], _mean(of_table, name, "seconds")
            shown = f"**{value:.3f}**" if value == best else f"{value:.3f}"
            cells.append("–" if value != value else f"{shown} ({seconds:.1f})")
        lines.append(f"| {table} | {rows:,} | {' | '.join(cells)} | {_chosen(of_table)} |")
        least = min((scores[name] for name in peers if scores[name] == scores[name]), default=np.inf)
        if scores["auto"] > least:
            lost.append(f"{table}, {rows:,} rows (by {scores['auto'] - least:.3f})")
    number = len(keys)
    lines += [
        "",
        f"`auto` is behind the best of the others on {len(lost)} of {number} tables{':' if lost else '.'}",
        "",
        *(f"- {each}" for each in lost),
        "",
    ]
    cut = [record for record in found if record["rows"] <= _CUT]
    lines += [*against_linear(cut), "", *in_the_mean(cut, [name for name in peers if name != _ORDERED]), ""]
    failed = [record for record in found if "failed" in record]
    lines += [f"- {each['table']}, {each['model']}: {each['failed']}" for each in failed]
    return "\n".join(lines).rstrip() + "\n"


def against_linear(records: list[Mapping[str, Any]]) -> list[str]:
    """Return where `auto` is behind the better of a linear model and scikit-learn's GP, beyond chance."""
    import numpy as np

    tables = dict.fromkeys(record["table"] for record in records)
    behind, single = [], []
    for table in tables:
        of_table = [record for record in records if record["table"] == table]
        scores = {name: _mean(of_table, name, "nlpd") for name in (*_PLAIN, _ORDERED)}
        best = min((name for name, score in scores.items() if score == score), key=scores.__getitem__)
        lost = differences(of_table, best)
        if len(lost) < 2:
            single.append(table)
        elif np.mean(lost) > (error := np.std(lost, ddof=1) / np.sqrt(len(lost))):
            behind.append(f"- {table}: behind {best} by {np.mean(lost):.4f} ± {error:.4f}")
    left_out = f"Measured on one split, without a standard error: {', '.join(single)}."
    return [
        "On the cut tables `auto` is behind the better of the linear model and scikit-learn's GP by more than a standard error, that of "
        f"the mean over splits, on {len(behind)} of {len(tables) - len(single)} tables{':' if behind else '.'}",
        "",
        *behind,
        *(["", left_out] if single else []),
    ]


def in_the_mean(records: list[Mapping[str, Any]], peers: Iterable[str]) -> list[str]:
    """Return the difference to each peer in the mean over the tables that it has, with its standard error."""
    import numpy as np

    lines = [
        "NLPD of `auto` less that of another, in the mean over the cut tables, with its standard error over tables:",
        "",
    ]
    for name in peers:
        each = [
            float(np.mean(found))
            for table in dict.fromkeys(record["table"] for record in records)
            if (found := differences([record for record in records if record["table"] == table], name))
        ]
        if len(each) > 1:
            error = np.std(each, ddof=1) / np.sqrt(len(each))
            lines.append(f"- {name}: {np.mean(each):.3f} ± {error:.3f} ({len(each)} tables)")
    return lines


def differences(records: Iterable[Mapping[str, Any]], other: str) -> list[float]:
    """Return the NLPD of `auto` less that of another on each split that both have."""
    scores = {(record["model"], record["split"]): record["nlpd"] for record in records if "nlpd" in record}
    return [
        value - scores[other, split]
        for (name, split), value in scores.items()
        if name == "auto" and (other, split) in scores
    ]


def _place(name: str) -> tuple[int, str]:
    """Return where the column of a contender stands."""
    order = (*OURS, *_PLAIN)
    return (order.index(name), "") if name in order else (len(order), name)


def machines(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line on where it was measured, and how busy the machine was, for each run."""
    found = [record["environment"] for record in records if "environment" in record]
    lines = [report.describe(each) for each in found]
    return [part for line in lines for part in (line, "")]


def _chosen(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the candidates that `auto` chose, and on how many splits where there are several."""
    choices = [record["chosen"].split(" & ") for record in records if "chosen" in record]
    counts = collections.Counter(name for choice in choices for name in choice)
    return ", ".join(
        name if len(choices) == 1 else f"{name} ({count})" for name, count in counts.most_common()
    )


def _mean(records: list[Mapping[str, Any]], name: str, score: str) -> float:
    values = [record[score] for record in records if record["model"] == name and score in record]
    return sum(values) / len(values) if values else float("nan")


def main() -> None:
    """Measure and write."""
    measure_and_write(parsed(arguments(), QUICK), "auto", run, text)


if __name__ == "__main__":
    _cli.run(main)
