"""Run the tests that a change touches, the nearest first, in about a minute.

    python -m scripts.tools.check                 what differs from the last commit
    python -m scripts.tools.check --since main    what differs from a branch, or any commit
    python -m scripts.tools.check --seconds 300   take more of them

A test is near a changed module if it imports it, or a module that imports it, and so on: the fewer steps, the
nearer. Files that have changed themselves come first. How long a file takes is known from the last run.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from .. import _cli

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("gpflow_ext", "scripts")
SECONDS_OF = ROOT / ".pytest_cache/v/gpflow_ext/seconds"
UNKNOWN = 5.0  # seconds of a file that has not been timed


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--since", default="HEAD", metavar="COMMIT", help="default: the last commit")
    new.add_argument(
        "--seconds", type=_cli.above_zero, default=60.0, metavar="S", help="of tests (default: 60)"
    )
    new.add_argument("--list", action="store_true", help="print the files and run nothing")
    return new


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    changed = changes(options.since)
    workers = min(os.cpu_count() or 1, 4)
    chosen = affordable(nearest(changed, imports()), seconds(), options.seconds * workers)
    print(f"{len(changed)} files differ from {options.since}; files of tests: {' '.join(chosen) or 'none'}")
    if options.list or not chosen:
        return 0
    command = [sys.executable, "-m", "pytest", "--numprocesses", str(workers), "--dist", "worksteal", *chosen]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def changes(since: str) -> list[str]:
    """Return the paths that differ from a commit, those that git does not know yet among them."""
    tracked = _git("diff", "--name-only", since)
    return [*tracked, *_git("ls-files", "--others", "--exclude-standard")]


def imports() -> dict[str, set[str]]:
    """Return for each Python file of the repository those of the packages that it imports."""
    files = {
        str(path.relative_to(ROOT)): path
        for folder in (*PACKAGES, "tests")
        for path in (ROOT / folder).rglob("*.py")
    }
    return {name: set(_imported(path)) & set(files) for name, path in files.items()}


def nearest(changed: Iterable[str], graph: Mapping[str, set[str]]) -> list[str]:
    """Return files of tests in the order of their distance from what has changed."""
    users: dict[str, set[str]] = {}
    for name, used in graph.items():
        for each in used:
            users.setdefault(each, set()).add(name)
    found, queue = list(dict.fromkeys(changed)), deque(changed)
    while queue:
        for user in sorted(users.get(queue.popleft(), set()) - set(found)):
            found.append(user)
            queue.append(user)
    return [name for name in found if Path(name).name.startswith("test_") and name in graph]


def affordable(files: Iterable[str], known: Mapping[str, float], budget: float) -> list[str]:
    """Return the first files whose seconds are within a budget, longer ones left out."""
    chosen = []
    for name in files:
        cost = known.get(name, UNKNOWN)
        if cost <= budget:
            chosen.append(name)
            budget -= cost
    return chosen


def seconds() -> dict[str, float]:
    """Return what each file took in the last run that ran it."""
    if not SECONDS_OF.exists():
        return {}
    found: dict[str, float] = json.loads(SECONDS_OF.read_text(encoding="utf-8"))
    return found


def _git(*arguments: str) -> list[str]:
    shown = subprocess.run(["git", *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    if shown.returncode:
        raise ValueError(f"git {' '.join(arguments)} failed: {shown.stderr.strip().partition(chr(10))[0]}")
    return shown.stdout.split("\n")[:-1]


def _imported(path: Path) -> Iterator[str]:
    """Yield the paths that the imports of a file may mean, whether they exist or not."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            modules = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            where = module.replace(".", "/")
            yield from (f"{where}.py", f"{where}/__init__.py", f"tests/{where}.py")


if __name__ == "__main__":
    _cli.run(lambda: sys.exit(main()))
