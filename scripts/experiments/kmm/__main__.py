"""Reproduce the experiments of Khan, Mohamed & Murphy (2012) and compare with the method they compare with."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report
from . import sets

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm           everything, into docs/results/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm --quick   a reduced form, into runs/reproduce_kmm/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.kmm --only table --out runs/table

parts
  figure1  the paper's Figure 1: the negative bound against the operations counted, and its distance from the
           optimum against the seconds, for ionosphere, sonar and usps 3 against 5 (binary), glass (six classes,
           stick-breaking) and new_thyroid (three classes)
  end      the other form until it reaches the optimum or has evaluated its bound 20,000 times: on glass, and with its
           mean in whitened coordinates on all sets of figure1
  table    the operations to convergence for log s, log sigma in {-1, 1, 3}, with the bounds and test scores
  ordinal  five ordered levels: machine_cpu and stock_ord5, against GPflow
  classes  new_thyroid, glass and vehicle: stick-breaking and multinomial logit, each with the bounds that it has
  counts   scotland_lip, coal_disasters and finland_heart_deaths, against GPflow

GPFLOW_EXT_DATA names the folder with these sets and with splits/, the published split of ionosphere and sonar.
Operations are counted as they are executed (see scripts/shared/flops.py), seconds are measured in runs of their own.
Records go to kmm.jsonl, and what is there is not measured again; tables and figures are made from them alone.
"""

PARTS = ("figure1", "end", "table", "ordinal", "counts", "classes")
VALUES = (-1.0, 1.0, 3.0)
SHOWN = ((-1.0, -1.0), (1.0, 1.0), (3.0, 1.0), (3.0, 3.0))  # settings in the figures
MULTIPLE, QUICK_MULTIPLE = 150.0, 20.0  # how much more than Algorithm 1 the gradient method may spend
EVALUATIONS, QUICK_EVALUATIONS = 20_000, 200  # of the gradient method, where it goes on to the end
SOURCES: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "ionosphere": functools.partial(sets.binary, "ionosphere"),
    "sonar": functools.partial(sets.binary, "sonar"),
    "usps_3v5": sets.usps,
    "new_thyroid": functools.partial(sets.multiclass, "new_thyroid"),
    "vehicle": functools.partial(sets.multiclass, "vehicle"),
    "glass": functools.partial(sets.multiclass, "glass"),
}
TITLES = {
    "ionosphere": "Ionosphere, binary, logistic likelihood with 20 pieces",
    "sonar": "Sonar, binary, logistic likelihood with 20 pieces",
    "usps_3v5": "USPS, 3 against 5, binary, logistic likelihood with 20 pieces",
    "glass": "Glass, six classes, stick-breaking with 20 pieces",
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
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="default: docs/results, runs/reproduce_kmm with --quick or --only",
    )
    return new


def measure(parts: Sequence[str], quick: bool, journal: Any) -> None:
    """Measure what the journal lacks of the parts."""
    if {"figure1", "table"} & set(parts):
        measure_convergence(parts, quick, journal)
    if "end" in parts:
        measure_end(quick, journal)
    measure_tasks(parts, quick, journal)


def measure_convergence(parts: Sequence[str], quick: bool, journal: Any) -> None:
    """Run the methods on the sets and settings that the parts need."""
    from . import convergence

    shown = SHOWN[:2] if quick else SHOWN
    grid = tuple(itertools.product(VALUES, VALUES))
    jobs = {"ionosphere": shown if quick or "table" not in parts else grid}
    if "figure1" in parts:
        jobs["new_thyroid"] = shown
        if not quick:
            jobs |= {"glass": shown, "sonar": shown, "usps_3v5": SHOWN[1:3], "vehicle": shown[1:2]}
    for name, settings in jobs.items():
        keys = [
            {"set": name, "log_s": log_s, "log_sigma": log_sigma, "seed": 0} for log_s, log_sigma in settings
        ]
        if all(journal.find(**key) for key in keys):
            continue
        laboratory = convergence.Laboratory(*SOURCES[name](), QUICK_MULTIPLE if quick else MULTIPLE)
        for key, setting in zip(keys, settings, strict=True):
            journal.once(key, lambda: convergence.recorded(laboratory.measure(setting)))  # noqa: B023
            print(f"{name}, log s = {setting[0]:g}, log sigma = {setting[1]:g}: done", flush=True)


def measure_end(quick: bool, journal: Any) -> None:
    """Run the gradient method from each setting that `measure_convergence` has an optimum of."""
    from . import convergence

    evaluations, outcomes = QUICK_EVALUATIONS if quick else EVALUATIONS, found(journal)
    slow = "new_thyroid" if quick else "glass"
    for part, names in ((convergence.END, [slow]), (convergence.WHITENED_END, [slow] if quick else SOURCES)):
        for name in names:
            runner = None
            for outcome in outcomes.get(name, []):
                log_s, log_sigma = outcome.setting
                key = {"part": part, "data": name, "log_s": log_s, "log_sigma": log_sigma}
                if not journal.find(**key):
                    runner = runner or convergence.Patient(*SOURCES[name](), convergence.FORMS[part])
                    journal.once(key, lambda: runner.measure(outcome, evaluations))  # noqa: B023
                    print(f"{name}, log s, log sigma = {outcome.setting}, {part}: done", flush=True)


def measure_tasks(parts: Sequence[str], quick: bool, journal: Any) -> None:
    """Fit the models with learnt hyperparameters."""
    from . import tasks

    cap, first = 5.0 if quick else 60.0, 1 if quick else None
    classes = functools.partial(tasks.classes, bounds=tasks.QUICK_BOUNDS) if quick else tasks.classes
    for part, names, fit in (
        ("ordinal", tasks.ORDINAL, tasks.ordinal),
        ("counts", tasks.COUNTS, tasks.counts),
        ("classes", tasks.CLASSES, classes),
    ):
        if part in parts:
            sets.load(names[0])
            for name in names[:first]:
                journal.once(
                    {"part": part, "data": name, "seed": 0},
                    lambda: {"rows": [asdict(row) for row in fit(cap, (name,))]},  # noqa: B023
                )
    if "ordinal" in parts:
        journal.once({"part": "GPflow's Ordinal"}, lambda: {"finite": math.isfinite(tasks.gpflow_ordinal())})


def write(journal: Any, folder: Path, quick: bool) -> None:
    """Draw the figures and write the page, from the records alone."""
    from . import convergence

    for name, outcomes in found(journal).items():
        chosen = [outcome for outcome in outcomes if outcome.setting in SHOWN]
        if name in TITLES and chosen:
            convergence.figure(folder / f"kmm_{name}.png", TITLES[name], chosen)
    report.write(folder / "kmm.md", text(journal, quick))


def found(journal: Any) -> dict[str, list[Any]]:
    """Return the recorded outcomes of each set."""
    from . import convergence

    outcomes: dict[str, list[Any]] = {}
    for record in journal.records:
        if "curves" in record:
            outcomes.setdefault(record["set"], []).append(convergence.restored(record))
    return outcomes


def text(journal: Any, quick: bool = False) -> str:
    """Return the page."""
    from . import convergence, tables

    outcomes = found(journal)
    runs = [report.describe(record["environment"]) for record in journal.records if "environment" in record]
    lines = [
        "# VGP-KMM: the experiments of Khan, Mohamed & Murphy (2012)\n",
        *(f"{run}\n" for run in runs),
        f"Seed 0. Written by `python -m scripts.experiments.kmm{' --quick' * quick}`.\n",
    ]
    if outcomes:
        lines += [
            tables.METHODS.format(multiple=QUICK_MULTIPLE if quick else MULTIPLE),
            "## Figure 1\n",
            *(f"![{TITLES[name]}](kmm_{name}.png)\n" for name in outcomes if name in TITLES),
        ]
    lines += [
        f"### {name}\n\n{tables.bounds(each)}\n{tables.operations(each, paper=False)}"
        for name, each in outcomes.items()
        if name != "ionosphere"
    ]
    if "ionosphere" in outcomes:
        lines += tables.nine_settings(outcomes["ionosphere"])
    if ends := journal.find(part=convergence.END):
        lines += [tables.END, tables.ends(ends)]
    if ends := journal.find(part=convergence.WHITENED_END):
        lines += [tables.WHITENED, tables.whitened(ends, outcomes)]
    for part in ("ordinal", "counts", "classes"):
        rows = [row for record in journal.find(part=part) for row in record["rows"]]
        lines += [tables.introduction(part, rows), tables.tasks(rows)] if rows else []
        if part == "ordinal":
            lines += [
                tables.gpflow_ordinal(record["finite"]) for record in journal.find(part="GPflow's Ordinal")
            ]
    return "\n".join(lines)


def main() -> None:
    """Measure, draw, write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    from ...shared.journal import Journal

    folder = options.out or Path("runs/reproduce_kmm" if options.quick or options.only else "docs/results")
    begin = time.perf_counter()
    journal = Journal(folder / "kmm.jsonl")
    journal.heading = {"environment": report.environment(options.threads)}
    measure((options.only,) if options.only else PARTS, options.quick, journal)
    write(journal, folder, options.quick)
    print(text(journal, options.quick))
    print(f"written to {folder}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
