"""The page of what must hold: its tests exist, its figures are the worst ones."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.tools import reliability
from scripts.tools.reliability_rows import ROWS

TESTS = Path(__file__).resolve().parent


@pytest.mark.parametrize("test", sorted({test for row in ROWS for test in row.tests}))
def test_every_test_exists(test: str) -> None:
    file, _, function = test.partition("::")
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not function or function in names
    assert any(name.startswith("test_") for name in names)


def test_the_page_shows_the_worst_figures_and_how_the_tests_ended() -> None:
    where = {
        "date": "today",
        "cpu": "one",
        "cores": 1,
        "threads": 1,
        "load": 0.0,
        "python": "3",
        "versions": {},
    }
    tests = [
        {"test": "a", "outcome": "passed", "values": {"error": 1e-9}},
        {"test": "b", "outcome": "passed", "values": {"error": 3e-9}},
        {"test": "c", "outcome": "failed", "values": {}},
    ]
    record = {"row": 3, "slow": True, "seconds": 7, "environment": where, "tests": tests}
    text = reliability.document([record])
    assert "error: 3e-09 | 1 failed, 2 passed, the long ones too |" in text
    assert ROWS[2].remark in text
    assert reliability.worst([("z", 1.0), ("z", 0.5)]) == {"z": 1.0}


def test_a_row_that_is_not_there_is_named(capsys) -> None:
    with pytest.raises(SystemExit):
        reliability.main(["--rows", "99"])
    assert f"rows 1 to {len(ROWS)}; got 99" in capsys.readouterr().err
