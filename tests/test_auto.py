"""`auto` compares, chooses, says why, and is exported for raw rows."""

from __future__ import annotations

import dataclasses
import html
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gpflow
import numpy as np
import pandas
import pytest
import scipy.sparse

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.cli.predict import predict
from gpflow_ext.data.datasets.targets import values_of
from gpflow_ext.estimators import (
    GPClassifier,
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPRegressor,
    auto,
    averaging,
    base,
    halving,
    kernels,
    ladder,
    reasons,
    refit,
    rungs,
)
from gpflow_ext.estimators.candidates import SURE, candidates, of_neighbours
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.server.app import Server
from gpflow_ext.server.limits import Limits, RefusedError
from gpflow_ext.server.model import ServedModel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 2))
LINE = 100.0 + 10.0 * (X @ [1.0, -2.0]) + RNG.normal(size=50)


@pytest.fixture(scope="module")
def best() -> gpx.Auto:
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(weight=LINE)
    with mock.patch.object(rungs.Score, "first_call", 0.0):  # more candidates could be tried in as much time
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
    assert "'weight' is a real number, with 50 rows and 2 inputs" in best.why
    assert best.why in str(best)
    assert "note: target 'weight' holds numbers: the task is regression" in str(best)
    assert "no first step is cut short" in best.why  # which is enough for a line
    assert best.estimator.result_.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(best.predict(X), LINE, atol=5.0)


def test_it_is_told_that_the_budget_ended_a_training() -> None:
    score = SimpleNamespace(nlpd=1.0, standard_error=0.1, log_densities=np.zeros(3), rows=9)
    for status, told in ((gpx.Status.OUT_OF_TIME, True), (gpx.Status.CONVERGED, False)):
        trained = SimpleNamespace(result_=SimpleNamespace(status=status))
        why = reasons._preferred(trained, {"linear": score}, 1, SimpleNamespace(worse=()))
        assert ("; the budget ended its training before it had settled" in why) == told


@pytest.mark.parametrize(
    ("target", "task", "held"),
    [
        ([0, 1] * 10, None, "two classes"),
        ([0, 1, 2, 3] * 5, "multiclass", "4 classes"),
        ([0, 1, 2, 3] * 5, "ordinal", "4 ordered levels"),
        ([0, 1, 2, 3] * 5, "count", "a count"),
        ([0, 1, 2, 3] * 5, None, "a real number"),
    ],
)
def test_what_the_target_holds_and_how_it_was_read_are_told(
    target: list[int], task: str | None, held: str
) -> None:
    frame = pandas.DataFrame({"age": X[:20, 0], "y": target})
    split = gpx.datasets.load(frame, target="y", task=task, test_fraction=0.0)
    assert reasons._held(split) == held
    shown = str(gpx.Auto(None, split, pandas.DataFrame({"candidate": ["linear"]}), "The reasons."))
    assert shown.startswith("The reasons.\n\n")
    for note in split.notes:
        assert f"\n  note: {note}" in shown
    assert ("pass task= if they are classes or counts" in shown) == (held == "a real number")


def test_it_is_exported_for_raw_rows(best: gpx.Auto, tmp_path: Path) -> None:
    served = gpx.load_exported(gpx.export(best, tmp_path / "weight"))
    rows = pandas.DataFrame(X[:3], columns=["age", "height"])
    np.testing.assert_allclose(served.predict(X[:3])["mean"][:, 0], best.predict(rows), rtol=1e-8)
    np.testing.assert_allclose(served.predict_raw(rows)["mean"][:, 0], best.predict(X[:3]), rtol=1e-8)


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no step on all rows, and do not check what comes of it."""
    monkeypatch.setattr(base, "fit", lambda *a, of=base.fit, **k: of(*a, **{**k, "steps": 0}))
    monkeypatch.setattr(refit, "is_worse", lambda *_: False)


def test_the_budget_covers_the_training_of_the_best(monkeypatch: pytest.MonkeyPatch, untrained: None) -> None:
    """Comparing ends at 60 % of it, and what is left then is for the training: none is left of a clock that leaps."""
    given: list[float | None] = []
    of_fit = base.fit
    monkeypatch.setattr(base, "fit", lambda *a, **k: (given.append(k.get("seconds")), of_fit(*a, **k))[1])
    allowed: list[float] = []
    monkeypatch.setattr(rungs, "scored", lambda *a: (allowed.append(a[3]), _score())[1])
    now = iter(np.arange(0.0, 1e3, 10.0))
    monkeypatch.setattr(auto.time, "perf_counter", lambda: next(now))
    best = gpx.auto((X, LINE), budget=100.0, progress=False)
    assert len(best.table) == 6  # begun at 20, 30, ..., 70 seconds, not at 80
    expected = [max(left / (5 * (8 - n)), 1.0) for n, left in enumerate(range(50, -1, -10))]
    assert allowed == pytest.approx(expected)
    assert given == [10.0]
    GPRegressor().fit(X, LINE)
    assert given == [10.0, None]


def _score(nlpd: float = 1.0, rows: int = 40) -> rungs.Score:
    return rungs.Score(rows, np.array([-nlpd, -nlpd]), ("rmse", 1.0), 1.0)


def test_a_candidate_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch, untrained: None) -> None:
    def scored(estimator: Any, *_: Any) -> rungs.Score:
        if isinstance(estimator.kernel, gpflow.kernels.ArcCosine):
            raise ArithmeticError
        return _score()

    monkeypatch.setattr(rungs, "scored", scored)
    best = gpx.auto((X, LINE), budget=100.0, progress=False)
    assert "network" not in set(best.table["candidate"])
    assert len(best.table) == 7
    assert "no use in, 1 more" in best.why
    monkeypatch.setattr(rungs, "scored", lambda *_: (_ for _ in ()).throw(ArithmeticError("the first one")))
    with pytest.raises(ArithmeticError, match="the first one"):
        gpx.auto((X, LINE), budget=100.0, progress=False)


def test_a_row_without_a_finite_density_fails_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"nlpd": np.inf, "rmse": 1.0}, np.array([0.0, -np.inf])
    monkeypatch.setattr(rungs.metrics, "evaluated_rows", lambda *_, **__: found)
    [parts] = rungs.rungs(LINE[:, None], 0, 1.0)
    with pytest.raises(ArithmeticError, match="no finite density"):
        rungs.scored(GPRegressor(kernels.linear(2)), rungs.Data(X, LINE[:, None]), parts[:1], 1.0, 0)


def test_small_tables_have_one_rung_of_five_folds() -> None:
    """Each row is held out once, and trained on otherwise."""
    Y = np.arange(103.0)[:, None]
    [parts] = rungs.rungs(Y, 0, 1e4)
    assert [len(part.held) for part in parts] == [21, 21, 21, 20, 20]
    np.testing.assert_array_equal(np.sort(np.concatenate([part.held for part in parts])), np.arange(103))
    for part in parts:
        assert len(set(part.train)) == len(part.train) == 82
        assert not set(part.train) & set(part.held)
    with pytest.raises(ValueError, match="there is 1"):
        rungs.rungs(Y[:1], 0, 1.0)


def test_rungs_of_large_tables_have_more_and_more_rows_and_predict_the_same() -> None:
    Y = np.random.default_rng(0).normal(size=(80_000, 1))
    found = rungs.rungs(Y, 0, 1e4)
    assert [len(parts) for parts in found] == [1, 1, 1, 1]
    parts = [each[0] for each in found]
    assert [len(part.train) for part in parts] == [1000, 4000, 16_000, 75_000]
    for small, large in itertools.pairwise(parts):
        np.testing.assert_array_equal(small.held, large.held)
        np.testing.assert_array_equal(small.train, large.train[: len(small.train)])
    assert len(parts[-1].held) == 5000
    assert not set(parts[-1].train) & set(parts[-1].held)
    for seconds, some in ((35.0, [1000]), (36.0, [1000, 75_000]), (48.0, [1000, 4000, 75_000])):
        assert [len(each[0].train) for each in rungs.rungs(Y, 0, seconds)] == some
    assert not np.array_equal(rungs.rungs(Y, 1, 1.0)[0][0].held, parts[0].held)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(30, [30]), (1499, [1000]), (1500, [1000, 1500]), (5999, [1000, 5999]), (6000, [1000, 4000, 6000])],
)
def test_each_rung_has_half_as_many_rows_again_at_least(rows: int, expected: list[int]) -> None:
    assert rungs.sizes(rows) == expected


def test_folds_are_held_out_until_a_thousand_rows_are() -> None:
    for number, folds in ((1000, 5), (1250, 4), (2500, 2), (4999, 1)):
        [parts, *_] = rungs.rungs(np.random.default_rng(0).normal(size=(number, 1)), 0, 1.0)
        assert len(parts) == folds


def test_the_score_is_of_all_held_out_rows() -> None:
    """Errors of folds of unequal sizes are pooled, and the standard error is that of a mean over rows."""
    assert rungs._pooled([{"rmse": 3.0}, {"rmse": 1.0}], [1, 3]) == ("rmse", pytest.approx(np.sqrt(3.0)))
    assert rungs._pooled([{"error": 0.5}, {"error": 0.1}], [1, 3]) == ("error", pytest.approx(0.2))
    score = rungs.Score(5, np.array([-1.0, -2.0, -3.0]), ("rmse", 1.0), 1.0)
    assert score.nlpd == 2.0
    assert score.standard_error == pytest.approx(1.0 / np.sqrt(3.0))


def test_the_better_half_goes_on_with_more_rows(monkeypatch: pytest.MonkeyPatch, untrained: None) -> None:
    """What wins on few rows need not win: the linear kernel does on 1,000, and another one on all."""
    seen: dict[int, list[str]] = {}

    def scored(estimator: Any, data: Any, parts: Any, *_: Any) -> rungs.Score:
        rows = len(parts[0].train)
        name = next(name for name, kernel in kernels.compared(1).items() if _alike(kernel, estimator.kernel))
        seen.setdefault(rows, []).append(name)
        return _score({"linear": 1.0, "network": 1.5 - 1e-4 * rows}.get(name, 2.0), rows)

    monkeypatch.setattr(rungs, "scored", scored)
    x = np.random.default_rng(0).normal(size=(8000, 1))
    best = gpx.auto((x, x[:, 0]), budget=150.0, progress=False)
    assert {rows: len(names) for rows, names in seen.items()} == {1000: 6, 4000: 3, 6400: 2}
    assert seen[4000][0] == "linear"
    assert seen[6400] == ["linear", "network"] or seen[6400] == ["network", "linear"]
    assert list(best.table["candidate"][:2]) == ["network", "linear"]
    assert list(best.table["rows"]) == [6400, 6400, 4000, 1000, 1000, 1000]
    assert best.table["weight"][:2].sum() == pytest.approx(1.0)
    assert "network predicts best of 6 candidates, NLPD 0.86" in best.why
    assert "held-out rows from 6,400 others, before linear with 1" in best.why


def test_a_table_for_minibatches_has_one_rung_before_them(
    monkeypatch: pytest.MonkeyPatch, untrained: None
) -> None:
    """Their steps take as long on any number of rows; the better half is trained on all that are not held out."""
    seen: dict[int, list[tuple[bool, int | None]]] = {}

    def scored(estimator: Any, data: Any, parts: Any, *_: Any) -> rungs.Score:
        train = parts[0].train
        problem = estimator.problem_of(data[0][train], data[1][train])
        seen.setdefault(len(train), []).append((problem.batches, problem.num_inducing))
        return _score(1.0 / len(seen), len(train))

    monkeypatch.setattr(rungs, "scored", scored)
    monkeypatch.setattr(ladder, "MINIBATCHES", 5000)
    x = np.random.default_rng(0).normal(size=(8000, 2))
    found = gpx.auto((x, x[:, 0]), budget=150.0, progress=False)
    assert not isinstance(found.model, ModelAverage)
    assert seen == {1000: [(False, None)] * 8, 6400: [(True, 300)] * 4 + [(True, 600)]}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the clock; return what moves it."""
    now = [0.0]
    monkeypatch.setattr(auto.time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_what_a_training_takes_at_least_is_expected_of_the_next(
    monkeypatch: pytest.MonkeyPatch, untrained: None, clock: Callable[[float], None]
) -> None:
    """It has that time and some more, or is left out: else the clock would end it at its first step."""
    allowed: list[float] = []
    given: list[float] = []
    of_fit = base.fit
    monkeypatch.setattr(base, "fit", lambda *a, **k: (given.append(k["seconds"]), of_fit(*a, **k))[1])

    def scored(estimator: Any, data: Any, parts: Any, seconds: float, seed: int) -> rungs.Score:
        allowed.append(seconds)
        clock(20.0)
        return dataclasses.replace(
            _score(), least=20.0, beside=3.0, first=17.0, models=(mock.sentinel.model,)
        )

    monkeypatch.setattr(rungs, "scored", scored)
    monkeypatch.setattr(base.warm, "begin_at", lambda *_, **__: None)
    best = gpx.auto((X, LINE), budget=100.0, progress=False)
    assert len(best.table) == 3  # begun at 0, 20 and 40 seconds of 60
    assert allowed == [60.0 / 40.0, 5.0, 5.0]
    assert given == [
        100.0 - 60.0 - 3.0
    ]  # half of it for the first step; what is beside the steps has the rest
    gpx.auto((X, LINE), budget=50.0, progress=False)
    assert given[1:] == [0.1 * 50.0 + 20.0 - 3.0]


def test_rungs_for_which_there_is_no_time_are_left_out(
    monkeypatch: pytest.MonkeyPatch, untrained: None, clock: Callable[[float], None]
) -> None:
    """Two candidates take 20 seconds: of three rungs in 60 seconds, the first with half of them, two are left."""
    seen: list[int] = []

    def scored(estimator: Any, data: Any, parts: Any, *_: Any) -> rungs.Score:
        seen.append(len(parts[0].train))
        clock(10.0)
        return dataclasses.replace(_score(rows=seen[-1]), least=10.0)

    monkeypatch.setattr(rungs, "scored", scored)
    x = np.random.default_rng(0).normal(size=(8000, 1))
    best = gpx.auto((x, x[:, 0]), budget=150.0, progress=False)
    assert seen == [1000] * 3 + [6400] * 2
    assert "no time to compare" not in best.why
    best = gpx.auto((x, x[:, 0]), budget=15.0, progress=False)
    assert seen[5:] == [1000] * 2
    assert "There was no time to compare candidates on more than 1,000 rows." in best.why


@pytest.mark.parametrize(
    ("seconds", "least", "left"),
    [(9.0, 0.0, "abc"), (9.0, 3.0, "abc"), (8.9, 3.0, "ac"), (3.0, 3.0, "c"), (2.0, 3.0, ""), (0.0, 0.0, "")],
)
def test_the_last_rung_is_the_last_to_be_left_out(seconds: float, least: float, left: str) -> None:
    assert "".join(rungs.affordable(list("abc"), seconds, least)) == left  # type: ignore[arg-type]


def test_it_is_said_if_none_but_the_linear_one_was_trained_to_its_end(
    monkeypatch: pytest.MonkeyPatch, untrained: None
) -> None:
    monkeypatch.setattr(rungs, "scored", lambda *_: dataclasses.replace(_score(), cut=True))
    best = gpx.auto((X, LINE), budget=100.0, progress=False)
    said = "The budget cut short the training of each candidate but the linear one."
    assert said in best.why
    monkeypatch.setattr(rungs, "scored", lambda *_: _score())
    assert said not in gpx.auto((X, LINE), budget=100.0, progress=False).why


def test_an_overrun_is_said_and_the_result_is_a_line_or_a_table(
    monkeypatch: pytest.MonkeyPatch, untrained: None
) -> None:
    monkeypatch.setattr(rungs, "scored", lambda *_: _score())
    best = gpx.auto((X, LINE), budget=1e-6, progress=False)
    assert re.search(r" It took [\d.]+ seconds in place of the 1e-06 of the budget: ", best.why)
    assert "It took" not in gpx.auto((X, LINE), budget=100.0, progress=False).why
    assert [reasons.overrun(spent, 6.0) == "" for spent in (9.0, 9.1)] == [True, False]
    kind, (first, *_) = type(best.model).__name__, best.table["candidate"]
    start = f"Auto({kind} of 'y' in 'frame', the best of {len(best.table)} candidates {first!r} with NLPD "
    assert repr(best).startswith(start)
    shown = best._repr_html_()
    assert f"<td>{first}</td>" in shown
    assert html.escape(best.why) in shown


def test_a_training_on_all_rows_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no step; the models of the five folds predict what each has not seen better."""
    monkeypatch.setattr(base, "fit", lambda *a, of=base.fit, **k: of(*a, **{**k, "steps": 0}))
    best = gpx.auto((X, LINE), budget=1e-3, progress=False, average=False)
    assert isinstance(best.model, ModelAverage)
    assert len(best.model.members) == 5
    assert "Trained on all rows linear predicted the held-out ones worse, NLPD" in best.why
    assert f"after {best.table['nlpd'][0]:.4g}: what was trained on 40 rows is kept." in best.why
    np.testing.assert_allclose(best.predict(X), LINE, atol=5.0)


@pytest.mark.parametrize(
    ("end", "untimely"), [(4.0, ["b", "c"]), (9.0, ["b", "c"]), (20.0, ["c"]), (50.0, [])]
)
def test_only_the_best_is_trained_on_all_rows_whatever_the_time(
    monkeypatch: pytest.MonkeyPatch, end: float, untimely: list[str]
) -> None:
    """A training takes ten seconds, its first step five: those of b and c would end at 15 and 25, or later."""
    now = 0.0

    def train(estimator: GPRegressor, *_: Any) -> None:
        nonlocal now
        now += 10.0
        estimator.model_ = mock.sentinel.trained

    monkeypatch.setattr(refit, "_train", train)
    monkeypatch.setattr(refit.time, "perf_counter", lambda: now)
    monkeypatch.setattr(refit.metrics, "evaluated_rows", lambda *_: ({}, np.zeros(2)))
    monkeypatch.setattr(refit, "is_worse", lambda *_: False)
    monkeypatch.setattr(reasons, "_built", lambda *_: "")
    scores = {
        name: dataclasses.replace(_score(nlpd), first=10.0, models=(name + "1", name + "2"))
        for name, nlpd in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    }
    found = {name: GPRegressor() for name in scores}
    comparison = halving.Comparison(found, {name: [score] for name, score in scores.items()}, np.arange(2))
    split = gpx.datasets.load(pandas.DataFrame({"x": X[:, 0], "y": LINE}), target="y", test_fraction=0.0)
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    trained = refit.refitted(weights, comparison, split, 1.0, end, 0)
    assert trained.untimely == untimely
    told = reasons.sentences(mock.Mock(), split, comparison, comparison.ranked(), weights, trained)
    assert ("no time to train" in told) == bool(untimely)
    assert f"train {' and '.join(untimely)} on all rows" in told or not untimely
    expected = [[mock.sentinel.trained] if n not in untimely else [n + "1", n + "2"] for n in "abc"]
    assert trained.models == list(itertools.chain(*expected))
    assert trained.weights == pytest.approx(
        [weights[n] / len(models) for n, models in zip("abc", expected, strict=True) for _ in models]
    )


def test_worse_is_by_more_than_the_standard_error_of_the_difference() -> None:
    score = rungs.Score(5, np.zeros(4), ("rmse", 1.0), 1.0)
    lost = np.array([1.0, -1.0, 1.0, -1.0])  # of standard error 1/2
    assert refit.is_worse(-lost - 0.51, score)
    assert not refit.is_worse(-lost - 0.49, score)
    assert not refit.is_worse(np.ones(4), score)
    assert refit.is_worse(np.array([1.0, 1.0, 1.0, np.nan]), score)


def test_steps_by_the_clock_are_short_where_rows_are_many() -> None:
    """The clock is read after a step, of which twenty iterations on a thousand rows would take many seconds."""
    rows = np.random.default_rng(0).normal(size=(501, 1))
    for number, short in ((500, {}), (501, {"hyper_updates": 5})):
        model, options = GPRegressor().model_of(rows[:number], rows[:number])
        assert ladder.timed(model, options, 3.0) == {"seconds": 3.0, **short}
        assert ladder.timed(model, options, None) == {}


def test_minibatches_by_the_clock_try_what_the_inputs_suggest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows had led to length scales from which minutes of small steps did not return."""
    monkeypatch.setattr(ladder, "MINIBATCHES", 500)
    rows = np.random.default_rng(0).normal(size=(501, 2))
    model, options = GPRegressor(num_inducing=9).model_of(rows, rows[:, :1])
    assert options["starts"] == 1
    assert ladder.timed(model, options, 3.0) == {**options, "starts": 2, "seconds": 3.0}
    for number, starts in ((250, 2), (251, 1)):
        earlier, _ = GPRegressor(num_inducing=9, minibatch_size=50).model_of(rows[:number], rows[:number, :1])
        assert ladder.timed(model, options, 3.0, earlier)["starts"] == starts
    model, options = GPRegressor(kernels.linear(2), num_inducing=9).model_of(rows, rows[:, :1])
    assert ladder.timed(model, options, 3.0) == {
        **options,
        "seconds": 3.0,
    }  # there are no length scales to try


def test_minibatches_of_expectation_propagation_start_once() -> None:
    """Trials of further starts took most of a minute before the first step."""
    noisy = GPClassifier(kernels.matern(2, ard=True), label_noise=0.1, minibatch_size=10, num_inducing=5)
    noisy.classes_ = np.arange(2)
    model, options = noisy.model_of(X, (LINE > 100.0)[:, None].astype(float))
    assert isinstance(model, gpx.models.SparseEP)
    assert options == {"minibatch_size": 10, "starts": 1}


def test_length_scales_of_all_inputs_come_first_where_rows_are_many() -> None:
    """Few of the candidates may be tried in a short time."""
    few, many = (list(kernels.compared(3, rows)) for rows in (2000, 2001))
    assert few[:2] == ["Matérn 5/2", "linear"]
    assert many[0] == "linear"
    assert all("each input" in name for name in many[1:3])
    assert set(few) == set(many)


def _alike(first: Any, second: Any) -> bool:
    """Tell whether two kernels are of the same class, and their parts."""
    parts = [getattr(kernel, "kernels", [kernel]) for kernel in (first, second)]
    return [type(part) for part in parts[0]] == [type(part) for part in parts[1]]


@pytest.mark.parametrize(
    ("num_inducing", "size"), [(None, "every row is a point of it"), (5, "it has 5 inducing points")]
)
def test_the_reasons_name_the_size_of_the_model(num_inducing: int | None, size: str) -> None:
    model = GPRegressor(num_inducing=num_inducing, steps=1).fit(X, LINE)
    assert reasons.size(model.model_) == size


def test_length_scales_of_inputs_of_no_use_stay_near_where_their_prior_has_them() -> None:
    """Its median is √D, the length scale of all inputs together; without it they grow to hundreds of it."""
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(40, 4))
    kernel = kernels.matern(4, ard=True)
    np.testing.assert_allclose(kernel.lengthscales.prior.quantile(0.5), 2.0, rtol=1e-12)
    y = np.sin(2.0 * rows[:, 0]) + 0.1 * rng.normal(size=40)
    found = GPRegressor(kernel).fit(rows, y).model_.kernel.lengthscales.numpy()
    assert found.argmin() == 0
    assert found[0] < 2.0 < found[1:].max() < 20.0


def test_a_length_scale_of_inputs_of_no_use_returns_to_the_spread_of_the_rows() -> None:
    """Where it runs to zero, predictions at the rows of the training depend on their last digits."""
    rng = np.random.default_rng(2)
    rows, counts = rng.normal(size=(50, 2)), rng.poisson(np.full(50, 10.0))
    kernel = kernels.matern(2)
    kernel.lengthscales.assign(0.03)
    found = GPCountRegressor(kernel).fit(rows, counts).model_.kernel.lengthscales.numpy()
    assert 0.1 < found < 10.0


def test_the_kernel_of_a_network_is_finite_for_many_inputs() -> None:
    """Where GPflow's is not: the angle of a row with itself."""
    rows = np.random.default_rng(0).normal(3.0, 3.0, (500, 300))
    kernel = kernels.network(300)
    assert np.isfinite(kernel(rows)).all()
    np.testing.assert_allclose(np.diag(kernel(rows)), kernel(rows, full_cov=False), rtol=1e-12)
    of_gpflow = gpflow.kernels.ArcCosine(order=1, weight_variances=1.0 / 300)
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


def test_numbers_are_scored_by_r_squared_and_by_their_density(best: gpx.Auto) -> None:
    rows, weights = pandas.DataFrame(X, columns=["age", "height"]), LINE
    expected = 1.0 - ((weights - best.predict(rows)) ** 2).sum() / ((weights - weights.mean()) ** 2).sum()
    assert best.score(rows, weights) == pytest.approx(expected)
    densities = best.score_samples(rows, weights)
    Y = weights[:, None]
    standardised = best.split.scaler.transform(rows)
    np.testing.assert_allclose(densities, np.ravel(best.model.predict_log_density((standardised, Y))))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("1 2", [1, 2]), ("-1 0.5", [-1.0, 0.5]), ("007 8", ["007", "8"]), ("a 1", ["a", "1"])],
)
def test_labels_of_a_file_are_numbers_where_all_read_as_such(labels: str, expected: list[Any]) -> None:
    found = values_of(labels.split())
    assert found.tolist() == expected
    assert found.dtype == np.array(expected).dtype


class Alternating:
    """An estimator that takes every other row for the second class, with a probability of 0.8."""

    classes_ = np.array([0.0, 1.0])

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.arange(len(X)) % 2

    def score_samples(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.log(np.where(np.asarray(y) == self.predict(X), 0.8, 0.2))


@pytest.mark.parametrize(("low", "high"), [(1, 2), ("high", "low"), (False, True), (0.5, 1.5)])
def test_labels_are_scored_as_the_table_has_them(low: Any, high: Any) -> None:
    y = np.array([low, high, low, low, high, high])
    rows = pandas.DataFrame(X[:6], columns=["age", "height"])
    split = gpx.datasets.load(rows.assign(ill=y), target="ill", task="binary", test_fraction=0.0)
    best = gpx.Auto(Alternating(), split, None, "", values_of(split.labels, y))
    np.testing.assert_array_equal(best.predict(rows), np.array(sorted([low, high]))[[0, 1, 0, 1, 0, 1]])
    assert best.predict(rows).dtype == y.dtype
    assert best.score(rows, y) == pytest.approx(4 / 6)
    np.testing.assert_allclose(np.exp(best.score_samples(rows, y)), [0.8, 0.8, 0.8, 0.2, 0.2, 0.8])
    with pytest.raises(ValueError, match=f"the labels are {low}, {high}; got ill"):
        best.score_samples(rows, np.append(y[:5].astype(object), "ill"))
    with pytest.raises(ValueError, match=f"the labels are {low}, {high}; got well"):
        best.score(rows, ["well"] * 6)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        best.score(rows, [low])


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
    budget: Any
    for budget in (0.0, "10", None, np.nan):
        with pytest.raises(ValueError, match="budget must be positive"):
            gpx.auto((X, LINE), budget=budget)
    with pytest.raises(ValueError, match="as many rows; they have 50 and 3"):
        gpx.auto((X, LINE[:3]))
    with pytest.raises(ValueError, match=r"X must be a data frame or an array.*give X.toarray"):
        gpx.auto((scipy.sparse.csr_matrix(X), LINE))
    frame = pandas.DataFrame(X)
    for pair in ((X, LINE), (X, None), (X.tolist(), LINE.tolist()), (frame, LINE.astype(str))):
        with pytest.raises(ValueError, match=r"as a pair: auto\(\(X, y\)\)"):
            gpx.auto(*pair)
    with pytest.raises(ValueError, match="leave it out where y is given"):
        gpx.auto((X, LINE), "weight")
    with pytest.raises(ValueError, match="a Split has been read already"):
        gpx.auto(gpx.datasets.load("breast_cancer"), "ill")


def test_inputs_may_be_called_as_targets_without_a_name_are() -> None:
    places = pandas.DataFrame({"x": X[:, 0], "y": X[:, 1]})
    split = auto._read((places, LINE), None, None, {})
    assert (split.feature_names, split.target) == (("x", "y"), "target_y")
    np.testing.assert_array_equal(split.train[1][:, 0], LINE[split.rows[0]])
    split = auto._read((places.rename(columns={"x": "y1"}), np.column_stack([LINE, -LINE])), None, None, {})
    assert split.feature_names == ("y1", "y")


@pytest.mark.parametrize(("name", "target"), [("y", None), (2, "2")])
def test_labels_are_found_by_the_name_that_the_reader_gives_the_target(name: Any, target: str | None) -> None:
    frame = pandas.DataFrame({0: X[:, 0], 1: X[:, 1], name: LINE > 100.0})
    split = auto._read(frame, target, None, {})
    assert auto._classes(frame, split).tolist() == [False, True]


def test_a_pair_keeps_what_categories_tell() -> None:
    y = pandas.Series(
        pandas.Categorical(["lo", "mid", "hi"] * 4, categories=["lo", "mid", "hi"], ordered=True)
    )
    split = auto._read((X[:12], y), None, None, {})
    assert (split.task, split.labels) == ("ordinal", ("lo", "mid", "hi"))
    split = auto._read((X[:12], pandas.Categorical([3, 10, 5] * 4)), None, None, {})
    assert (split.task, split.labels) == ("multiclass", ("3", "5", "10"))


def test_raw_rows_of_counts_are_served_at_their_exposures(tmp_path: Path) -> None:
    """By the SavedModel, and by the server for many rows and for one."""
    days = RNG.uniform(0.5, 20.0, 50)
    falls = RNG.poisson(days * np.exp(X[:, 0]))
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(days=days, falls=falls)
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
    named = {"age": 1.0, "height": 1.0, "days": 2.0}
    with pytest.raises(
        RefusedError, match=r"unknown inputs: \['days'\]; the exposure of a count is \"exposure\""
    ):
        app._predicted_by_names(json.dumps(named).encode())
    with pytest.raises(RefusedError, match='at an "exposure" go with "signature_name": "predict_raw_counts"'):
        app._predicted(json.dumps({"signature_name": "predict_raw", "instances": [named]}).encode())

    few, exposures = table[:2].assign(days=[2.0, 1e200]), [2.0, 1e200]  # the variance of the latter overflows
    few.to_csv(tmp_path / "few.csv", index=False)
    predict(served, tmp_path / "few.csv", tmp_path / "out.csv", [], 10, "days")
    told = pandas.read_csv(tmp_path / "out.csv").is_finite == 1
    assert told.tolist() == served.predict_raw(few, exposures)["is_finite"].tolist() == [True, False]


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

    def chosen(kernel: Any, X: Any, **options: Any) -> list[str]:
        return list(of_neighbours({"a": GPRegressor(kernel, **options)}, ["a"], X, target[: len(X)]))

    plain = kernels.matern(2)
    assert chosen(plain, places) == ["a, nearest neighbours"]
    assert chosen(plain, places[:90]) == []  # dense
    assert chosen(kernels.linear(2), places) == []
    assert chosen(plain, places, noise="student_t") == []
    assert chosen(kernels.matern(1), places[:, :1]) == []  # a state space
    assert chosen(kernels.matern(4), np.column_stack([places, places**2])) == []
    two = {"line": GPRegressor(kernels.linear(2)), "a": GPRegressor(plain)}
    [(name, twin)] = of_neighbours(two, ["line", "a"], places, target).items()
    assert name == "a, nearest neighbours"
    assert twin.model_of(places, target)[0].prior_name == "vecchia"
    assert two["a"].model_of(places, target)[0].prior_name is None
    monkeypatch.setattr(ladder, "MINIBATCHES", 149)
    assert chosen(plain, places) == []


@pytest.mark.parametrize(("rows", "better"), [(200, True), (200, False), (110, True)])
def test_places_are_tried_with_nearest_neighbours(
    monkeypatch: pytest.MonkeyPatch, untrained: None, rows: int, better: bool
) -> None:
    """Where there are too many rows for a dense model: on the second rung, or on one that has most of them."""
    monkeypatch.setattr(ladder, "DENSE", {"sites": 100, "variational": 100, "ep": 100})
    monkeypatch.setattr(ladder, "POINTS", 5)
    monkeypatch.setattr(rungs, "FIRST", 80)
    monkeypatch.setattr(rungs, "scored", lambda estimator, data, parts, *_: _score(
        1.0 if estimator._prior is None else (0.5 if better else 1.5), len(parts[0].train)
    ))  # fmt: skip
    best = gpx.auto(_places(rows), budget=91.0, progress=False)
    assert best.model.prior_name == ("vecchia" if better else None)
    of = "each value depends on its 20 nearest neighbours" if better else "it has 5 inducing points"
    assert f", and {of}. " in best.why
    assert ("nearest neighbours predicts best" in best.why) == better
    assert best.table["weight"].sum() == 1.0


@pytest.mark.slow  # both priors are trained
def test_places_of_a_rough_function_have_nearest_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "DENSE", {"sites": 100, "variational": 100, "ep": 100})
    monkeypatch.setattr(ladder, "POINTS", 5)
    places, f = _places(300, scale=0.2)
    target = (f + 0.1 * np.random.default_rng(1).normal(size=300))[:, None]
    plain = {"Matérn": GPRegressor(kernels.matern(2), standardise=False)}  # as `auto` makes them
    both = plain | of_neighbours(plain, ["Matérn"], places, target)
    [parts] = rungs.rungs(target, 0, 1.0)
    found = [rungs.scored(each, rungs.Data(places, target), parts[:1], 20.0, 0) for each in both.values()]
    assert [each.rows for each in found] == [240, 240]
    assert found[1].nlpd < 0.5 < found[0].nlpd


def test_a_level_without_rows_is_left_out_with_a_note() -> None:
    """Of ordered categories, the first of which no row has."""
    levels = ["none", "low", "high"]
    y = pandas.Categorical(np.where(X[:, 0] > 0.0, "high", "low"), categories=levels, ordered=True)
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(y=y)
    split = auto._without_idle_classes(gpx.datasets.load(table, target="y", test_fraction=0.2))
    assert (split.labels, split.task) == (("low", "high"), "ordinal")
    for part, rows in zip(split, split.rows, strict=True):
        np.testing.assert_array_equal(part[1][:, 0], X[rows, 0] > 0.0)
    assert split.notes[-1] == "no row has none as its y: left out of the classes"
    assert auto._without_idle_classes(split) is split


def test_a_class_that_only_test_rows_have_is_refused() -> None:
    """It would have no probability, or the number of another class."""
    table = pandas.DataFrame(X, columns=["age", "height"]).assign(y=np.where(X[:, 0] > 0.0, "high", "low"))
    split = gpx.datasets.load(table, target="y", test=table[:5].assign(y=["middle", *table.y[1:5]]))
    with pytest.raises(ValueError, match="no training row has middle as its y, which test rows have"):
        gpx.auto(split)


def test_raw_rows_are_mappings_too_and_arrays_have_the_columns_of_the_table(
    best: gpx.Auto, tmp_path: Path
) -> None:
    names = [column.name for column in best.split.treatment.columns]
    rows = {name: X[:2, column] for column, name in enumerate(names)}
    expected = best.predict(X[:2])
    np.testing.assert_array_equal(best.predict(rows), expected)
    np.testing.assert_array_equal(best.predict([{n: rows[n][i] for n in names} for i in range(2)]), expected)
    np.testing.assert_array_equal(best.predict(pandas.DataFrame(rows).iloc[0]), expected[:1])
    file = tmp_path / "rows.csv"
    pandas.DataFrame(rows).to_csv(file, index=False)
    for path in (file, str(file)):
        np.testing.assert_array_equal(best.predict(path), expected)
    arrays = dataclasses.replace(best, split=dataclasses.replace(best.split, treatment=None))
    np.testing.assert_array_equal(arrays.predict(file), expected)
    gap = (
        r"row 1: the input '\w+' is missing, infinite, .* \(1 such rows\): leave them out, or fill their gaps"
    )
    for method in (best.predict, lambda gaps: best.score(gaps, [1.0, 2.0])):
        with pytest.raises(ValueError, match=gap):
            method({**rows, names[-1]: [1.0, np.nan]})
    for wrong in (np.ones((2, len(names) + 1)), np.ones(len(names))):
        with pytest.raises(ValueError, match="rows must be a data frame, or an array"):
            best.predict(wrong)
