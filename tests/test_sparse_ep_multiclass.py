"""`SparseEP` with robust-max: pairwise factors against a sequential twin and exact evidences; training."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal, norm

import gpflow_ext as gpx
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.factors import evaluate
from gpflow_ext.likelihoods import MultinomialLogit, RobustMax
from gpflow_ext.models import SparseEP

X, Y = problems.classes(30)
Z = problems.inputs(8, seed=5)
NOISE = 0.1


def softened(variance: float = 4.0, noise: float = NOISE) -> gpflow.kernels.Kernel:
    return problems.kernel(variance) + gpflow.kernels.White(noise)


def robust(data=(X, Y), K: int = 3, epsilon: float = 0.0, **changes) -> SparseEP:
    arguments = {"kernel": softened(), "inducing_variable": Z}
    return SparseEP(data, likelihood=RobustMax(K, epsilon), **(arguments | changes))


def settled(model: SparseEP, sweeps: int = 1000) -> SparseEP:
    _, violation = MomentMatcher(model, (), None, None, None).settle(sweeps, 1e-12)
    assert violation < 1e-9
    return model


def test_sweeps_of_a_multinomial_likelihood() -> None:
    """Its factor does not see the sum of the latent functions, along which plain sweeps take 42 steps."""
    model = SparseEP((X, Y), problems.kernel(30.0), MultinomialLogit(3), inducing_variable=X)
    assert MomentMatcher(model, (), None, None, None).settle(30, 1e-6).violation < 1e-6


def sequential_ep(
    Q: np.ndarray, residual: np.ndarray, mean: np.ndarray, labels: np.ndarray, sweeps: int = 3000
) -> tuple[np.ndarray, np.ndarray, float]:
    """Expectation propagation one comparison after the other, on the covariances of the latent functions.

    Return the means and variances of h [N, K], and log Z from the scales of the sites,
    Ẑ/∫ cavity·site, and ∫ N(h; mean, Q) ∏ sites.
    """
    (N, K), pairs = (
        mean.shape,
        [(n, k) for n in range(len(Q)) for k in range(mean.shape[1]) if k != labels[n]],
    )
    tau, nu = np.zeros((2, N, K, 2))
    S, h = np.stack([Q] * K), mean.T.copy()

    def cavity(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
        both = [labels[n], k]
        v = S[both, n, n]
        return (h[both, n] / v - nu[n, k]) / (1 / v - tau[n, k]), 1 / (1 / v - tau[n, k])

    def log_mass(m: np.ndarray, v: np.ndarray, t: np.ndarray, b: np.ndarray) -> float:
        """log ∫ N(h; m, v) exp(b h − ½ t h²) dh, summed."""
        return (-0.5 * np.log1p(t * v) + 0.5 * ((m / v + b) ** 2 / (1 / v + t) - m**2 / v)).sum()

    for _ in range(sweeps):
        before = np.stack([tau, nu])
        for n, k in pairs:
            m, v = cavity(n, k)
            sign, spread = np.array([1.0, -1.0]), np.sqrt(v.sum() + 2 * residual[n])
            z = (m[0] - m[1]) / spread
            mills = np.exp(norm.logpdf(z) - log_ndtr(z))
            tilted_mean = m + sign * v * mills / spread
            tilted_var = v - v**2 * mills * (z + mills) / spread**2
            new = np.stack([1 / tilted_var - 1 / v, tilted_mean / tilted_var - m / v])
            change = new - np.stack([tau[n, k], nu[n, k]])
            tau[n, k], nu[n, k] = new
            for j, (by_tau, by_nu) in zip((labels[n], k), change.T, strict=True):
                column = S[j, :, n].copy()
                h[j] += column * (by_nu - by_tau * h[j, n]) / (1 + by_tau * column[n])
                S[j] -= by_tau / (1 + by_tau * column[n]) * np.outer(column, column)
        if np.abs(np.stack([tau, nu]) - before).max() < 1e-12:
            break
    value = 0.0
    for n, k in pairs:
        m, v = cavity(n, k)
        value += log_ndtr((m[0] - m[1]) / np.sqrt(v.sum() + 2 * residual[n]))
        value -= log_mass(m, v, tau[n, k], nu[n, k])
    for j in range(K):
        t, b = np.zeros((2, N))
        for n, k in pairs:
            for place in np.flatnonzero(np.array([labels[n], k]) == j):
                t[n], b[n] = t[n] + tau[n, k, place], b[n] + nu[n, k, place]
        B = np.eye(N) + Q * t
        shift = b - t * mean[:, j]
        value += -0.5 * np.linalg.slogdet(B)[1] + 0.5 * shift @ np.linalg.solve(B, Q @ shift)
        value += b @ mean[:, j] - 0.5 * t @ mean[:, j] ** 2
    return h.T, np.stack([np.diag(part) for part in S], axis=1), value


def test_sweeps_reach_the_fixed_point_of_sequential_comparisons() -> None:
    inputs, labels = X[:12], Y[:12]
    mean = gpflow.functions.Constant(np.array([0.4, -0.2, 0.0]))
    model = settled(robust((inputs, labels), mean_function=mean))
    prior = model.prior()
    A, residual = prior.A[0].numpy(), prior.residual[:, 0].numpy()
    m, v, value = sequential_ep(A.T @ A, residual, prior.mean.numpy(), labels[:, 0].astype(int))
    np.testing.assert_allclose(model.log_evidence(), value, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.predict_f(inputs)[0], m, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.predict_f(inputs)[1], v + residual[:, None], rtol=0, atol=1e-8)


def exact_evidence(inputs: np.ndarray, labels: np.ndarray, K: int) -> float:
    """log p(y), an orthant probability of the N(K − 1) differences f_y − fₖ, by randomised lattice rules."""
    C = softened()(inputs).numpy()
    rows = []
    for n, y in enumerate(labels[:, 0].astype(int)):
        for k in set(range(K)) - {y}:
            rows.append(np.zeros((len(inputs), K)))
            rows[-1][n, y], rows[-1][n, k] = 1.0, -1.0
    D = np.array([row.ravel() for row in rows])
    cov = D @ np.kron(C, np.eye(K)) @ D.T
    p = multivariate_normal(np.zeros(len(cov)), cov, maxpts=10**6, abseps=1e-7, releps=1e-6, seed=0)
    return float(np.log(p.cdf(np.zeros(len(cov)))))


@pytest.mark.parametrize(
    ("K", "num_data", "error"),
    others_slow([(2, 1, 1e-12), (2, 3, 0.003), (3, 1, 0.02), (3, 2, 0.04)], (2, 1, 1e-12), (3, 2, 0.04)),
)
def test_the_evidence_is_close_to_that_of_orthants(K: int, num_data: int, error: float) -> None:
    """Exact for one comparison; beyond that, the covariances that pairwise factors drop cost so much."""
    worst = 0.0
    for seed in range(3):
        inputs = problems.inputs(num_data, seed)
        labels = np.random.default_rng(seed).integers(0, K, (num_data, 1)).astype(float)
        model = settled(robust((inputs, labels), K, inducing_variable=inputs.copy()))
        worst = max(worst, abs(model.log_evidence().numpy() - exact_evidence(inputs, labels, K)))
    assert worst < error


def test_label_noise_makes_one_factor_of_a_datum() -> None:
    """Its normaliser is the evidence of one datum, whatever the site, and one sweep settles the site."""
    mean = gpflow.functions.Constant(np.array([0.5, 0.0, -1.0]))
    model = robust((X[:1], Y[:1]), epsilon=0.05, mean_function=mean)
    variance = model.kernel(X[:1], full_cov=False)[:, None] * np.ones(3)
    exact = model.likelihood.predict_log_density(X[:1], mean(X[:1]), variance, Y[:1])
    for _ in range(2):
        point = evaluate(model, model.prior(), model.sites)
        np.testing.assert_allclose(point.objective, exact[0], rtol=0, atol=1e-10)
        model.assign_sites(point.proposal)
    assert model.sites.nat1.shape == (1, 3)
    assert point.violation < 1e-8
    assert (np.abs(model.prec) > 1e-3).all()


def test_two_classes_are_antisymmetric() -> None:
    model = settled(robust((X, (Y > 0).astype(float)), K=2))
    mean, var = model.predict_f(X)
    np.testing.assert_allclose(mean[:, 0], -mean[:, 1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(var[:, 0], var[:, 1], rtol=0, atol=1e-8)
    nat1, prec = model.latent_sites
    np.testing.assert_allclose(nat1[:, 0], -nat1[:, 1], rtol=0, atol=1e-8)
    np.testing.assert_allclose(prec[:, 0], prec[:, 1], rtol=0, atol=1e-8)
    assert prec.numpy().min() > 1e-3


@pytest.mark.slow
def test_classes_and_data_may_be_permuted() -> None:
    model = settled(robust())
    classes, order = np.array([2, 0, 1]), np.random.default_rng(3).permutation(30)
    other = settled(robust((X[order], classes[Y.astype(int)].astype(float)[order])))
    np.testing.assert_allclose(other.log_evidence(), model.log_evidence(), rtol=0, atol=1e-9)
    p, permuted = model.predict_y(X)[0].numpy(), other.predict_y(X)[0].numpy()
    np.testing.assert_allclose(permuted[:, classes], p, rtol=0, atol=1e-8)
    assert (p.argmax(1) == Y[:, 0]).mean() > 0.6


def test_the_gradient_is_that_of_the_refitted_evidence() -> None:
    kernel = gpflow.kernels.SquaredExponential(4.0, [0.7, 1.1]) + gpflow.kernels.White(NOISE)
    mean = gpflow.functions.Constant(np.array([0.3, 0.0, -0.3]))
    model = robust(kernel=kernel, mean_function=mean)
    matcher = MomentMatcher(model, model.trainable_variables, None, None, None)
    matcher.settle(1000, 1e-12)
    variables, gradients = model.trainable_variables, [part.numpy() for part in matcher.differentiate()[1]]
    assert sum(part.size for part in gradients) == 4 + 3 + Z.size
    # With a step of 1e-4 truncation step² and rounding 1e-11/step leave 1e-7.
    problems.assert_refitted_gradient(variables, gradients, lambda: matcher.settle(1000, 1e-12)[0], atol=1e-6)


@pytest.mark.slow
def test_mixing_reaches_in_dozens_of_sweeps_what_damping_does_not_in_hundreds() -> None:
    data = problems.classes(300)
    model, damped = (robust(data, inducing_variable=problems.inputs(30, seed=5)) for _ in range(2))
    objective, violation = MomentMatcher(model, (), None, None, None).settle(100, 1e-6)
    assert violation <= 1e-6
    slow, rest = MomentMatcher(damped, (), None, 0.5, None).settle(400, 1e-6)
    assert rest > 1e-5
    np.testing.assert_allclose(slow, objective, rtol=0, atol=0.1)


@pytest.mark.slow
def test_iris_with_wrong_labels_converges() -> None:
    """Without mixing 200 sweeps did not reach a fixed point, and no step of L-BFGS succeeded."""
    (inputs, labels), _ = gpx.datasets.load("iris", seed=0)
    kernel = gpflow.kernels.SquaredExponential()
    likelihood = gpflow.likelihoods.MultiClass(3)
    model = SparseEP((inputs, labels), kernel, likelihood, inducing_variable=inputs.copy(), num_latent_gps=3)
    gpflow.set_trainable(model.inducing_variable, False)
    begin = model.log_evidence().numpy()
    result = gpx.fit(model, starts=1, progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert result.objective[-1] > begin + 10.0


@pytest.mark.slow
def test_training_resumes_exactly_and_raises_the_evidence(tmp_path) -> None:
    def options() -> dict:
        return {"optimizer": tf_keras.optimizers.Adam(0.05)}

    whole, result = resuming.check(robust, tmp_path, steps=60, cut=30, options=options)
    assert result.objective[-1] > result.objective[0] + 1.0
    assert whole.nat1.numpy().shape == (30, 3, 2)
    own = np.arange(3) == Y
    assert (np.abs(whole.prec.numpy()[~own]) > 0.0).all()
    assert not whole.prec.numpy()[own].any()


@pytest.mark.slow
def test_an_exported_classifier_predicts_as_the_live_one(tmp_path) -> None:
    model = settled(robust())
    gpx.export(model, tmp_path / "model", example=X[:3], labels=["a", "b", "c"])
    served = tf.saved_model.load(str(next((tmp_path / "model").rglob("saved_model.pb")).parent))
    out = served.signatures["serving_default"](inputs=tf.constant(X))
    np.testing.assert_allclose(out["probabilities"], model.predict_y(X)[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(tf.reduce_sum(out["probabilities"], axis=1), 1.0, rtol=0, atol=1e-12)
    assert [name.decode() for name in out["label"].numpy()] == list(
        np.array(["a", "b", "c"])[model.predict_y(X)[0].numpy().argmax(1)]
    )


@pytest.mark.slow
def test_new_thyroid() -> None:
    """Better than the most frequent class (error 0.30, 0.77 nats) by far."""
    train, test = gpx.datasets.load("new_thyroid", seed=0)
    kernel = gpflow.kernels.SquaredExponential(4.0, np.full(5, 5**0.5)) + gpflow.kernels.White(NOISE)
    model = SparseEP(train, kernel, RobustMax(3), inducing_variable=train[0][:30].copy())
    gpx.fit(model, steps=300, optimizer=tf_keras.optimizers.Adam(0.02))
    scores = gpx.metrics.evaluate(model, test)
    assert scores["error"] < 0.07
    assert scores["nlpd"] < 0.15
