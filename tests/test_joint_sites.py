"""Coordinates of several latent functions: sites that couple them, and what chains gain."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics.grids import Dense
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.coordinates.joint_sites import JointSites, precision

N, M, NOISE = 16, 5, 0.3
Z = problems.inputs(M, seed=7)


class Total(gpflow.likelihoods.Likelihood):
    """y ~ N(f₁ + f₂, noise): the posterior is Gaussian, and couples the two."""

    def __init__(self) -> None:
        super().__init__(input_dim=None, latent_dim=2, observation_dim=1)

    def _log_prob(self, X, F, Y):
        return -0.5 * tf.square(Y[:, 0] - tf.reduce_sum(F, -1)) / NOISE

    def _variational_expectations(self, X, Fmu, Fvar, Y):
        return self._log_prob(X, Fmu, Y) - 0.5 * tf.reduce_sum(Fvar, -1) / NOISE

    def _predict_mean_and_var(self, X, Fmu, Fvar):
        raise NotImplementedError

    def _predict_log_density(self, X, Fmu, Fvar, Y):
        raise NotImplementedError


def approximated(likelihood, data, steps: int = 300) -> SGPMCFreeForm:
    kernel = problems.kernel()
    mean = gpflow.functions.Constant(0.2)
    model = SGPMCFreeForm(data, kernel, likelihood, mean, inducing_variable=Z)
    for parameter in (kernel.variance, kernel.lengthscales):
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    gpflow.set_trainable(mean, False)
    gpx.gaussian_approximation(model, steps=steps, free_inducing=False)
    return model


@pytest.fixture(scope="module", name="classes")
def _classes() -> SGPMCFreeForm:
    X = problems.inputs(N)
    Y = np.digitize(X[:, 0], [-0.7, 0.7]).astype(float)[:, None]
    return approximated(gpx.likelihoods.RobustMax(3, 1e-3), (X, Y))


@pytest.fixture(scope="module", name="total")
def _total() -> SGPMCFreeForm:
    return approximated(Total(), problems.continuous(N), steps=20)


def density(model: SGPMCFreeForm, lengthscale: float, z: tf.Tensor) -> np.ndarray:
    """Return the log likelihoods of z [C, M, P] at a length scale."""
    stack = Stack(
        [(model.V, z), (model.kernel.lengthscales, tf.fill([len(z)], tf.constant(lengthscale, z.dtype)))]
    )
    return JointSites(model.density).log_likelihoods(stack).numpy()


@pytest.mark.parametrize("lengthscale", [0.6, 1.7])
def test_a_gaussian_posterior_is_the_standard_normal_at_each_theta(total, lengthscale) -> None:
    z = tf.constant(np.random.default_rng(0).standard_normal((4, M, 2)))
    found = density(total, lengthscale, z)
    np.testing.assert_allclose(found, found[0], rtol=0, atol=1e-7)


def test_the_constant_is_that_of_the_evidence(total) -> None:
    """Σ E[log p] + log N(v) − log q(v) is the log evidence, here of N(2μ, 2AᵀA + noise) less the residuals."""
    z = tf.zeros([1, M, 2], tf.float64)
    X, Y = (part.numpy() for part in total.data)
    found = []
    for lengthscale in (0.6, 1.7):
        kernel = gpflow.utilities.deepcopy(total.kernel)
        kernel.lengthscales.assign(lengthscale)
        K = kernel(Z).numpy() + 1e-6 * np.eye(M)
        A = np.linalg.solve(np.linalg.cholesky(K), kernel(Z, X).numpy())
        residual = kernel(X, full_cov=False).numpy() - (A**2).sum(0)
        cov = 2.0 * A.T @ A + NOISE * np.eye(N)
        away = Y[:, 0] - 0.4
        exact = (
            -0.5 * away @ np.linalg.solve(cov, away)
            - 0.5 * np.linalg.slogdet(cov)[1]
            - residual.sum() / NOISE
        )
        found.append(density(total, lengthscale, z)[0] - exact)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-6)


def test_the_factor_is_that_of_the_sum_of_kronecker_products(classes) -> None:
    sites = JointSites(classes.density)
    A = classes.density.projection(Stack([])).A[0].numpy()
    B = np.eye(3 * M) + sum(np.kron(np.outer(a, a), W) for a, W in zip(A.T, sites._prec.numpy(), strict=True))
    F = sites.factor()[0].numpy()
    np.testing.assert_array_equal(F, np.tril(F))
    np.testing.assert_allclose(F @ F.T @ B, np.eye(3 * M), rtol=0, atol=1e-9)


def test_the_gradient_of_the_precision_is_that_of_the_sum_of_kronecker_products(classes) -> None:
    sites, rng = JointSites(classes.density), np.random.default_rng(0)
    A, weights = (tf.constant(rng.standard_normal(shape)) for shape in ((2, M, N), (2, 3 * M, 3 * M)))

    def plain(A: tf.Tensor) -> tf.Tensor:
        pairs = tf.einsum("cmn,ckn,npq->cmpkq", A, A, sites._prec)
        return tf.reshape(pairs, weights.shape) + tf.eye(3 * M, dtype=A.dtype)

    found = []
    for function in (lambda A: precision(Dense(A), sites._prec), plain):
        with tf.GradientTape() as tape:
            tape.watch(A)
            value = tf.reduce_sum(weights * function(A))
        found.append((value, tape.gradient(value, A)))
    assert np.abs(found[1][1]).max() > 0.1
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


def test_sites_are_blind_to_a_shift_of_all_classes_and_their_mean_is_that_of_q(classes) -> None:
    sites = JointSites(classes.density)
    prec = sites._prec.numpy()
    assert np.abs(prec).max() > 0.1
    np.testing.assert_allclose(prec.sum(-1), 0.0, atol=1e-3 * np.abs(prec).max())
    np.testing.assert_allclose(sites.mean(classes.held())[0], classes.q_mu, rtol=0, atol=2e-3)


def test_a_shift_of_all_classes_has_unit_width_in_the_coordinates(classes) -> None:
    """In those of q, which takes the functions for independent, it is several times wider than the rest."""
    target, _ = placed(classes, "vb")
    shift = np.zeros((M, 3))
    shift[0] = 1.0 / np.sqrt(3.0)
    F = target.affine.blocks[0].numpy()
    direction = np.linalg.solve(F, shift.ravel())
    z = np.zeros((3, target.num_dimensions))
    z[1, : 3 * M], z[2, : 3 * M] = 0.1 * direction, -0.1 * direction
    middle, ahead, back = target(tf.constant(z)).numpy()
    curvature = (2.0 * middle - ahead - back) / 0.01
    np.testing.assert_allclose(curvature, 1.0, rtol=0.02)  # the prior's alone
    np.testing.assert_allclose(direction @ direction, curvature, rtol=0.02)  # and that of z
    own = np.linalg.solve(classes.q_sqrt.numpy(), shift.T[..., None])
    assert np.square(own).sum() > 3.0 * curvature
