"""The benchmark of defaults: it measures, resumes and says honestly what was met."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.benchmarks import defaults, defaults_models, defaults_page, defaults_tables, resumable
from scripts.shared.journal import Journal


def _record(model: str, split: int, nlpd: float, **more: Any) -> dict[str, Any]:
    where = {"table": "sonar", "task": "binary", "rows": 10, "split": split, "model": model}
    return {**where, "nlpd": nlpd, "error": 0.1, "calibration": 0.1, "seconds": 1.0, "cpu": 1.0, **more}


def _records(gap: float, best: float) -> list[dict[str, Any]]:
    """Return a table in which ours is behind the linear model by the gap, and the best objective is another."""
    found = [_record("VGPKMM", split, 0.5 + gap, objective=-20.0) for split in range(3)]
    found += [_record("VGPKMM, ARD", split, 9.0, objective=-30.0) for split in range(3)]
    found += [_record("linear", split, 0.5 + 0.01 * split) for split in range(3)]
    found += [_record("VGPKMM from random starts", 0, 0.0, objective=best, starts=10)]
    return found


@pytest.mark.parametrize(
    ("gap", "best", "met"),
    [
        (0.0, -20.05, ["yes", "yes", "yes"]),
        (0.1, -19.95, ["yes", "no", "no"]),
        (0.012, -19.0, ["no", "yes", "yes"]),  # behind by 0.002, the standard error is 0.006
    ],
)
def test_verdicts_are_those_of_the_records(gap: float, best: float, met: list[str]) -> None:
    assert [verdict[-1] for verdict in defaults_page.verdicts(_records(gap, best))] == met
    assert ("| no |" in defaults_page.text(_records(gap, best))) == ("no" in met)


def test_the_recommended_model_takes_the_kernel_with_the_higher_objective() -> None:
    records = _records(0.0, -20.0)
    assert {each["model"] for each in defaults_page.headline(records, "sonar").values()} == {"VGPKMM"}
    better = [{**each, "objective": -1.0} if each["model"] == "VGPKMM, ARD" else each for each in records]
    assert {each["model"] for each in defaults_page.headline(better, "sonar").values()} == {"VGPKMM, ARD"}


def test_a_split_that_was_measured_again_stays_the_first() -> None:
    records = [_record("VGPKMM", split, 0.5, objective=-20.0 - split) for split in (1, 2, 0)]
    assert "| VGPKMM | 0.500 ± 0.000 | 0.100 ± 0.000 | 0.100 ± 0.000 | -20.00 |" in defaults_page.text(
        records
    )


def test_a_contender_that_fails_is_recorded_and_the_page_is_still_written() -> None:
    def fail() -> dict[str, Any]:
        raise ArithmeticError("no such optimum")

    failed = resumable.guarded(fail)
    assert failed == {"failed": "ArithmeticError: no such optimum"}
    record = {"table": "sonar", "task": "binary", "rows": 10, "split": 0, "model": "VGPKMM", **failed}
    assert "no such optimum" in defaults_page.text([record])


def test_coverage_is_the_distance_from_nine_tenths() -> None:
    Y = np.linspace(-1.0, 1.0, 100)
    assert defaults_models.coverage(np.zeros(100), np.full(100, 1e-12), Y) == pytest.approx(0.9)
    assert defaults_models.coverage(np.zeros(100), np.full(100, 100.0), Y) == pytest.approx(0.1)


def test_a_rerun_measures_what_the_journal_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = defaults_tables.load("diabetes", 0, 25)
    assert part.X.shape == (25, 10)
    np.testing.assert_allclose([part.Y.mean(), part.Y.std()], [0.0, 1.0], atol=1e-12)
    options = argparse.Namespace(
        splits=1,
        rows=25,
        tables=["diabetes"],
        models=["GPR by fit", "linear", "scikit-learn GP"],
        starts=2,
        cap=30.0,
    )
    path = tmp_path / "page.jsonl"
    defaults.run(options, Journal(path))
    first = path.read_text(encoding="utf-8")
    monkeypatch.setattr(defaults_models, "measure", lambda *_: pytest.fail("measured again"))
    defaults.run(options, Journal(path))
    assert path.read_text(encoding="utf-8") == first
    records = [json.loads(line) for line in first.splitlines()]
    models = [record["model"] for record in records]
    assert models == ["GPR by fit", "scikit-learn GP", "linear", "GPR by fit from random starts"]
    ours, theirs, _, best = records
    assert ours["nlpd"] == pytest.approx(theirs["nlpd"], abs=0.02)  # the same model and objective
    assert best["starts"] == 2
    assert best["objective"] <= ours["objective"] + 0.1
