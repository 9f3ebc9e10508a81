"""`auto` compares, chooses, says why, and is exported for raw rows."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import pandas
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.estimators import (
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPRegressor,
    auto,
    averaging,
    base,
    kernels,
    ladder,
    spatial,
)
from gpflow_ext.estimators.candidates import SURE, candidates
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.server.app import Server
from gpflow_ext.server.limits import Limits
from gpflow_ext.server.model import ServedModel

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
    assert "no time for, or no use in, 6 more" in best.why
    assert best.why in str(best)
    assert "the budget ended its training before it had settled" in best.why
    assert best.estimator.result_.status is gpx.Status.OUT_OF_TIME
    np.testing.assert_allclose(best.predict(X), LINE, atol=5.0)


def test_it_is_exported_for_raw_rows(best: gpx.Auto, tmp_path: Path) -> None:
    served = gpx.load_exported(gpx.export(best, tmp_path / "weight"))
    rows = pandas.DataFrame(X[:3], columns=["age", "height"])
    np.testing.assert_allclose(served.predict(X[:3])["mean"][:, 0], best.predict(rows), rtol=1e-8)
    np.testing.assert_allclose(served.predict_raw(rows)["mean"][:, 0], best.predict(X[:3]), rtol=1e-8)


def test_the_budget_covers_the_training_of_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing ends at 60 % of it, and what is left then is for the training: none is left of a clock that leaps."""
    given: list[float | None] = []
    of_fit = base.fit
    monkeypatch.setattr(
        base, "fit", lambda *a, **k: (given.append(k["seconds"]), of_fit(*a, **{**k, "steps": 0}))[1]
    )
    monkeypatch.setattr(auto, "cross_validate", lambda *a, **k: SimpleNamespace(
        mean={"nlpd": 1.0, "rmse": 1.0}, standard_error={"nlpd": 0.1}, seconds=np.ones(5), results=()
    ))  # fmt: skip
    now = iter(np.arange(0.0, 1e3, 10.0))
    monkeypatch.setattr(auto.time, "perf_counter", lambda: next(now))
    best = gpx.auto((X, LINE), budget=50.0, progress=False)
    assert len(best.table) == SURE + 3  # begun at 10, 20 and 30 seconds, not at 40
    assert given == [5.0]
    GPRegressor().fit(X, LINE)
    assert given == [5.0, None]


def test_a_candidate_that_fails_in_a_fold_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(build: Any, data: Any, **options: Any) -> SimpleNamespace:
        is_network = isinstance(build(data).kernel, gpflow.kernels.ArcCosine)
        nlpd = 0.5 if is_network else 1.0
        return SimpleNamespace(
            mean={"nlpd": nlpd, "rmse": 1.0}, standard_error={"nlpd": 0.1}, seconds=np.ones(5),
            results=(1, None if is_network else 1),
        )  # fmt: skip

    monkeypatch.setattr(auto, "cross_validate", found)
    monkeypatch.setattr(base, "fit", lambda *a, of=base.fit, **k: of(*a, **{**k, "steps": 0}))
    best = gpx.auto((X, LINE), budget=100.0, progress=False)
    assert "network" not in set(best.table["candidate"])
    assert len(best.table) == 7
    assert "no use in, 1 more" in best.why


@pytest.mark.parametrize(("num_inducing", "size"), [(None, "every row is a point"), (5, "5 inducing points")])
def test_the_reasons_name_the_size_of_the_model(num_inducing: int | None, size: str) -> None:
    model = GPRegressor(num_inducing=num_inducing, steps=1).fit(X, LINE)
    split = SimpleNamespace(train=(X, LINE), target="y", task="regression")
    score: Any = SimpleNamespace(mean={"nlpd": 1.0}, standard_error={"nlpd": 0.1})
    assert size in auto._reasons(model, split, ["a"], {"a": score}, 1)


def test_the_kernel_of_a_network_is_finite_for_many_inputs() -> None:
    """Where GPflow's is not: the angle of a row with itself."""
    rows = np.random.default_rng(0).normal(3.0, 3.0, (100, 1000))
    kernel = kernels.network(1000)
    assert np.isfinite(kernel(rows)).all()
    np.testing.assert_allclose(np.diag(kernel(rows)), kernel(rows, full_cov=False), rtol=1e-12)
    of_gpflow = gpflow.kernels.ArcCosine(order=1, weight_variances=1.0 / 1000)
    assert not np.isfinite(of_gpflow(rows)).all()
    np.testing.assert_allclose(kernel(rows[:9], rows[9:]), of_gpflow(rows[:9], rows[9:]), rtol=1e-12)


def test_a_model_with_the_kernel_of_a_network_is_exported(tmp_path: Path) -> None:
    model = GPRegressor(kernels.network(2), steps=1).fit(X, LINE)
    served = gpx.load_exported(gpx.export(model, tmp_path / "network"))
    np.testing.assert_allclose(served.predict(X)["mean"][:, 0], model.predict(X), rtol=1e-7)


@pytest.mark.slow
def test_labels_are_those_of_the_table() -> None:
    best = gpx.auto((X, np.where(LINE > 100.0, "tall", "short")), budget=1e-3, progress=False)
    p = best.predict_proba(X)
    assert best.split.labels == ("short", "tall")
    np.testing.assert_array_equal(best.predict(X), np.array(best.split.labels)[p.argmax(axis=1)])
    assert (best.predict(X) == np.where(LINE > 100.0, "tall", "short")).mean() > 0.9


def test_candidates_that_know_different_things_are_averaged() -> None:
    """What adds nothing is left out: of two alike one stays."""
    rng = np.random.default_rng(1)
    first, second = np.where(rng.random((2, 400)) < 0.5, np.log(0.9), np.log(0.1))
    found = averaging.weights({"a": first, "again": first, "b": second, "bad": first - 3.0})
    assert len(found) == 2
    assert {"b"} < set(found) < {"a", "again", "b"}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    steps = np.linspace(0.0, 1.0, 10_001)[:, None]
    totals = np.log(steps * np.exp(first) + (1.0 - steps) * np.exp(second)).sum(axis=1)
    assert found["b"] == pytest.approx(1.0 - steps[totals.argmax(), 0], abs=2e-4)
    assert averaging.weights({"a": first, "worse": first - 1e-3}) == {"a": 1.0}
    assert averaging.weights({"a": np.zeros(0)}) == {}


def test_an_average_predicts_and_is_served_as_the_mixture(tmp_path: Path) -> None:
    X = RNG.normal(size=(40, 2))
    counts = RNG.poisson(np.exp(X[:, 0])).astype(float)
    members = [
        GPCountRegressor(kernel, steps=2).fit(X, counts).model_ for kernel in (None, kernels.linear(2))
    ]
    model = ModelAverage(members, [3.0, 1.0])
    Y = counts[:, None]
    each = [np.exp(member.predict_log_density((X, Y))) for member in members]
    expected = np.log(0.75 * each[0] + 0.25 * each[1])
    np.testing.assert_allclose(model.predict_log_density((X, Y)), expected, rtol=1e-12)
    means, variances = zip(*(member.predict_y(X) for member in members), strict=True)
    mean = 0.75 * means[0] + 0.25 * means[1]
    np.testing.assert_allclose(model.predict_y(X)[0], mean, rtol=1e-12)
    second = 0.75 * (variances[0] + means[0] ** 2) + 0.25 * (variances[1] + means[1] ** 2)
    np.testing.assert_allclose(model.predict_y(X)[1], second - mean**2, rtol=1e-9)
    served = gpx.load_exported(gpx.export(model, tmp_path / "average", scaler=(np.zeros(2), np.ones(2))))
    np.testing.assert_allclose(served.predict(X)["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(served.predict(X)["variance"], model.predict_y(X)[1], rtol=1e-8)
    np.testing.assert_allclose(served.predict_log_density(X, Y), expected, rtol=1e-8)
    with pytest.raises(ValueError, match="one for each of 2 models"):
        ModelAverage(members, [1.0])


def test_auto_averages_where_it_is_better() -> None:
    """A step and a line: neither of the first two kernels knows both."""
    x = np.linspace(-3.0, 3.0, 60)[:, None]
    y = (RNG.random(60) < np.where(np.abs(x[:, 0]) < 1.0, 0.95, 0.5)).astype(int)
    best = gpx.auto((x, y), budget=1e-3, progress=False)
    shares = dict(zip(best.table["candidate"], best.table["weight"], strict=True))
    assert sum(shares.values()) == pytest.approx(1.0)
    assert isinstance(best.model, ModelAverage) == (max(shares.values()) < 1.0)
    assert ("averaged" in best.why) == isinstance(best.model, ModelAverage)
    alone = gpx.auto((x, y), budget=1e-3, progress=False, average=False)
    assert list(alone.table["weight"]) == [1.0, 0.0]
    assert not isinstance(alone.model, ModelAverage)


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


def test_raw_rows_of_counts_are_served_at_their_exposures(tmp_path: Path) -> None:
    """By the SavedModel, and by the server for many rows and for one."""
    days = RNG.uniform(0.5, 20.0, 50)
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(days=days, falls=RNG.poisson(days))
    best = gpx.auto(table, "falls", exposure="days", budget=1e-3, progress=False)
    folder = gpx.export(best, tmp_path / "falls")
    served = gpx.load_exported(folder)
    mean = best.predict(table, exposure=days)
    np.testing.assert_allclose(served.predict_raw(table, days)["mean"][:, 0], mean, rtol=1e-9)
    app = Server(ServedModel(folder), Limits())
    rows = [
        {"age": a, "height": h, "exposure": e} for (a, h), e in zip(X.tolist(), days.tolist(), strict=True)
    ]
    answer = app._predicted(json.dumps({"signature_name": "predict_raw_counts", "instances": rows}).encode())
    found = [each["mean"][0] for each in json.loads(answer)["predictions"]]
    np.testing.assert_allclose(found, mean, rtol=1e-9)
    one = json.loads(app._predicted_by_names(json.dumps(rows[0]).encode()))
    assert one["mean"][0] == pytest.approx(mean[0], rel=1e-9)


def _places(number: int, seed: int = 0, scale: float = 0.05) -> tuple[np.ndarray, np.ndarray]:
    """Places in the unit square, and a rough function there."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(size=(number, 2))
    waves, phases = rng.normal(size=(2, 200)) / scale, rng.uniform(0.0, 2.0 * np.pi, 200)
    return places, np.cos(places @ waves + phases).sum(axis=1) / 10.0


def test_places_that_are_too_many_may_have_nearest_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two or three inputs, not on a grid, a stationary kernel, and no more rows than a batch takes."""
    monkeypatch.setattr(ladder, "DENSE", {"sites": 100, "variational": 100, "ep": 100})
    places, f = _places(150)
    target = f[:, None]
    plain = GPRegressor(kernels.matern(2))
    assert spatial.suits(plain, places, target)
    assert not spatial.suits(plain, places[:90], target[:90])  # dense
    assert not spatial.suits(GPRegressor(kernels.linear(2)), places, target)
    assert not spatial.suits(GPRegressor(kernels.matern(2), noise="student_t"), places, target)
    assert not spatial.suits(GPRegressor(kernels.matern(1)), places[:, :1], target)  # a state space
    wide = np.column_stack([places, places**2])
    assert not spatial.suits(GPRegressor(kernels.matern(4)), wide, target)
    monkeypatch.setattr(ladder, "MINIBATCHES", 149)
    assert not spatial.suits(plain, places, target)


@pytest.mark.parametrize("better", [True, False])
def test_the_prior_of_places_is_chosen_and_the_reason_says_so(
    monkeypatch: pytest.MonkeyPatch, better: bool
) -> None:
    monkeypatch.setattr(ladder, "DENSE", {"sites": 100, "variational": 100, "ep": 100})
    monkeypatch.setattr(ladder, "POINTS", 5)
    monkeypatch.setattr(base, "fit", lambda *a, of=base.fit, **k: of(*a, **{**k, "steps": 0}))
    monkeypatch.setattr(auto, "cross_validate", lambda *a, **k: SimpleNamespace(
        mean={"nlpd": 1.0, "rmse": 1.0}, standard_error={"nlpd": 0.1}, seconds=np.ones(5), results=()
    ))  # fmt: skip
    found = spatial.Compared(0.5, 0.75 if better else 0.25, 30)
    monkeypatch.setattr(spatial, "compared", lambda *a, **k: found)
    best = gpx.auto(_places(150), budget=20.0, progress=False)
    assert best.model.prior_name == ("vecchia" if better else None)
    of = "each value depends on its 20 nearest neighbours" if better else "it has 5 inducing points"
    assert f", and {of}. " in best.why
    order = ("nearest neighbours", "5 inducing points")
    first, second = order if better else order[::-1]
    low, high = (0.5, 0.75) if better else (0.25, 0.5)
    assert f"; {first} predict 30 held-out rows with NLPD {low}, {second} with {high}" in best.why
    assert best.table["weight"].sum() == 1.0


@pytest.mark.slow  # both priors are trained
def test_places_of_a_rough_function_have_nearest_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "POINTS", 5)
    places, f = _places(300, scale=0.2)
    target = (f + 0.1 * np.random.default_rng(1).normal(size=300))[:, None]
    estimator = GPRegressor(kernels.matern(2), standardise=False)  # as `auto` makes them
    found = spatial.compared(estimator, places, target, 0, 20.0)
    assert found is not None
    assert found.better
    assert found.rows == 60
    assert found.vecchia < 0.5 < found.inducing
