"""The UCI experiment of SparseEP: test scores and seconds of FITC, SEP and SVI over random splits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpflow_ext import datasets

from ...shared import report
from ...shared.journal import Journal, Record
from .methods import FITC, SEP, SVI, Clock, Contender, SVIAdam

NAMES = {"pima": "pima", "sonar": "sonar", "ionosphere": "ionosphere", "breast_wisconsin": "breast"}
SHARES = (0.15, 0.25, 0.5)
STEPS, TEST_FRACTION = 250, 0.1
METHODS: dict[str, Callable[[Any, Any], Contender]] = {
    "FITC": FITC,
    "SEP": SEP,
    "SVI": SVI,
    "SVI, Adam": SVIAdam,
}
PAPER = {  # mean negative test log-likelihood of FITC, SEP, SVI at each share
    "breast_wisconsin": ((0.101, 0.110, 0.102), (0.111, 0.113, 0.103), (0.106, 0.113, 0.101)),
    "ionosphere": ((0.298, 0.264, 0.260), (0.292, 0.272, 0.273), (0.302, 0.270, 0.257)),
    "pima": ((0.535, 0.524, 0.492), (0.533, 0.509, 0.496), (0.528, 0.499, 0.491)),
    "sonar": ((0.354, 0.331, 0.401), (0.348, 0.318, 0.404), (0.349, 0.290, 0.345)),
}
PAPER_SECONDS = ((58.6, 17.3, 39.7), (132.6, 37.1, 64.6), (493.6, 129.6, 194.6))  # means over its 7 sets

TEXT = """\
## Test scores over random splits

{steps} iterations of each method on {splits} random splits into 90 % for training and 10 % for testing, classes in
proportion, inputs standardised on the training rows (16 rows of breast with a missing value left out). Inducing
points: m % of the training rows, drawn at random with the split's seed, then learnt. All start from variance 1, noise
variance 1e-3, and ℓ² = the median distance of the inducing points, the start of the authors' own code.
SEP takes one parallel sweep (damping 0.5) and one gradient step by the authors' rule (step sizes from 1e-2, × 1.02
while a gradient keeps its sign, else × 0.5) in an iteration. FITC takes an iteration of L-BFGS with the sites at their fixed
point in each evaluation. SVI is GPflow's SVGP with the same probit, and takes one iteration of L-BFGS, as in the paper, or of Adam(0.01).
± is the standard error of the mean over the splits. "Within 2 s.e." compares with the paper's mean by the standard
error found here: the paper prints none, and has other splits.
Seconds are those of training, without compilation.
"""


def run(journal: Journal, sets: Sequence[str], shares: Sequence[float], splits: int, steps: int) -> None:
    """Measure what the journal lacks."""
    for name in sets:
        for share in shares:
            contenders: dict[str, Contender] = {}
            for split in range(splits):
                _split(journal, contenders, name, share, split, steps)


def _split(
    journal: Journal, contenders: dict[str, Contender], name: str, share: float, split: int, steps: int
) -> None:
    """Measure all methods on one split."""
    keys = {
        method: {
            "experiment": "uci",
            "set": name,
            "share": share,
            "method": method,
            "split": split,
            "steps": steps,
        }
        for method in METHODS
    }
    if all(journal.find(**key) for key in keys.values()):
        return
    train, test = datasets.load(name, seed=split, test_fraction=TEST_FRACTION, split="random", missing="drop")
    rng = np.random.default_rng(split)
    Z = train[0][rng.choice(len(train[0]), round(share * len(train[0])), replace=False)]
    for method, key in keys.items():
        if journal.find(**key):
            continue
        begin = time.perf_counter()
        contender = contenders.get(method)
        if contender is None:
            contender = contenders[method] = METHODS[method](train, Z)
            contender.start(train, Z)
            contender.run(1)
        first_call = time.perf_counter() - begin
        contender.start(train, Z)
        clock = Clock()
        objective = contender.run(steps)
        seconds = clock.seconds
        size = {"rows": len(train[0]), "inducing": len(Z)}
        found = {"seconds": seconds, "objective": objective, "first_call": first_call}
        journal.add({**key, **size, **contender.scores(test), **found})
        print(f"{name}, m = {share:.0%}, split {split}, {method}: {seconds:.1f} s", flush=True)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error; NaN for the error of a single value."""
    error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(np.mean(values)), float(error)


def document(journal: Journal) -> list[str]:
    """Return the tables of what the journal holds, as Markdown."""
    records = [record for record in journal.find(experiment="uci") if record["steps"] == _steps(journal)]
    if not records:
        return []
    splits = 1 + max(record["split"] for record in records)
    cells: dict[tuple[str, float], dict[str, list[Record]]] = {}
    for record in records:
        cell = cells.setdefault((record["set"], record["share"]), {})
        cell.setdefault(record["method"], []).append(record)
    return [
        TEXT.format(steps=_steps(journal), splits=splits),
        "### Negative test log-likelihood\n",
        _likelihoods(cells),
        "### Test error\n",
        _scores(cells, "error"),
        "### Seconds\n",
        _seconds(cells),
    ]


def _steps(journal: Journal) -> int:
    return max((record["steps"] for record in journal.find(experiment="uci")), default=STEPS)


def _label(cell: tuple[str, float]) -> str:
    return f"{NAMES[cell[0]]}, {cell[1]:.0%}"


def _likelihoods(cells: dict[tuple[str, float], dict[str, list[Record]]]) -> str:
    rows = []
    for cell, methods in cells.items():
        row = [_label(cell)]
        for method, paper in zip(("FITC", "SEP", "SVI"), PAPER[cell[0]][SHARES.index(cell[1])], strict=True):
            if method not in methods:
                row += ["", f"{paper:.3f}", ""]
                continue
            mean, error = mean_and_error([record["nll"] for record in methods[method]])
            near = "" if math.isnan(error) else "yes" if abs(mean - paper) <= 2.0 * error else "no"
            row += [f"{mean:.3f} ± {error:.3f}", f"{paper:.3f}", near]
        rows.append([*row, _cell(methods, "SVI, Adam", "nll")])
    columns = ["set, m"]
    for method in ("FITC", "SEP", "SVI"):
        columns += [method, "paper", "within 2 s.e."]
    return report.table([*columns, "SVI, Adam"], rows)


def _scores(cells: dict[tuple[str, float], dict[str, list[Record]]], name: str) -> str:
    rows = [
        [_label(cell), *(_cell(methods, method, name) for method in METHODS)]
        for cell, methods in cells.items()
    ]
    return report.table(["set, m", *METHODS], rows)


def _cell(methods: dict[str, list[Record]], method: str, name: str) -> str:
    if method not in methods:
        return ""
    mean, error = mean_and_error([record[name] for record in methods[method]])
    return f"{mean:.3f} ± {error:.3f}"


def _seconds(cells: dict[tuple[str, float], dict[str, list[Record]]]) -> str:
    """Return the seconds of training, the ratios, and the longest first call."""
    rows = []
    for cell, methods in cells.items():
        mean = {m: float(np.mean([r["seconds"] for r in found])) for m, found in methods.items()}
        paper = PAPER_SECONDS[SHARES.index(cell[1])]
        first = max(record["first_call"] for found in methods.values() for record in found)
        ratio = {other: mean["SEP"] / mean[other] for other in mean if "SEP" in mean}
        rows.append(
            [
                _label(cell),
                f"{methods[next(iter(methods))][0]['inducing']}",
                *(report.number(mean[m], 2) if m in mean else "" for m in METHODS),
                report.number(ratio["SVI"], 2) if "SVI" in ratio else "",
                f"{paper[1] / paper[2]:.2f}",
                report.number(ratio["FITC"], 2) if "FITC" in ratio else "",
                f"{paper[1] / paper[0]:.2f}",
                report.number(first, 2),
            ]
        )
    return report.table(
        ["set, m", "M", *METHODS, "SEP/SVI", "paper", "SEP/FITC", "paper", "longest compilation"], rows
    )
