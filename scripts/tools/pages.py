"""Write the pages of results again, from the records beside them alone: nothing is measured.

    python -m scripts.tools.pages                  all pages
    python -m scripts.tools.pages kmm sgpmc        some of them

The tests compare each page with what this writes.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import _cli
from ..benchmarks import pictures, summary
from ..device import page as device
from ..shared import report
from ..shared.journal import Journal, Record

DOCS = Path(__file__).resolve().parents[2] / "docs"
RESULTS = DOCS / "results"
MODULES = {"kmm": "kmm_tables", "defaults": "defaults_page"}  # benchmarks whose page another module writes


def benchmark(name: str) -> str:
    """Return the page of a benchmark."""
    module = importlib.import_module(f"scripts.benchmarks.{MODULES.get(name, name)}")
    records = _records(f"benchmark_{name}")
    if hasattr(module, "text"):
        return pictures.illustrated(module.text(records), name)
    where = [record["environment"] for record in records if "environment" in record]
    rest = [record for record in records if "environment" not in record]
    return pictures.illustrated(module.document(where[-1], rest), name)


def experiment(name: str) -> str:
    """Return the page of the experiments of a paper."""
    package, journal = f"scripts.experiments.{name}", Journal(RESULTS / f"{name}.jsonl")
    if name == "robustmax":
        text: str = importlib.import_module(f"{package}.runs").text(RESULTS)
    elif name == "images":
        text = importlib.import_module(f"{package}.page").page(journal.records)
    elif name == "gprn":
        text = importlib.import_module(f"{package}.comparisons").text(journal)
    elif name == "review":
        runs = [record["where"] for record in journal.records if "where" in record]
        notes = "\n".join(f"- {report.describe(where)}" for where in runs)
        text = importlib.import_module(f"{package}.report").text(journal, notes)
    else:
        text = importlib.import_module(f"{package}.__main__").text(journal)
    return text


def tool(name: str) -> str:
    """Return the page of a tool that runs tests or programs again and again."""
    records = _records(name)
    if name == "lowering":
        text: str = importlib.import_module("scripts.tools.lowered_page").text(records)
    elif name == "soak":
        text = importlib.import_module("scripts.tools.soak").document(records[0]["environment"], records[1:])
    else:
        text = importlib.import_module(f"scripts.tools.{name}").document(records)
    return text


def _records(name: str) -> list[Record]:
    return Journal(RESULTS / f"{name}.jsonl").records


BENCHMARKS = (
    "auto", "classifier", "convolution", "defaults", "dual", "fits", "functions", "gpflow_models", "gprn", "grids", "kmm",
    "minute", "precision", "robustmax", "server", "serving", "sgpmc", "sparse_ep", "state_space", "vecchia",
    "vecchia_large",
)  # fmt: skip
EXPERIMENTS = ("gprn", "images", "kmm", "review", "robustmax", "sgpmc", "sparse_ep")
TOOLS = ("conformance", "gpflow_tests", "journey", "lowering", "quick_forms", "reliability", "soak")
WRITERS: dict[str, tuple[Callable[[str], str], str]] = {
    **{f"benchmark_{name}": (benchmark, name) for name in BENCHMARKS},
    "benchmarks": (lambda _: summary.text(RESULTS), "benchmarks"),
    **{name: (experiment, name) for name in EXPERIMENTS},
    **{name: (tool, name) for name in TOOLS},
    "gpu": (lambda _: device.text(_records("gpu")), "gpu"),
}


def path(name: str) -> Path:
    """Return where a page lies."""
    return (DOCS if name == "conformance" else RESULTS) / f"{name}.md"


def written(name: str) -> str:
    """Return a page as its records make it."""
    write, of = WRITERS[name]
    return write(of)


def main(arguments: list[str] | None = None) -> None:
    """Write the pages that differ."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.pages",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(WRITERS)}")
    for name in _cli.named(parser, parser.parse_args(arguments).names, WRITERS):
        new: Any = written(name)
        if new.strip() != path(name).read_text(encoding="utf-8").strip():
            report.write(path(name), new)
            print(f"written to {path(name)}", flush=True)


if __name__ == "__main__":
    _cli.run(main)
