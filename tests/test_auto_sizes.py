"""`auto` gives more rows, or more inducing points, to hyperparameters that it has learnt on fewer rows."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.estimators import (
    GPClassifier,
    GPRegressor,
    auto,
    base,
    conditioning,
    halving,
    kernels,
    ladder,
    larger,
    refit,
    rungs,
    warm,
)
from gpflow_ext.estimators.conditioning import Size

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (120, 2))
SMOOTH = np.sin(3.0 * X[:, :1]) + np.cos(2.0 * X[:, 1:])


MORE_ROWS_FIRST = larger.more_rows_first


def learnt(noise: float = 1e-4, rows: int = 40) -> GPRegressor:
    """Return a candidate that has found hyperparameters on the first rows."""
    estimator = GPRegressor(kernels.matern(2), standardise=False)
    model, _ = estimator.model_of(X[:rows], SMOOTH[:rows])
    model.kernel.lengthscales.assign(0.7)
    model.likelihood.likelihood.variance.assign(noise)
    estimator._earlier = (model,)
    return estimator


def test_rows_and_points_are_tried_by_their_work() -> None:
    assert conditioning.sizes(1800) == [Size(1800, None)]
    assert conditioning.sizes(2500) == [Size(2000, None), Size(2500, None)]
    assert conditioning.sizes(8000) == [
        Size(2000, None),
        Size(8000, 1000),
        Size(3000, None),
        Size(8000, 2000),
        Size(4000, None),
        Size(8000, 4000),
    ]
    assert {size.points for size in conditioning.sizes(20_000)} == {None, 1000, 2000, 3200}
    assert {size.points for size in conditioning.sizes(20_001)} == {None}  # minibatches are quicker
    assert conditioning.sizes(2500, 8) == [
        Size(1000, None),
        Size(2500, 1000),
        Size(1500, None),
        Size(2000, None),
        Size(2500, 2000),
    ]


def test_what_is_held_is_the_exact_posterior_of_the_rows() -> None:
    """The hyperparameters are those of fewer rows, however far from the start, and may be trained later."""
    estimator = learnt(noise=2e-4)  # a training would not begin below 1e-3
    twin = conditioning.twin(estimator, Size(len(X), None))
    [part] = rungs.whole(SMOOTH, 0)[:1]
    score = rungs.scored(twin, rungs.Data(X, SMOOTH), [part], 60.0, 0)
    [model] = score.models
    [earlier] = estimator._earlier
    np.testing.assert_allclose(model.kernel.lengthscales, 0.7, rtol=1e-12)
    np.testing.assert_allclose(model.likelihood.likelihood.variance, 2e-4, rtol=1e-9)
    assert {id(each) for each in model.kernel.trainable_parameters} == {
        id(each) for each in model.kernel.parameters
    }
    targets = SMOOTH[part.train]
    scale = targets.std()
    exact = gpflow.models.GPR((X[part.train], (targets - targets.mean()) / scale), earlier.kernel)
    exact.likelihood.variance.assign(2e-4)
    held = (SMOOTH[part.held] - targets.mean()) / scale
    expected = exact.predict_log_density((X[part.held], held)).numpy() - np.log(scale)
    # GPflow's jitter of 1e-6 is half a per cent of the noise.
    np.testing.assert_allclose(score.log_densities, expected, rtol=0.0, atol=5e-3)


def test_the_size_is_not_that_of_a_later_training() -> None:
    """Which would learn by so many points, from all rows at each step."""
    twin = conditioning.twin(learnt(), Size(60, 40))
    assert (twin.num_inducing, twin.minibatch_size) == (40, 60)
    refit._free(twin)
    assert (twin.num_inducing, twin.minibatch_size) == (None, None)
    given = GPRegressor(num_inducing=7)
    refit._free(given)
    assert given.num_inducing == 7


def test_a_failed_training_leaves_what_was_held_trainable() -> None:
    model, earlier = (learnt()._earlier[0] for _ in range(2))

    def fails() -> None:
        with warm.begun(model, earlier, held=True):
            assert not model.kernel.trainable_parameters
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fails()
    assert len(model.kernel.trainable_parameters) == 2


@pytest.mark.slow
def test_points_that_are_too_certain_are_told_by_the_rows_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """With almost no noise thirty points cannot bend as the function does, and are certain where they are."""
    monkeypatch.setattr(conditioning, "_SEEN", 60)
    data, parts = rungs.Data(X, SMOOTH), rungs.whole(SMOOTH, 0)[:1]
    for noise, size, expected in ((2e-5, Size(120, 30), True), (0.5, Size(120, 30), False)):
        score = rungs.scored(conditioning.twin(learnt(noise), size), data, parts, 60.0, 0)
        assert conditioning._too_certain(score, data, parts) is expected


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what lets a candidate of 9,000 rows be extended, each size having an NLPD and some seconds."""
    now = [0.0]
    monkeypatch.setattr(conditioning.time, "perf_counter", lambda: now[0])

    def extend(
        nlpds: dict[Size, float], seconds: dict[Size, float], ends: float, certain: bool = False
    ) -> Any:
        tried: list[Any] = []

        def scored(twin: Any, data: Any, parts: Any, *_: Any) -> rungs.Score:
            if not twin._held:
                tried.append("trained")
                return dataclasses.replace(_score(0.05), rows=len(parts[0].train))
            size = Size(twin._most, twin.num_inducing)
            tried.append(size)
            now[0] += seconds[size]
            return _score(nlpds[size], seconds[size])

        monkeypatch.setattr(rungs, "scored", scored)
        monkeypatch.setattr(conditioning, "_too_certain", lambda *_: certain)
        data = rungs.Data(RNG.normal(size=(9000, 2)), RNG.normal(size=(9000, 1)))
        line = GPRegressor(kernels.linear(2))
        comparison = halving.Comparison({"linear": line, "a": learnt()}, {}, np.arange(9))
        comparison.add("linear", line, _score(0.1))
        comparison.add("a", comparison.found["a"], dataclasses.replace(_score(2.0), models=learnt()._earlier))
        now[0] = 0.0
        conditioning.extend(comparison, data, ends, 0)
        return tried, comparison

    return extend


def _score(nlpd: float, seconds: float = 1.0) -> rungs.Score:
    return rungs.Score(40, -nlpd + np.array([-0.1, 0.1]), ("rmse", 1.0), seconds)


SIZES = conditioning.sizes(9000)
NAME = "a as learnt on 40 rows"


def test_the_largest_size_that_gains_is_chosen(compared: Any) -> None:
    """Of many points and of many rows each is given up when it gains nothing over what was best."""
    dense, points, denser, _, densest, _ = SIZES
    nlpds = {dense: 1.0, points: 1.2, denser: 0.7, densest: 0.5}
    tried, comparison = compared(nlpds, dict.fromkeys(SIZES, 1.0), 1e4)
    assert tried == [dense, points, denser, densest]
    assert comparison.ranked()[NAME].nlpd == pytest.approx(0.5)
    assert comparison.found[NAME]._most == 4000
    assert [score.nlpd for score in comparison.scores[NAME]] == pytest.approx([1.0, 1.2, 0.7, 0.5])


def test_what_many_points_are_best_for_is_trained_on_all_rows(compared: Any) -> None:
    """In the time that is left, half of which is for what is held out too."""
    dense, points, *_ = SIZES
    nlpds, seconds = {dense: 1.0, points: 0.5}, {dense: 5.0, points: 40.0}
    assert compared(nlpds, seconds, 45.0 + 2.0 * 4.9)[0] == [dense, points]
    tried, comparison = compared(nlpds, seconds, 45.0 + 2.0 * 5.1)
    assert tried == [dense, points, "trained"]
    assert comparison.best == "a"
    assert comparison.ranked()["a"].rows == 7200
    assert comparison.found["a"]._rows == 9000
    assert set(comparison.found) == set(comparison.scores) == {"linear", "a"}


def test_points_that_are_too_certain_are_not_chosen(compared: Any) -> None:
    dense, points, denser, _, densest, _ = SIZES
    nlpds = {dense: 1.0, points: 0.0, denser: 0.7, densest: 0.5}
    tried, comparison = compared(nlpds, dict.fromkeys(SIZES, 1.0), 1e4, certain=True)
    assert tried == [dense, points, denser, densest]
    assert comparison.found[NAME]._most == 4000


def test_a_size_is_tried_where_there_is_time_for_it_and_for_the_training_after_it(compared: Any) -> None:
    """Three of the first one's five seconds are the same for all; the others grow with the work."""
    dense, points, denser, *_ = SIZES
    nlpds, seconds = {dense: 1.0, points: 0.5, denser: 0.0}, {dense: 5.0, points: 5.25, denser: 20.0}
    assert compared(nlpds, seconds, 5.0 + 2.0 * 5.24)[0] == [dense]
    assert compared(nlpds, seconds, 5.0 + 2.0 * 5.26)[0] == [dense, points]
    assert compared(nlpds, seconds, 10.25 + 1.5 * 9.74)[0] == [dense, points, "trained"]
    assert compared(nlpds, seconds, 10.25 + 1.5 * 9.76)[0] == [dense, points, denser]


@pytest.fixture
def enlarged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what gives larger models to candidates of 9,000 rows on minibatches, of which 7,200 are for training."""
    now = [0.0]
    monkeypatch.setattr(larger.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(ladder, "MINIBATCHES", 8000)
    monkeypatch.setattr(larger, "more_rows_first", lambda *_: False)

    def extend(ends: float, nlpds: dict[int | None, float], pace: float = 0.1) -> Any:
        tried: list[tuple[int | None, float]] = []

        def scored(twin: Any, data: Any, parts: Any, seconds: float, *_: Any) -> rungs.Score:
            tried.append((twin.num_inducing, seconds))
            took = 4.0 if twin._held else seconds
            now[0] += took
            found = _score(nlpds[twin.num_inducing])
            return dataclasses.replace(found, seconds=took, first=5.0, pace=pace, models=learnt()._earlier)

        monkeypatch.setattr(rungs, "scored", scored)
        comparison = halving.Comparison({}, {}, np.arange(9))
        for place, name in enumerate(("a", "b", "c", "linear", "d")):
            estimator = GPRegressor(kernels.linear(2)) if name == "linear" else learnt()
            comparison.add(
                name, estimator, dataclasses.replace(_score(2.0 + place), models=learnt()._earlier)
            )
        data = rungs.Data(RNG.normal(size=(9000, 2)), RNG.normal(size=(9000, 1)))
        now[0] = 0.0
        larger.extend(comparison, data, ends, 0)
        return tried, list(comparison.ranked())

    return extend


@pytest.mark.parametrize(("ends", "expected"), [(30.0, [10.0]), (90.0, [15.0] * 2), (120.0, [40 / 3] * 3)])
def test_the_better_half_is_trained_on_minibatches(enlarged: Any, ends: float, expected: list[float]) -> None:
    """In a third of the time, in which each has twelve seconds."""
    tried, names = enlarged(ends, {300: 1.0, None: 1.5, 600: 3.0}, pace=10.0)
    assert tried[: len(expected)] == [(300, pytest.approx(seconds)) for seconds in expected]
    assert [points for points, _ in tried[len(expected) :]] == [None]  # no more rows than 2,000
    assert names[: len(expected)] == [f"{name}, 300 points" for name in "abc"[: len(expected)]]


def test_minibatches_that_are_no_better_than_few_rows_are_given_up(enlarged: Any) -> None:
    tried, names = enlarged(120.0, {300: 2.1, None: 1.5})
    assert [points for points, _ in tried] == [300] + [None] * 2
    assert names[:2] == ["a as learnt on 40 rows", "a"]


@pytest.mark.parametrize(("first", "some"), [(0.9, True), (1.1, False)])
def test_more_points_are_tried_where_there_is_time_for_a_pass(
    enlarged: Any, first: float, some: bool
) -> None:
    """Half of 28 seconds left: five for a first step, and nine for 7.2 others, which take four times as long."""
    tried, names = enlarged(48.0, {300: 1.0, None: 1.5, 600: 0.5}, pace=9.0 * first / (4.0 * 7.2))
    assert tried[2:] == ([(600, pytest.approx(14.0))] if some else [])
    assert names[0] == ("a, 600 points" if some else "a, 300 points")


@pytest.mark.parametrize(("ends", "expected"), [(47.9, [None] * 2), (48.1, [None] * 2 + [300])])
def test_more_rows_go_first_where_the_noise_is_gaussian(
    enlarged: Any, monkeypatch: pytest.MonkeyPatch, ends: float, expected: list[int | None]
) -> None:
    """Two posteriors take eight seconds, and the last training one; minibatches then need a third of 36."""
    monkeypatch.setattr(larger, "more_rows_first", MORE_ROWS_FIRST)
    tried, names = enlarged(ends, {300: 3.5, None: 1.5, 600: 3.0})
    assert [points for points, _ in tried] == expected
    assert ("a, 300 points" in names) == (len(expected) > 2)  # of what few rows have taught, not of more


def test_what_few_rows_have_taught_has_more_rows_where_it_is_better(enlarged: Any) -> None:
    """The second size gains nothing over the first."""
    tried, names = enlarged(1e4, {300: 1.0, None: 0.5, 600: 0.2})
    assert [points for points, _ in tried] == [300] * 3 + [None] * 2
    assert names[0] == "a as learnt on 40 rows"


def test_few_rows_for_all_have_every_class() -> None:
    """One of 100 rows is of the third class, and ten rows are drawn."""
    rng = np.random.default_rng(0)
    inputs, classes = rng.normal(size=(100, 2)), np.repeat([0.0, 1.0, 2.0], [50, 49, 1])[:, None]
    split = SimpleNamespace(train=(inputs, classes), labels=("a", "b", "c"), exposure=None, weights=None)
    given: list[Any] = []

    class Noted(GPClassifier):
        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Noted:
            given.append((X, y))
            return self

    estimator = Noted()
    refit._train(estimator, split, 0)  # type: ignore[arg-type]
    estimator._most = 10
    refit._train(estimator, split, 0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(given[0][0], inputs)
    assert 10 <= len(given[1][0]) <= 13
    assert set(given[1][1]) == {0.0, 1.0, 2.0}


@pytest.mark.slow
def test_auto_ends_with_more_rows_than_it_learns_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function is smooth and without noise: all 120 rows tell it better than thirty."""
    for module, name, value in (
        (rungs, "FIRST", 30),
        (rungs, "_ENOUGH", 24),
        (ladder, "DENSE", {"sites": 60, "variational": 60, "ep": 60}),
        (ladder, "POINTS", 5),
        (conditioning, "_DENSE", (60, 120)),
    ):
        monkeypatch.setattr(module, name, value)
    plain = {
        name: GPRegressor(make(2), standardise=False)
        for name, make in (("linear", kernels.linear), ("a", kernels.matern))
    }
    monkeypatch.setattr(auto, "candidates", lambda *_: plain)
    best = gpx.auto((X, SMOOTH[:, 0]), budget=80.0, average=False, progress=False)
    assert best.table["candidate"][0] == "a as learnt on 30 rows"
    assert "every row is a point of it" in best.why
    assert len(best.model.data[0]) == 120
    assert best.model.kernel.trainable_parameters
    estimator = best.estimator
    assert (estimator._held, estimator._earlier, estimator._most) == (False, (), None)
    assert isinstance(estimator, base.GPEstimator)
    assert np.abs(best.predict(X) - SMOOTH[:, 0]).max() < 0.1
