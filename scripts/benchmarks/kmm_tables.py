"""The benchmark's tables, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..shared import report

LOG_S, LOG_SIGMA = 3.0, 1.0
PRECISION = 1e-3  # nats below the optimum at which a run has arrived
SLOW = 5.0  # seconds from which one timed run is enough


def fixed_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the first table for one size."""
    by_bound = {
        bound: {record["method"]: record for record in records if record["bound"] == bound}
        for bound in ("exact", "piecewise")
    }
    rows = []
    for name, record in by_bound["exact"].items():
        row = [
            name + (" (own objective)" if record["own_objective"] else ""),
            report.number(record["first_call"]),
        ]
        for of_bound in by_bound.values():
            row += _cells(of_bound.get(name), next(iter(of_bound.values()), None))
        rows.append(row)
    columns = ("method", "first call, s", "exact: s", "times ours", "20 pieces: s", "times ours")
    return report.table(columns, rows)


def _cells(record: dict[str, Any] | None, first: dict[str, Any] | None) -> list[str]:
    """Return the seconds and their ratio to those of the first method, ours."""
    if record is None or first is None:
        return ["", ""]
    seconds, ours = report.median(record["seconds"]), report.median(first["seconds"])
    if math.isinf(seconds):
        return [f"> {record['cap']:.0f}", f"> {report.number(record['cap'] / ours, 2)}"]
    return [report.number(seconds), report.number(seconds / ours, 2)]


def costs_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the second table."""
    rows = []
    for record in records:
        seconds = {name: report.median(values) for name, values in record["seconds"].items()}
        rate = 2.0 * record["size"] ** 3 / seconds["product"] / 1e9
        row = [
            str(record["size"]),
            report.number(1e3 * seconds["Cholesky"]),
            report.number(1e3 * seconds["product"]),
            f"{rate:.0f}",
        ]
        for name in ("parallel step", "Algorithm 1 sweep"):
            row += [
                report.number(1e3 * seconds[name]),
                f"{seconds[name] / seconds['Cholesky']:.1f}",
                f"{seconds[name] / seconds['product']:.1f}",
                _share(record, name, seconds[name], rate),
            ]
        rows.append(row)
    ratios = ("/ Cholesky", "/ product", "share of its rate")
    columns = (
        "N",
        "Cholesky, ms",
        "product, ms",
        "GFLOP/s",
        "parallel step, ms",
        *ratios,
        "Algorithm 1 sweep, ms",
        *ratios,
    )
    return report.table(columns, rows)


def _share(record: dict[str, Any], name: str, seconds: float, rate: float) -> str:
    """Return the operations per second of a step as a share of the product's, where they were counted."""
    flops = record.get("flops", {}).get(name)
    return "" if flops is None else f"{flops / seconds / (1e9 * rate):.0%}"


def learnt_table(records: Sequence[dict[str, Any]]) -> str:
    """Return the third table."""
    rows = []
    for record in records:
        missed = f"> {record['total']:.0f}"
        rows.append(
            [
                record["method"],
                f"{record['objective']:.4f}",
                report.number(record["total"]),
                missed if record["seconds"] is None else report.number(record["seconds"]),
                report.number(record["first_call"]),
            ]
        )
    columns = (
        "method",
        "bound reached",
        "s in all",
        "s to the package's bound − 0.01",
        "first call, s",
    )
    return report.table(columns, rows)


def document(where: dict[str, Any], records: Sequence[dict[str, Any]]) -> str:
    """Return the whole result as Markdown."""
    of = {
        name: [record for record in records if record["table"] == name]
        for name in ("fixed", "costs", "learnt")
    }
    by_size: dict[int, list[dict[str, Any]]] = {}
    for record in of["fixed"]:
        by_size.setdefault(record["size"], []).append(record)
    repeats = max(len(record["seconds"]) for record in of["fixed"])
    parts = [
        "# VGP-KMM against other implementations\n",
        report.describe(where) + " Written by `python -m scripts.benchmarks kmm`.\n",
        "## Fixed hyperparameters\n",
        f"log s = {LOG_S:g}, log σ = {LOG_SIGMA:g}. Seconds until the bound is within {PRECISION:g} of the "
        f"optimum, medians of up to {repeats} interleaved runs (one where a run takes more than "
        f"{SLOW:g} s). Not in them: the first call, with compilation, which has its own column (exact "
        "likelihood); for natural gradients the evaluation of the objective. The parallel fixed point first iterates "
        "with its matrices in float32, and finishes and is judged in float64. N = 351 is ionosphere, raw inputs; "
        "other sizes are drawn from the model. Methods with an objective of their own are timed until they stop by "
        "themselves.\n",
    ]
    for size, chosen in by_size.items():
        parts += [f"### N = {size}\n", fixed_table(chosen)]
    parts += [
        "## One iteration\n",
        "20 pieces. The product is one N × N matrix product, N³ multiply-adds, through the same TensorFlow.\n",
        costs_table(of["costs"]),
        f"## Hyperparameters learnt, N = {of['learnt'][0]['size']}\n",
        f"From log s = {LOG_S:g}, log σ = {LOG_SIGMA:g}, by L-BFGS in both, exact likelihood; one run each after an untimed first call.\n",
        learnt_table(of["learnt"]),
    ]
    return "\n".join(parts)
