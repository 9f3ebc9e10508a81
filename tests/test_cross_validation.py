"""Cross-validation: its folds, its scores, and what it does with a fold that fails."""

from __future__ import annotations

import io
import math
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
from gpflow.keras import tf_keras
from gpflow.models import GPR, SVGP

import gpflow_ext as gpx
from gpflow_ext.compiled import trace_count
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import GPLaplace
from gpflow_ext.training.loop import Status

DATA = problems.binary(40)
REAL = problems.continuous(20)


def held(data: Any) -> GPLaplace:
    model = GPLaplace(data, problems.kernel(), BernoulliLogit())
    gpflow.set_trainable(model, False)
    return model


def regression(data: Any) -> GPR:
    return GPR(data, problems.kernel(), noise_variance=0.1)


def test_scores_are_those_of_each_fold_on_its_own() -> None:
    found = gpx.cross_validate(held, DATA, folds=4, seed=3)
    X, Y = DATA
    for fold, rows in enumerate(found.rows):
        others = np.setdiff1d(np.arange(40), rows)
        model = held((X[others], Y[others]))
        gpx.fit(model, progress=False)
        expected = gpx.metrics.evaluate(model, (X[rows], Y[rows]))
        assert {name: values[fold] for name, values in found.scores.items()} == expected
    errors = found.scores["error"]
    assert found.mean["error"] == errors.mean()
    np.testing.assert_allclose(found.standard_error["error"], errors.std(ddof=1) / 2.0, rtol=1e-12)
    assert found.statuses == (Status.CONVERGED,) * 4
    assert found.seconds.shape == (4,)
    assert (found.seconds > 0.0).all()


def test_the_seed_decides_and_not_the_number_of_workers() -> None:
    one, three, other = (
        gpx.cross_validate(lambda data: GPLaplace(data, problems.kernel(), BernoulliLogit()), DATA, **options)
        for options in (
            {"folds": 5, "workers": 1},
            {"folds": 5, "workers": 3},
            {"folds": 5, "workers": 3, "seed": 1},
        )
    )
    assert all(np.array_equal(one.scores[name], three.scores[name]) for name in one.scores)
    assert all(map(np.array_equal, one.rows, three.rows))
    assert not all(map(np.array_equal, one.rows, other.rows))


def test_a_second_cross_validation_traces_nothing() -> None:
    gpx.cross_validate(held, DATA, folds=4)
    before = trace_count()
    gpx.cross_validate(held, problems.binary(33, seed=4), folds=3)
    assert trace_count() == before


@pytest.mark.parametrize(("folds", "stratified"), [(2, True), (7, None), (7, False), (40, False)])
def test_folds_part_the_rows(folds: int, stratified: bool | None) -> None:
    rows = gpx.cross_validate(
        held, DATA, folds=folds, stratified=stratified, metrics=lambda model, test: {"one": 1.0}, steps=0
    ).rows
    assert sorted(np.concatenate(rows)) == list(range(40))
    assert {len(part) for part in rows} <= {40 // folds, 40 // folds + 1}
    if stratified is not False:
        ones = [DATA[1][part].sum() for part in rows]
        assert max(ones) - min(ones) <= 1.0


def test_only_classes_are_stratified_by_default() -> None:
    def shares(Y: np.ndarray, **options: Any) -> set[float]:
        found = gpx.cross_validate(
            regression, (problems.inputs(40), Y), folds=4, steps=0, metrics=lambda *_: {"one": 1.0}, **options
        )
        return {float((Y[rows] == 1.0).sum()) for rows in found.rows}

    labels = np.repeat([0.0, 1.0], 20)[:, None]
    assert shares(labels) == {5.0}
    assert len(shares(labels, stratified=False)) > 1
    assert len(shares(labels + np.repeat([0.0, 0.5], [39, 1])[:, None])) > 1
    assert shares(labels + np.repeat([0.0, 8.0], [39, 1])[:, None]) != {5.0}  # a value of one row


def test_models_that_do_not_hold_their_data_get_them() -> None:
    def build(data: Any) -> SVGP:
        return SVGP(problems.kernel(), BernoulliLogit(), data[0][:5].copy(), num_data=len(data[0]))

    found = gpx.cross_validate(build, DATA, folds=2, recipe="adam", steps=3)
    assert [result.steps for result in found.results if result is not None] == [3, 3]
    assert found.statuses == (Status.MAX_STEPS,) * 2
    assert "2 not converged" in str(found)


def test_missing_ones_of_several_targets_are_trained_on_and_not_scored() -> None:
    X, Y = REAL[0], np.repeat(REAL[1], 2, axis=1)
    Y[::5, 1] = np.nan
    trained: list[int] = []

    def build(data: Any) -> GPR:
        trained.append(int(np.isnan(data[1]).sum()))
        return regression((data[0], data[1][:, :1]))

    def counts(_: Any, test: Any) -> dict[str, float]:
        return {"rows": len(test[0]), "missing": np.isnan(test[1]).sum()}

    found = gpx.cross_validate(build, (X, Y), folds=2, steps=0, metrics=counts)
    gaps = [int(np.isnan(Y[rows]).sum()) for rows in found.rows]
    assert sorted(trained) == sorted(gaps)
    np.testing.assert_array_equal(found.scores["rows"], [10 - gap for gap in gaps])
    assert not found.scores["missing"].any()
    with pytest.raises(ValueError, match="Y must be finite; row 0"):
        gpx.cross_validate(build, (X, Y[:, 1:]), folds=2)


def test_a_failed_fold_is_nan_and_told() -> None:
    first = gpx.cross_validate(regression, REAL, folds=4, steps=0).rows[1][0]

    def build(data: Any) -> GPR:
        if not (data[0] == REAL[0][first]).all(axis=1).any():
            raise FloatingPointError("no such row")
        return regression(data)

    with pytest.warns(UserWarning, match="Fold 1 failed.*FloatingPointError: no such row"):
        found = gpx.cross_validate(build, REAL, folds=4, steps=0)
    for values in found.scores.values():
        np.testing.assert_array_equal(np.isnan(values), [False, True, False, False])
    assert found.mean["rmse"] == np.delete(found.scores["rmse"], 1).mean()
    assert found.results[1] is None
    assert found.statuses[1] is None
    assert [str(error) for error in found.errors] == ["None", "no such row", "None", "None"]
    assert "4 folds, 1 failed" in str(found)


def test_what_fails_everywhere_is_raised() -> None:
    with pytest.raises(ValueError, match="0 and 1"):
        gpx.cross_validate(held, REAL, folds=3)


def test_scores_that_are_no_numbers_are_left_out() -> None:
    def some(model: Any, test: Any) -> dict[str, float]:
        return {"one": 2.0 if len(test[0]) == 2 else math.nan, "none": math.nan}

    found = gpx.cross_validate(regression, problems.continuous(4), folds=3, steps=0, metrics=some)
    np.testing.assert_array_equal(found.scores["one"], [2.0, np.nan, np.nan])
    assert found.mean["one"] == 2.0
    assert math.isnan(found.standard_error["one"])
    assert math.isnan(found.mean["none"])
    assert found.results.count(None) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folds": 1}, "from 2 to 20"),
        ({"folds": 21}, "from 2 to 20.*got 21"),
        ({"workers": 0}, "`workers` must be at least 1"),
        ({"checkpoint_dir": "here"}, "`checkpoint_dir` is of a single run"),
        ({"stratified": True}, "has one row"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpx.cross_validate(regression, REAL, **options)


def test_a_class_that_training_would_miss_is_refused() -> None:
    X, Y = problems.inputs(9), np.repeat([0.0, 1.0], [8, 1])[:, None]
    with pytest.raises(ValueError, match="Class 1 has one row"):
        gpx.cross_validate(held, (X, Y), folds=3, stratified=True)
    with pytest.raises(ValueError, match="one column of classes; Y has 2"):
        gpx.cross_validate(held, (X, np.eye(9)[:, :2]), folds=3, stratified=True)
    with pytest.raises(ValueError, match="same number of rows"):
        gpx.cross_validate(held, (X, Y[1:]), folds=3)


def test_a_bar_counts_the_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    gpx.cross_validate(regression, REAL, folds=3, steps=1, progress=True)
    assert "folds" in shown.getvalue()
    assert "3/3" in shown.getvalue()


def test_every_fold_has_an_optimiser_of_its_own() -> None:
    """With a schedule and moments: a fold would otherwise go on from where another one is, or fail."""

    def run(workers: int) -> Any:
        schedule = tf_keras.optimizers.schedules.CosineDecay(0.05, 6)
        given = tf_keras.optimizers.SGD(schedule, momentum=0.9)
        options = {"recipe": "adam", "optimizer": given, "steps": 6}
        return gpx.cross_validate(regression, problems.continuous(24), folds=3, workers=workers, **options)

    one, three = run(1), run(3)
    assert one.results[0] is not None
    for first, second in zip(one.results, three.results, strict=True):
        np.testing.assert_array_equal(first.objective, second.objective)


@pytest.mark.parametrize("fold", [0, 3])
def test_a_score_that_a_fold_lacks_is_the_mean_of_the_others(fold: int) -> None:
    """Targets that are all 0 have no normalised error; the first fold lost that of all."""
    rows = gpx.cross_validate(regression, REAL, folds=4, stratified=False, steps=1).rows[fold]
    X, Y = REAL[0], np.array(REAL[1])
    Y[rows] = 0.0
    found = gpx.cross_validate(regression, (X, Y), folds=4, stratified=False, steps=1)
    errors = found.scores["nmae"]
    assert np.flatnonzero(np.isnan(errors)).tolist() == [fold]
    assert found.mean["nmae"] == np.delete(errors, fold).mean()
