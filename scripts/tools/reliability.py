"""Run the tests that show what must hold, and write what they measured.

    python -m scripts.tools.reliability                   every row, the fast tests: minutes
    python -m scripts.tools.reliability --runslow         the long tests too: hours
    python -m scripts.tools.reliability --rows 3 4 5      some rows; the others keep what is recorded

Writes docs/results/reliability.md and the measurements beside it as reliability.jsonl.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.journal import Journal, Record
from . import record_pictures
from .reliability_rows import ROWS, Row

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """A plugin of pytest that keeps how each test ended and what it recorded."""

    def __init__(self) -> None:
        self.found: list[Record] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep a test's own outcome, or that of a set-up that skipped or failed it."""
        if report.when == "call" or (report.when == "setup" and not report.passed):
            values = worst(report.user_properties)
            self.found.append({"test": report.nodeid, "outcome": report.outcome, "values": values})


def worst(figures: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the largest figure of each name."""
    found: dict[str, float] = {}
    for name, value in figures:
        found[name] = max(value, found.get(name, value))
    return found


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument(
        "--rows", type=_cli.positive, nargs="+", metavar="R", help="numbers of rows, from 1; default: all"
    )
    new.add_argument("--runslow", action="store_true", help="also run the long tests")
    new.add_argument(
        "--out", type=Path, default=ROOT / "docs/results", metavar="DIR", help="default: docs/results"
    )
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    numbers = options.rows or range(1, len(ROWS) + 1)
    wrong = [number for number in numbers if not 1 <= number <= len(ROWS)]
    if wrong:
        parser().error(f"--rows: there are rows 1 to {len(ROWS)}; got {wrong[0]}")
    journal = Journal(options.out / "reliability.jsonl")
    failed = False
    for number in numbers:
        record = measure(number, options.runslow)
        failed |= any(test["outcome"] == "failed" for test in record["tests"])
        journal.records = [each for each in journal.records if each["row"] != number]
        journal.records = sorted([*journal.records, record], key=lambda each: each["row"])
        report.write_lines(options.out / "reliability.jsonl", journal.records)
        report.write(options.out / "reliability.md", document(journal.records))
    record_pictures.write(options.out, "reliability")
    return int(failed)


def measure(number: int, slow: bool) -> Record:
    """Run the tests of a row in this process, which imports TensorFlow once."""
    import pytest

    recorder, begin = Recorder(), time.perf_counter()
    paths = [str(ROOT / "tests" / test) for test in ROWS[number - 1].tests]
    flags = [
        "--rootdir",
        str(ROOT),
        "--durations=0",
        "-p",
        "no:cacheprovider",
        *(["--runslow"] if slow else []),
    ]
    pytest.main([*flags, *paths], plugins=[recorder])
    return {
        "row": number,
        "slow": slow,
        "seconds": round(time.perf_counter() - begin),
        "environment": report.environment(),
        "tests": recorder.found,
    }


def document(records: Sequence[Record]) -> str:
    """Return the page."""
    columns = ("", "what", "against", "target", "measured", "tests")
    lines = [columns, ("---:", "---", "---", "---", "---", "---"), *map(_cells, records)]
    rows = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    remarks = "".join(
        f"- {each['row']}: {ROWS[each['row'] - 1].remark}\n"
        for each in records
        if ROWS[each["row"] - 1].remark
    )
    tests = "\n".join(_tests(each["row"], ROWS[each["row"] - 1]) for each in records)
    return (
        "# Reliability\n\n"
        "Invariants that must hold, and what their tests measured. `python -m scripts.tools.reliability` runs the "
        "tests of each row; the fast ones are part of `make test`. Where several tests record the same figure, the "
        "worst is shown.\n\n"
        "![How the tests of each invariant ended](reliability.png)\n\n"
        f"{rows}\n\n{remarks}\n## The tests\n\n{tests}\n\n## When and where\n\n{_dates(records)}"
    )


def _cells(record: Record) -> tuple[str, ...]:
    row = ROWS[record["row"] - 1]
    outcomes = Counter(test["outcome"] for test in record["tests"])
    ended = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    figures = worst(figure for test in record["tests"] for figure in test["values"].items())
    values = "; ".join(f"{name}: {value:.4g}" for name, value in figures.items())
    long = ", the long ones too" if record["slow"] else ""
    cells = (str(record["row"]), row.what, row.against, row.target, values, ended + long)
    return tuple(cell.replace("|", "\\|") for cell in cells)


def _tests(number: int, row: Row) -> str:
    return f"- {number}: " + ", ".join(f"`{test}`" for test in row.tests)


def _dates(records: Sequence[Record]) -> str:
    return "".join(
        f"- {each['row']}: {each['seconds']} seconds; {report.describe(each['environment'])}\n"
        for each in records
    )


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
