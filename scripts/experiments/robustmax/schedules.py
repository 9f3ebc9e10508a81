"""How the step lengths of minibatches fall, on MNIST: all else as the recipe has it by default."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpflow
import numpy as np

import gpflow_ext as gpx

from ...shared import report

Record = dict[str, Any]
SCHEDULES = ("constant", "cosine", "root")
INDUCING, BATCH, STEPS = 200, 500, 2000
LONGEST = 20_000  # steps by a root, which does not depend on their number
MARKS = (250, 500, 1000, 2000, 5000, 10_000)
SEEN = 5000  # training images by which the bound is measured, and from as many the inducing images start
SINGLE = gpflow.config.Config(float=np.float32, jitter=1e-4)


def compare(folder: Path, where: Mapping[str, Any], steps: int = STEPS, longest: int = LONGEST) -> None:
    """Train by each schedule, by a root for longer, and record the scores on the way."""
    with gpflow.config.as_context(SINGLE):
        train, test = gpx.datasets.load("mnist", standardise="common")
        lines = [
            trained(schedule, train, test, longest if schedule == "root" else steps) for schedule in SCHEDULES
        ]
    report.write_lines(folder / "robustmax_schedules.jsonl", [{"where": dict(where), "steps": steps}, *lines])


def trained(schedule: str, train: Any, test: Any, steps: int) -> Record:
    """Return the scores of a schedule after some steps."""
    width = train[0].shape[1]
    kernel = gpflow.kernels.SquaredExponential(variance=5.0, lengthscales=np.full(width, np.sqrt(width) / 2))
    Z = gpx.inducing.kmeans(train[0][:SEEN], INDUCING)
    kernel += gpflow.kernels.White(1e-3)
    model = gpx.models.SVGPRobustMax(kernel, 10, Z, num_data=len(train[0]))
    seen = tuple(part[:SEEN] for part in train)
    marks: list[Record] = []
    scoring, begin = 0.0, time.process_time()

    def monitor(step: int) -> None:
        nonlocal scoring
        if step in MARKS or step == steps:
            start = time.process_time()
            mark = {"step": step, "seconds": start - begin - scoring, "bound": float(model.elbo(seen))}
            marks.append(
                {
                    **mark,
                    "epsilon": float(np.asarray(model.likelihood.epsilon)),
                    **gpx.metrics.evaluate(model, test),
                }
            )
            print(f"mnist, {schedule}, step {step:,}: NLPD {marks[-1]['nlpd']:.4f}", flush=True)
            scoring += time.process_time() - start

    falling = {"decay_steps": steps} if schedule == "cosine" else {}
    options: dict[str, Any] = {"minibatch_size": BATCH, "starts": 1, "schedule": schedule, **falling}
    gpx.fit(model, train, steps=steps, monitor=monitor, progress=False, **options)
    return {"schedule": schedule, "marks": marks}


def text(lines: list[Record]) -> str:
    """Return the section on the schedules."""
    heading, *found = lines
    rows = [
        (
            line["schedule"],
            f"{mark['step']:,}",
            f"{mark['seconds']:,.0f}",
            f"{mark['bound']:,.0f}",
            f"{mark['epsilon']:.3f}",
            f"{100 * (1 - mark['error']):.2f}",
            f"{mark['nlpd']:.4f}",
        )
        for line in found
        for mark in line["marks"]
    ]
    return (
        "## How step lengths fall\n\n"
        f"MNIST as above, but {INDUCING} inducing points, minibatches of {BATCH}, one start, and all else as "
        '`recipe="robust_max"` has it by default: Adam in log space, ε learnt. The natural-gradient lengths of q and the '
        "rate of Adam are constant, fall along a cosine to a twentieth at the last step, or by a root, the default: as "
        "$1/\\sqrt{1 + t/50}$ at step $t$, whatever the number of steps. The bound is that of "
        f"{SEEN:,} training images, scaled to all; seconds are those of the CPU in training.\n\n"
        f"{report.describe(heading['where'], 'float32')}\n\n"
        + report.table(
            ["schedule", "step", "CPU seconds", "bound", "ε", "test accuracy, %", "test NLPD"], rows
        )
        + "\n"
        + _prolonged(found[-1]["marks"])
    )


def _prolonged(marks: list[Record]) -> str:
    """Say what becomes of the scores where a run by a root goes on."""
    best, last = min(marks, key=lambda mark: mark["nlpd"]), marks[-1]
    first, end = (
        f"{mark['nlpd']:.4f}, with accuracy {100 * (1 - mark['error']):.2f} % and bound {mark['bound']:,.0f}"
        for mark in (best, last)
    )
    return (
        f"By a root the test NLPD is lowest after {best['step']:,} of {last['step']:,} steps: {first}. At the end it is {end}. "
        "The bound is no score of predictions. Where these count, keep some rows as `validation`: a fit then ends with "
        "the parameters that predicted them best.\n"
    )
