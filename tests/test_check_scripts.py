"""Which tests a change touches, and the long tests in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.tools import cases_in_turn, check, slow_tests

ROOT = Path(__file__).parent.parent
RNG = np.random.default_rng(0)
GRAPH = {
    "gpflow_ext/low.py": set[str](),
    "gpflow_ext/high.py": {"gpflow_ext/low.py"},
    "gpflow_ext/other.py": set[str](),
    "tests/test_low.py": {"gpflow_ext/low.py"},
    "tests/test_high.py": {"gpflow_ext/high.py"},
    "tests/test_other.py": {"gpflow_ext/other.py"},
    "tests/problems.py": {"gpflow_ext/other.py"},
}
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.test_a" name="good" time="1.26"/>
<testcase classname="tests.test_a" name="bad" time="2.0"><failure message="no"/></testcase>
<testcase classname="tests.test_b" name="left" time="0.0"><skipped message="no data"/></testcase>
<testcase classname="tests.test_b" name="broken" time="0.1"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_tests_are_taken_by_their_distance_from_a_change() -> None:
    assert check.nearest(["gpflow_ext/low.py"], GRAPH) == ["tests/test_low.py", "tests/test_high.py"]
    assert check.nearest(["tests/test_other.py"], GRAPH) == ["tests/test_other.py"]
    assert check.nearest(["README.md"], GRAPH) == []
    assert check.nearest(["tests/test_gone.py"], GRAPH) == []


def test_no_more_is_taken_than_the_seconds_allow() -> None:
    known = {"long": 50.0, "short": 10.0}
    assert check.affordable(["long", "short", "new"], known, 60.0) == ["long", "short"]
    assert check.affordable(["long", "short", "new"], known, 20.0) == ["short", "new"]


def test_imports_of_this_repository_are_found() -> None:
    graph = check.imports()
    assert "gpflow_ext/sites/algebra.py" in graph["gpflow_ext/training/site_iteration.py"]
    assert (
        "scripts/shared/report.py" in graph["scripts/tools/check.py"] | graph["scripts/tools/slow_tests.py"]
    )
    assert "tests/problems.py" in graph["tests/test_compiled.py"]
    assert "tests/test_structure.py" in check.nearest(["gpflow_ext/compiled/structure.py"], graph)[:16]


def test_shares_take_turns() -> None:
    assert slow_tests.following([]) == 1
    assert slow_tests.following([{"share": 1}, {"share": 2}]) == 3
    order = [3, 4, 5, 6, 7, 8, 1, 2]
    assert slow_tests.following([{"share": share} for share in order]) == 3


def test_commits_of_four_days_take_every_share() -> None:
    """Those of one half of a day take the same one."""
    noon = 1_795_694_400
    shares = [slow_tests.of_commit(noon + 12 * 3600 * turn) for turn in range(slow_tests.SHARES)]
    assert sorted(shares) == list(range(1, slow_tests.SHARES + 1))
    assert slow_tests.of_commit(noon + 12 * 3600 - 1) == shares[0]


def test_the_commit_that_is_checked_out_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    record = {"seconds": 1, "environment": {"commit": "a"}, "tests": {"one": ["passed", 1.0]}}
    monkeypatch.setattr(slow_tests, "run", lambda share, _: asked.append(share) or {**record, "share": share})
    assert slow_tests.main(["--by-commit", "--out", str(tmp_path / "slow.jsonl")]) == 0
    assert asked == [slow_tests.of_commit(slow_tests.committed())]


def test_outcomes_are_read_from_the_report_of_a_run() -> None:
    assert slow_tests.outcomes(JUNIT) == {
        "tests.test_a::good": ("passed", 1.3),
        "tests.test_a::bad": ("failed", 2.0),
        "tests.test_b::left": ("skipped", 0.0),
        "tests.test_b::broken": ("error", 0.1),
    }


def test_a_share_with_a_failure_fails_and_replaces_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "slow.jsonl"
    for outcome, status in (("passed", 0), ("failed", 1)):
        record = {"share": 2, "seconds": 1, "environment": {"commit": "a"}, "tests": {"one": [outcome, 1.0]}}
        monkeypatch.setattr(slow_tests, "run", lambda share, _, record=record: {**record, "share": share})
        assert slow_tests.main(["--share", "2", "--out", str(records)]) == status
    (kept,) = map(json.loads, records.read_text().splitlines())
    assert kept["tests"] == {"one": ["failed", 1.0]}


@pytest.mark.parametrize("turn", range(2))
def test_a_test_draws_the_same_numbers_whichever_ran_before_it(turn: int) -> None:
    assert RNG.uniform() == np.random.default_rng(0).uniform(), turn


LONG_TESTS = """import pytest
def test_short(): pass
@pytest.mark.slow
@pytest.mark.parametrize("case", range(12))
def test_long(case): pass
@pytest.mark.parametrize("case", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_some(case): pass
"""


def test_the_shares_are_all_long_tests_each_once(tmp_path: Path) -> None:
    """Of a file that takes the options of this suite."""
    for file in ("pyproject.toml", "tests/conftest.py"):
        (tmp_path / Path(file).name).write_text((ROOT / file).read_text())
    (tmp_path / "test_lengths.py").write_text(LONG_TESTS)
    (tmp_path / "in_turn.txt").write_text("test_lengths.py::test_some[0]\ntest_lengths.py::test_gone\n")

    def collected(*flags: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *flags]
        shown = subprocess.run(
            [*command, "test_lengths.py"], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        return {line for line in shown.stdout.splitlines() if "::" in line}

    both = [collected(f"--slow-share={number}/2") for number in (1, 2)]
    assert not both[0] & both[1]
    assert both[0] | both[1] == collected("--runslow", "-m", "slow")
    assert all(both)
    assert len(both[0] | both[1]) == 14


def test_the_longest_cases_run_in_turn_and_the_quickest_of_each_test_always() -> None:
    seconds = {"a::one": 9.0, "a::two[x]": 5.0, "a::two[y]": 4.0, "a::two[z]": 6.0, "b::three[x]": 3.0}
    assert cases_in_turn.chosen(seconds, 30.0) == []
    assert cases_in_turn.chosen(seconds, 25.0) == ["a::two[z]"]
    assert cases_in_turn.chosen(seconds, 16.0) == ["a::two[x]", "a::two[z]"]
    assert cases_in_turn.chosen(seconds, 30.0, ["a::two[y]", "a::gone"]) == ["a::two[y]"]


def test_long_tests_run_in_turn_where_cases_are_not_enough() -> None:
    readme = "tests/test_readme.py::one"
    seconds = {"a::one": 9.0, "a::two[x]": 5.0, "a::two[y]": 4.0, "a::three": 1.0, "b::one": 8.0, readme: 7.0}
    seconds |= {"tests/test_readme.py::two": 6.0}
    assert cases_in_turn.chosen(seconds, 27.0) == ["a::one", "a::two[x]"]
    assert cases_in_turn.chosen(seconds, 0.0) == ["a::one", "a::two[x]", "a::two[y]"]


def test_what_nothing_else_shows_is_in_every_run() -> None:
    some = {
        f"{name}[{case}]" if "::" in name else f"{name}::{case}"
        for name in cases_in_turn.KEPT
        for case in "xy"
    }
    assert cases_in_turn.chosen(dict.fromkeys(some, 9.0), 0.0, some) == []
    in_turn = cases_in_turn.LIST.read_text(encoding="utf-8")
    for name in cases_in_turn.KEPT:
        assert name not in in_turn
        file, _, test = name.partition("::")
        assert f"def {test}" in (ROOT / file).read_text(encoding="utf-8")


def test_cases_are_named_as_pytest_names_them(tmp_path: Path) -> None:
    report, out = tmp_path / "tests.xml", tmp_path / "in_turn.txt"
    report.write_text(JUNIT.replace("bad", "good[1]"))
    assert cases_in_turn.cases(report.read_text())["tests/test_a.py::good[1]"] == 2.0
    cases_in_turn.main([str(report), "--seconds", "4", "--out", str(out)])
    assert out.read_text() == ""
    report.write_text(JUNIT.replace("bad", "good[1]").replace('"good"', '"good[0]"'))
    cases_in_turn.main([str(report), "--seconds", "3", "--out", str(out)])
    assert out.read_text() == "tests/test_a.py::good[1]\n"
