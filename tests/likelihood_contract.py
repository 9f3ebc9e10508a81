"""What every likelihood must do, whatever it models: called by the tests of each."""

from __future__ import annotations

import copy
from collections.abc import Callable

import gpflow
import numpy as np
import problems
import tensorflow as tf
from gpflow.likelihoods import Likelihood
from gpflow.models import SVGP, VGP

import gpflow_ext as gpx
from gpflow_ext.models import VGPKMM

Data = tuple[np.ndarray, np.ndarray]


def moments(width: int, num_data: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return 3.0 * rng.normal(size=(num_data, width)), 10.0 ** rng.uniform(-2.0, 1.5, (num_data, width))


def check_gradients(likelihood: Likelihood, Fmu: np.ndarray, Fvar: np.ndarray, Y: np.ndarray) -> None:
    """First derivatives of the variational expectations against central differences, everywhere."""

    def value(mean, var):
        return likelihood.variational_expectations(np.zeros_like(mean), mean, var, Y)

    m, v = tf.constant(Fmu), tf.constant(Fvar)
    parameters = likelihood.trainable_variables
    with tf.GradientTape() as tape:
        tape.watch((m, v))
        total = tf.reduce_sum(value(m, v))
    by_mean, by_var, *by_parameter = tape.gradient(total, (m, v, *parameters))
    for column in range(Fmu.shape[1]):
        step = 1e-5 * np.eye(Fmu.shape[1])[column]
        # Truncation 1e-10, rounding 1e-15·|value|/1e-5.
        slope = (value(m + step, v) - value(m - step, v)) / 2e-5
        np.testing.assert_allclose(by_mean[:, column], slope, rtol=1e-7, atol=1e-7)
        slope = (value(m, v * (1 + step)) - value(m, v * (1 - step))) / 2e-5
        np.testing.assert_allclose((by_var * v)[:, column], slope, rtol=1e-7, atol=1e-7)
    for variable, slopes in zip(parameters, by_parameter, strict=True):
        kept = np.array(variable)
        for index in np.ndindex(kept.shape):
            ends = []
            for sign in (1.0, -1.0):
                moved = kept.copy()
                moved[index] += sign * 1e-5
                variable.assign(moved)
                ends.append(float(tf.reduce_sum(value(m, v))))
            variable.assign(kept)
            np.testing.assert_allclose(
                slopes.numpy()[index], (ends[0] - ends[1]) / 2e-5, rtol=1e-7, atol=1e-6
            )


def check_batches(likelihood: Likelihood, width: int, Y: np.ndarray) -> None:
    """Leading batch dimensions: each element equals the call without them."""
    rng = np.random.default_rng(0)
    shape = (2, 3, len(Y), width)
    X, F, V = np.zeros((len(Y), 2)), rng.normal(size=shape), rng.gamma(2.0, size=shape)
    for method, arguments in (
        ("log_prob", (F, Y)),
        ("predict_log_density", (F, V, Y)),
        ("variational_expectations", (F, V, Y)),
        ("predict_mean_and_var", (F, V)),
        ("conditional_mean", (F,)),
        ("conditional_variance", (F,)),
    ):
        batched = getattr(likelihood, method)(X, *arguments)
        one = getattr(likelihood, method)(X, *(a if a is Y else a[1, 2] for a in arguments))
        for many, single in zip(tf.nest.flatten(batched), tf.nest.flatten(one), strict=True):
            assert many.shape[:3] == (2, 3, len(Y))
            np.testing.assert_allclose(many[1, 2], single, rtol=1e-12, atol=1e-14)


def check_xla(likelihood: Likelihood, width: int, Y: np.ndarray, dtype: tf.DType) -> None:
    """XLA gives the values and gradients of eager execution, in the dtype of its inputs."""
    m, v = (tf.constant(part, dtype) for part in moments(width, len(Y)))
    targets = tf.constant(Y, dtype)

    def everything(m, v):
        with tf.GradientTape() as tape:
            tape.watch([m, v])
            bound = likelihood.variational_expectations(m, m, v, targets)
        slopes = tape.gradient(bound, [m, v])
        density = likelihood.predict_log_density(m, m, v, targets)
        return (
            bound,
            *slopes,
            density,
            *likelihood.predict_mean_and_var(m, m, v),
            likelihood.log_prob(m, m, targets),
        )

    tolerance = 1e-9 if dtype == tf.float64 else 1e-3
    for a, b in zip(
        tf.function(everything, jit_compile=True, autograph=False)(m, v), everything(m, v), strict=True
    ):
        assert a.dtype == dtype
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def check_in_gpflow_models(make: Callable[[], Likelihood], data: Data, width: int, dtype: type) -> None:
    """VGP and SVGP: finite loss and gradients in their dtype; deepcopy is independent; the summary prints."""
    with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=1e-4)):
        X, Y = (part.astype(dtype) for part in data)
        likelihood = make()
        vgp = VGP((X, Y), problems.kernel(), likelihood, num_latent_gps=width)
        svgp = SVGP(problems.kernel(), likelihood, X[:5], num_latent_gps=width, num_data=len(X))
        for loss, model in ((vgp.training_loss, vgp), (lambda: svgp.training_loss((X, Y)), svgp)):
            with tf.GradientTape() as tape:
                value = loss()
            gradients = tape.gradient(value, model.trainable_variables)
            assert value.dtype == dtype
            assert all(np.isfinite(g).all() for g in (value, *gradients))
        twin = copy.deepcopy(vgp)
        np.testing.assert_array_equal(twin.predict_y(X)[0], vgp.predict_y(X)[0])
        twin.q_mu.assign(twin.q_mu + np.arange(1.0, 1.0 + width))
        assert not np.allclose(twin.predict_log_density((X, Y)), vgp.predict_log_density((X, Y)))
        assert "q_mu" in gpflow.utilities.tabulate_module_summary(vgp, "plain")


def fixed_optimum(
    data: Data, likelihood: Likelihood, variance: float = 4.0, stationarity: float = 1e-9
) -> VGPKMM:
    """The optimal sites at given hyperparameters; every iteration must raise the bound."""
    model = VGPKMM(data, problems.kernel(variance), likelihood)
    for part in (model.kernel, model.likelihood):
        gpflow.set_trainable(part, False)
    result = gpx.fit(model, tolerance=1e-12, stationarity=stationarity, steps=1000)
    assert result.status is gpx.Status.CONVERGED, result
    assert (np.diff(result.objective) >= -1e-9 * np.abs(result.objective[1:])).all()
    return model


def check_optimum(make: Callable[[], Likelihood], data: Data) -> None:
    """VGPKMM and GPflow's VGP, trained by L-BFGS, find the same maximum of the same bound."""
    model = fixed_optimum(data, make())
    reference = VGP(data, problems.kernel(), make(), num_latent_gps=model.num_latent_gps)
    for part in (reference.kernel, reference.likelihood):
        gpflow.set_trainable(part, False)
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    gpflow.optimizers.Scipy().minimize(
        reference.training_loss,
        reference.trainable_variables,
        options=options,
        tf_fun_args={"autograph": False},
    )
    np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-6)
    assert model.elbo() >= reference.elbo() - 1e-8  # never below what L-BFGS found
