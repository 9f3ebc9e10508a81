"""Trainings of `auto` on more rows begin at the hyperparameters that it has found on fewer."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest

pytest.importorskip("sklearn")

import gpflow_ext as gpx
import gpflow_ext.estimators.auto as auto
from gpflow_ext.estimators import GPRegressor, base, rungs, warm


def regression(variance: float, lengthscales: Any, noise: float) -> gpflow.models.GPR:
    kernel = gpflow.kernels.Matern52(variance, lengthscales) + gpflow.kernels.Linear()
    return gpflow.models.GPR(problems.continuous(9), kernel, noise_variance=noise)


def test_hyperparameters_are_taken_over() -> None:
    model, earlier = regression(1.0, [1.0, 1.0], 1.0), regression(3.0, [0.2, 40.0], 0.5)
    earlier.kernel.kernels[1].variance.assign(7.0)
    warm.begin_at(model, earlier)
    for mine, theirs in zip(model.trainable_parameters, earlier.trainable_parameters, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_what_was_switched_off_begins_within_reach() -> None:
    model, earlier = regression(1.0, [1.0, 1.0], 1.0), regression(1e-9, [0.2, 1e6], 0.5)
    warm.begin_at(model, earlier)
    matern = model.kernel.kernels[0]
    np.testing.assert_allclose(matern.variance, 0.01, rtol=1e-12)
    np.testing.assert_allclose(matern.lengthscales, [0.2, 100.0], rtol=1e-12)


def test_what_is_held_or_has_another_shape_stays() -> None:
    model, earlier = regression(1.0, [1.0, 1.0], 1.0), regression(3.0, 0.2, 0.5)
    gpflow.set_trainable(model.likelihood, False)
    warm.begin_at(model, earlier)
    np.testing.assert_array_equal(model.kernel.kernels[0].lengthscales, [1.0, 1.0])
    np.testing.assert_array_equal(model.likelihood.variance, 1.0)
    np.testing.assert_allclose(model.kernel.kernels[0].variance, 3.0, rtol=1e-12)


def test_values_of_any_sign_are_taken_as_they_are() -> None:
    model, earlier = regression(1.0, 1.0, 1.0), regression(1.0, 1.0, 1.0)
    model.mean_function, earlier.mean_function = (gpflow.functions.Constant(value) for value in (0.1, -500.0))
    warm.begin_at(model, earlier)
    np.testing.assert_array_equal(model.mean_function.c, -500.0)


@pytest.mark.slow
def test_each_training_of_auto_begins_where_that_on_fewer_rows_has_ended(monkeypatch) -> None:
    of_kernel: list[tuple[int, float, float]] = []  # rows, before and after a training

    def noted(model: Any, *arguments: Any, of: Any = base.fit, **options: Any) -> Any:
        before = float(model.kernel.variance.numpy())
        result = of(model, *arguments, **options)
        of_kernel.append((len(model.data[0]), before, float(model.kernel.variance.numpy())))
        return result

    for module in (base, rungs):
        monkeypatch.setattr(module, "fit", noted)
    for name, value in (("FIRST", 15), ("_ENOUGH", 10)):
        monkeypatch.setattr(rungs, name, value)
    two = {name: GPRegressor(gpflow.kernels.Linear()) for name in ("one", "other")}
    monkeypatch.setattr(auto, "candidates", lambda *_: two)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(75, 2))
    best = gpx.auto((X, X @ [1.0, -2.0] + rng.normal(size=75)), budget=300.0, average=False, progress=False)
    rows, before, after = zip(*of_kernel, strict=True)
    assert rows == (15, 15, 60, 60, 75)
    np.testing.assert_allclose(before[2:4], after[:2], rtol=1e-9)
    np.testing.assert_allclose(before[4], after[2], rtol=1e-9)
    assert min(np.abs(np.subtract(before, after))) > 1e-3
    assert best.estimator._seconds is None
    assert best.estimator._earlier == ()
