"""SVGPRobustMax with one covariance for all classes: bound, natural gradient, optimum, predictions, start."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.models import SGPMCFreeForm, SVGPRobustMax

DATA = problems.classes(60, lengthscale=1.0)
M, K = 12, 3


def model(shared: bool = True, **options) -> SVGPRobustMax:
    kernel = gpflow.kernels.SquaredExponential(2.0, 1.0) + gpflow.kernels.White(0.01)
    points, options = DATA[0][:M].copy(), {"learn_epsilon": False} | options
    new = SVGPRobustMax(kernel, K, points, num_data=len(DATA[0]), shared_covariance=shared, **options)
    for part in (new.kernel, new.inducing_variable):
        gpflow.set_trainable(part, False)
    return new


def pair() -> tuple[SVGPRobustMax, SVGPRobustMax]:
    """A model away from the prior, and one with a covariance of each class that holds the same q."""
    rng = np.random.default_rng(0)
    own, apart = model(), model(shared=False)
    root = np.tril(0.2 * rng.normal(size=(1, M, M))) + 0.7 * np.eye(M)
    for each in (own, apart):
        each.q_sqrt.assign(np.tile(root, [each.q_sqrt.shape[0], 1, 1]))
    own.q_mu.assign(rng.normal(size=(M, K)))
    apart.q_mu.assign(own.q_mu)
    return own, apart


def test_bound_and_predictions_are_those_of_equal_covariances() -> None:
    own, apart = pair()
    assert own.q_sqrt.shape == (1, M, M)
    assert own.num_latent_gps == K
    np.testing.assert_allclose(own.elbo(DATA), apart.elbo(DATA), rtol=1e-12)
    np.testing.assert_allclose(own.prior_kl(), apart.prior_kl(), rtol=1e-12)
    X = DATA[0][:7]
    for options in ({}, {"full_cov": True}, {"full_output_cov": True}):
        for a, b in zip(own.predict_f(X, **options), apart.predict_f(X, **options), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    ours, theirs = (gpx.sample_functions(each, 5, seed=1)(X) for each in (own, apart))
    np.testing.assert_allclose(ours, theirs, atol=1e-8)


def test_the_factor_has_the_sum_of_the_gradients_of_the_classes() -> None:
    gradients = []
    for each in pair():
        with tf.GradientTape() as tape:
            loss = each.training_loss(DATA)
        parts = [each.q_mu.unconstrained_variable, each.q_sqrt.unconstrained_variable]
        gradients.append(tape.gradient(loss, parts))
    (by_mean, by_root), (mean, root) = gradients
    np.testing.assert_allclose(by_mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(by_root, tf.reduce_sum(root, axis=0, keepdims=True), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_a_step_is_the_natural_gradient_of_the_family() -> None:
    """θ + γ ∂L/∂η with η = (m_k, K S + Σ m_kmₖᵀ), θ = (S⁻¹m_k, −½S⁻¹)."""
    own, _ = pair()
    gpx.fit(own, DATA, steps=12, gamma=0.3)  # to where the precision after the step is positive definite
    m, S = (
        tf.constant(own.q_mu.numpy()),
        tf.constant((own.q_sqrt.numpy() @ own.q_sqrt.numpy().swapaxes(1, 2))[0]),
    )
    second = K * S + tf.matmul(m, m, transpose_b=True)
    trial = model()
    with tf.GradientTape() as tape:
        tape.watch([m, second])
        chol = tf.linalg.cholesky((second - tf.matmul(m, m, transpose_b=True)) / K)
        mean, var = trial_marginals(trial, m, chol)
        fit = tf.reduce_sum(trial.expectations(*map(tf.constant, DATA), mean, var))
        log_det = 2.0 * K * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)))
        value = fit - 0.5 * (tf.linalg.trace(second) - log_det - K * M)
    by_mean, by_second = tape.gradient(value, [m, second])
    gamma, P = 0.05, np.linalg.inv(S)
    P_new = P - 2.0 * gamma * 0.5 * (by_second + tf.transpose(by_second)).numpy()
    mean_new = np.linalg.solve(P_new, P @ m.numpy() + gamma * by_mean.numpy())
    gpx.fit(own, DATA, steps=1, gamma=10 * gamma)  # the first step is a tenth of γ
    np.testing.assert_allclose(own.q_mu, mean_new, atol=1e-8)
    root = own.q_sqrt.numpy()[0]
    np.testing.assert_allclose(root @ root.T, np.linalg.inv(P_new), atol=1e-8)


def trial_marginals(trial: SVGPRobustMax, m: tf.Tensor, chol: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    prior = trial.prior(tf.constant(DATA[0]))
    A = prior.A[0]
    var = prior.residual + tf.reduce_sum(tf.matmul(chol, A, transpose_a=True) ** 2, axis=0)[:, None]
    return prior.mean + tf.matmul(A, m, transpose_a=True), tf.tile(var, [1, K])


@pytest.mark.slow
def test_all_recipes_find_the_maximum_of_the_bound() -> None:
    whole, dual, natural = model(), model(), model()
    gpx.fit(whole, DATA, steps=20)
    gpx.fit(dual, DATA, recipe="dual", steps=150, gamma=0.3)
    gpx.fit(natural, DATA, steps=150, gamma=0.3)
    variables = [whole.q_mu.unconstrained_variable, whole.q_sqrt.unconstrained_variable]
    with tf.GradientTape() as tape:
        bound = whole.elbo(DATA)
    for part in tape.gradient(bound, variables):
        np.testing.assert_allclose(part, 0.0, atol=2e-3)
    for each in (dual, natural):
        np.testing.assert_allclose(each.elbo(DATA), bound, rtol=1e-6)
    apart = model(shared=False)
    gpx.fit(apart, DATA, steps=20)
    assert bound < apart.elbo(DATA)  # a larger family has the higher bound


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["robust_max", "dual"])
def test_minibatches_raise_the_bound(recipe: str) -> None:
    own = model()
    gpflow.set_trainable(own.kernel, True)
    before = own.elbo(DATA)
    gpx.fit(own, DATA, recipe=recipe, steps=30, minibatch_size=20)
    assert own.elbo(DATA) > before + 10.0


@pytest.mark.slow
def test_the_start_from_labels_is_that_of_equal_covariances() -> None:
    own, apart = model(), model(shared=False)
    starts = [gpx.start_from_labels(each, DATA, seed=1) for each in (own, apart)]
    np.testing.assert_allclose(*starts, rtol=1e-10)
    np.testing.assert_allclose(own.q_mu, apart.q_mu, atol=1e-10)
    np.testing.assert_allclose(np.tile(own.q_sqrt, [K, 1, 1]), apart.q_sqrt, atol=1e-10)


def test_chains_start_from_it() -> None:
    own, apart = pair()
    ours, theirs = (SGPMCFreeForm.from_gaussian(each, DATA) for each in (own, apart))
    np.testing.assert_allclose(ours.q_sqrt, theirs.q_sqrt, atol=1e-12)


@pytest.mark.slow
def test_exports_predict_as_the_model(tmp_path) -> None:
    own, _ = pair()
    served = gpx.load_exported(gpx.export(own, tmp_path / "export", example=DATA[0][:5]))
    np.testing.assert_allclose(
        served.predict(DATA[0])["probabilities"], own.predict_y(DATA[0])[0], atol=1e-10
    )


def test_an_initial_q_is_kept() -> None:
    own, _ = pair()
    new = model(q_mu=own.q_mu.numpy(), q_sqrt=own.q_sqrt.numpy())
    np.testing.assert_allclose(new.elbo(DATA), own.elbo(DATA), rtol=1e-12)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[1, 12, 12\]; its shape is \(3, 12, 12\)"):
        model(q_sqrt=np.tile(np.eye(M), [K, 1, 1]))
    kernel = gpflow.kernels.SeparateIndependent([gpflow.kernels.SquaredExponential() for _ in range(K)])
    points = gpflow.inducing_variables.SharedIndependentInducingVariables(
        gpflow.inducing_variables.InducingPoints(DATA[0][:M])
    )
    with pytest.raises(ValueError, match="share kernel and inducing points"):
        SVGPRobustMax(kernel, K, points, num_data=60, shared_covariance=True)
