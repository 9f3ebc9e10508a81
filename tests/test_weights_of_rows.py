"""Weights of rows from a table to a model: read, kept out of the inputs, trained and scored by."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pandas
import problems
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.cli import kinds, likelihoods, tables, train, training
from gpflow_ext.data.datasets import load
from gpflow_ext.data.reading.problems import TableError
from gpflow_ext.estimators import averaging, rungs
from gpflow_ext.estimators.candidates import candidates
from gpflow_ext.likelihoods import Standardised, Weighted
from gpflow_ext.prediction.average import stacking_weights

RNG = np.random.default_rng(0)
N = 40
COPIES = RNG.integers(0, 4, N)
TABLE = pandas.DataFrame(
    {
        "x": RNG.normal(size=N),
        "kind": [("u", "v")[i % 2] for i in range(N)],
        "w": COPIES.astype(float),
        "y": RNG.normal(size=N),
    }
)
LACKS = int(np.argmax(COPIES))
GAP = TABLE.assign(x=TABLE["x"].where(TABLE.index != LACKS))


def copied(table: pandas.DataFrame) -> pandas.DataFrame:
    """Return each row as often as it counts, without its weight."""
    return table.loc[table.index.repeat(COPIES)].drop(columns="w").reset_index(drop=True)


@pytest.mark.parametrize("standardise", [True, "common"])
def test_inputs_are_scaled_and_filled_as_those_of_copies(standardise: Any) -> None:
    options: dict[str, Any] = {"target": "y", "missing": "mean", "standardise": standardise}
    split = load(GAP, weights="w", test_fraction=0.0, **options)
    others = load(copied(GAP), test_fraction=0.0, **options)
    assert split.feature_names == others.feature_names == ("x", "kind=u", "kind=v", "x is missing")
    np.testing.assert_allclose(split.scaler.mean, others.scaler.mean, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(split.scaler.scale, others.scaler.scale, rtol=1e-12)
    assert split.weights is not None
    np.testing.assert_array_equal(split.weights[0][:, 0], COPIES[split.rows[0]])
    none = np.sum(COPIES == 0)
    assert len(split.train[0]) == N - none
    assert f"{none} rows of weight 0 are left out" in split.notes
    assert f"weights (column w): {N - none} training rows count as {COPIES.sum()}" in split.notes


def test_weights_are_given_beside_a_table_too(tmp_path: Path) -> None:
    by_name = load(TABLE, target="y", weights="w")
    TABLE.drop(columns="w").to_csv(tmp_path / "table.csv", index=False)
    for weights in (TABLE["w"], COPIES.tolist(), COPIES[:, None]):
        split = load(tmp_path / "table.csv", target="y", weights=weights)
        for ours, theirs in zip(split.weights or (), by_name.weights or (), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_allclose(split.train[0], by_name.train[0], rtol=1e-12)
    assert load(TABLE, target="y").weights is None
    assert load("wine", weights=np.full(178, 2.0)).weights[0].sum() == 2 * 142


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (TABLE.assign(w=0.0), {}, "the weight 'w' is 0 in every row"),
        (TABLE.assign(w=-1.0), {}, r"row 1, the weight 'w' is -1: a weight is a number from 0 \(40 such"),
        (TABLE.assign(w=np.inf), {}, "row 1, the weight 'w' is inf"),
        (TABLE.assign(w=TABLE["w"].where(TABLE.index > 0)), {}, "1 values are missing in 1 rows"),
        (TABLE.assign(w=TABLE["w"].where(TABLE.index > 0)), {"missing": "mean"}, "the weight 'w' is nan"),
        (TABLE, {"weights": "kind"}, "the weight 'kind' must hold numbers; it was read as one-hot"),
        (TABLE, {"weights": "y"}, "column 'y' cannot hold the weights: it is in `target` too"),
        (TABLE, {"drop": ["w"]}, "column 'w' cannot hold the weights: it is in `drop` too"),
        (TABLE, {"weights": "ww"}, r"weights 'ww' is not a column; .*did you mean w\?"),
        (TABLE, {"weights": -COPIES - 1}, "the weight 'weights' is -"),
    ],
)
def test_wrong_weights_are_problems_of_the_table(table: Any, options: Any, message: str) -> None:
    with pytest.raises(TableError, match=message):
        load(table, **{"target": "y", "weights": "w", **options})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (TABLE, {"target": "y", "weights": COPIES[1:]}, r"weights must be \[40\], one for each row of frame"),
        (TABLE, {"target": "y", "weights": ["a"] * N}, "weights must be numbers, or the name of a column"),
        (TABLE, {"target": "x", "task": "events", "weights": "w"}, "events are counted, once each"),
        ("wine", {"weights": "w"}, "weights='w' is for the columns of a table; 'wine' is not one"),
    ],
)
def test_weights_that_cannot_be_are_refused(name: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, **options)


def test_all_that_is_wrong_is_told_together() -> None:
    with pytest.raises(TableError) as found:
        load(GAP.assign(w=-1.0), target="y", weights="w")
    assert [problem.column for problem in found.value.problems] == ["w", "x"]
    with pytest.raises(TableError) as found:
        load(TABLE, target="z", weights="v", drop=["u"])
    assert [problem.column for problem in found.value.problems] == ["u", "z", "v"]


# ----------------------------------------------------------------------------------------------------- the shell


def built(folder: Path, name: str, target: str, *own: str) -> tuple[Any, Any, Any]:
    """Return flags, data and the untrained model of a table with the weights 0, 1, 2, 3."""
    X, Y = problems.binary(N)
    table = pandas.DataFrame(X, columns=["a", "b"]).assign(
        w=COPIES,
        days=1.0 + np.arange(N) % 5,
        word=np.where(Y[:, 0] > 0, "ill", "well"),
        level=np.digitize(X[:, 0], [-1.0, 1.0]),
        price=1000.0 + 100.0 * np.sin(X[:, 0]),
    )
    columns = ["a", "b", "w", target, *(["days"] if "days" in own else [])]
    table[columns].to_csv(folder / "table.csv", index=False)
    flags = ["--data", str(folder / "table.csv"), "--target", target, "--weights", "w", *own]
    options = train.options_of(name, [*flags, "--test-fraction", "0"])
    module = kinds.KINDS[name].load()
    split = training.load(module, options)
    return options, split, module.build(options, split)


@pytest.mark.parametrize(
    ("name", "target", "own"),
    [
        ("vgp-kmm", "word", ()),
        ("vgp-kmm", "level", ("--task", "multiclass", "--likelihood", "multinomial-logit")),
        ("vgp-kmm", "level", ("--likelihood", "negative-binomial", "--exposure", "days")),
        ("gp-laplace", "level", ("--task", "ordinal")),
        ("gp-jaakkola", "word", ()),
        ("gp-taylor", "level", ("--task", "counts")),
        ("sgpmc-free-form", "word", ()),
        ("sgpmc-free-form", "level", ("--task", "multiclass")),
        ("sgpmc-free-form", "price", ()),
        ("sgpr", "price", ()),
        ("svgp", "price", ()),
        ("svgp", "word", ()),
        ("svgp-student-t", "price", ()),
    ],
)
def test_models_of_the_shell_are_weighted(tmp_path: Path, name: str, target: str, own: Any) -> None:
    """What they start from is that of the copies."""
    options, split, model = built(tmp_path, name, target, *own)
    assert isinstance(model.likelihood, Weighted)
    width = 1 + (split.exposure is not None)
    assert tables.outputs(split) == 1
    assert split.train[1].shape[1] == model.likelihood.num_targets + 1 == width + 1
    rows = np.repeat(np.arange(len(split.train[0])), split.train[1][:, -1].astype(int))
    Y = split.train[1][rows, :width]
    others = dataclasses.replace(split, train=(split.train[0][rows], Y), weights=None)
    if split.task == "count":
        ours, theirs = (likelihoods.mean_of_counts(each).c.numpy() for each in (split, others))
        assert ours == pytest.approx(theirs, rel=1e-12)
    elif split.task == "regression":
        noise, variance = model.likelihood.likelihood, Y.var()
        if isinstance(noise, Standardised):
            assert float(noise.shift.numpy()) == pytest.approx(Y.mean(), rel=1e-12)
            assert float(noise.scale.numpy()) == pytest.approx(Y.std(), rel=1e-12)
            noise, variance = noise.likelihood, 1.0
        else:
            assert model.mean_function.c.numpy() == pytest.approx(Y.mean(), rel=1e-12)
        assert model.kernel.variance.numpy() == pytest.approx(options.variance * variance, rel=1e-9)
        start = noise.scale.numpy() ** 2 if name == "svgp-student-t" else noise.variance.numpy()
        assert start == pytest.approx(0.1 * variance, rel=1e-9)


def test_exact_regression_is_that_of_the_copies(tmp_path: Path) -> None:
    """By sites in place of GPflow's GPR; what differs is the jitter of each copy, 1e-6 of the prior variance."""
    options, split, model = built(tmp_path, "gpr", "price")
    module = kinds.KINDS["gpr"].load()
    assert "recipe" not in module.fit_options(train.options_of("sgpr", ["--data", "t", "--weights", "w"]), N)
    gpflow.set_trainable(model, False)
    gpx.fit(model, progress=False)
    X, Y = split.train
    rows = np.repeat(np.arange(len(X)), Y[:, 1].astype(int))
    others = dataclasses.replace(split, train=(X[rows], Y[rows, :1]), weights=None)
    options.weights = None
    theirs = module.build(options, others)
    assert isinstance(theirs, gpflow.models.GPR)
    np.testing.assert_allclose(
        model.maximum_log_likelihood_objective(), theirs.log_marginal_likelihood(), rtol=1e-5
    )
    for ours, its in zip(model.predict_y(X), theirs.predict_y(X), strict=True):
        np.testing.assert_allclose(ours, its, rtol=1e-4)


@pytest.mark.parametrize(
    ("task", "rows", "expected"),
    [
        ("binary", 100, "vgp-kmm"),
        ("multiclass", 5_000, "vgp-kmm --num-inducing 200"),
        ("counts", 50_000, "vgp-kmm --num-inducing 200"),
        ("regression", 500, "gpr"),
        ("regression", 5_000, "sgpr"),
        ("regression", 50_000, "svgp"),
    ],
)
def test_weighted_rows_get_a_model_that_takes_them(task: str, rows: int, expected: str) -> None:
    name, why = kinds.choose(task, rows, weighted=True)
    sparse = kinds.sparse(name, rows, weighted=True)
    assert " ".join([name, *sparse]) == expected
    assert name in kinds.fitting(task, weighted=True)
    assert " ".join(sparse) in why
    assert not kinds.sparse(name, rows, weighted=False)
    assert not {"sparse-ep", "svgp-robustmax", "gprn-tensor"} & {*kinds.fitting(task, 1, weighted=True)}


def test_folds_are_those_of_rows_without_weights() -> None:
    X, Y = problems.binary(30)
    weights = 1.0 + np.arange(30) % 3

    def build(data: Any) -> Any:
        model = gpx.models.GPLaplace(data, problems.kernel(), Weighted(gpx.likelihoods.BernoulliLogit()))
        gpflow.set_trainable(model, False)
        return model

    found = gpx.cross_validate(build, (X, Y), folds=3, weights=weights, workers=1)
    plain = rungs.dealt(Y, 3, 0)
    for ours, theirs in zip(found.rows, plain, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    others = np.delete(np.arange(30), plain[0])
    model = build((X[others], np.column_stack([Y, weights])[others]))
    gpx.fit(model, progress=False)
    expected = gpx.metrics.evaluate(model, (X[plain[0]], np.column_stack([Y, weights])[plain[0]]))
    assert found.scores["nlpd"][0] == pytest.approx(expected["nlpd"], rel=1e-9)
    with pytest.raises(ValueError, match=r"weights must be \[30\]"):
        gpx.cross_validate(build, (X, Y), weights=weights[1:])


# ------------------------------------------------------------------------------------------------------ automatic


def test_a_score_counts_a_row_as_its_copies() -> None:
    densities, weights = RNG.normal(size=6), np.array([1.0, 2.0, 3.0, 1.0, 1.0, 2.0])
    score = rungs.Score(5, densities, ("rmse", 1.0), 1.0, weights=weights)
    assert score.nlpd == pytest.approx(-np.repeat(densities, weights.astype(int)).mean())
    alike = rungs.Score(5, densities, ("rmse", 1.0), 1.0, weights=np.full(6, 7.0))
    plain = rungs.Score(5, densities, ("rmse", 1.0), 1.0)
    assert alike.standard_error == pytest.approx(plain.standard_error)
    both = {"a": densities, "b": RNG.normal(size=6)}
    copies = {name: np.repeat(each, weights.astype(int)) for name, each in both.items()}
    ours, theirs = averaging.weights(both, weights), averaging.weights(copies)
    assert ours == pytest.approx(theirs)
    stacked = np.column_stack(list(both.values()))
    np.testing.assert_allclose(
        stacking_weights(stacked, weights), stacking_weights(stacked.repeat(weights.astype(int), axis=0))
    )


def test_auto_trains_and_scores_by_weights(tmp_path: Path) -> None:
    """Half of the labels are turned, and count next to nothing; the export knows no weights."""
    X, turned = RNG.normal(size=(60, 2)), np.arange(60) % 2 == 1
    words = np.where((X[:, 0] > 0) ^ turned, "ill", "well")
    table = pandas.DataFrame(X, columns=["a", "b"]).assign(w=np.where(turned, 1e-6, 1.0), word=words)
    best = gpx.auto(table, "word", weights="w", budget=1e-3, progress=False)
    assert best.split.feature_names == ("a", "b")
    assert "label noise" not in " ".join(candidates("binary", 60, 2, 1, weighted=True))
    models = getattr(best.model, "members", [best.model])
    assert all(isinstance(model.likelihood, Weighted) for model in models)
    weighed = best.score(table, words, weights=table["w"])
    assert weighed > 0.8 > best.score(table, words)
    assert best.table["error"].min() < 0.3  # of held-out rows, half of which are turned
    folder = gpx.export(best, tmp_path / "ill")
    rows = table.drop(columns=["w", "word"])
    served = gpx.load_exported(folder).predict_raw(rows)
    assert served["label"].tolist() == best.predict(rows).tolist()


@pytest.mark.parametrize("several", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_auto_takes_arrays_with_weights(several: bool) -> None:
    X = RNG.normal(size=(30, 1))
    y = X[:, 0] + 0.1 * RNG.normal(size=30)
    weights = 1.0 + np.arange(30) % 2
    Y = np.column_stack([y, -y]) if several else y
    best = gpx.auto((X, Y), weights=weights, budget=1e-3, progress=False)
    np.testing.assert_array_equal(best.split.weights[0][:, 0], weights[best.split.rows[0]])
    assert "VGPKMM with Gaussian" in best.why
    with pytest.raises(ValueError, match="weights and other options are for tables"):
        gpx.auto(best.split, weights=weights)


def test_a_report_scores_by_the_weights_of_the_split(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    split = load(TABLE, target="y", weights="w")
    assert split.weights is not None
    train, test = ((X, np.column_stack([Y, w])) for (X, Y), w in zip(split, split.weights, strict=True))
    model = gpx.models.VGPKMM(train, problems.kernel(), Weighted(gpflow.likelihoods.Gaussian()))
    beside, inside = (dataclasses.replace(split, test=test), {"train": train, "weights": None})
    ours, *others = (
        gpx.report(model, each, tmp_path / "report.html").read_text(encoding="utf-8")
        for each in (split, beside, dataclasses.replace(beside, **inside))
    )
    assert others == [ours, ours]
    assert f"{gpx.metrics.evaluate(model, test)['nlpd']:.4g}" in ours
