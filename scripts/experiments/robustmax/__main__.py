"""Reproduce the multi-class experiments of Hensman et al. (2015), section 4.4, by variational inference."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from ... import _cli
from ...shared import report

EPILOG = """\
examples
  python -m scripts.experiments.robustmax --experiment toy                          seconds
  GPFLOW_EXT_DATA=data python -m scripts.experiments.robustmax --experiment mnist   an hour or two
  GPFLOW_EXT_DATA=data python -m scripts.experiments.robustmax --quick              all, reduced, into runs/

experiments
  toy        750 points of three classes in the plane, 50 inducing points: the probabilities and the inducing points
  mnist      60,000 images, 500 inducing points, float32: test error and NLPD against seconds; inducing digits before,
             after and difference
  schedules  MNIST by step lengths that are constant, or fall along a cosine or by a root; half an hour

MNIST trains from the newest checkpoint of --run-dir, so it can be stopped at any time. Results go to robustmax.md,
robustmax_<experiment>.jsonl and figures beside them.
"""
QUICK_ROWS = 3000  # of MNIST, whose k-means and scores take minutes
EXPERIMENTS = ("toy", "mnist", "schedules")


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    new = argparse.ArgumentParser(
        prog="python -m scripts.experiments.robustmax",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--experiment", nargs="+", choices=EXPERIMENTS, default=EXPERIMENTS, help="default: all")
    new.add_argument("--quick", action="store_true", help="few steps")
    new.add_argument(
        "--steps", type=_cli.positive, metavar="N", help="steps on MNIST (default: 20000, 20 with --quick)"
    )
    new.add_argument(
        "--run-dir",
        type=Path,
        default=Path("runs/reproduce_robustmax/mnist"),
        metavar="DIR",
        help="folder for the checkpoints of MNIST (default: %(default)s)",
    )
    new.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    new.add_argument(
        "--out", type=Path, metavar="DIR", help="default: docs/results, runs/reproduce_robustmax with --quick"
    )
    return new


def main() -> None:
    """Train, draw, write."""
    options = arguments().parse_args()
    report.set_threads(options.threads)
    from . import runs as experiments
    from . import schedules

    folder = options.out or Path("runs/reproduce_robustmax" if options.quick else "docs/results")
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    where: dict[str, Any] = report.environment(options.threads)
    if "toy" in options.experiment:
        experiments.toy(folder, where, steps=30 if options.quick else 1000)
    if "mnist" in options.experiment:
        steps = options.steps or (20 if options.quick else 20000)
        run_dir = options.run_dir.with_name("mnist_quick") if options.quick else options.run_dir
        every, rows = (10, QUICK_ROWS) if options.quick else (250, None)
        experiments.mnist(folder, where, run_dir, steps, every, rows)
    if "schedules" in options.experiment:
        sizes = (20, 40) if options.quick else (schedules.STEPS, schedules.LONGEST)
        schedules.compare(folder, where, *sizes)
    text = report.reduced(experiments.text(folder), options.quick)
    report.write(folder / "robustmax.md", text)
    print(text)
    print(f"written to {folder / 'robustmax.md'}; {time.perf_counter() - begin:.0f} seconds")


if __name__ == "__main__":
    _cli.run(main)
