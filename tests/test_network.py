"""The algebra of the regression network against dense Gaussians, exact marginals and the tensor-normal bound."""

from __future__ import annotations

import numpy as np
import problems
import pytest
import scipy.stats
import tensorflow as tf

from gpflow_ext.gprn import network, tensor_normal
from gpflow_ext.numerics import triangular

N, D, K, NOISE = 9, 5, 2, 0.3


def problem(missing: bool = False, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Targets [N, D] and the factors of K_w and K_f."""
    rng = np.random.default_rng(seed)
    Y = rng.normal(size=(N, D))
    if missing:
        Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
    X = problems.inputs(N)
    chols = [
        np.linalg.cholesky(problems.kernel(v, length)(X).numpy() + 1e-3 * np.eye(N))
        for v, length in ((1.4, 0.9), (1.0, 1.5))
    ]
    return Y, *chols


def patterns(Y: np.ndarray) -> network.Patterns:
    """One pattern for each output."""
    known = (~np.isnan(Y)).astype(float).T
    filled = np.nan_to_num(Y).T
    return network.Patterns(
        tf.constant(known),
        tf.constant(filled[:, :, None]),
        tf.ones(Y.shape[1], tf.float64),
    )


def together(Y: np.ndarray) -> network.Patterns:
    """All outputs, without gaps, in one pattern."""
    return network.Patterns(
        tf.ones([1, len(Y)], tf.float64),
        tf.constant(Y[None]),
        tf.constant([float(Y.shape[1])], tf.float64),
    )


def log_density(Y: np.ndarray, cov: np.ndarray) -> float:
    total = 0.0
    for y in Y.T:
        rows = ~np.isnan(y)
        total += scipy.stats.multivariate_normal.logpdf(y[rows], cov=cov[np.ix_(rows, rows)])
    return total


def tensor_nodes(seed: int = 1) -> tuple[np.ndarray, list[np.ndarray], network.Nodes]:
    """A matrix-normal q(F): its mean, factors, and its moments under the prior of `problem`."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(N, K))
    factors = [np.tril(0.2 * rng.normal(size=(n, n))) + 0.5 * np.eye(n) for n in (N, K)]
    _, _, chol = problem()
    variances = tensor_normal.diagonal(factors[:1])
    cov = variances[:, None, None] * (factors[1] @ factors[1].T)
    kl = tensor_normal.kl(tf.constant(mean), factors, tf.constant(chol))
    return mean, factors, network.Nodes(tf.constant(mean), cov, kl)


def sites(seed: int = 2) -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(N, K, K))
    return tf.constant(rng.normal(size=(N, K))), tf.constant(half @ half.transpose(0, 2, 1))


@pytest.mark.parametrize("separate", [False, True])
def test_the_nodes_have_the_moments_of_the_dense_gaussian(separate) -> None:
    """With one kernel for all, or one for each."""
    _, other, chol = problem()
    nat1, prec = sites()
    P = np.kron(chol @ chol.T, np.eye(K))
    if separate:
        chol = np.stack([chol, other])
        P = np.einsum("knm,kl->nkml", chol @ chol.transpose(0, 2, 1), np.eye(K)).reshape(N * K, N * K)
    blocks = np.zeros((N * K, N * K))
    for n in range(N):
        blocks[n * K : (n + 1) * K, n * K : (n + 1) * K] = prec[n]
    S = np.linalg.inv(np.linalg.inv(P) + blocks)
    m = S @ nat1.numpy().ravel()
    kl = 0.5 * (np.trace(np.linalg.solve(P, S)) + m @ np.linalg.solve(P, m) - N * K)
    kl += 0.5 * (np.linalg.slogdet(P)[1] - np.linalg.slogdet(S)[1])
    found = network.nodes(tf.constant(chol), nat1, prec)
    np.testing.assert_allclose(found.mean, m.reshape(N, K), rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(
        found.cov, np.einsum("nknl->nkl", S.reshape(N, K, N, K)), rtol=1e-9, atol=1e-10
    )
    np.testing.assert_allclose(found.kl, kl, rtol=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_one_constant_node_is_independent_regression(missing) -> None:
    """Acceptance check C4, the likelihood by SciPy; by GPflow in `test_gprn_tensor.py`."""
    Y, chol, _ = problem(missing)
    one = network.Nodes(
        tf.ones([N, 1], tf.float64), tf.zeros([N, 1, 1], tf.float64), tf.zeros([], tf.float64)
    )
    expected = log_density(Y, chol @ chol.T + NOISE * np.eye(N))
    assert_bound(patterns(Y), chol, one, expected)
    if not missing:
        assert_bound(together(Y), chol, one, expected)


@pytest.mark.parametrize("missing", [False, True])
def test_known_nodes_give_the_exact_marginal_likelihood(missing) -> None:
    """Acceptance check C5."""
    Y, chol, _ = problem(missing)
    F = np.random.default_rng(5).normal(size=(N, K))
    known = network.Nodes(tf.constant(F), tf.zeros([N, K, K], tf.float64), tf.zeros([], tf.float64))
    cov = (chol @ chol.T) * (F @ F.T) + NOISE * np.eye(N)
    assert_bound(patterns(Y), chol, known, log_density(Y, cov))


def assert_bound(seen: network.Patterns, chol: np.ndarray, q: network.Nodes, expected: float) -> None:
    noise = tf.constant(NOISE, tf.float64)
    np.testing.assert_allclose(network.bound(seen, tf.constant(chol), noise, q), expected, rtol=1e-8)


def dense_weights(Y: np.ndarray, chol: np.ndarray, q: network.Nodes) -> tuple[np.ndarray, np.ndarray]:
    """The optimal q(W_d) of each output by dense algebra: means [D, N, K], covariances [D, NK, NK]."""
    second = q.cov.numpy() + q.mean.numpy()[:, :, None] * q.mean.numpy()[:, None, :]
    prior = np.kron(np.linalg.inv(chol @ chol.T), np.eye(K))
    means, covs = [], []
    for y in Y.T:
        P, h = prior.copy(), np.zeros((N, K))
        for n in np.flatnonzero(~np.isnan(y)):
            P[n * K : (n + 1) * K, n * K : (n + 1) * K] += second[n] / NOISE
            h[n] = y[n] * q.mean[n] / NOISE
        covs.append(np.linalg.inv(P))
        means.append((covs[-1] @ h.ravel()).reshape(N, K))
    return np.array(means), np.array(covs)


@pytest.mark.parametrize("missing", [False, True])
def test_bound_weights_and_sites_are_those_of_dense_algebra(missing) -> None:
    """The bound = E[log p(Y | W, F)] − Σ_d KL(q(W_d)) − KL(q(F)) with everything written out."""
    Y, chol, _ = problem(missing)
    mean, _, q = tensor_nodes()
    means, covs = dense_weights(Y, chol, q)
    P = np.kron(chol @ chol.T, np.eye(K))
    second = q.cov.numpy() + q.mean.numpy()[:, :, None] * q.mean.numpy()[:, None, :]
    value, nat1, prec = -float(q.kl), np.zeros((N, K)), np.zeros((N, K, K))
    for y, u, S in zip(Y.T, means, covs, strict=True):
        ww = np.einsum("nknl->nkl", S.reshape(N, K, N, K)) + u[:, :, None] * u[:, None, :]
        for n in np.flatnonzero(~np.isnan(y)):
            square = y[n] ** 2 - 2 * y[n] * (u[n] @ mean[n]) + np.trace(ww[n] @ second[n])
            value -= 0.5 * (np.log(2 * np.pi * NOISE) + square / NOISE)
            nat1[n] += y[n] * u[n] / NOISE
            prec[n] += ww[n] / NOISE
        v = u.ravel()
        value -= 0.5 * (np.trace(np.linalg.solve(P, S)) + v @ np.linalg.solve(P, v) - v.size)
        value -= 0.5 * (np.linalg.slogdet(P)[1] - np.linalg.slogdet(S)[1])
    noise, factor = tf.constant(NOISE, tf.float64), tf.constant(chol)
    each = patterns(Y)
    np.testing.assert_allclose(network.bound(each, factor, noise, q), value, rtol=1e-9)
    w = network.weights(each, factor, noise, q)
    u = np.einsum("dij,jd->di", w.smoother, np.nan_to_num(Y)).reshape(D, N, K)
    np.testing.assert_allclose(np.einsum("nm,dmk->dnk", chol, u), means, atol=1e-10)
    found = network.node_sites(each, factor, noise, w)
    np.testing.assert_allclose(found[0], nat1, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found[1], prec, rtol=1e-9, atol=1e-9)
    if not missing:
        np.testing.assert_allclose(network.bound(together(Y), factor, noise, q), value, rtol=1e-9)
        shared = network.node_sites(
            together(Y), factor, noise, network.weights(together(Y), factor, noise, q)
        )
        np.testing.assert_allclose(shared[1], prec, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("missing", [False, True])
def test_alternating_never_lowers_the_bound(missing) -> None:
    """Acceptance check C7."""
    Y, chol_w, chol_f = problem(missing)
    noise, w_factor, f_factor = tf.constant(NOISE, tf.float64), tf.constant(chol_w), tf.constant(chol_f)
    seen, (nat1, prec), values = patterns(Y), sites(), []
    for _ in range(60):
        q = network.nodes(f_factor, nat1, prec)
        values.append(float(network.bound(seen, w_factor, noise, q)))
        nat1, prec = network.node_sites(seen, w_factor, noise, network.weights(seen, w_factor, noise, q))
    assert (np.diff(values) > -1e-9).all()
    assert values[-1] > values[0] + 1.0


def test_gradients_are_central_differences() -> None:
    Y, chol_w, chol_f = problem(missing=True)
    nat1, prec = sites()
    start = [tf.constant(chol_w), tf.constant(chol_f), tf.constant(NOISE, tf.float64), nat1, prec]
    seen = patterns(Y)

    def value(chol_w, chol_f, noise, nat1, prec) -> tf.Tensor:
        return network.bound(seen, chol_w, noise, network.nodes(chol_f, nat1, prec))

    with tf.GradientTape() as tape:
        tape.watch(start)
        objective = value(*start)
    for i, gradient in enumerate(tape.gradient(objective, start)):
        rng = np.random.default_rng(i)
        unit = rng.normal(size=start[i].shape)
        if i == 4:
            unit += unit.transpose(0, 2, 1)
        if i < 2:
            unit = np.tril(unit)
        ends = [value(*[v + s * 1e-5 * unit if j == i else v for j, v in enumerate(start)]) for s in (1, -1)]
        # Truncation and rounding are both near 1e-9 of slopes of order 10.
        np.testing.assert_allclose(np.sum(gradient * unit), (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7)


def test_nodes_by_moments_are_those_of_the_targets_up_to_rotation() -> None:
    """With the exact E[YYᵀ]/D, whole or seen by two patterns of missing rows; shrinking takes at most 4 %."""
    X = problems.inputs(30)
    gram = tf.constant(problems.kernel(1.5, 6.0)(X).numpy())
    F = np.stack([np.sin(2.0 * X[:, 0]), 1.0 + 0.5 * X[:, 1]], axis=1)
    moment = gram * tf.constant(F @ F.T) + 0.1 * tf.eye(30, dtype=tf.float64)
    root = tf.linalg.cholesky(moment)
    whole = network.Patterns(
        tf.ones([1, 30], tf.float64), 10.0 * root[None], tf.constant([100.0], tf.float64)
    )
    seen = np.ones([2, 30])
    seen[0, ::3] = 0.0
    parts = network.Patterns(
        tf.constant(seen),
        tf.constant(seen)[:, :, None] * root * tf.constant([[[8.0]], [[6.0]]], tf.float64),
        tf.constant([64.0, 36.0], tf.float64),
    )
    for patterns in (whole, parts):
        found = network.moment_nodes(patterns, gram, tf.constant(0.1, tf.float64), 2).numpy()
        assert np.linalg.norm(found @ found.T - F @ F.T) < 0.04 * np.linalg.norm(F @ F.T)


def test_log_det_and_gram_have_the_gradients_of_their_factorisation() -> None:
    """In closed form, for adjoints that are not symmetric; by halves of the inverse too."""
    rng = np.random.default_rng(0)
    for M, N in ((5, 3), (140, 7)):
        root = rng.standard_normal((2, M, M))
        R = tf.constant(root @ root.transpose(0, 2, 1) + M * np.eye(M))
        C, by_gram, by_log_det = (
            tf.constant(rng.standard_normal(shape)) for shape in ((2, M, N), (2, N, N), (2,))
        )

        def direct(R: tf.Tensor, C: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            symmetric = 0.5 * (R + tf.linalg.matrix_transpose(R))
            return tf.linalg.logdet(symmetric), tf.matmul(C, tf.linalg.solve(symmetric, C), transpose_a=True)

        found = []
        for function in (triangular.log_det_and_gram, direct):
            with tf.GradientTape() as tape:
                tape.watch([R, C])
                log_det, gram = function(R, C)
                value = tf.reduce_sum(by_log_det * log_det) + tf.reduce_sum(by_gram * gram)
            found.append((log_det, gram, *tape.gradient(value, [R, C])))
        for ours, expected in zip(*found, strict=True):
            np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)
