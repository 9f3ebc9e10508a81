"""The benchmark of defaults: it measures, resumes and says honestly what was met."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest

import gpflow_ext as gpx
from scripts.benchmarks import (
    defaults,
    defaults_kernels,
    defaults_models,
    defaults_page,
    defaults_tables,
    resumable,
)
from scripts.shared.journal import Journal


def _record(model: str, split: int, nlpd: float, **more: Any) -> dict[str, Any]:
    where = {"table": "sonar", "task": "binary", "rows": 10, "inputs": 4, "split": split, "model": model}
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


def test_the_recommended_model_is_beside_others_of_the_package() -> None:
    records = [_record("VGPKMM", split, 0.5, objective=-20.0) for split in range(3)]
    records += [_record("SparseEP", split, 0.4 + 0.1 * split, objective=-20.0) for split in range(2)]
    records += [_record("GPLaplace", 0, 0.3, objective=-20.0)]
    row = "| sonar | VGPKMM | 3 | +0.050 ± 0.050 | +0.200, behind | – | – |"
    assert row in defaults_page.text(records)


def test_more_than_a_standard_error_is_behind_however_small() -> None:
    assert not defaults_page.Compared("linear", 1e-5, 1e-4, 10).behind
    assert defaults_page.Compared("linear", 1e-4, 1e-5, 10).behind


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
    record = {"table": "sonar", "task": "binary", "rows": 10, "inputs": 4, "split": 0, **failed}
    record["model"] = "VGPKMM"
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


def _kernels(gain: float, split: int = 5) -> defaults_kernels.Pair:
    """Return records of four inputs, of which that of all length scales gains so many nats for each further one."""
    one = _record("VGPKMM", split, 0.3, objective=-20.0, left_out=0.4)
    each = _record("VGPKMM, ARD", split, 0.2, objective=-20.0 + 3.0 * gain, left_out=0.5)
    return one, each


def test_a_length_scale_for_each_input_has_to_gain_two_nats_for_each_further_one() -> None:
    for gain, model in ((1.9, "VGPKMM"), (2.1, "VGPKMM, ARD")):
        pair = _kernels(gain)
        assert defaults_kernels.gain(*pair) == pytest.approx(gain)
        (chosen,) = defaults_page.headline(pair, "sonar").values()
        assert chosen["model"] == model


def test_rules_are_compared_on_the_splits_that_were_not_seen() -> None:
    section = defaults_kernels.section([*_kernels(1.2), *_kernels(9.0, split=0)])[-1]
    rules = [cell.strip() for cell in section.splitlines()[-1].strip("|").split("|")]
    assert rules == [
        "VGPKMM",
        "binary",
        "1",
        "-0.1000",
        "-0.1000",
        "+0.0000",
        "-0.1000",
        "+0.0000",
        "-0.1000",
    ]


def test_rows_are_left_out_as_refits_leave_them_out() -> None:
    part = defaults_tables.load("diabetes", 0, 12)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=3.0)
    model = gpx.models.SparseEP(
        (part.X, part.Y), kernel, gpflow.likelihoods.Gaussian(0.3), inducing_variable=part.X.copy()
    )
    model.settle_sites()
    densities = []
    for n in range(len(part.X)):
        others = np.arange(len(part.X)) != n
        exact = gpflow.models.GPR((part.X[others], part.Y[others]), kernel, noise_variance=0.3)
        densities.append(exact.predict_log_density((part.X[n : n + 1], part.Y[n : n + 1])))
    found = defaults_models.left_out(model)["left_out"]
    assert found == pytest.approx(-np.mean(densities), abs=1e-5)
