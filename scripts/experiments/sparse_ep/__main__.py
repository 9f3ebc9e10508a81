"""Reproduce the experiments of Hernández-Lobato & Hernández-Lobato (2016) and compare with the methods they compare with."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sparse_ep           everything, into docs/results/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sparse_ep --quick   a reduced form, into runs/reproduce_sparse_ep/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sparse_ep --experiment uci --sets sonar --shares 0.15 --splits 5

experiments
  uci      negative log-likelihood, error and seconds of FITC, SEP and SVI on random splits of pima, sonar, ionosphere
           and breast_wisconsin at three numbers of inducing points
  time     test scores against seconds, batch methods, regions of images (the set `image`)
  mnist    test scores against seconds, 60,000 images, batch and stochastic, beside GPflow's SVGP, float32
  airline  the same, stochastic, on two sets of flights, on 2,127,068 generated ones whose law is known, and on all flights of
           January to April 2008 where `scripts.tools.flights` has made their file (airline_bts.csv.gz)
  workers  seconds per iteration of 60,000 images against the number of worker processes on this machine

Results are written after each measurement: tables to sparse_ep.md, single measurements to sparse_ep.jsonl, figures
beside them. A rerun skips what is there, so a run can be stopped at any time; to measure again, remove the lines. Two
processes may work on different --sets of one --out; a last run, which finds nothing to do, writes the whole text.
"""

EXPERIMENTS = ("uci", "time", "mnist", "airline", "workers")
SINGLE = ("mnist", "workers")  # those in float32
NAMES = ("ionosphere", "sonar", "breast_wisconsin", "pima")
FLIGHTS = ("airline_2008", "airline_houston_2011", "airline_generated", "airline_bts")


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.sparse_ep",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--experiment", choices=EXPERIMENTS, nargs="+", help="some of them (default: all)")
    new.add_argument("--quick", action="store_true", help="few splits, steps, rows and seconds")
    new.add_argument(
        "--splits",
        type=_cli.positive,
        metavar="S",
        help="random splits of each UCI set (default: 20; 2 with --quick)",
    )
    new.add_argument(
        "--sets",
        choices=(*NAMES, *FLIGHTS),
        nargs="+",
        metavar="NAME",
        help=f"some of those of uci, {', '.join(NAMES)}, and of airline, {', '.join(FLIGHTS)} (default: all)",
    )
    new.add_argument(
        "--shares",
        type=float,
        choices=(0.15, 0.25, 0.5),
        nargs="+",
        help="inducing points in the UCI sets, as shares of the rows (default: all)",
    )
    new.add_argument(
        "--budget",
        type=_cli.above_zero,
        metavar="SECONDS",
        help="of each method in time, mnist and airline (default: 120)",
    )
    new.add_argument(
        "--workers", type=_cli.positive, nargs="+", metavar="K", help="default: 1, 2, ... up to the cores"
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_sparse_ep with --quick"
    )
    return new


def defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Fill in what was not given."""
    quick = options.quick
    options.experiment = options.experiment or list(EXPERIMENTS)
    options.splits = options.splits or (2 if quick else 20)
    options.sets = options.sets or [*NAMES[: 1 if quick else None], *FLIGHTS[: 1 if quick else None]]
    options.shares = options.shares or [0.15, 0.25, 0.5][: 1 if quick else None]
    options.budget = options.budget or (2.0 if quick else 120.0)
    options.workers = options.workers or list(range(1, min(8, os.cpu_count() or 1) + 1))
    options.out = options.out or Path("runs/reproduce_sparse_ep" if quick else "docs/results")
    return options


def measure(experiment: str, options: argparse.Namespace, journal: Any) -> None:
    """Run one experiment, as far as the journal lacks it."""
    from . import rivals, traces, uci, workers

    quick = options.quick
    inducing = 20 if quick else traces.INDUCING
    if experiment == "uci":
        names = [name for name in options.sets if name in NAMES]
        uci.run(journal, names, options.shares, options.splits, 20 if quick else uci.STEPS)
    elif experiment == "workers":
        workers.run(journal, options.workers, 1000 if quick else None, inducing)
    else:
        rows = 2 * rivals.LARGER if quick else None  # a tenth chooses step lengths
        names = [name for name in traces.SETS[experiment] if name in options.sets or name not in FLIGHTS]
        traces.run(journal, experiment, names, options.budget, rows, inducing, options.out)


def text(journal: Any) -> str:
    """Return what the journal holds, as Markdown."""
    from . import traces, uci, workers

    parts: dict[str, Callable[[], list[str]]] = {
        "uci": lambda: uci.document(journal),
        "workers": lambda: workers.document(journal),
    }
    lines = ["# SparseEP: the experiments of Hernández-Lobato & Hernández-Lobato (2016)\n"]
    lines.append("Written by `python -m scripts.experiments.sparse_ep`; the runs are listed at the end.\n")
    for experiment in EXPERIMENTS:
        written = lambda name=experiment: traces.document(journal, name)  # noqa: E731
        lines += parts.get(experiment, written)()
    lines.append("\n## When and where\n")
    for record in journal.records:
        if "environment" in record:
            precision = "float32" if record["of"] in SINGLE else "float64"
            lines.append(f"- {record['of']}: {report.describe(record['environment'], precision)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, draw, write."""
    options = defaults(arguments().parse_args())
    report.set_threads(options.threads)
    from ...shared.journal import Journal

    if not os.environ.get("GPFLOW_EXT_DATA"):
        raise ValueError("Set GPFLOW_EXT_DATA to the folder that holds the data sets (see --help).")
    path = options.out / "sparse_ep.md"
    begin = time.perf_counter()

    def written(journal: Journal) -> None:
        report.write(path, report.reduced(text(journal), options.quick))

    journal = Journal(path.with_suffix(".jsonl"), written)
    for experiment in options.experiment:
        journal.heading = {"environment": report.environment(options.threads), "of": experiment}
        measure(experiment, options, journal)
    written(journal)
    print(f"written to {path}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
