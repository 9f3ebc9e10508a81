"""Regression networks with inducing inputs: the full model at Z = X, a bound below it elsewhere."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.gprn import network
from gpflow_ext.models import GPRNTensor

N, D, K = 16, 5, 2
X, XNEW = problems.inputs(N), problems.inputs(3, seed=7)


def targets(missing: bool = False, outputs: int = D) -> np.ndarray:
    rng = np.random.default_rng(1)
    F = np.stack([np.ones(N), problems.latent(X, 1.0, 1.0, seed=3)], axis=1)
    W = np.stack(
        [[problems.latent(X, 1.0, 1.5, seed=10 + 2 * d + k) for k in range(K)] for d in range(outputs)]
    )
    Y = np.einsum("dkn,nk->nd", W, F) + 0.2 * rng.standard_normal((N, outputs))
    if missing:
        Y[:4, ::2] = np.nan
        Y[N - 1, 1] = np.nan
    return Y


def model(Z: np.ndarray | str | None, missing: bool = False, outputs: int = D, **options) -> GPRNTensor:
    new = GPRNTensor(
        (X, targets(missing, outputs)),
        gpflow.kernels.SquaredExponential(lengthscales=0.7),
        gpflow.kernels.SquaredExponential(variance=1.1, lengthscales=0.8),
        K,
        inducing_variable=Z,
        **{"noise_variance": 0.2} | options,
    )
    gpflow.set_trainable(new.kernel.variance, False)
    return new


@pytest.mark.parametrize(
    ("missing", "outputs"), others_slow([(False, D), (True, D), (False, 2 * N)], (True, D), (False, 2 * N))
)
def test_inducing_inputs_at_the_data_change_nothing(missing, outputs) -> None:
    """The jitter and the nugget, 1e-12 each, count differently."""
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-12)):
        nodes = {"nugget": 1e-12, "nugget_bounds": (1e-13, 1e-3)}
        full, sparse = (model(Z, missing, outputs, **nodes) for Z in (None, X.copy()))
        for new in (full, sparse):
            new.q.sweep(new.prior())
        np.testing.assert_allclose(sparse.elbo(), full.elbo(), rtol=1e-8)
        for flags in ({}, {"full_cov": True}, {"full_output_cov": True}):
            for a, b in zip(sparse.predict_f(XNEW, **flags), full.predict_f(XNEW, **flags), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)
        np.testing.assert_allclose(
            sparse.independent_log_likelihood(), full.independent_log_likelihood(), rtol=1e-8
        )


def test_inducing_inputs_may_be_chosen_among_the_data() -> None:
    """A fit moves them, so that they are looked at before; a name that is not "auto" is refused."""
    Z = model("auto").inducing_variable.Z.numpy()
    assert 1 < len(Z) <= N
    assert {*map(tuple, Z)} <= {*map(tuple, X)}
    with pytest.raises(ValueError, match="inducing variables or \"auto\"; got 'all'"):
        model("all")


@pytest.mark.slow
def test_the_best_bound_rises_with_the_inducing_inputs_up_to_the_full_model() -> None:
    bounds = []
    for Z in (X[:4], X[:10], None):
        new, values = model(Z), []
        prior = new.prior()
        for _ in range(12):
            new.q.sweep(prior)
            values.append(float(new.q.elbo(prior)))
        assert (np.diff(values) > -1e-9).all()
        bounds.append(values[-1])
    assert (np.diff(bounds) > 0.1).all()


@pytest.mark.parametrize("missing", [False, True])
def test_one_node_of_one_starts_as_gpflows_sparse_regression(missing) -> None:
    new, expected = model(X[:6], missing), 0.0
    for y in targets(missing).T:
        rows = ~np.isnan(y)
        data = X[rows], y[rows, None]
        expected += gpflow.models.SGPR(data, new.weight_kernel, X[:6], noise_variance=0.2).elbo()
    np.testing.assert_allclose(new.independent_log_likelihood(), expected, rtol=1e-10)


@pytest.mark.parametrize("missing", [False, True])
def test_the_bound_is_that_of_dense_algebra(missing) -> None:
    """E[log p(Y | W, F)] − Σ_d KL(q(W_d)) − KL(q(F)), the optimal q(W_d) by dense algebra for each output."""
    new, Y, noise = model(X[:5], missing), targets(missing), 0.2
    prior, q = new.prior(), new.q.nodes(new.prior())
    rows, left = prior.weights.numpy(), prior.inducing.weight_residual.numpy()
    mean, second = q.mean.numpy(), q.cov.numpy() + q.mean.numpy()[:, :, None] * q.mean.numpy()[:, None, :]
    value, size = -float(q.kl), rows.shape[1] * K
    nat1, prec = np.zeros((N, K)), np.zeros((N, K, K))
    for y in Y.T:
        B, h = np.eye(size), np.zeros(size)
        for n in np.flatnonzero(~np.isnan(y)):
            B += np.kron(np.outer(rows[n], rows[n]), second[n]) / noise
            h += np.kron(rows[n], mean[n]) * y[n] / noise
        S, u = np.linalg.inv(B), np.linalg.solve(B, h)
        value -= 0.5 * (np.trace(S) + u @ u - size + np.linalg.slogdet(B)[1])
        for n in np.flatnonzero(~np.isnan(y)):
            A = np.kron(rows[n], np.eye(K))  # [K, MK]
            ww = A @ (S + np.outer(u, u)) @ A.T + left[n] * np.eye(K)
            square = y[n] ** 2 - 2.0 * y[n] * (A @ u) @ mean[n] + np.trace(ww @ second[n])
            value -= 0.5 * (np.log(2.0 * np.pi * noise) + square / noise)
            nat1[n] += y[n] * (A @ u) / noise
            prec[n] += ww / noise
    np.testing.assert_allclose(new.elbo(), value, rtol=1e-10)
    w = network.weights(new.q.patterns, prior.weights, prior.noise, q)
    found = network.node_sites(new.q.patterns, prior.weights, prior.noise, w, prior.residuals[0])
    np.testing.assert_allclose(found[0], nat1, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found[1], prec, rtol=0, atol=1e-9)


def test_gradients_are_central_differences() -> None:
    new = model(X[:5], missing=True)
    variables = new.trainable_variables
    with tf.GradientTape() as tape:
        loss = new.training_loss()
    for i, (variable, gradient) in enumerate(zip(variables, tape.gradient(loss, variables), strict=True)):
        unit, middle, ends = np.random.default_rng(i).normal(size=variable.shape), variable.numpy(), []
        for sign in (1.0, -1.0):
            variable.assign(middle + sign * 1e-5 * unit)
            ends.append(new.training_loss())
        variable.assign(middle)
        np.testing.assert_allclose(np.sum(gradient * unit), (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


def test_moments_are_those_of_draws() -> None:
    """Five standard errors of 20,000 draws, with a fixed seed."""
    new = model(X[:5], missing=True)
    mean, cov = new.predict_f(XNEW, full_cov=True)
    draws = new.predict_f_samples(XNEW, 20_000).numpy()
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * draws.std(axis=0) / np.sqrt(len(draws))).all()
    products = np.einsum("sxd,syd->sdxy", draws - mean, draws - mean)
    assert (np.abs(products.mean(axis=0) - cov) < 5.0 * products.std(axis=0) / np.sqrt(len(draws))).all()


@pytest.mark.slow
def test_training_moves_the_inducing_inputs_and_an_export_serves_the_model(tmp_path) -> None:
    new = model(X[:4].copy())
    before, Z = new.elbo(), new.inducing_variable.Z.numpy()
    gpx.fit(new, steps=1, hyper_updates=3)
    assert new.elbo() > before + 1.0
    assert not np.allclose(new.inducing_variable.Z, Z)
    served = gpx.load_exported(gpx.export(new, tmp_path / "network", example=XNEW))
    np.testing.assert_allclose(served.predict(XNEW)["mean"], new.predict_y(XNEW)[0], rtol=0, atol=1e-11)


def test_what_inducing_inputs_are_not_for_is_refused() -> None:
    for call in (
        lambda: model(X[:4], posterior="tensor"),
        lambda: gpx.sample(model(X[:4])),
    ):
        with pytest.raises(NotImplementedError, match="nducing"):
            call()


def test_the_nodes_have_the_moments_of_the_dense_gaussian() -> None:
    new = model(X[:5], missing=True, nugget=0.3)
    prior, (nat1, prec) = new.prior(), (part.numpy() for part in new.q.sites)
    rows, left = prior.nodes.numpy(), prior.inducing.node_residual.numpy()
    np.testing.assert_allclose(left, 1.3 - (rows**2).sum(axis=1), rtol=1e-10)
    B, h = np.eye(rows.shape[1] * K), np.zeros(rows.shape[1] * K)
    for n in range(N):
        B += np.kron(np.outer(rows[n], rows[n]), prec[n])
        h += np.kron(rows[n], nat1[n])
    S, m = np.linalg.inv(B), np.linalg.solve(B, h)
    q = new.q.nodes(prior)
    for n in range(N):
        A = np.kron(rows[n], np.eye(K))
        np.testing.assert_allclose(q.mean[n], A @ m, rtol=0, atol=1e-10)
        np.testing.assert_allclose(q.cov[n], A @ S @ A.T + left[n] * np.eye(K), rtol=0, atol=1e-10)
    kl = 0.5 * (np.trace(S) + m @ m - len(m) + np.linalg.slogdet(B)[1])
    np.testing.assert_allclose(q.kl, kl, rtol=1e-10)
