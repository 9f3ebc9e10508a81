"""`auto` compares, chooses, says why, and is exported for raw rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.estimators import GPCountRegressor, GPMultiOutputRegressor, GPRegressor
from gpflow_ext.estimators.candidates import SURE, candidates

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 2))
LINE = 100.0 + 10.0 * (X @ [1.0, -2.0]) + RNG.normal(size=50)


@pytest.fixture(scope="module")
def best() -> gpx.Auto:
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(weight=LINE)
    return gpx.auto(table, "weight", budget=1e-3, progress=False)


def test_a_line_is_best_told_by_the_linear_kernel(best: gpx.Auto) -> None:
    """Whatever the budget it is among those that are compared."""
    assert best.table["candidate"][0] == "linear"
    assert len(best.table) == SURE
    assert list(best.table["nlpd"]) == sorted(best.table["nlpd"])
    assert best.table["rmse"][0] < 2.0
    assert isinstance(best.estimator, GPRegressor)
    assert isinstance(best.model, gpx.models.VGPKMM)
    assert "linear predicts best of 2 candidates" in best.why
    assert "no time for, or no use in, 4 more" in best.why
    assert best.why in str(best)
    np.testing.assert_allclose(best.predict(X), LINE, atol=5.0)


def test_it_is_exported_for_raw_rows(best: gpx.Auto, tmp_path: Path) -> None:
    served = gpx.load_exported(gpx.export(best, tmp_path / "weight"))
    rows = pandas.DataFrame(X[:3], columns=["age", "height"])
    np.testing.assert_allclose(served.predict(X[:3])["mean"][:, 0], best.predict(rows), rtol=1e-8)
    np.testing.assert_allclose(served.predict_raw(rows)["mean"][:, 0], best.predict(X[:3]), rtol=1e-8)


@pytest.mark.slow
def test_labels_are_those_of_the_table() -> None:
    best = gpx.auto((X, np.where(LINE > 100.0, "tall", "short")), budget=1e-3, progress=False)
    p = best.predict_proba(X)
    assert best.split.labels == ("short", "tall")
    np.testing.assert_array_equal(best.predict(X), np.array(best.split.labels)[p.argmax(axis=1)])
    assert (best.predict(X) == np.where(LINE > 100.0, "tall", "short")).mean() > 0.9


def test_the_task_decides_the_candidates() -> None:
    assert "Matérn 5/2, Student's t noise" in candidates("regression", 100, 3, 1)
    assert "Matérn 5/2, label noise" in candidates("binary", 100, 3, 1)
    assert "Matérn 5/2, label noise" not in candidates("binary", 10_000, 3, 1)
    assert isinstance(candidates("count", 100, 3, 1)["linear"], GPCountRegressor)
    assert not any("each input" in name for name in candidates("multiclass", 100, 64, 1))
    several = candidates("regression", 100, 3, 2)
    assert all(isinstance(each, GPMultiOutputRegressor) for each in several.values())


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="budget must be positive"):
        gpx.auto((X, LINE), budget=0.0)
    with pytest.raises(ValueError, match="as many rows; they have 50 and 3"):
        gpx.auto((X, LINE[:3]))
    with pytest.raises(ValueError, match="leave it out where y is given"):
        gpx.auto((X, LINE), "weight")
    with pytest.raises(ValueError, match="a Split has been read already"):
        gpx.auto(gpx.datasets.load("breast_cancer"), "ill")
