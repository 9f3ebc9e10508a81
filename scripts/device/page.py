"""Write docs/results/gpu.md from what was measured on a GPU.

    python -m scripts.device.page OUT      OUT/results.jsonl of `run.py` and `peers.py` becomes the record
    python -m scripts.device.page          the page again from the record

What the record held before is replaced.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.report import number

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs/results/gpu.jsonl"
STEPS, WANTED_MINUTES = 20_000, 2.0  # of the digits
Lines = Sequence[dict[str, Any]]

HEADER = """# On a GPU

Programs that fits and samples compile at full size, run on a GPU by JAX's PJRT client, without TensorFlow: what XLA makes of them is what a
TensorFlow with a GPU runs. A machine with a GPU was at hand for minutes only, so that this page is short. What it lacks was not measured.
Tests fit every model by what is the default where there is a GPU, and arrive where the defaults of a CPU do; they run on a CPU.

    python -m scripts.device.programs FOLDER         # with TensorFlow, on any machine: the programs and their inputs
    python -m scripts.device.run FOLDER OUT          # with JAX alone, on the GPU
    python -m scripts.device.peers OUT               # with PyTorch and GPyTorch, on the same one
    python -m scripts.device.page OUT

{where}
"""
DIGITS = """## MNIST

`SVGPRobustMax` as in [its experiment](robustmax.md): 500 inducing images, minibatches of 1,000, float32, 50 steps in a call, after
each of which the host reads what came of it. *CPU* is the same program with the same minibatches, by JAX on one core.
In this record Adam moves in log space, its default, and not as in the experiment, whose test scores are better. GPyTorch: a
natural-gradient step and one of Adam from one backward pass, with as many inducing images and rows and its softmax likelihood, in which the
expectation is an average over ten draws.
"""
COMPILING = """## Compiling

Seconds until the programs were there, several being compiled at a time. XLA tries several kernels for each product; that is part of it.
"""
DENSE = """## Dense models

`VGPKMM`, binary targets, {inputs} inputs, one length scale and a variance learnt: the whole fit, L-BFGS in the graph. PyTorch: one evaluation of
the evidence of regression and its gradient, by one factorisation. An evaluation of ours has a fixed point of the sites in it, of some
five factorisations.
"""
CHAINS = """## Chains

Milliseconds of a log density and its gradient for all chains, of a probit classifier with 1,000 rows and 64 inducing points. *By hand* is
the same whitened density without coordinates, as one writes it in JAX.
"""
MAPS = """## A map of counts

A log Gaussian Cox process on 512 × 512 cells, 225 inducing points on a grid; *by hand* as above.
"""
NETWORK = """## A network

A step of Adam of a `GPRNTensor` with the tensor posterior.
"""
YARDSTICKS = """## The device

Matrices of 8,192 rows, TFLOP/s; float32 without TensorFloat-32.
"""
PARTS = {"digits": "MNIST to its end", "dense": "fits of dense models", "chains": "many chains at once", "map": "maps of counts", "network": "networks of many outputs"}  # fmt: skip


def text(records: Lines) -> str:
    """Return the page."""
    lines, on_cpu = by_device(records)
    parts = [
        HEADER.format(where=_where(lines)),
        _missing(lines),
        *_yardsticks(lines),
        *_digits(lines, on_cpu),
    ]
    for make in (_dense, _chains, _maps, _network, _compiling):
        parts += make(lines)
    return "\n".join(part for part in parts if part)


def by_device(records: Lines) -> tuple[Lines, Lines]:
    """Return what follows the devices that are not CPUs, with them, and what follows those that are."""
    found: tuple[list[dict[str, Any]], list[dict[str, Any]]] = [], []
    on_cpu = False
    for record in records:
        on_cpu = record["environment"]["device"] == "cpu" if record["of"] == "device" else on_cpu
        found[on_cpu].append(record)
    return found


def _of(lines: Lines, kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["of"] == kind]


def _where(lines: Lines) -> str:
    found, peers = [line["environment"] for line in _of(lines, "device")], _of(lines, "digits, GPyTorch")
    if not found:
        raise ValueError("nothing of this record was measured on a GPU")
    one = found[-1]
    versions = ", ".join(f"{name} {version}" for name, version in one["versions"].items())
    versions += f", torch {peers[0]['torch']}, gpytorch {peers[0]['gpytorch']}" if peers else ""
    commits = ", ".join(sorted({each["commit"] for each in found}))
    return (
        f"Programs of commit {commits}; {found[0]['date']}; {one['device']}, driver {one['driver']}, beside {one['cores']} cores; "
        f"Python {one['python']}, {versions}.\n"
    )


def _missing(lines: Lines) -> str:
    there = {line["of"] for line in lines}
    ended = any(line["step"] >= STEPS for line in _of(lines, "digits"))
    missing = [name for kind, name in PARTS.items() if kind not in there or (kind == "digits" and not ended)]
    return f"Not measured yet: {', '.join(missing)}.\n" if missing else ""


def _yardsticks(lines: Lines) -> list[str]:
    found = _of(lines, "yardstick")
    names = list(dict.fromkeys(line["what"] for line in found))
    rows = [[name, *(number(line["tflops"]) for line in found if line["what"] == name)] for name in names]
    return [YARDSTICKS, report.table(["", "float32", "float64"], rows)] if rows else []


def _digits(lines: Lines, on_cpu: Lines) -> list[str]:
    found = _of(lines, "digits")
    if not found:
        return []
    cpu = {line["step"]: line for line in _of(on_cpu, "digits")}
    rows = [
        [
            f"{line['step']:,}",
            number(line["seconds"]),
            number(line["ms_per_step"]),
            f"{100.0 * line['error']:.2f}",
            f"{line['nlpd']:.4f}",
            *(
                [
                    number(cpu[line["step"]]["seconds"]),
                    f"{100.0 * cpu[line['step']]['error']:.2f}",
                    f"{cpu[line['step']]['nlpd']:.4f}",
                ]
                if line["step"] in cpu
                else ["–"] * 3
            ),
        ]
        for line in found
    ]
    columns = ["steps", "s", "ms per step", "error, %", "NLPD", "CPU: s", "error, %", "NLPD"]
    last = found[-1]
    whole = STEPS * last["seconds"] / last["step"] / 60.0
    peers = [f"{number(line['ms_per_step'])} ms" for line in _of(lines, "digits, GPyTorch")]
    verdict = (
        f"At this speed {STEPS:,} steps take {number(whole)} minutes, of {WANTED_MINUTES:g} wanted. "
        + (f"A step of GPyTorch takes {peers[-1]}." if peers else "")
    )
    return [DIGITS, report.table(columns, rows), verdict + "\n"]


def _dense(lines: Lines) -> list[str]:
    ours, theirs = _of(lines, "dense"), _of(lines, "dense, PyTorch")
    parts = []
    if ours:
        columns = ["rows", "precision", "s", "evaluations", "s per evaluation", "GiB", "compiled in s"]
        rows = [[f"{line['rows']:,}", line["dtype"], *_fitted(line)] for line in ours]
        parts += ["`VGPKMM`:\n", report.table(columns, rows)]
    if theirs:
        rows = [[f"{line['rows']:,}", line["dtype"], number(line["seconds"])] for line in theirs]
        parts += ["PyTorch:\n", report.table(["rows", "precision", "s per evaluation"], rows)]
    return [DENSE.format(inputs=20), *parts] if parts else []


def _fitted(line: dict[str, Any]) -> list[str]:
    """Return the cells of a fit."""
    if "left_out" in line:
        return [line["left_out"], *["–"] * 4]
    values = line["seconds"], line["seconds"] / line["evaluations"], line["memory_GiB"], line["compile_s"]
    seconds, each, memory, compiling = map(number, values)
    return [seconds, str(line["evaluations"]), each, memory, compiling]


def _chains(lines: Lines) -> list[str]:
    hand = {line["chains"]: number(line["ms_per_gradient"]) for line in _of(lines, "chains, by hand")}
    rows = [
        [
            f"{line['chains']:,}",
            line["coordinates"],
            number(line["ms_per_gradient"]),
            hand.get(line["chains"], "–"),
            number(line["compile_s"]),
        ]
        for line in _of(lines, "chains")
    ]
    columns = ["chains", "coordinates", "ms", "by hand, ms", "compiled in s"]
    return [CHAINS, report.table(columns, rows)] if rows else []


def _maps(lines: Lines) -> list[str]:
    hand = {line["chains"]: number(line["ms_per_gradient"]) for line in _of(lines, "map, by hand")}
    rows = [
        [
            str(line["chains"]),
            str(line["draws"]),
            number(line["seconds"]),
            number(line["ms_per_gradient"]),
            hand.get(line["chains"], "–"),
        ]
        for line in _of(lines, "map")
    ]
    columns = ["chains", "draws of each", "s", "ms per gradient", "by hand, ms"]
    return [MAPS, report.table(columns, rows)] if rows else []


def _network(lines: Lines) -> list[str]:
    rows = [
        [f"{line['outputs']:,}", str(line["places"]), str(line["nodes"]), number(1e3 * line["seconds"])]
        for line in _of(lines, "network")
    ]
    return [NETWORK, report.table(["outputs", "places", "nodes", "ms"], rows)] if rows else []


def _compiling(lines: Lines) -> list[str]:
    rows = [
        [line["part"], str(len(line["each"])), number(line["waited_s"])]
        for line in _of(lines, "compiling")
        if line["each"]
    ]
    return [COMPILING, report.table(["part", "programs", "s"], rows)] if rows else []


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    """Write the record and its page."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.device.page",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "out", type=Path, nargs="?", metavar="OUT", help="where `run.py` wrote (default: the record)"
    )
    folder = parser.parse_args().out
    records = read(RECORDS if folder is None else folder / "results.jsonl")
    page = text(records)  # which refuses a record without a GPU, before anything is written
    report.write_lines(RECORDS, records)
    report.write(RECORDS.with_suffix(".md"), page)


if __name__ == "__main__":
    _cli.run(main)
