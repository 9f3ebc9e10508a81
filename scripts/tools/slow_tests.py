"""Run a share of the long tests, the next one in turn, and record how each of them ended.

    python -m scripts.tools.slow_tests               the share whose record is the oldest
    python -m scripts.tools.slow_tests --share 3     the third of eight
    python -m scripts.tools.slow_tests --by-commit   one that the commit's date decides, another every twelve hours

The tests of a share are those whose names hash to it; eight shares are all. Writes docs/results/slow_tests.jsonl,
a line for each share, the last run of it: commit, date, machine, outcomes and seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .. import _cli
from ..shared import report
from ..shared.journal import Journal, Record

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs/results/slow_tests.jsonl"
SHARES = 8


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.slow_tests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = new.add_mutually_exclusive_group()
    which.add_argument("--share", type=int, metavar="K", choices=range(1, SHARES + 1), help="1 to 8")
    which.add_argument("--by-commit", action="store_true", help="the share of the commit that is checked out")
    new.add_argument(
        "--minutes", type=_cli.above_zero, metavar="M", help="begin no test later; they count as skipped"
    )
    new.add_argument("--out", type=Path, default=RECORDS, metavar="FILE.jsonl")
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    journal = Journal(options.out)
    share = of_commit(committed()) if options.by_commit else options.share or following(journal.records)
    record = run(share, options.minutes)
    others = [each for each in journal.records if each["share"] != share]
    report.write_lines(options.out, [*others, record])
    outcomes = Counter(outcome for outcome, _ in record["tests"].values())
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(
        f"share {share} of {SHARES} at {record['environment']['commit']}: {counts}; {record['seconds']} seconds"
    )
    return int(outcomes["failed"] + outcomes["error"] > 0 or not record["tests"])


def following(records: Sequence[Record]) -> int:
    """Return the share to run: one that has no record yet, else that with the oldest."""
    recorded = [record["share"] for record in records]
    missing = [share for share in range(1, SHARES + 1) if share not in recorded]
    return missing[0] if missing else recorded[0]


def of_commit(seconds: int) -> int:
    """Return the share of a commit of that date (seconds since 1970): a new one every twelve hours, eight in four days.

    No record need be kept for the shares to change.
    """
    return seconds // (12 * 3600) % SHARES + 1


def committed() -> int:
    """Return the date of the commit that is checked out, in seconds since 1970."""
    command = ["git", "show", "--no-patch", "--format=%ct", "HEAD"]
    return int(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout)


def run(share: int, minutes: float | None = None) -> Record:
    """Run the tests of a share and return the record."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        flags = [f"--slow-share={share}/{SHARES}", f"--junit-xml={path}", "--dist=worksteal"]
        flags += [] if minutes is None else [f"--minutes={minutes}"]
        workers = ["--numprocesses=auto", "--maxprocesses=4"]
        subprocess.run([sys.executable, "-m", "pytest", *flags, *workers], cwd=ROOT, check=False)
        tests = outcomes(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {
        "share": share,
        "seconds": round(time.perf_counter() - begin),
        "environment": report.environment(),
        "tests": tests,
    }


def outcomes(xml: str) -> dict[str, tuple[str, float]]:
    """Return the outcome and the seconds of each test of a report in JUnit's format."""
    found = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        ended = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = (
            {"failure": "failed", "error": "error", "skipped": "skipped"}[ended.pop()] if ended else "passed"
        )
        seconds = round(float(case.get("time", 0.0)), 1)
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome, seconds
    return found


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
