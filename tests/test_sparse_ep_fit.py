"""Training of `SparseEP`: statuses, exact resume, hyperparameters, hard problems."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliProbit
from gpflow_ext.models import SparseEP

DATA = problems.binary(30)
Z = problems.inputs(8, seed=5)


def probit(learn: bool = True, data=DATA, kernel=None, Z=Z) -> SparseEP:
    kernel = problems.kernel() if kernel is None else kernel
    model = SparseEP(data, kernel, BernoulliProbit(), inducing_variable=Z)
    gpflow.set_trainable(model.kernel, learn)
    gpflow.set_trainable(model.inducing_variable, learn)
    return model


def values(model: tf.Module) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.variables]


def test_fixed_hyperparameters_converge_in_few_sweeps() -> None:
    result = gpx.fit(model := probit(False))
    assert result.status is gpx.Status.CONVERGED
    assert result.steps <= 15
    np.testing.assert_allclose(result.objective[-1], model.log_evidence(), rtol=1e-12)
    again = gpx.fit(model)
    assert again.steps <= 2
    np.testing.assert_allclose(again.objective[-1], result.objective[-1], rtol=1e-10)


OPTIMIZERS = {
    "sites": lambda: None,
    "adam": lambda: None,
    "adadelta": lambda: tf_keras.optimizers.Adadelta(1.0),
    "lbfgs": lambda: "lbfgs",
}


@pytest.mark.parametrize("name", others_slow(OPTIMIZERS, "adam", "lbfgs"))
def test_training_resumes_exactly(tmp_path, name: str) -> None:
    def options() -> dict:
        few = {"hyper_updates": 2} if name == "lbfgs" else {}
        return {"tolerance": 0.0, "optimizer": OPTIMIZERS[name]()} | few

    resuming.check(lambda: probit(name != "sites"), tmp_path, steps=4, cut=2, options=options)


@pytest.mark.slow
def test_inner_and_outer_training_reach_one_optimum() -> None:
    """A well-conditioned problem: two hyperparameters, fixed inducing inputs."""
    inner, outer = probit(), probit()
    for model in (inner, outer):
        gpflow.set_trainable(model.inducing_variable, False)
    result = gpx.fit(inner, steps=400, optimizer=tf_keras.optimizers.Adam(0.05))
    np.testing.assert_allclose(result.objective[-1], inner.log_evidence(), rtol=1e-12)
    best = gpx.fit(outer, optimizer="lbfgs")
    assert best.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(inner.log_evidence(), best.objective[-1], rtol=0, atol=1e-4)
    assert best.objective[-1] > gpx.fit(probit(False)).objective[-1] + 0.1


def test_a_step_that_breaks_the_model_is_undone_and_shortened() -> None:
    model = probit()
    result = gpx.fit(model, steps=5, optimizer=tf_keras.optimizers.SGD(1e6))
    assert np.isfinite(result.objective).all()
    assert all(np.isfinite(value).all() for value in values(model))
    np.testing.assert_allclose(result.objective[-1], model.log_evidence(), rtol=1e-9)


class Broken(SparseEP):
    """A model none of whose normalisers is a number."""

    def log_normaliser(self, mean, var, data=None) -> tf.Tensor:
        return np.nan * mean[:, 0]


def test_without_any_sound_step_the_last_good_state_is_kept() -> None:
    model = probit(False)
    gpx.fit(model, steps=3, tolerance=0.0)
    kept = values(model)
    model.__class__ = Broken
    result = gpx.fit(model, steps=3)
    assert result.status is gpx.Status.NON_FINITE
    assert result.steps == 0
    for a, b in zip(values(model), kept, strict=True):
        np.testing.assert_array_equal(a, b)


X, Y = DATA
HARD = {
    "variance 1e10": (DATA, {"variance": 1e10}),
    "variance 1e-10": (DATA, {"variance": 1e-10}),
    "duplicates": ((np.repeat(X[:6], 5, axis=0), Y), {}),
    "one class": ((X, np.ones_like(Y)), {"variance": 100.0}),
    "one datum": ((X[:1], Y[:1]), {}),
    "long": (DATA, {"lengthscale": 1e6}),
    "short": (DATA, {"lengthscale": 1e-6}),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_problems_converge_to_finite_predictions(name: str) -> None:
    data, changes = HARD[name]
    model = probit(False, data, problems.kernel(**changes), data[0][:20].copy())
    result = gpx.fit(model)
    assert result.status is gpx.Status.CONVERGED
    assert result.objective[-1] < 0.0
    assert (model.prec.numpy() > 0.0).all()
    mean, var = model.predict_y(problems.inputs(6, seed=11))
    assert ((mean.numpy() > 0) & (mean.numpy() < 1) & (var.numpy() > 0)).all()


def test_single_precision_agrees_with_double(request) -> None:
    double, optimum = (gpx.fit(probit(learns)).objective[-1] for learns in (False, True))
    gpflow.config.set_default_float(np.float32)
    request.addfinalizer(lambda: gpflow.config.set_default_float(np.float64))
    fixed = probit(False)
    result = gpx.fit(fixed)
    assert fixed.prec.dtype == tf.float32
    assert result.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(result.objective[-1], double, rtol=1e-4)
    learnt = gpx.fit(probit())
    assert learnt.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(learnt.objective[-1], optimum, rtol=1e-3)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="inducing_variable"):
        probit(Z=None)
    with pytest.raises(NotImplementedError, match="GaussianMC"):
        SparseEP(DATA, problems.kernel(), gpflow.likelihoods.GaussianMC(), inducing_variable=Z)
    for options, message in (
        ({"damping": 0.0}, "damping"),
        ({"optimizer": "newton"}, "lbfgs"),
        ({"optimizer": 0.1}, "tf_keras"),
        ({"data": DATA}, "holds its data"),
    ):
        with pytest.raises(ValueError, match=message):
            gpx.fit(probit(), **options)


def test_sites_that_make_no_posterior_are_started_afresh() -> None:
    good, spoilt = probit(False), probit(False)
    spoilt.prec.assign(-np.ones_like(Y))  # I + AΛAᵀ is not positive definite
    np.testing.assert_allclose(gpx.fit(spoilt).objective[-1], gpx.fit(good).objective[-1], rtol=1e-9)


def test_adaptive_damping_stops_alternating_sites() -> None:
    """Undamped sweeps overshoot where the sites are strong: 50 of them, against 20 with a secant step."""
    data = problems.binary(60, variance=100.0, seed=5)
    steps = {}
    for damping in (None, 1.0):
        model = probit(False, data, problems.kernel(100.0), data[0].copy())
        result = gpx.fit(model, damping=damping)
        assert result.status is gpx.Status.CONVERGED
        steps[damping] = result.steps
    assert 1.5 * steps[None] < steps[1.0]
