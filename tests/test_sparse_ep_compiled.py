"""Expectation propagation is compiled once for each structure of a model, whatever its values and its data."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.method import factored
from gpflow_ext.ep.optimum import Optimum
from gpflow_ext.likelihoods import BernoulliProbit, RobustMax
from gpflow_ext.models import SiteModel, SparseEP

Z = problems.inputs(6, seed=5)
KINDS: dict[str, tuple[bool, dict[str, Any]]] = {
    "sites": (False, {}),
    "optimizer": (True, {"steps": 5}),
    "lbfgs": (True, {"optimizer": "lbfgs", "steps": 1, "hyper_updates": 3}),
    "minibatches": (True, {"minibatch_size": 8, "steps": 8}),
    "minibatches of sites": (False, {"minibatch_size": 8, "steps": 8}),
}


def probit(N: int, learn: bool, variance: float = 1.0, stream: bool = False) -> SparseEP:
    kernel = gpflow.kernels.SquaredExponential(variance)
    X, Y = problems.binary(N)
    data = tf.data.Dataset.from_tensor_slices((X, Y)) if stream else (X, Y)
    model = SparseEP(data, kernel, BernoulliProbit(), inducing_variable=Z)
    for part in (kernel, model.inducing_variable):
        gpflow.set_trainable(part, learn)
    return model


def robust(N: int, learn: bool, variance: float = 1.0) -> SparseEP:
    kernel = gpflow.kernels.SquaredExponential(variance) + gpflow.kernels.White(0.1)
    X = problems.inputs(N, seed=3)
    labels = np.digitize(X.sum(axis=1, keepdims=True), [-0.5, 0.5]).astype(float)
    model = SparseEP((X, labels), kernel, RobustMax(3), inducing_variable=Z)
    for part in (kernel, model.inducing_variable):
        gpflow.set_trainable(part, learn)
    return model


@pytest.mark.parametrize("build", [probit, pytest.param(robust, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", others_slow(KINDS, "sites", "lbfgs", "minibatches"))
def test_three_fits_of_three_sizes_trace_once(build, kind: str) -> None:
    learn, options = KINDS[kind]
    clear_compiled()
    before, counts, ends = trace_count(), [], []
    for N, variance in ((30, 1.0), (23, 2.0), (37, 0.5)):
        ends.append(gpx.fit(build(N, learn, variance), **options).objective[-1])
        counts.append(trace_count() - before)
    most = {"sites": 2, "optimizer": 1, "lbfgs": 1}.get(kind, 4)
    assert counts == [most] * 3
    clear_compiled()
    alone = gpx.fit(build(37, learn, 0.5), **options).objective[-1]
    np.testing.assert_allclose(ends[2], alone, rtol=1e-12)


def test_minibatches_of_a_dataset_share_the_functions_of_arrays() -> None:
    options = KINDS["minibatches"][1]
    gpx.fit(probit(30, True), **options)
    before = trace_count()
    gpx.fit(probit(37, True, stream=True), **options)
    assert trace_count() == before


@pytest.mark.parametrize("kind", others_slow(KINDS, "lbfgs", "minibatches"))
def test_a_run_resumes_exactly_whatever_is_compiled_already(tmp_path, kind: str) -> None:
    """The first run finds nothing compiled; one resumed run finds all of it, one nothing."""
    learn, options = KINDS[kind]
    options = options | {"checkpoint_dir": tmp_path / "whole", "checkpoint_every": 2, "tolerance": 0.0}

    def fit(steps: int, name: str) -> tuple[SparseEP, gpx.FitResult]:
        model, where = probit(30, learn), {"checkpoint_dir": tmp_path / name, "steps": steps}
        return model, gpx.fit(model, **options | where)

    clear_compiled()
    whole, done = fit(4, "whole")
    for name in ("warm", "cold"):
        fit(2, name)
        if name == "cold":
            clear_compiled()
        resumed, rest = fit(4, name)
        assert (rest.first_step, rest.steps) == (2, 4)
        np.testing.assert_array_equal(rest.objective, done.objective[2:])
        for a, b in zip(resumed.variables, whole.variables, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("damping", [None, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("build", [probit, robust])
def test_the_optimum_is_where_the_sweeps_settle(build, damping: float | None) -> None:
    ours, theirs = (build(30, True) for _ in range(2))
    variables = [*ours.trainable_variables]
    found = Optimum(ours, variables, damping, None).evaluate(2000, 1e-9)
    matcher = MomentMatcher(theirs, theirs.trainable_variables, None, damping, None)
    assert matcher.settle(2000, 1e-9).violation <= 1e-9
    objective, gradient = matcher.differentiate()
    assert found.violation <= 1e-9
    np.testing.assert_allclose(found.objective, objective, rtol=0, atol=1e-9)
    for a, b in zip(found.gradient, gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    for a, b in zip(ours.sites, theirs.sites, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_sites_that_are_not_sound_are_left_for_zero() -> None:
    model, plain = (probit(30, True) for _ in range(2))
    model.prec.assign(-50.0 * np.ones((30, 1)))
    found = Optimum(model, model.trainable_variables, None, None).evaluate(200, 1e-10)
    expected = Optimum(plain, plain.trainable_variables, None, None).evaluate(200, 1e-10)
    np.testing.assert_array_equal(found.objective, expected.objective)
    np.testing.assert_array_equal(model.prec, plain.prec)


class Broken(SparseEP):
    """A model none of whose normalisers is a number."""

    def log_normaliser(self, mean, var, data=None) -> tf.Tensor:
        return np.nan * mean[:, 0]


def test_sites_stay_where_there_is_no_optimum() -> None:
    model = probit(30, True)
    Optimum(model, model.trainable_variables, None, None).evaluate(3, 1e-12)
    kept = [part.numpy() for part in model.sites]
    assert np.abs(kept[0]).min() > 1e-3
    model.__class__ = Broken
    found = Optimum(model, model.trainable_variables, None, None).evaluate(200, 1e-10)
    assert np.isnan(found.objective)
    assert np.isnan(found.violation)
    for a, b in zip(model.sites, kept, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_dense_model_is_its_own_set_of_inducing_points() -> None:
    X, Y = problems.binary(30)
    model = SiteModel((X, Y), gpflow.kernels.SquaredExponential(), BernoulliProbit())
    sparse = SparseEP((X, Y), gpflow.kernels.SquaredExponential(), BernoulliProbit(), inducing_variable=X)
    found = [
        Optimum(factored(m), m.kernel.trainable_variables, None, None).evaluate(200, 1e-10)
        for m in (model, sparse)
    ]
    np.testing.assert_allclose(found[0].objective, found[1].objective, rtol=0, atol=1e-4)
    for a, b in zip(found[0].gradient, found[1].gradient, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-3)


def test_an_optimiser_keeps_its_own_slots() -> None:
    """Adam's moments of two models that share one function."""
    models = [probit(30, True, variance) for variance in (1.0, 2.0)]
    optimizers = [tf_keras.optimizers.Adam(rate) for rate in (0.01, 0.05)]
    for model, optimizer in zip(models, optimizers, strict=True):
        gpx.fit(model, optimizer=optimizer, steps=3)
    assert [int(optimizer.iterations) for optimizer in optimizers] == [3, 3]
    again = probit(30, True, 2.0)
    clear_compiled()
    gpx.fit(again, optimizer=tf_keras.optimizers.Adam(0.05), steps=3)
    for a, b in zip(again.variables, models[1].variables, strict=True):
        np.testing.assert_array_equal(a, b)
