"""Models with a Vecchia prior: with all neighbours they are the dense models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Constant, Cosine, Kernel, Linear, Matern32, Matern52, SeparateIndependent, White
from kept_models import served_and_rebuilt

import gpflow_ext as gpx
from gpflow_ext.sites.structured import misfit
from gpflow_ext.sites.vecchia.structure import VecchiaOptions

RNG = np.random.default_rng(0)
N = 80
X = RNG.uniform(0.0, 1.0, (N, 2))
Y = RNG.poisson(np.exp(np.sin(5.0 * X[:, :1]))).astype(float)
NEW = RNG.uniform(0.0, 1.0, (7, 2))
ALL = VecchiaOptions(neighbours=N)


def _kernel() -> Kernel:
    return Matern32(1.3, [0.3, 0.5])


def _fitted(cls: Any, likelihood: Any, prior: Any, kernel: Kernel | None = None, **options: Any) -> Any:
    targets = Y if isinstance(likelihood, gpflow.likelihoods.Poisson) else np.minimum(Y, 1.0)
    model = cls((X, targets), kernel or _kernel(), likelihood, prior=prior)
    gpflow.set_trainable(model.kernel, False)
    gpx.fit(model, progress=False, **options)
    gpflow.set_trainable(model.kernel, True)
    return model


@pytest.mark.parametrize(
    ("name", "recipe"),
    [("GPLaplace", None), ("GPTaylor", None), ("VGPKMM", None), ("GPJaakkola", None), ("VGPKMM", "ep")],
)
def test_with_all_neighbours_every_method_is_that_of_the_dense_model(name: str, recipe: str | None) -> None:
    """Objective, its gradient, and predictions at new places."""
    cls, found = getattr(gpx.models, name), []
    for prior in (None, ALL):
        logit = gpx.likelihoods.BernoulliLogit(bound="jaakkola")
        likelihood = logit if name == "GPJaakkola" else gpflow.likelihoods.Poisson()
        model = _fitted(cls, likelihood, prior, **({} if recipe is None else {"recipe": recipe}))
        with tf.GradientTape() as tape:
            value = model.maximum_log_likelihood_objective()
        slopes = tape.gradient(value, model.trainable_variables)  # as exact as the sites are at rest
        found.append((value, *model.predict_f(NEW), *slopes))
    for number, (dense, vecchia) in enumerate(zip(*found, strict=True)):
        tolerance = 1e-8 if number < 3 else 1e-6
        np.testing.assert_allclose(vecchia, dense, rtol=tolerance, atol=tolerance)


@pytest.mark.slow
def test_latent_functions_have_kernels_of_their_own() -> None:
    """Two functions of a stick-breaking likelihood, with all neighbours the dense model."""
    targets = RNG.integers(0, 3, (N, 1)).astype(float)
    found = []
    for prior in (None, ALL):
        kernel = SeparateIndependent([Matern32(), Matern52(1.0, 0.3)])
        model = gpx.models.GPLaplace((X, targets), kernel, gpx.likelihoods.StickBreaking(3), prior=prior)
        gpflow.set_trainable(model, False)
        found.append((gpx.fit(model, progress=False).objective[-1], *model.predict_f(NEW)))
    for dense, vecchia in zip(*found, strict=True):
        np.testing.assert_allclose(vecchia, dense, rtol=1e-8, atol=1e-8)


def test_equal_places_with_noise_of_their_own() -> None:
    """A White kernel lets inputs repeat."""
    twice, found = (np.repeat(X[:30], 2, axis=0), np.repeat(Y[:30], 2, axis=0)), []
    for prior in (None, ALL):
        model = gpx.models.GPLaplace(twice, _kernel() + White(0.1), gpflow.likelihoods.Poisson(), prior=prior)
        gpflow.set_trainable(model, False)
        found.append((gpx.fit(model, progress=False).objective[-1], *model.predict_f(NEW)))
    for dense, vecchia in zip(*found, strict=True):
        np.testing.assert_allclose(vecchia, dense, rtol=1e-8, atol=1e-8)


def test_it_serves_resumes_and_takes_other_data(tmp_path: Path) -> None:
    """An export predicts the same, a checkpoint rebuilds the model, neighbours follow new data."""
    model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior="vecchia")
    served_and_rebuilt(model, X, NEW, tmp_path)
    model.update_data((np.concatenate([X, NEW]), np.concatenate([Y, Y[:7]])))
    assert model.structure is not None
    assert model.structure.num_data == N + 7
    assert np.isfinite(float(model.maximum_log_likelihood_objective()))


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "repeated": (Matern32(), np.repeat(X, 2, axis=0), "80 of the 160 inputs repeat"),
    "trend": (Matern32() + Linear(), X, "Linear does not fall with the distance"),
    "cosine": (Cosine(), X, "Cosine does not fall"),
    "constant": (Constant(), X, "none of its kernels is stationary"),
    "hidden column": (Matern32(active_dims=[0]), np.round(X, 1), "inputs repeat"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(name: str) -> None:
    """Kernels that do not fall with the distance, and equal inputs; the function says so without a model."""
    kernel, inputs, reason = REFUSED[name]
    assert reason in str(misfit("vecchia", kernel, inputs))
    with pytest.raises(ValueError, match=reason):
        gpx.models.GPLaplace(
            (inputs, np.ones((len(inputs), 1))), kernel, gpflow.likelihoods.Poisson(), prior="vecchia"
        )


def test_a_prior_that_fits_has_no_misfit() -> None:
    """Of either kind; several columns are no state space."""
    assert misfit("vecchia", Matern32() + White(), np.repeat(X, 2, axis=0)) is None
    assert misfit("markov", Matern32(), X[:, :1]) is None
    assert "columns" in str(misfit("markov", Matern32(), X))


def test_other_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options out of range, unknown names, inducing points beside, covariances of new places, memory."""
    with pytest.raises(ValueError, match="`neighbours` must be at least 1; got 0"):
        VecchiaOptions(neighbours=0)
    with pytest.raises(ValueError, match="`ordering` must be one of"):
        VecchiaOptions(ordering="hilbert")
    given = (X, Y), _kernel(), gpflow.likelihoods.Poisson()
    with pytest.raises(ValueError, match="`prior` must be None"):
        gpx.models.GPLaplace(*given, prior="vechia")
    with pytest.raises(ValueError, match="no inducing points"):
        gpx.models.GPLaplace(*given, prior="vecchia", inducing_variable=X[:5])
    with pytest.raises(ValueError, match="arrays, not variables"):
        gpx.models.GPLaplace((tf.Variable(X), tf.Variable(Y)), *given[1:], prior="vecchia")
    with pytest.raises(NotImplementedError, match="each place by itself"):
        gpx.models.GPLaplace(*given, prior="vecchia").predict_f(NEW, full_cov=True)
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.LARGEST", 10**5)
    with pytest.raises(ValueError, match="fewer neighbours"):
        gpx.models.GPLaplace(*given, prior="vecchia")


@pytest.mark.parametrize("inducing", [0, 4])
def test_columns_that_no_kernel_reads_do_not_matter_to_predictions(inducing: int) -> None:
    X = np.random.default_rng(0).uniform(0.0, 5.0, (20, 2))
    Y = np.ones((20, 1))
    options = gpx.VecchiaOptions(neighbours=6, inducing=inducing)
    kernels = (gpflow.kernels.Matern32(active_dims=[0]), gpflow.kernels.Matern32())
    models = [
        gpx.models.VGPKMM((X[:, :columns], Y), kernel, gpflow.likelihoods.Poisson(), prior=options)
        for columns, kernel in zip((2, 1), kernels, strict=True)
    ]
    new = X[:5] + 0.1
    for model in models:
        model.settle_sites()
    for two, one in zip(models[0].predict_f(new), models[1].predict_f(new[:, :1]), strict=True):
        np.testing.assert_allclose(two, one, atol=1e-6)


def test_columns_that_no_kernel_reads_are_no_obstacle_to_a_fit() -> None:
    X, Y = np.random.default_rng(0).uniform(0.0, 5.0, (20, 2)), np.ones((20, 1))
    kernel = gpflow.kernels.Matern32(active_dims=[0])
    model = gpx.models.GPLaplace((X, Y), kernel, gpflow.likelihoods.Poisson(), prior="vecchia")
    gpflow.set_trainable(model, False)
    assert gpx.fit(model).status is gpx.Status.CONVERGED


@pytest.mark.parametrize("inducing", [0, 4])
def test_predictions_far_from_all_data_are_those_of_the_prior(inducing: int) -> None:
    X = np.random.default_rng(0).uniform(0.0, 5.0, (40, 2))
    kernel = gpflow.kernels.SquaredExponential(2.0)
    options = gpx.VecchiaOptions(inducing=inducing)
    model = gpx.models.GPLaplace((X, np.ones((40, 1))), kernel, gpflow.likelihoods.Poisson(), prior=options)
    model.settle_sites()
    mean, variance = model.predict_f(np.array([[1e6, 2.0], [-1e8, 1e8]]))
    np.testing.assert_allclose(mean, 0.0, atol=1e-12)
    np.testing.assert_allclose(variance, 2.0)


@pytest.mark.parametrize("functions", [1, 2])
def test_the_memory_of_a_model_whose_steps_hand_their_factor_on_counts_three_more(functions: int) -> None:
    X = np.random.default_rng(0).uniform(size=(60, 2))
    data, options = (X, np.ones([60, functions])), VecchiaOptions(5)
    parts = Matern32(), gpflow.likelihoods.Poisson()
    found = [
        model(data, *parts, num_latent_gps=functions, prior=options).structure
        for model in (gpx.models.GPLaplace, gpx.models.VGPKMM)
    ]
    more = found[1].num_bytes - found[0].num_bytes
    assert more == 3 * 8 * functions * found[0].num_entries


@pytest.mark.parametrize(("dtype", "variance", "length"), [(np.float32, 20.0, 3.0), (np.float64, 1e11, 6.0)])
def test_smooth_kernels_are_conditioned_on_near_data_in_any_unit_and_precision(
    dtype: Any, variance: float, length: float
) -> None:
    """Rounding leaves covariances of neighbours with eigenvalues below zero, by more than GPflow's jitter."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        X = np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2)).astype(dtype)
        Y = (np.sqrt(variance) * np.sin(X[:, :1])).astype(dtype)
        kernel = gpflow.kernels.SquaredExponential(variance=variance, lengthscales=length)
        noise = gpflow.likelihoods.Gaussian(0.01 * variance)
        model = gpx.models.VGPKMM((X, Y), kernel, noise, prior="vecchia")
        gpflow.set_trainable(kernel, False)
        gpflow.set_trainable(noise, False)
        assert gpx.fit(model, progress=False).status is gpx.Status.CONVERGED
        mean, var = model.predict_f(X)
        np.testing.assert_allclose(mean, Y, rtol=0, atol=0.3 * np.sqrt(variance))
        assert np.all((var > 0.0) & (var < 0.01 * variance))
