"""Gaussian process regression networks: real and generated data, other methods, a million outputs."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  GPFLOW_EXT_DATA=data python -m scripts.experiments.gprn --threads 1            everything, into docs/results/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.gprn --quick                a reduced form, into runs/reproduce_gprn/
  GPFLOW_EXT_DATA=data python -m scripts.experiments.gprn --experiment heat --seeds 1

experiments
  heat         4,096 outputs of a simulator without noise
  generated    draws of a network with two nodes, 200 outputs
  stationary   draws of independent GPs, where a network has nothing to gain
  arabidopsis  800 genes over a day
  germany      air quality at 70 stations, half of the readings missing
  jura         three metals in the soil, cadmium hidden at 100 places
  sarcos       seven torques of a robot arm
  field        images of a million pixels, generated
  convergence  seconds to the optimum of the tensor posterior, next to Adam, and how stationary its end is
  scaling      seconds and memory of a step from 1,000 to 1,000,000 outputs, and of the paper's other methods

Results are written after each measurement: gprn.md, and single measurements to gprn.jsonl. A rerun skips what is there,
so a run can be stopped at any time; to measure again, remove the lines.
"""
EXPERIMENTS = (
    "heat",
    "generated",
    "stationary",
    "arabidopsis",
    "germany",
    "jura",
    "sarcos",
    "field",
    "convergence",
    "scaling",
)
QUICK = ("generated", "convergence", "scaling")
GENERATED = {"generated", "stationary", "field", "scaling"}  # need no data sets
METHODS = (
    "independent",
    "pca",
    "lmc",
    "others",
    "collapsed",
    "joint",
    "kernels",
    "chosen",
    "tensor",
    "rows",
    "adam",
    "mean_field",
    "mixture",
)


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.gprn",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument(
        "--experiment", choices=EXPERIMENTS, nargs="+", help=f"default: all; {', '.join(QUICK)} with --quick"
    )
    new.add_argument("--methods", choices=METHODS, nargs="+", help="some of them (default: all)")
    new.add_argument(
        "--nodes",
        type=_cli.positive,
        nargs="+",
        metavar="K",
        help="numbers of nodes (default: those of each set)",
    )
    new.add_argument("--quick", action="store_true", help="one seed, few outputs and steps")
    new.add_argument(
        "--seeds", type=_cli.positive, metavar="S", help="splits of each set (default: 3; 1 with --quick)"
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_gprn with --quick"
    )
    return new


def measure(experiment: str, options: argparse.Namespace, journal: Any, folder: Path) -> None:
    """Run one experiment, as far as the journal lacks it."""
    from . import comparisons, convergence, scaling

    seeds = options.seeds or (1 if options.quick else 3)
    if experiment == "scaling":
        if options.quick:
            scaling.measure(journal, (100, 1000), (100, 1000), (100, 1000), rows=20, nodes=2)
        else:
            scaling.measure(
                journal, scaling.SIZES, scaling.TENSOR_SIZES, scaling.PAPER_SIZES, scaling.ROWS, scaling.NODES
            )
    elif experiment == "convergence" and options.quick:
        convergence.compare(journal, {"generated": comparisons.small}, seeds, multiple=1.0)
    elif experiment == "convergence":
        tasks = {name: comparisons.TASKS[name][0] for name in convergence.NODES}
        convergence.compare(journal, tasks, seeds)
    else:
        comparisons.compare(journal, experiment, seeds, options.methods, options.quick, folder, options.nodes)


def main() -> None:
    """Measure and write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    from ...shared.journal import Journal
    from . import comparisons

    asked = options.experiment or (QUICK if options.quick else EXPERIMENTS)
    generated = {*GENERATED, "convergence"} if options.quick else GENERATED
    if not os.environ.get("GPFLOW_EXT_DATA") and not set(asked) <= generated:
        raise ValueError("Set GPFLOW_EXT_DATA to the folder that holds the data sets (see --help).")
    recorded = not options.quick and options.out is None
    folder = options.out or Path("runs/reproduce_gprn" if options.quick else "docs/results")
    path = folder / "gprn.md"
    begin = time.perf_counter()

    def written(journal: Journal) -> None:
        report.write(path, report.reduced(comparisons.text(journal, recorded), options.quick))

    journal = Journal(path.with_suffix(".jsonl"), written)
    for experiment in asked:
        journal.heading = {"environment": report.environment(options.threads), "of": experiment}
        measure(experiment, options, journal, folder)
    written(journal)
    print(f"written to {path}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
