"""Choose which cases of the tests run in turn, so that those of every run fit into some seconds.

    python -m pytest --numprocesses 2 --junit-xml runs/tests.xml
    python -m scripts.tools.cases_in_turn runs/tests.xml --seconds 500

Of each test with several cases the quickest one stays in every run. The longest of the others are taken into
tests/in_turn.txt until what is left takes no more seconds, summed over all workers, or cases of half a second are left.
Where that is not enough, tests of two seconds and longer are taken whole, the longest first, except for those of the
README's journeys and for the quickest test of a file. Those of `KEPT` are never taken. What is taken runs with the long tests, an eighth at a time.
Cases that are there already stay there while they exist.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from .. import _cli

ROOT = Path(__file__).resolve().parents[2]
LIST = ROOT / "tests/in_turn.txt"
SHORT = 0.5  # seconds of a case that is not worth it
LONG = 2.0  # seconds of a test that may be taken whole
JOURNEYS = ("tests/test_readme.py", "tests/test_command_line.py", "tests/test_scripts.py")  # in every run
KEPT = (  # in every run with all their cases: what nothing else shows
    "tests/test_equivalence.py",
    "tests/test_checkpoint.py::test_resume_is_exact",
    "tests/test_export.py::test_an_export_leaves_no_graph_behind",
    "tests/test_full_scale.py::test_without_neighbours_and_with_gaussian_noise_it_is_fitc",
    "tests/test_lowering.py::test_pjrt_returns_a_sweep_a_natural_step_and_a_density",
)


def parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="python -m scripts.tools.cases_in_turn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("report", type=Path, help="what `pytest --junit-xml` wrote of a run of all tests")
    new.add_argument(
        "--seconds", type=_cli.above_zero, default=500.0, metavar="S", help="default: %(default)g"
    )
    new.add_argument("--out", type=Path, default=LIST, metavar="FILE.txt")
    return new


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    seconds = cases(options.report.read_text(encoding="utf-8"))
    before = options.out.read_text(encoding="utf-8").splitlines() if options.out.exists() else []
    taken = chosen(seconds, options.seconds, before)
    options.out.write_text("".join(f"{name}\n" for name in taken), encoding="utf-8")
    left = sum(time for name, time in seconds.items() if name not in taken)
    print(f"{len(taken)} of {len(seconds)} cases in turn; the others took {left:.0f} seconds")


def cases(xml: str) -> dict[str, float]:
    """Return the seconds of each case of a report, by its name as pytest writes it."""
    found = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        file = f"{case.get('classname', '').replace('.', '/')}.py"
        found[f"{file}::{case.get('name')}"] = float(case.get("time", 0.0))
    return found


def chosen(seconds: Mapping[str, float], most: float, before: Iterable[str] = ()) -> list[str]:
    """Return the cases that run in turn, those ``before`` among them, so that the others take ``most`` seconds."""
    free = {name: time for name, time in seconds.items() if not {_file(name), _test(name)} & set(KEPT)}
    taken = {name for name in before if name in free}
    total = sum(time for name, time in seconds.items() if name not in taken)
    free = {name: time for name, time in free.items() if name not in taken}
    whole = {name: time for name, time in free.items() if _file(name) not in JOURNEYS}
    for candidates, group, shortest in ((free, _test, SHORT), (whole, _file, LONG)):
        for name in _longest(candidates, group, shortest):
            if total <= most:
                return sorted(taken)
            if name not in taken:
                taken.add(name)
                total -= free[name]
    return sorted(taken)


def _longest(seconds: Mapping[str, float], group: Callable[[str], str], shortest: float) -> list[str]:
    """Return the names of ``shortest`` seconds and longer, the longest first, except for the quickest of each group."""
    quickest: dict[str, str] = {}
    for name in sorted(seconds, key=seconds.__getitem__):
        quickest.setdefault(group(name), name)
    ordered = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return [name for name in ordered if seconds[name] >= shortest and quickest[group(name)] != name]


def _test(name: str) -> str:
    """Return the name of a test without its case."""
    return name.partition("[")[0]


def _file(name: str) -> str:
    """Return the file of a test."""
    return name.partition("::")[0]


if __name__ == "__main__":
    _cli.run(main)
