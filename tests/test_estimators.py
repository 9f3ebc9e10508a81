"""Where the estimators' trainings start, and which kind of outputs is chosen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import pandas
import pytest
import scipy.sparse

pytest.importorskip("sklearn")

import gpflow_ext as gpx
from gpflow_ext.estimators import (
    GPClassifier,
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPOrdinal,
    GPRegressor,
    ladder,
    outputs,
    real,
)
from gpflow_ext.models import GPRNTensor

WEIGHTS = np.array([1.0, 3.0])


def test_counts_start_at_the_rate_of_weighted_rows() -> None:
    """Half an event more, in a row of mean weight, keeps the logarithm finite in any unit of the weights."""
    estimator = GPCountRegressor()
    Y = np.array([[2.0, 1.0], [8.0, 4.0]])
    estimator.has_exposure_ = True
    assert estimator._mean_function(Y, WEIGHTS).c.numpy()[0] == pytest.approx(np.log(27.0 / 13.0))
    assert estimator._mean_function(Y, None).c.numpy()[0] == pytest.approx(np.log(10.5 / 5.0))
    estimator.has_exposure_ = False
    assert estimator._mean_function(Y[:, :1], WEIGHTS).c.numpy()[0] == pytest.approx(np.log(27.0 / 4.0))
    assert estimator._mean_function(Y[:, :1], 1e-6 * WEIGHTS).c.numpy()[0] == pytest.approx(
        np.log(27.0 / 4.0)
    )


def _problem(X: np.ndarray, kernel: gpflow.kernels.Kernel, **changed: Any) -> ladder.Problem:
    given: dict[str, Any] = {
        "likelihood": gpx.likelihoods.PoissonLog(),
        "mean_function": None,
        "num_latent_gps": 1,
        "inference": "sites",
        "num_inducing": None,
        "minibatch_size": None,
        "seed": 0,
    }
    return ladder.Problem(X, np.ones((len(X), 1)), kernel, **{**given, **changed})


def test_many_rows_of_one_input_or_of_a_grid_have_their_priors() -> None:
    """Not few rows, nor kernels without such a form, nor where inducing points or minibatches are asked for."""
    times, axis = np.arange(30_000.0)[:, None], np.arange(40.0)
    cells = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    matern, smooth = gpflow.kernels.Matern52(), gpflow.kernels.SquaredExponential()
    model, options = ladder.model_of(_problem(times, matern))
    assert (model.prior_name, options) == ("markov", {})
    assert ladder.model_of(_problem(cells, smooth))[0].prior_name == "grid"
    assert _problem(times, smooth).prior is None
    assert _problem(cells, matern).prior is None
    assert _problem(times[:1000], matern).prior is None
    assert _problem(times, matern, num_inducing=50).prior is None
    assert _problem(times, matern, minibatch_size=100).prior is None
    assert _problem(times, matern, inference="signed").prior == "markov"
    assert _problem(cells, smooth, inference="signed").prior is None
    assert _problem(times, matern, inference="ep").prior is None


def test_an_order_that_sorting_would_lose_is_refused() -> None:
    levels = pandas.Categorical(["lo", "mid", "hi"] * 4, categories=["lo", "mid", "hi"], ordered=True)
    inputs = np.arange(12.0)[:, None]
    for y in (levels, pandas.Series(levels)):
        with pytest.raises(ValueError, match=r"y has the order lo < mid < hi, .* such as y\.cat\.codes"):
            GPOrdinal().fit(inputs, y)
    words = "y holds words in the order high < low < medium: give numbers if it is another"
    with pytest.warns(UserWarning, match=words):
        GPOrdinal(steps=0).fit(inputs, ["low", "medium", "high"] * 4)
    unused = pandas.Categorical(["b", "a"] * 6, categories=["c", "a", "b"], ordered=True)
    assert GPOrdinal(steps=0).fit(inputs, unused).classes_.tolist() == ["a", "b"]


def test_labels_whose_probability_underflows_have_a_finite_density() -> None:
    """E[σ(f - 1000)] is e⁻¹⁰⁰⁰ E[eᶠ] to rounding."""
    inputs = np.arange(6.0)[:, None]
    estimator = GPOrdinal(steps=0).fit(inputs, [0, 1] * 3)
    estimator.model_.likelihood.first.assign(1e3)
    mean, var = estimator.model_.predict_f(estimator.scaler_.transform(inputs[:2]))
    expected = (mean + 0.5 * var)[:, 0] - 1e3
    np.testing.assert_allclose(estimator.score_samples(inputs[:2], [1, 1]), expected, rtol=1e-9)
    found = estimator.predict_log_proba(inputs[:2])
    np.testing.assert_allclose(found[:, 1], expected, rtol=1e-9)
    np.testing.assert_array_equal(found[:, 0], 0.0)


def test_levels_start_at_thresholds_of_their_frequencies() -> None:
    estimator = GPOrdinal()
    estimator.classes_ = np.arange(3)
    Y = np.array([[0.0], [2.0]])
    for weight, shares in ((None, [1.5 / 3.5, 2.0 / 3.5]), (WEIGHTS, [1.5 / 5.5, 2.0 / 5.5])):
        thresholds = np.asarray(estimator._likelihood(Y, weight).thresholds)
        np.testing.assert_allclose(1.0 / (1.0 + np.exp(-thresholds)), shares, rtol=1e-9)


@pytest.mark.parametrize(("noise", "latents", "soft"), [(0.1, 3, True), (0.1, 1, False), (0.0, 3, False)])
def test_the_largest_function_is_a_soft_choice_where_labels_are_noisy(
    noise: float, latents: int, soft: bool
) -> None:
    kernel = GPClassifier(label_noise=noise)._kernel(2, latents)
    assert any(isinstance(part, gpflow.kernels.White) for part in getattr(kernel, "kernels", [])) == soft
    own = GPClassifier(gpflow.kernels.Matern32(), label_noise=noise)._kernel(2, latents)
    assert isinstance(own, gpflow.kernels.Matern32)


@pytest.mark.parametrize("better", ["independent", "coregionalised"])
def test_outputs_are_of_the_kind_that_predicts_better(better: str, monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = GPMultiOutputRegressor(steps=0)

    def scored(build: Any, data: Any, **options: Any) -> SimpleNamespace:
        mixed = isinstance(build(data).kernel, gpflow.kernels.LinearCoregionalization)
        return SimpleNamespace(mean={"nlpd": 1.0 - (mixed == (better == "coregionalised"))})

    monkeypatch.setattr(outputs, "cross_validate", scored)
    X = np.random.default_rng(0).normal(size=(12, 2))
    estimator.fit(X, X)
    assert estimator.kind_ == better
    assert GPMultiOutputRegressor(steps=0, kind="coregionalised").fit(X, X).kind_ == "coregionalised"


def test_inputs_are_standardised_as_those_of_weighted_rows() -> None:
    X = np.array([[0.0], [4.0]])
    scaler = GPRegressor(steps=0).fit(X, X[:, 0], sample_weight=WEIGHTS).scaler_
    np.testing.assert_allclose([scaler.mean_[0], scaler.scale_[0]], [3.0, np.sqrt(3.0)], rtol=1e-12)


@pytest.mark.slow
def test_a_network_fills_in_targets_and_is_served_in_their_units(tmp_path: Path) -> None:
    """A third of the first targets is hidden: they are the product of the input with the others."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (30, 1))
    f = np.sin(2.0 * X[:, 0])
    Y = np.stack([500.0 + 100.0 * f * X[:, 0], 2.0 * f], axis=1) + 0.1 * rng.normal(size=(30, 2))
    seen = Y.copy()
    seen[::3, 0] = np.nan
    model = GPMultiOutputRegressor(kind="network", steps=15).fit(X, seen)
    assert isinstance(model.model_.member, GPRNTensor)
    mean, deviation = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - Y)[::3, 0] ** 2)) < 20.0  # of a standard deviation of some 60
    units = np.log(np.nanstd(seen, axis=0))
    Z = (Y - np.nanmean(seen, axis=0)) / np.nanstd(seen, axis=0)
    of_z = model.model_.member.predict_log_density((model.scaler_.transform(X), Z))
    np.testing.assert_allclose(model.score_samples(X, Y), of_z - units.sum(), rtol=1e-9)
    half = model.score_samples(X[:3], np.where(np.isnan(seen), np.nan, Y)[:3])
    np.testing.assert_allclose(half[1:], model.score_samples(X[1:3], Y[1:3]), rtol=1e-2)
    served = gpx.load_exported(gpx.export(model, tmp_path / "network"))
    np.testing.assert_allclose(served.predict(X)["mean"], mean, rtol=1e-8)
    np.testing.assert_allclose(np.sqrt(served.predict(X)["variance"]), deviation, rtol=1e-6)
    with pytest.raises(ValueError, match='take kind="network"'):
        GPMultiOutputRegressor().fit(X, seen)
    with pytest.raises(ValueError, match="takes no sample_weight"):
        GPMultiOutputRegressor(kind="network").fit(X, seen, np.ones(30))
    with pytest.raises(ValueError, match="no value in column 0"):
        GPMultiOutputRegressor(kind="network").fit(X, np.full((30, 2), np.nan))


def test_sparse_targets_are_refused() -> None:
    with pytest.raises(TypeError, match=r"sparse targets .*toarray"):
        GPMultiOutputRegressor().fit(np.eye(3), scipy.sparse.eye(3).tocsr())


def test_a_kernel_that_is_not_of_gpflow_is_named() -> None:
    with pytest.raises(TypeError, match=r"a kernel of GPflow, such as .*; got 'rbf'"):
        GPRegressor(kernel="rbf").fit(np.arange(6.0)[:, None], np.arange(6.0))


@pytest.mark.parametrize("value", [7.0, 0.1, 1e5 + 0.1])
@pytest.mark.parametrize("weight", [None, np.linspace(0.5, 1.5, 10)])
def test_a_constant_target_keeps_its_unit(value: float, weight: Any) -> None:
    """The mean of 0.1 is not 0.1: the deviation was that of rounding, 1e-17, and so was that of predictions."""
    Y = np.column_stack([np.full(10, value), np.arange(10.0)])
    found = real.standardised(real.gaussian(2), Y, weight)
    assert (found.shift.numpy()[0], found.scale.numpy()[0]) == (value, 1.0)
    mean = np.average(Y[:, 1], weights=weight)
    np.testing.assert_allclose(found.shift[1], mean)
    np.testing.assert_allclose(found.scale[1] ** 2, np.average((Y[:, 1] - mean) ** 2, weights=weight))


@pytest.mark.slow
def test_kinds_are_compared_on_rows_that_count_as_their_weights(monkeypatch: Any) -> None:
    rng = np.random.default_rng(0)
    X, Y, copies = rng.normal(size=(12, 1)), rng.normal(size=(12, 2)), np.arange(12) % 3
    compared = []

    def compare(build: Any, data: Any, metrics: Any, **options: Any) -> Any:
        model = build(data)
        nlpd = metrics(model, data)["nlpd"]
        density = model.predict_log_density((data[0], data[1][:, :-1]))
        np.testing.assert_allclose(nlpd, -np.average(density, weights=data[1][:, -1]))
        compared.append((*data, nlpd))
        return SimpleNamespace(mean={"nlpd": nlpd})

    monkeypatch.setattr(outputs, "cross_validate", compare)
    weighted = GPMultiOutputRegressor(standardise=False)._chosen(X, Y, copies.astype(float))
    many = (np.repeat(part, copies, axis=0) for part in (X, Y))
    assert weighted == GPMultiOutputRegressor(standardise=False)._chosen(*many, None)
    for of_weights, of_copies in zip(compared[:2], compared[2:], strict=True):
        for part, other in zip(of_weights, of_copies, strict=True):
            np.testing.assert_array_equal(part, other)
    assert sorted(compared[0][1][:, -1]) == [1.0] * 4 + [2.0] * 4
