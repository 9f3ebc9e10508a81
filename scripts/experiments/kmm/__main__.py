"""Reproduce the experiments of Khan, Mohamed & Murphy (2012) and compare with the method they compare with."""

from __future__ import annotations

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm           everything, into docs/results/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm --quick   a reduced form, into runs/reproduce_kmm/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm --only table --out runs/table

parts
  figure1  the paper's Figure 1: the negative bound against the operations counted, and its distance from the
           optimum against the seconds, for ionosphere and sonar (binary) and new_thyroid (three classes,
           stick-breaking; the paper's glass data are not in the data folder)
  table    the operations to convergence for log s, log sigma in {-1, 1, 3}, with the bounds and test scores
  ordinal  five ordered levels: machine_cpu and stock_ord5, against GPflow
  counts   scotland_lip, coal_disasters and finland_heart_deaths, against GPflow

GPFLOW_EXT_DATA names the folder with these sets and with splits/, the published split of ionosphere and sonar.
Operations are counted as they are executed (see scripts/shared/flops.py), seconds are measured in runs of their own.
Tables go to kmm.md, figures beside it.
"""

PARTS = ("figure1", "table", "ordinal", "counts")
VALUES = (-1.0, 1.0, 3.0)
SHOWN = ((-1.0, -1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 3.0))  # settings in the figures
MULTIPLE, QUICK_MULTIPLE = 150.0, 20.0  # how much more than Algorithm 1 the gradient method may spend
TITLES = {
    "ionosphere": "Ionosphere, binary, logistic likelihood with 20 pieces",
    "sonar": "Sonar, binary, logistic likelihood with 20 pieces",
    "new_thyroid": "New thyroid, three classes, stick-breaking with 20 pieces",
}


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.kmm",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--only", choices=PARTS, help="one part (default: all)")
    new.add_argument("--quick", action="store_true", help="fewer sets and settings, shorter caps")
    new.add_argument("--threads", type=int, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="default: docs/results, runs/reproduce_kmm with --quick or --only",
    )
    return new


def load(name: str, **options: Any) -> Any:
    """Load a set by name, with its published split where there is one; say what is missing."""
    from gpflow_ext import datasets

    try:
        return datasets.load(name, offline=True, **options)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{error}\nSet GPFLOW_EXT_DATA to the folder that holds {name} (see --help)."
        ) from error


def binary(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a binary set with its published split, raw, and the likelihood with 20 pieces."""
    from gpflow_ext.likelihoods import BernoulliLogit

    return load(name, split="published", standardise=False), BernoulliLogit


def multiclass(name: str, rows: int | None = None) -> tuple[Any, Callable[[], Any]]:
    """Return a set with several classes, standardised, and the stick-breaking likelihood with 20 pieces."""
    from gpflow_ext.likelihoods import StickBreaking

    split = load(name, seed=0)
    split = replace(split, train=tuple(part[:rows] for part in split.train))
    return split, functools.partial(StickBreaking, num_classes=len(split.labels))


def experiments(parts: Sequence[str], quick: bool) -> dict[str, list[Any]]:
    """Run the convergence experiments that the parts need: outcomes by data set."""
    from . import convergence

    shown = SHOWN[:2] if quick else SHOWN
    grid = tuple(itertools.product(VALUES, VALUES))
    jobs = {
        "ionosphere": (
            functools.partial(binary, "ionosphere"),
            shown if quick or "table" not in parts else grid,
        )
    }
    if "figure1" in parts:
        jobs["new_thyroid"] = (functools.partial(multiclass, "new_thyroid"), shown)
        if not quick:
            jobs["sonar"] = (functools.partial(binary, "sonar"), shown)
            jobs["vehicle"] = (functools.partial(multiclass, "vehicle", rows=200), shown[1:2])
    found: dict[str, list[Any]] = {}
    for name, (source, settings) in jobs.items():
        laboratory = convergence.Laboratory(*source(), QUICK_MULTIPLE if quick else MULTIPLE)
        found[name] = []
        for setting in settings:
            found[name].append(laboratory.measure(setting))
            print(f"{name}, log s = {setting[0]:g}, log sigma = {setting[1]:g}: done", flush=True)
    return found


def convergence(parts: Sequence[str], quick: bool, folder: Path) -> list[str]:
    """Run the convergence experiments, draw the figures and return the text."""
    from . import convergence, tables

    found = experiments(parts, quick)
    text = [tables.METHODS.format(multiple=QUICK_MULTIPLE if quick else MULTIPLE)]
    if "figure1" in parts:
        text.append("## Figure 1\n")
        for name, outcomes in found.items():
            if name in TITLES:
                chosen = [outcome for outcome in outcomes if outcome.setting in SHOWN]
                convergence.figure(folder / f"kmm_{name}.png", TITLES[name], chosen)
                text.append(f"![{TITLES[name]}](kmm_{name}.png)\n")
        text += [
            f"### {name}\n\n{tables.bounds(outcomes)}\n{tables.operations(outcomes, paper=False)}"
            for name, outcomes in found.items()
            if name != "ionosphere"
        ]
    if "table" in parts:
        text += tables.nine_settings(found["ionosphere"])
    return text


def tasks(parts: Sequence[str], quick: bool) -> list[str]:
    """Run the experiments with learnt hyperparameters and return their text."""
    from . import tables, tasks

    cap, text = 5.0 if quick else 60.0, []
    if "ordinal" in parts:
        load("machine_cpu")
        rows = tasks.ordinal(cap, tasks.ORDINAL[: 1 if quick else None])
        text += [tables.ORDINAL, tables.tasks(rows), tables.gpflow_ordinal(tasks.gpflow_ordinal())]
    if "counts" in parts:
        load("scotland_lip")
        text += [tables.COUNTS, tables.tasks(tasks.counts(cap, tasks.COUNTS[: 1 if quick else None]))]
    return text


def main() -> None:
    """Measure, draw, write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    folder = options.out or Path("runs/reproduce_kmm" if options.quick or options.only else "docs/results")
    parts = (options.only,) if options.only else PARTS
    begin, where = time.perf_counter(), report.environment(options.threads)
    text = [
        "# VGP-KMM: the experiments of Khan, Mohamed & Murphy (2012)\n",
        f"{report.describe(where)} Seed 0. Written by `python -m scripts.experiments.kmm`{' --quick' * options.quick}.\n",
    ]
    if {"figure1", "table"} & set(parts):
        text += convergence(parts, options.quick, folder)
    text += tasks(parts, options.quick)
    report.write(folder / "kmm.md", "\n".join(text))
    print("\n".join(text))
    print(f"written to {folder}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
