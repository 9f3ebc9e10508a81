"""Reproduce the sampling experiments of Hensman et al. (2015)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sgpmc                       all of it, an hour and more
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sgpmc --experiment coal     one experiment, minutes
  GPFLOW_EXT_DATA=data python -m scripts.experiments.sgpmc --quick               tiny sizes, into runs/

experiments
  coal      counts of 191 mining disasters: held-out log density of the Gaussian and of the free-form posterior
  exact     the rates of the disasters by both and by exact sampling (Figure 2)
  pines     pine saplings counted in grids from 32 x 32 to 512 x 512 cells, and by full MCMC (Figure 3)
  image     regions of images, 5 to 100 inducing points, by k-means and optimised (Figure 1)
  toy       three classes on the plane: contours of the Gaussian and of the free form (Figure 4)
  samplers  HMC and Gibbs sampling on three likelihoods: effective draws, R-hat against time
  mnist     60,000 images, trained as by scripts.experiments.robustmax in its run folder, then sampled: hours

A run that is stopped goes on where it was. Results go to sgpmc.md, sgpmc.jsonl and pictures.
"""
EXPERIMENTS = ("coal", "exact", "pines", "image", "toy", "samplers", "mnist")
QUICK = EXPERIMENTS[:-1]
SINGLE = ("mnist",)  # those in float32


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.sgpmc",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument(
        "--experiment", nargs="+", choices=EXPERIMENTS, help="default: all; without mnist with --quick"
    )
    new.add_argument("--quick", action="store_true", help="one split, three trials, few draws")
    new.add_argument("--splits", type=_cli.positive, metavar="S", help="random splits (default: 10)")
    new.add_argument(
        "--draws",
        type=_cli.positive,
        metavar="N",
        help="of each chain (default: 1000; image 250, toy 500, mnist 200)",
    )
    new.add_argument("--problems", nargs="+", metavar="NAME", help="of samplers (default: all)")
    new.add_argument(
        "--steps",
        type=_cli.positive,
        default=20000,
        metavar="N",
        help="of training on MNIST (default: 20000)",
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_sgpmc with --quick"
    )
    return new


def main() -> None:
    """Sample, score, write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    from ...shared.journal import Journal
    from . import coal, exact, image, mnist, pines, samplers, toy

    quick = options.quick
    folder = options.out or Path("runs/reproduce_sgpmc" if quick else "docs/results")
    begin = time.perf_counter()

    def write(journal: Journal) -> None:
        report.write(folder / "sgpmc.md", report.reduced(text(journal), quick))

    journal = Journal(folder / "sgpmc.jsonl", write)
    journal.heading = report.environment(options.threads)
    trials = 3 if quick else 30

    def number(given: int | None, full: int, tiny: int) -> int:
        return given or (tiny if quick else full)

    problems = ["coal"] if quick else list(samplers.PROBLEMS)
    unknown = set(options.problems or ()) - set(samplers.PROBLEMS)
    if unknown:
        raise ValueError(f"--problems: no {', '.join(unknown)}; there are {', '.join(samplers.PROBLEMS)}.")
    draws, splits = number(options.draws, 1000, 20), number(options.splits, coal.SPLITS, 1)
    runs = {
        "coal": lambda: coal.run(journal, splits, draws, trials),
        "exact": lambda: exact.run(journal, folder, draws, trials),
        "pines": lambda: pines.run(journal, folder, draws, trials, quick),
        "image": lambda: image.run(
            journal, folder, number(options.draws, 250, 20), number(options.splits, image.SPLITS, 1), quick
        ),
        "toy": lambda: toy.run(journal, folder, number(options.draws, 500, 20), quick),
        "samplers": lambda: samplers.run(journal, folder, draws, quick, options.problems or problems),
        "mnist": lambda: mnist.run(journal, options.steps, number(options.draws, 200, 20)),
    }
    for name in options.experiment or (QUICK if quick else EXPERIMENTS):
        runs[name]()
    write(journal)
    print((folder / "sgpmc.md").read_text(encoding="utf-8"))
    print(f"written to {folder / 'sgpmc.md'}; {time.perf_counter() - begin:.0f} seconds")


def text(journal: Any) -> str:
    """Return the page."""
    from . import coal, exact, image, mnist, pines, samplers, toy

    modules = (coal, exact, pines, image, toy, samplers, mnist)
    return "\n".join(
        [
            "# Sparse MCMC: Hensman et al. (2015)\n",
            "Written by `python -m scripts.experiments.sgpmc`; the runs are listed at the end.\n",
            *(part for module in modules for part in module.document(journal)),
            "## When and where\n",
            *dated(journal.records),
        ]
    )


def dated(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each run that left records: which experiments, when and where."""
    runs: list[tuple[Mapping[str, Any], list[str]]] = []
    for record in records:
        if "cpu" in record:
            runs.append((record, []))
        elif runs:
            runs[-1][1].append(record["experiment"])
    return [
        f"- {', '.join(chosen)}: {report.describe(where, precision)}"
        for where, names in runs
        for precision in ("float64", "float32")
        if (chosen := [name for name in dict.fromkeys(names) if (name in SINGLE) == (precision == "float32")])
    ]


if __name__ == "__main__":
    _cli.run(main)
