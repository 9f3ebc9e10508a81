"""Time the reduced forms of the papers' experiments, which `make reproduce-quick` runs one after another.

    GPFLOW_EXT_DATA=data python -m scripts.tools.quick_forms                all of them
    GPFLOW_EXT_DATA=data python -m scripts.tools.quick_forms kmm sgpmc      some of them

Their pages and records go to a folder that is removed. The seconds go to docs/results/quick_forms.jsonl, in place of earlier
ones, and docs/results/quick_forms.md is written.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "results" / "quick_forms.jsonl"
EXPERIMENTS = tuple(
    sorted(path.parent.name for path in (ROOT / "scripts" / "experiments").glob("*/__main__.py"))
)
MOST = 900.0  # seconds of one processor that all may take
_TEXT = """# The reduced forms of the experiments

`make reproduce-quick` runs each experiment of the papers in a form that shows that its program runs. Timed by
`python -m scripts.tools.quick_forms`. Imports and compilation are in the seconds, with one thread. Those of the
clock depend on what else the machine did; see the load averages.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, time and record."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.quick_forms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(EXPERIMENTS)}")
    parser.add_argument(
        "--out", type=Path, default=RECORDS, metavar="FILE.jsonl", help="default: docs/results"
    )
    options = parser.parse_args(arguments)
    names = _cli.named(parser, options.names, EXPERIMENTS)
    records = {record["experiment"]: record for record in Journal(options.out).records}
    for name in names:
        where = report.environment(1)
        records[name] = {"experiment": name, **timed(name), "environment": where}
        print(f"{records[name]['seconds']:6.1f} s  {name}", flush=True)
        report.write_lines(options.out, [records[each] for each in EXPERIMENTS if each in records])
    report.write(options.out.with_suffix(".md"), document(Journal(options.out).records))


def timed(name: str) -> dict[str, float]:
    """Run the reduced form of an experiment in a new folder; return its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        data = os.environ.get("GPFLOW_EXT_DATA")
        found = {"PYTHONPATH": path} | ({"GPFLOW_EXT_DATA": str(Path(data).resolve())} if data else {})
        command = [sys.executable, "-m", f"scripts.experiments.{name}", "--quick", "--threads", "1"]
        begin, before = time.perf_counter(), _processor()
        subprocess.run(command, cwd=folder, env=os.environ | found, check=True, stdout=subprocess.DEVNULL)
        return {"seconds": time.perf_counter() - begin, "cpu": _processor() - before}


def _processor() -> float:
    """Return the seconds of the processor of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def document(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page."""
    rows = [[each["experiment"], f"{each['seconds']:.0f}", f"{each['cpu']:.0f}"] for each in records]
    clock, own = (sum(each[key] for each in records) for key in ("seconds", "cpu"))
    rows.append(["together", f"{clock:.0f}", f"{own:.0f}"])
    runs = [f"- {each['experiment']}: {report.describe(each['environment'])}" for each in records]
    verdict = (
        "all reduced forms in a quarter of an hour of one processor",
        f"{own:.0f} s",
        "yes" if own < MOST else "no",
    )
    return "\n".join(
        [
            _TEXT + report.table(("experiment", "seconds", "of the processor"), rows),
            report.targets([verdict] if len(records) == len(EXPERIMENTS) else []),
            *runs,
            "",
        ]
    )


if __name__ == "__main__":
    _cli.run(main)
