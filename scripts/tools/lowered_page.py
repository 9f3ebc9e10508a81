"""The page of what lowers: docs/results/lowering.md, made from the records of `scripts.tools.lower`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..shared import report
from ..shared.journal import Record
from .budgets import BUDGETS

HEADER = """# Without TensorFlow

The compiled programs of this package run without TensorFlow. This page shows two things about the programs that fits, samples and
predictions of small models compile (48 data, 12 inducing points, three inputs). They can be lowered to StableHLO, the portable language
of XLA. And another runtime, JAX's PJRT client on the CPU, returns the same results for them as TensorFlow's own graph. No GPU and no TPU
was used for this page; [another](gpu.md) has what was measured on a GPU. The same files run on a GPU or a TPU if JAX has one, without
TensorFlow and without this package:

    python -m scripts.tools.lower FOLDER                    # with TensorFlow: programs, inputs, TensorFlow's results
    python scripts/tools/run_pjrt.py FOLDER --repeats 10    # with JAX alone, on its default device

*Difference* is the largest difference from TensorFlow's graph, relative to the largest entry of an output where that is above one.
It stays below 1e-12 (1e-5 in single precision), except where rounding is amplified; `LOOSER` in `scripts/tools/lower.py`
lists these cases with the reason. *Inexact* counts the float32 products that a device may round to TensorFloat-32 or bfloat16; only
`gpx.allow_tf32()` makes it more than zero. *Calls* are custom calls, whose names a runtime has to know.
*Emitted* are the operations of the program as TensorFlow writes it. Many of them are not needed: functions that none calls, among them copies
of the bodies of loops, reshapes to the same shape, and what is computed twice. *Operations* are those that are left when they are taken out,
which is the program that is stored and run.
"Wanted" and "held to" are the sizes in `scripts/tools/budgets.py`; a test fails where a program grows beyond the latter.
The seconds to lower and to compile were measured on the CPU of a busy machine with two cores. Compiling for a CPU unrolls what a GPU hands
to its libraries.

*GPU ms* is an estimate, not a measurement. Models of this size do not keep a GPU busy, so that a call takes as long as launching its
kernels. XLA fuses about ten operations into a kernel (a rule of thumb), and a launch takes about five microseconds. The body of a
loop or a branch is counted once: a fixed point that takes twenty iterations takes up to twenty times as long. Several minibatches in a
call ("steps in a call") are such a loop: their estimate is that of one minibatch, and the host waits once for all of them.
"""
# Seconds of a launch, and operations that XLA fuses to a kernel: rules of thumb for a GPU.
LAUNCH, FUSED = 5e-6, 10.0


def write(records: Sequence[Record], path: Path) -> None:
    """Write the page."""
    report.write(path, text(records))


def text(records: Sequence[Record]) -> str:
    """Return the page."""
    parts = [HEADER, _sizes(records)]
    for dtype in ("float64", "float32"):
        found = [each for each in records if each["dtype"] == dtype]
        if found:
            rows = [_row(each["model"], one) for each in found for one in each["functions"]]
            parts += [f"## {dtype}\n", report.table(COLUMNS, rows), _where(found)]
    return "\n".join(parts)


COLUMNS = ("model", "function", "kB", "emitted", "operations", "loops", "products", "inexact", "calls", "lower s", "compile s", "GPU ms", "difference")  # fmt: skip


def _row(model: str, found: dict[str, Any]) -> list[str]:
    names = [model, f"`{found['function']}`"]
    if "error" in found:
        return [*names, found["error"].replace("|", " ").replace("\n", " ")[:60], *["–"] * (len(COLUMNS) - 3)]
    return [
        *names,
        report.number(found["artefact"] / 1000.0),
        str(found["emitted"]),
        str(found["ops"]),
        str(found["kinds"]["while"]),
        str(found["products"]),
        str(found["inexact"]),
        ", ".join(found["custom_calls"]) or "none",
        report.number(found["lower_s"], 2),
        report.number(found["compile_s"], 2),
        report.number(1e3 * estimate(found["ops"]), 2),
        f"{found['difference']:.0e}",
    ]


def _sizes(records: Sequence[Record]) -> str:
    """Return the section on the programs that have a budget."""
    found = {
        (each["model"], one["function"]): one
        for each in records
        if each["dtype"] == "float64"
        for one in each["functions"]
    }
    rows, reasons = [], []
    for (model, function), budget in BUDGETS.items():
        if (one := found.get((model, function))) is not None:
            sizes = one["emitted"], one["ops"], budget.wanted, budget.most
            rows.append([model, f"`{function}`", *map(str, sizes)])
        if budget.reason:
            reasons.append(f"`{function}` of {model} has more than is wanted. {budget.reason}\n")
    if not rows:
        return ""
    columns = ("model", "function", "emitted", "operations", "wanted", "held to")
    return "\n".join(["## Sizes\n", report.table(columns, rows), *reasons])


def estimate(operations: int) -> float:
    """Return about how many seconds a GPU takes to launch a program of so many operations, each done once."""
    return LAUNCH * operations / FUSED


def _where(records: Sequence[Record]) -> str:
    """Return when and where the records were made, a sentence."""
    places = [each["environment"] for each in records]
    dates, loads = ([place[key] for place in places] for key in ("date", "load"))
    runtimes = {one["jax"] for each in records for one in each["functions"] if "jax" in one}
    versions = ", ".join(f"{name} {version}" for name, version in places[-1]["versions"].items())
    return (
        f"Commit {', '.join(sorted({place['commit'] for place in places}))}; {min(dates)} to {max(dates)}; "
        f"{places[-1]['cpu']}, {places[-1]['cores']} cores, load average {min(loads)} to {max(loads)}; "
        f"Python {places[-1]['python']}, {versions}, jax {', '.join(sorted(runtimes))}.\n"
    )
