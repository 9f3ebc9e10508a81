"""Time the way from an empty environment to an answer of a served model: each command is printed by the one before.

    python -m scripts.tools.journey

A wheel of this checkout is built. A new environment then installs it with `pip install "gpflow-ext[serve]"` from the
package index, in the versions that pip chooses, and its commands train a model of a table, export it, predict the table,
and serve the model, which answers the printed `curl`. The seconds are added to docs/results/journey.jsonl, and
docs/results/journey.md is written. Needs a package index and `curl`.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import _cli
from ..shared import report
from ..shared.journal import Journal
from . import packages

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "results" / "journey.jsonl"
PAGE = RECORDS.parents[1] / "command_line.md"
MOST = 600.0  # seconds that the whole may take
_WAIT = 120.0  # for the server
_TEXT = """# From an empty environment to a served model

The commands of [the command line](../command_line.md), timed by `python -m scripts.tools.journey`. The environment is new, its packages
come from the index through pip's cache, and the table has 60 rows. From `train` on, each command is printed by one before.
Seconds are those of the clock, imports and compilation included; the server's are those until it has answered the printed `curl`.

"""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.journey",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        where = report.environment()
        wheel = packages.build(folder)
        record = {"commands": travel(folder, wheel)}
    journal = Journal(RECORDS)
    journal.add({"environment": where})
    journal.add(record)
    report.write(RECORDS.with_suffix(".md"), document(journal.records))


def travel(folder: Path, wheel: Path) -> list[dict[str, Any]]:
    """Go the whole way with a wheel; return the commands and their seconds."""
    programs, here = packages.environment(sys.executable, folder / "venv"), folder / "here"
    here.mkdir()
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    subprocess.run([sys.executable, "-c", example[1]], cwd=here, check=True)
    steps = []

    def step(shown: str, *command: str | Path) -> str:
        begin = time.perf_counter()
        done = subprocess.run(
            list(map(str, command)), cwd=here, env=_clean(), check=True, capture_output=True, text=True
        )
        steps.append({"command": shown, "seconds": time.perf_counter() - begin})
        print(f"{steps[-1]['seconds']:6.1f} s  {shown}", flush=True)
        return done.stdout

    def typed(shown: str) -> str:
        return step(shown, programs / "gpflow-ext", *shlex.split(shown)[1:])

    step(
        'pip install "gpflow-ext[serve]"',
        programs / "pip",
        "install",
        f"gpflow-ext[serve] @ {wheel.as_uri()}",
    )
    printed = _printed(
        typed("gpflow-ext train --data patients.csv --target ill --run-dir runs/ill"), "export"
    )
    exported = typed(printed)
    typed(_printed(exported, "predict"))
    shown = _printed(exported, "serve")
    seconds = _served([programs / "gpflow-ext", *shlex.split(shown)[1:]], here)
    print(f"{seconds:6.1f} s  {shown}", flush=True)
    return [*steps, {"command": f"{shown}, and the printed curl", "seconds": seconds}]


def _printed(output: str, name: str) -> str:
    """Return the command of that name that an output ends with."""
    found = re.search(rf"^  (gpflow-ext {name} .*)$", output, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"no gpflow-ext {name} is printed:\n{output}")
    return found[1]


def _served(command: Sequence[str | Path], here: Path) -> float:
    """Return the seconds from the start of a server to its answer to the request that it prints."""
    begin = time.perf_counter()
    server = subprocess.Popen(
        list(map(str, command)),
        cwd=here,
        env=_clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert server.stdout is not None
        lines = iter(server.stdout.readline, "")
        request = next(line.strip() for line in lines if line.strip().startswith("curl "))
        asked = [*shlex.split(request), "--silent", "--show-error", "--fail", "--retry-connrefused"]
        asked += ["--retry", "60", "--retry-delay", "1", "--max-time", f"{_WAIT:.0f}"]
        answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        if "label" not in answer:
            raise RuntimeError(f"the server answered {answer}")
        return time.perf_counter() - begin
    finally:
        server.terminate()
        server.wait()


def _clean() -> dict[str, str]:
    """Return the environment of a user, with none of this checkout."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "GPFLOW_EXT"))
    }
    return kept | {"PYTHONUNBUFFERED": "1"}


def document(records: Sequence[dict[str, Any]]) -> str:
    """Return the page of the newest run."""
    *_, where, last = records
    steps = last["commands"]
    total = sum(each["seconds"] for each in steps)
    rows = [
        [
            f"`{each['command']}`".replace(", and the printed curl`", "`, and the printed `curl`"),
            f"{each['seconds']:.1f}",
        ]
        for each in steps
    ]
    rows.append(["together", f"{total:.1f}"])
    verdict = ("an answer within ten minutes", f"{total:.0f} s", "yes" if total < MOST else "no")
    parts = (
        _TEXT,
        f"Measured at {report.describe(where['environment'])}",
        "\n\n",
        report.table(("command", "seconds"), rows),
        "\n",
        report.targets([verdict]),
    )
    return "".join(parts)


if __name__ == "__main__":
    _cli.run(main)
