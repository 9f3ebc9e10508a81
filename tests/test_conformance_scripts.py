"""The pages of GPflow's contract say what their records say, and the scripts keep how tests ended."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.shared.journal import Journal
from scripts.tools import conformance, gpflow_tests

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def records(name: str) -> list[dict]:
    return Journal(DOCS / f"results/{name}.jsonl").records


def test_the_table_is_what_its_record_says() -> None:
    assert (DOCS / "conformance.md").read_text(encoding="utf-8") == conformance.document(
        records("conformance")
    )


def test_every_feature_is_tried_on_every_model() -> None:
    found = records("conformance")
    assert [each["feature"] for each in found] == list(conformance.FEATURES)
    models = {test["model"] for test in found[0]["tests"]}
    for each in found:
        assert {test["model"] for test in each["tests"]} == models
        assert {test["outcome"] for test in each["tests"]} <= {"passed", "skipped"}


def test_every_marker_names_a_column() -> None:
    named = set()
    for file in conformance.FILES:
        tree = ast.parse((ROOT / "tests/conformance" / file).read_text(encoding="utf-8"))
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) in ("feature", "pytest.mark.feature"):
                named |= {part.value for part in call.args}
    assert named == set(conformance.FEATURES)


def test_cells_are_of_all_tests_of_a_feature() -> None:
    def test(model: str, outcome: str, reason: str = "") -> dict:
        return {"model": model, "test": "t", "outcome": outcome, "reason": reason}

    record = {
        "tests": [
            test("a", "passed"),
            test("a", "failed"),
            test("b", "skipped", "is dense"),
            test("c", "passed"),
        ]
    }
    reasons: list[str] = []
    assert [conformance._cell(record, model, reasons) for model in "abc"] == ["✗", "1", "✓"]
    assert reasons == ["is dense"]


def test_the_page_of_gpflows_tests_is_what_its_record_says() -> None:
    page = (DOCS / "results/gpflow_tests.md").read_text(encoding="utf-8")
    assert page == gpflow_tests.document(records("gpflow_tests"))


def test_failures_that_say_nothing_of_us_are_told_from_others() -> None:
    def ending(name: str, outcome: str, reason: str) -> str:
        return gpflow_tests.ending({"test": name, "outcome": outcome, "reason": reason})

    assert (
        ending("a.py::t", "failed", "AttributeError: 'GPR' object has no attribute 'compute_qu'")
        == "not applicable"
    )
    assert ending("a.py::t", "error", "ValueError: no") == "failed"
    assert ending("a.py::t", "passed", "") == "passed"


SOURCE = """
import gpflow
import numpy as np
import pytest
from gpflow.models import GPR

X, Y = np.random.rand(5, 1), np.random.rand(5, 1)


def test_a_model_of_ours() -> None:
    model = GPR((X, Y), gpflow.kernels.Matern32())
    assert "gpflow_ext" in str(type(model).__mro__)
    assert np.isfinite(model.log_marginal_likelihood())


def test_that_fails() -> None:
    assert not GPR((X, Y), gpflow.kernels.Matern32()).compute_qu()
"""


def test_a_source_is_run_with_our_classes(tmp_path: Path) -> None:
    tests = tmp_path / "source/tests/gpflow"
    tests.mkdir(parents=True)
    (tests / "__init__.py").touch()
    (tests / "test_gpr.py").write_text(SOURCE, encoding="utf-8")
    (tests / "test_kernels.py").write_text("def test_nothing_of_ours() -> None: ...", encoding="utf-8")
    arguments = ["--source", str(tests.parents[1]), "--only", "VGPKMM", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "scripts.tools.gpflow_tests", *arguments]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (record,) = map(json.loads, (tmp_path / "gpflow_tests.jsonl").read_text(encoding="utf-8").splitlines())
    assert [gpflow_tests.ending(test) for test in record["tests"]] == ["passed", "not applicable"]
    assert "| gpflow/test_gpr.py | 1 | 0 | 1 | 0 |" in (tmp_path / "gpflow_tests.md").read_text(
        encoding="utf-8"
    )


def test_a_substitution_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpflow_tests.main(["--only", "GPX"])
    assert "GPX" in capsys.readouterr().err
