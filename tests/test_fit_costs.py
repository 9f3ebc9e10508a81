"""The benchmark of what a fit costs: its tasks, its table, and verdicts that come from the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.benchmarks import fits, fits_classes
from scripts.shared.every_class import KINDS

ROOT = Path(__file__).parent.parent
SLOW = pytest.mark.slow


def _record(method: str, size: int, learn: bool, seconds: list[float], **more: object) -> fits.Record:
    record = {"method": method, "size": size, "learn": learn, "folds": 0, "imports": 2.0, "seconds": seconds}
    return {**record, "objective": -90.0, "evaluations": 9, **more}


def test_every_contender_is_measured_fixed_and_learnt() -> None:
    found = fits.tasks([351, 1000], False)
    assert {(task["size"], task["learn"], task["folds"]) for task in found} == {
        (351, False, 0),
        (351, True, 0),
        (1000, True, 0),
        (351, False, 10),
        (351, True, 10),
    }
    assert {"GPLaplace", "VGPKMM"} <= {task["method"] for task in found}


def test_verdicts_are_read_from_the_figures() -> None:
    records = [
        _record("GPLaplace", 351, True, [1.4, 0.2, 0.2]),
        _record("GPLaplace", 351, False, [0.5, 0.06, 0.04]),
        _record("GPLaplace", 1000, True, [3.0, 2.0, 2.0], objective=-90.05),
        _record("scikit-learn", 1000, True, [3.0, 2.9, 2.8]),
        _record("GPLaplace", 351, True, [2.4, 2.0], folds=10),
    ]
    found = {target: met for target, _, met in fits.verdicts(records)}
    assert found == {
        "GPLaplace, N = 351: first fit, learnt": "yes",
        "GPLaplace, N = 351: second fit, learnt": "yes",
        "GPLaplace, N = 351: second fit, fixed": "no",
        "GPLaplace: 10 folds, learnt": "yes",
        "GPLaplace, N = 1000: learnt, in 2/3 of scikit-learn's seconds": "no",
        "GPLaplace, N = 1000: a fresh process, imports included, in scikit-learn's": "yes",
        "N = 1000: the same optimum, relative difference": "yes",
    }
    page = fits.document(
        {"versions": {}, "date": "", "cpu": "", "cores": 1, "threads": 1, "load": 0, "python": ""}, records
    )
    assert "| GPLaplace | 2 | 1.4 | 0.2 | 0.2 | 3.4 | 9 | -90.0000 |" in page


def test_a_class_of_models_is_judged_by_what_is_not_compiled() -> None:
    record = {
        "kind": "SparseEP",
        "by_rows": False,
        "seconds": [3.0, 0.5, 0.4],
        "compiled": [1.0, 0.41, 0.38],
        "calls": [7, 7, 6],
        "scored": [1.0, 0.01, 0.01],
    }
    found = {traces: fits.verdicts([{**record, "traces": [4, 0, traces]}]) for traces in (0, 1)}
    assert [met for _, _, met in found[0]] == ["yes", "yes"]
    assert [met for _, _, met in found[1]] == ["yes", "no"]
    by_rows = {**record, "by_rows": True, "traces": [4, 0, 1]}
    assert [met for _, _, met in fits.verdicts([by_rows])] == ["yes", "yes"]
    late = {**record, "compiled": [1.0, 0.41, 0.34], "traces": [4, 0, 0]}
    assert fits.verdicts([late])[0][1:] == ("0.06 of 0.05", "no")
    where = {"versions": {}, "date": "", "cpu": "", "cores": 1, "threads": 1, "load": 0, "python": ""}
    assert "| SparseEP | 3 | 0.5 | 0.4 | 0.41 | 7 | 0.06 | 1 | 0.01 | 4 | 0 | 0 |" in fits.document(
        where, [late]
    )


QUICK = "GPLaplace", "VGPKMM, Algorithm 1"


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=SLOW) for name in KINDS]
)
def test_a_second_model_of_a_class_traces_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a third one, with fewer rows, but where a variable has a row for each datum."""
    monkeypatch.setitem(KINDS, name, KINDS[name]._replace(rows=40))
    record = fits_classes.measure(name)
    assert record["traces"][0] > 0
    assert not any(record["traces"][1 : 2 if record["by_rows"] else None])
    assert min(record["calls"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["GPLaplace", "scikit-learn"])
def test_a_contender_is_measured_in_a_process_of_its_own(method: str) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is compared where it is installed")
    task = {"method": method, "size": 40, "learn": True, "folds": 0, "data": ""}
    command = [sys.executable, "-m", "scripts.benchmarks.fits_worker", json.dumps(task)]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    record = json.loads(shown.stdout.splitlines()[-1])
    assert len(record["seconds"]) == 3
    assert record["objective"] < 0.0
