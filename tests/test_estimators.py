"""Where the estimators' trainings start, and which kind of outputs is chosen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import pytest

pytest.importorskip("sklearn")

from gpflow_ext.estimators import (
    GPClassifier,
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPOrdinal,
    GPRegressor,
    outputs,
)

WEIGHTS = np.array([1.0, 3.0])


def test_counts_start_at_the_rate_of_weighted_rows() -> None:
    """Half an event more keeps the logarithm finite."""
    estimator = GPCountRegressor()
    Y = np.array([[2.0, 1.0], [8.0, 4.0]])
    estimator.has_exposure_ = True
    assert estimator._mean_function(Y, WEIGHTS).c.numpy()[0] == pytest.approx(np.log(26.5 / 13.0))
    assert estimator._mean_function(Y, None).c.numpy()[0] == pytest.approx(np.log(10.5 / 5.0))
    estimator.has_exposure_ = False
    assert estimator._mean_function(Y[:, :1], WEIGHTS).c.numpy()[0] == pytest.approx(np.log(26.5 / 4.0))


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
