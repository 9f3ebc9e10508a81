"""Benchmarks that take hours: each measurement is a line of a journal, which a rerun finds there and does not repeat."""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add how a benchmark runs and where it writes to a parser."""
    parser.add_argument("--threads", type=_cli.positive, metavar="T", help="threads (default: one per core)")
    parser.add_argument(
        "--again",
        action="store_true",
        help="measure anew what another commit has measured; the new records replace the old",
    )
    parser.add_argument("--page", action="store_true", help="measure nothing, write the page")
    parser.add_argument(
        "--quick", action="store_true", help="small tables and few runs, without a data folder"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(f"docs/results/benchmark_{name}.md"),
        metavar="FILE.md",
        help=f"the page; the journal beside it (default: docs/results/benchmark_{name}.md, runs/ with --quick)",
    )


def parsed(
    parser: argparse.ArgumentParser, quick: Mapping[str, Any], given: Sequence[str] | None = None
) -> argparse.Namespace:
    """Return the flags, by default those of the shell; with ``--quick`` others have the defaults of ``quick``."""
    options = parser.parse_args(given)
    if options.quick:
        parser.set_defaults(**quick, out=Path("runs", parser.get_default("out").name))
        options = parser.parse_args(given)
    return options


def measure_and_write(
    options: argparse.Namespace,
    name: str,
    run: Callable[[argparse.Namespace, Any], None],
    text: Callable[[list[dict[str, Any]]], str],
    needs_data: bool = True,
) -> None:
    """Run what the journal lacks, unless only the page is asked for; write the page of a benchmark and its picture."""
    if needs_data and not options.page and not options.quick and not os.environ.get("GPFLOW_EXT_DATA"):
        raise ValueError("Set GPFLOW_EXT_DATA to the folder that holds the data sets (see --help).")
    report.set_threads(options.threads)
    from ..shared.journal import Journal
    from . import pictures

    begin = time.perf_counter()
    journal = Journal(options.out.with_suffix(".jsonl"))
    journal.heading = {"environment": report.environment(options.threads)}
    journal.renewing = journal.heading["environment"]["commit"] if options.again else None
    if not options.page:
        run(options, journal)
    page = report.reduced(text(journal.records), options.quick)
    report.write(options.out, pictures.illustrated(page, name, options.out))
    pictures.write(options.out, name)
    print(f"written to {options.out}; {time.perf_counter() - begin:.0f} seconds")


def guarded(measure: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Measure; a contender that raises is recorded with its error, and the others go on."""
    try:
        return {name: value for name, value in measure().items() if value == value}  # JSON has no NaN
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
