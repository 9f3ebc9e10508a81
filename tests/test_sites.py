"""The site algebra against a NumPy twin that forms every inverse, and against itself."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Dense, Projection, Sites

N, M, L = 12, 5, 2


@pytest.fixture(name="rng")
def _rng() -> np.random.Generator:
    return np.random.default_rng(3)


def _prior(kind: str, rng: np.random.Generator):
    """Return a prior, with its dense covariance of the part that sites see, [N, N]."""
    mean = rng.standard_normal((N, L))
    if kind == "dense":
        K = problems.kernel()(problems.inputs(N)).numpy() + 1e-6 * np.eye(N)
        return Dense(tf.constant(mean), tf.constant(K[None])), K
    A = rng.standard_normal((M, N))
    prior = Projection(
        tf.constant(mean),
        tf.constant(A[None]),
        tf.constant(rng.uniform(0.0, 1.0, (N, 1))),
        tf.constant(np.linalg.cholesky(np.eye(M) + 0.3 * np.ones((M, M)))[None]),
    )
    return prior, A.T @ A


def _sites(kind: str, rng: np.random.Generator) -> Sites:
    prec = rng.uniform(0.0, 3.0, (N, L))
    prec[2] = 0.0
    if kind == "projection":
        prec[4] = -0.02  # allowed while I + AΛAᵀ is positive definite
    return Sites(tf.constant(rng.standard_normal((N, L))), tf.constant(prec))


@pytest.mark.parametrize("kind", ["dense", "projection"])
def test_condition_equals_explicit_inverses(kind: str, rng: np.random.Generator) -> None:
    prior, Q = _prior(kind, rng)
    given = _sites(kind, rng)
    nat1, prec = given.nat1.numpy(), given.prec.numpy()
    q = sites.condition(prior, given)
    kl, log_normaliser = 0.0, 0.0
    for latent in range(L):
        mu, Lam = prior.mean.numpy()[:, latent], np.diag(prec[:, latent])
        rho = nat1[:, latent] - Lam @ mu
        V = np.linalg.inv(np.eye(N) + Q @ Lam) @ Q
        shift = V @ rho
        np.testing.assert_allclose(q.mean[:, latent], mu + shift, rtol=0, atol=1e-10)
        np.testing.assert_allclose(
            q.var[:, latent], np.diag(V) + prior.residual.numpy()[:, 0], rtol=0, atol=1e-10
        )
        alpha = np.linalg.solve(np.eye(N) + Lam @ Q, rho)
        log_det = np.linalg.slogdet(np.eye(N) + Q @ Lam)[1]
        kl += 0.5 * (log_det - np.trace(Lam @ V) + alpha @ Q @ alpha)
        log_normaliser += -0.5 * log_det + 0.5 * rho @ shift + nat1[:, latent] @ mu - 0.5 * mu @ Lam @ mu
    np.testing.assert_allclose(q.kl, kl, rtol=1e-11)
    np.testing.assert_allclose(prior.log_normaliser(given), log_normaliser, rtol=1e-11)


def test_whitened_dense_prior_is_the_same_prior(rng: np.random.Generator) -> None:
    prior, _ = _prior("dense", rng)
    given = _sites("dense", rng)
    dense, whitened = sites.condition(prior, given), sites.condition(prior.whiten(), given)
    for a, b in zip(dense, whitened, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)  # α amplifies rounding by 1/jitter-free modes


def test_covariance_is_the_inverse_of_the_summed_precisions(rng: np.random.Generator) -> None:
    prior, Q = _prior("dense", rng)
    prec = rng.uniform(0.1, 2.0, (N, L))
    V = prior.factorise(tf.constant(prec)).covariance().numpy()
    for latent in range(L):
        np.testing.assert_allclose(
            V[latent], np.linalg.solve(np.eye(N) + Q * prec[:, latent], Q), rtol=0, atol=1e-10
        )


def test_reduction_at_the_training_inputs_returns_the_marginals(rng: np.random.Generator) -> None:
    K = problems.kernel()(problems.inputs(N)).numpy()
    prior = Dense(tf.zeros([N, 1], tf.float64), tf.constant(K[None]))
    given = Sites(tf.constant(rng.standard_normal((N, 1))), tf.constant(rng.uniform(0.1, 2.0, (N, 1))))
    q = sites.condition(prior, given)
    np.testing.assert_allclose(K @ q.alpha.numpy(), q.mean, rtol=0, atol=1e-9)
    factor = prior.factorise(given.prec)
    Q, root = factor.reduction().numpy()[0], factor.reduction_root().numpy()[0]
    np.testing.assert_allclose(np.diag(K - K @ Q @ K)[:, None], q.var, rtol=0, atol=1e-9)
    np.testing.assert_allclose(root.T @ root, Q, rtol=0, atol=1e-12)
    assert (np.triu(root, 1) == 0.0).all()


@pytest.mark.parametrize("kind", ["dense", "projection"])
def test_reduction_is_what_the_factor_solves(kind: str, rng: np.random.Generator) -> None:
    prior, prec = _prior(kind, rng)[0], _sites(kind, rng).prec
    factor = prior.factorise(prec)
    columns = [factor.solve(prec * e[:, None]).alpha for e in np.eye(N)]
    np.testing.assert_allclose(factor.reduction(), np.transpose(columns, [2, 1, 0]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("strong", [1e3, 1e6])
def test_weights_keep_their_digits_where_sites_are_precise(strong: float, rng: np.random.Generator) -> None:
    """In single precision against double, with sites of all strengths; b less ΛΣα would leave none of them."""
    X = np.sort(rng.uniform(0.0, 10.0, 100))
    K = np.exp(-0.5 * (X[:, None] - X) ** 2)
    prec = np.where(np.arange(100) % 5, strong, rng.uniform(0.0, 2.0, 100))[:, None]
    prec[:2] = 0.0
    b = prec * np.sin(X)[:, None] + rng.standard_normal((100, 1))
    wanted = K @ np.linalg.solve(np.eye(100) + prec * K, b)
    single = Dense(tf.zeros([100, 1]), tf.constant(K[None], tf.float32))
    found = single.factorise(tf.constant(prec, tf.float32)).solve(tf.constant(b, tf.float32))
    np.testing.assert_allclose(found.shift, wanted, rtol=0, atol=5e-3)
    np.testing.assert_allclose(K @ found.alpha.numpy(), wanted, rtol=0, atol=5e-3)


def test_triangular_inverses_by_halves(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(linalg, "INVERTED_LEAF", 3)
    factor = np.tril(rng.standard_normal((2, N, N))) + 4.0 * np.eye(N)
    found = linalg.triangular_inverse(tf.constant(factor))
    np.testing.assert_allclose(found, np.linalg.inv(factor), rtol=0, atol=1e-13)


def test_an_indefinite_precision_is_reported_not_raised(rng: np.random.Generator) -> None:
    prior, _ = _prior("projection", rng)
    prec = tf.fill([N, L], tf.constant(-5.0, tf.float64))
    assert not prior.factorise(prec).finite
    assert prior.factorise(-prec).finite


def test_log_normaliser_is_the_gaussian_evidence_of_pseudo_data(rng: np.random.Generator) -> None:
    """For prec > 0: ∫ p(f) ∏ tₙ = N(ỹ | μ, Σ + Λ⁻¹) ∏ √(2π/precₙ) exp(½ precₙ ỹₙ²), ỹ = nat1/prec."""
    prior, Q = _prior("dense", rng)
    prior = prior._replace(mean=prior.mean[:, :1])
    prec, nat1 = rng.uniform(0.5, 2.0, (N, 1)), rng.standard_normal((N, 1))
    given = Sites(tf.constant(nat1), tf.constant(prec))
    target = nat1 / prec
    S, r = Q + np.diag(1.0 / prec[:, 0]), (target - prior.mean.numpy())[:, 0]
    gaussian = -0.5 * (np.linalg.slogdet(2.0 * np.pi * S)[1] + r @ np.linalg.solve(S, r))
    expected = gaussian + 0.5 * np.sum(np.log(2.0 * np.pi / prec) + prec * target**2)
    np.testing.assert_allclose(prior.log_normaliser(given), expected, rtol=1e-11)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", ["dense", "projection"])
@pytest.mark.parametrize("handed", [True, False])
def test_closed_gradient_of_the_log_normaliser_is_that_of_the_factorisation(
    kind: str, shared: bool, handed: bool, rng: np.random.Generator
) -> None:
    prior, _ = _prior(kind, rng)
    name = {"dense": "cov", "projection": "A"}[kind]
    matrix = getattr(prior, name)
    if not shared:
        matrix = tf.concat([matrix, 2.0 * matrix], axis=0)
        prior = prior._replace(**{name: matrix})
    given = _sites(kind, rng)
    direction = tf.constant(rng.standard_normal(matrix.shape[1:]))
    if kind == "dense":
        direction += tf.transpose(direction)  # in which a covariance can move
    factor = prior.factorise(given.prec) if handed else None

    def value(t: tf.Tensor, closed: bool) -> tf.Tensor:
        moved = prior._replace(mean=prior.mean + t * prior.mean**2, **{name: matrix + 1e-3 * t * direction})
        if closed:
            return moved.log_normaliser(given, factor)
        q = sites.condition(moved, given)
        return tf.reduce_sum(given.nat1 * q.mean - 0.5 * given.prec * (q.mean**2 + q.var)) - q.kl

    slopes = []
    for closed in (True, False):
        t = tf.constant(0.0, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(t)
            result = value(t, closed)
        slopes.append(tape.gradient(result, t))
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-9)


@pytest.mark.parametrize("size", [7, 33])
def test_large_matrices_are_factorised_by_halves(size: int, monkeypatch) -> None:
    """The recursion equals TensorFlow's own factorisation, and says where it fails."""
    rng = np.random.default_rng(size)
    half = rng.standard_normal((2, size, size))
    matrix = tf.constant(half @ half.transpose(0, 2, 1) + size * np.eye(size))
    rhs = tf.constant(rng.standard_normal((2, size, 19)))
    expected = tf.linalg.cholesky(matrix)
    monkeypatch.setattr(linalg, "LEAF", 8)
    factor, finite = linalg.cholesky(matrix)
    assert finite
    np.testing.assert_allclose(factor, expected, rtol=0, atol=1e-13 * size)
    np.testing.assert_allclose(
        linalg.triangular_solve(factor, rhs), tf.linalg.triangular_solve(expected, rhs), rtol=0, atol=1e-13
    )
    last = tf.constant([[1e3], [-1.0]], tf.float64)  # the second matrix becomes indefinite
    broken = tf.linalg.set_diag(matrix, tf.concat([tf.linalg.diag_part(matrix)[:, :-1], last], axis=1))
    assert not linalg.cholesky(broken)[1]


def test_jitter_is_the_default_or_what_rounding_needs() -> None:
    gram = tf.constant(4.0 * np.ones([3, 50, 50]))
    default, nugget = gpflow.default_jitter(), tf.constant([0.0, 0.1, 2.0], tf.float64)
    added = linalg.with_jitter(gram, nugget) - gram
    np.testing.assert_allclose(added, (default + nugget.numpy())[:, None, None] * np.eye(50), atol=1e-15)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        single = linalg.with_jitter(tf.cast(gram, tf.float32))
    np.testing.assert_allclose(np.diag(single[0]) - 4.0, 50 * 4.0 * np.finfo(np.float32).eps, rtol=0.03)
    assert np.isfinite(tf.linalg.cholesky(single)).all()


def test_a_graph_of_any_number_of_rows_keeps_the_number_of_functions() -> None:
    """Without it predictions of that graph are refused, and traced anew for each number of rows."""

    @tf.function(autograph=False)
    def shape(A: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
        shared = Projection(tf.zeros_like(prec), A, tf.ones_like(prec), tf.eye(M, batch_shape=[1]))
        assert shared.message(Sites(prec, prec)).prec.shape == [L, M, M]
        return prec

    shape.get_concrete_function(tf.TensorSpec([1, M, None]), tf.TensorSpec([None, L]))
