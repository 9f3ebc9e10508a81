"""The scripts of the review: every method trains from the command line's flags; runs are timed, drawn, compared."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import others_slow

from gpflow_ext.training import recipe
from scripts import train_review
from scripts.experiments.review import __main__ as review
from scripts.experiments.review import methods as compared
from scripts.experiments.review import report as shown
from scripts.experiments.review import streamed
from scripts.shared.journal import Journal

RESULTS = Path(__file__).parent.parent / "docs" / "results"


ON_POINTS = [method for method in train_review.METHODS if method != "exact"]  # with inducing points


def _table(folder: Path, labels: bool) -> str:
    X, Y = problems.binary(40) if labels else problems.continuous(40)
    scale = 1.0 if labels else 1e4  # the units of the targets must not matter
    rows = [f"{a:.6f},{b:.6f},{scale * y:.4f}" for (a, b), y in zip(X, Y[:, 0], strict=True)]
    (folder / "table.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    return str(folder / "table.csv")


@pytest.mark.parametrize("method", others_slow(ON_POINTS, "laplace", "vi-means", "svi-sag"))
def test_every_method_trains_from_its_flags(method: str, tmp_path) -> None:
    labels = method in (*train_review.QUADRATIC, "svi-classification")
    flags = ["--method", method, "--data", _table(tmp_path, labels), "--inducing", "5"]
    options = train_review.arguments().parse_args([*flags, "--lengthscale", "1"])
    split = train_review.load(options)
    model = train_review.build(options, split)
    Z = model.inducing_variable.Z.numpy()
    loss = model.training_loss if hasattr(model, "data") else lambda: model.training_loss(split.train)
    before = float(loss())
    train_review.fit(options, model, split, 40 if method in (*train_review.STOCHASTIC, "svi-fg") else 1)
    # The objective of a site model is that at the fixed point of the sites: only the hyperparameters lower it.
    assert loss() < before - (0.01 if method in train_review.QUADRATIC else 1.0)
    np.testing.assert_array_equal(model.inducing_variable.Z, Z)


def test_flags_that_do_not_fit_the_method_are_refused(tmp_path) -> None:
    for labels, flags, message in (
        (True, ["--method", "vi-means"], "is for regression"),
        (False, ["--method", "laplace"], "is for binary"),
        (True, ["--method", "laplace", "--minibatch-size", "5"], "svi-sag"),
        (True, ["--method", "svi-fg", "--inducing", "0"], "from 1 to 32"),
        (False, ["--method", "vi-means", "--noise", "0"], "--noise"),
    ):
        options = train_review.arguments().parse_args(["--data", _table(tmp_path, labels), *flags])
        with pytest.raises(ValueError, match=message):
            train_review.build(options, train_review.load(options))


# ----------------------------------------------------------------------------------------------- the comparisons


def _score(curve: list[list[float]], method: str, name: str = "s", size: str = "small") -> dict:
    sizes = {"n": 100, "d": 2, "m": 5, "size": size, "score": "R²"}
    return {"set": name, "method": method, **sizes, "curve": curve}


def test_the_seconds_to_a_score_are_those_after_which_it_stays() -> None:
    curve = [[1.0, 0.1, -5.0], [2.0, 0.9, -4.0], [3.0, 0.5, -3.0], [4.0, 0.95, -2.0], [5.0, 0.94, -1.0]]
    assert shown.within(curve, 0.93) == 4.0
    assert shown.within(curve, 0.05) == 1.0
    assert shown.within(curve, 0.945) is None


def test_comparisons_count_the_sets_and_name_them() -> None:
    runs = {
        "one": [_score([[1.0, 0.9, 0.0]], "a"), _score([[2.0, 0.9, 0.0]], "b")],
        "two": [_score([[3.0, 0.9, 0.0]], "a"), _score([[2.0, 0.9, 0.0]], "b")],
        "three": [_score([[3.0, 0.9, 0.0]], "a"), _score([[2.0, 0.7, 0.0]], "b")],
    }
    assert "before b on 2 of 3 sets (one, three)" in shown.compare(runs, "a", ["b"])


def test_runs_are_timed_recorded_drawn_and_described(tmp_path) -> None:
    journal = Journal(tmp_path / "review.jsonl")
    sets = {set.name: set for set in (*review.regression_sets(True), *review.classification_sets(True))}
    for name, method, run, score in (
        ("generated", "means-L-BFGS-B", compared.regression, "R²"),
        ("generated", "means-PN", compared.regression, "R²"),
        ("generated labels", "vi-Taylor", compared.classification, "accuracy"),
    ):
        record = {"set": name, "method": method, **review.measure(sets[name], method, run, score)}
        seconds, scores, objective = np.array(record["curve"]).T
        assert (np.diff(seconds) > 0.0).all()
        assert seconds[-1] < 4.0  # of one
        assert scores[-1] > (0.85 if score == "R²" else 0.75)
        if method.startswith("means"):
            assert (np.diff(objective) >= 0.0).all()
        journal.add(record)
    shown.draw(journal, tmp_path)
    assert (tmp_path / "review_newton.png").stat().st_size > 10_000
    text = shown.text(journal, "where and when")
    assert "before means-PN on" in text
    assert "| generated (200 x 2, m = 15) | means-PN | " in text
    assert "review_large" not in text  # no such run
    assert json.loads((tmp_path / "review.jsonl").read_text().splitlines()[0])["method"] == "means-L-BFGS-B"


def test_a_bound_summed_by_blocks_is_that_of_all_rows(monkeypatch) -> None:
    """Value, gradient and predictions of GPflow's SGPR, from blocks of which the last is smaller."""
    monkeypatch.setattr(streamed, "BLOCK", 15)
    data, Z = problems.continuous(40), problems.inputs(6, seed=3)
    ours = streamed.StreamedSGPR(data, compared.parameter_kernel(2), Z, 0.2)
    theirs = gpflow.models.SGPR(data, compared.parameter_kernel(2), Z, noise_variance=0.2)
    gpflow.set_trainable(theirs.inducing_variable, False)
    value, gradient = ours.evaluate()
    with tf.GradientTape() as tape:
        expected = theirs.elbo()
    parameters = theirs.kernel.lengthscales, theirs.kernel.variance, theirs.likelihood.variance
    slopes = tape.gradient(expected, [each.unconstrained_variable for each in parameters])
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    mine = {id(variable): slope for variable, slope in zip(ours.trainable_variables, gradient, strict=True)}
    own = ours.kernel.lengthscales, ours.kernel.variance, ours.likelihood.variance
    found = [mine[id(each.unconstrained_variable)] for each in own]
    np.testing.assert_allclose(found, slopes, rtol=1e-7)
    np.testing.assert_allclose(ours.predict_f(Z)[0], theirs.predict_f(Z)[0], atol=1e-8)


def test_generated_data_are_one_function_with_noise() -> None:
    (X, Y), (X_test, _) = compared.generated(400, 2, 1.0)
    assert (len(X), len(X_test)) == (400, 100)
    assert 0.5 < Y.std() < 1.5  # unit variance, up to a few effective dimensions
    labels = compared.generated(400, 2, 1.0, labels=True)[0][1]
    assert set(labels[:, 0]) == {0.0, 1.0}
    # Points within a twentieth of the length scale differ by the noise and little more.
    near = np.argwhere(np.triu(np.linalg.norm(X[:, None] - X, axis=-1) < 0.05, 1))
    assert np.sqrt(np.mean((Y[near[:, 0]] - Y[near[:, 1]]) ** 2)) < 0.2


@pytest.mark.parametrize("method", [pytest.param("vi-JJ", marks=pytest.mark.slow), "vi-Taylor"])
def test_a_method_needs_nothing_that_was_imported_before(method: str, monkeypatch) -> None:
    """`gpx.fit` registers the recipes when it is first used; in a process of its own nothing has."""
    monkeypatch.setattr(recipe, "_REGISTERED", {})
    assert compared.classification(method, problems.binary(20), problems.binary(20), problems.inputs(4), 0.1)


@pytest.mark.slow
def test_the_comparisons_write_their_page_and_are_not_run_again(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["review", "--quick", "--out", str(tmp_path)])
    review.main()
    page = (tmp_path / "review.md").read_text(encoding="utf-8")
    for name, (title, methods, _) in shown.FIGURES.items():
        if name not in ("review_large", "review_million"):  # the quick form has no such sets
            assert title in page
        assert all(f" | {method} | " in page for method in methods)
    before = (tmp_path / "review.jsonl").read_text(encoding="utf-8")
    review.main()
    assert (tmp_path / "review.jsonl").read_text(encoding="utf-8") == before


def test_the_recorded_comparison_finds_what_the_review_says() -> None:
    """ "vi-means beats its opponent in all the experiments": its score is there sooner on every set."""
    journal = Journal(RESULTS / "review.jsonl")
    runs = shown.chosen(journal, "review_vi_svi")
    assert len(runs) == 7
    for of in runs.values():
        curves = {run["method"]: run["curve"] for run in of}
        near = shown.best_score(of) - shown.NEAR
        ours, theirs = (shown.within(curves[name], near) for name in ("means-L-BFGS-B", "svi-L-BFGS-B"))
        assert ours is not None
        assert theirs is None or ours < theirs
