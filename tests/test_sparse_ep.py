"""`SparseEP` at its fixed point: reference implementations, exact evidences, gradients, invariances."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from scipy.special import log_ndtr
from scipy.stats import norm

import gpflow_ext as gpx
from gpflow_ext import sites
from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, PoissonLog
from gpflow_ext.models import VGPKMM, SparseEP

X, Y = problems.binary(30)
Z = problems.inputs(8, seed=5)


def settled(model: SparseEP, damping: float | None = None) -> SparseEP:
    matcher = MomentMatcher(model, (), None, damping, None)
    _, violation = matcher.settle(300, 1e-12)
    assert violation < 1e-9
    return model


def probit(data=(X, Y), **changes) -> SparseEP:
    arguments = {"kernel": problems.kernel(), "likelihood": BernoulliProbit(), "inducing_variable": Z}
    return SparseEP(data, **(arguments | changes))


def sequential_ep(
    Q: np.ndarray, residual: np.ndarray, labels: np.ndarray, sweeps: int = 200
) -> tuple[np.ndarray, np.ndarray, float]:
    """Algorithm 3.5 of Rasmussen & Williams (2006) with probit factors widened by the residual.

    Return the mean and covariance of h and the evidence of their equation 3.65.
    """
    N, y = len(Q), 2 * labels - 1
    tau, nu, S, mean = np.zeros(N), np.zeros(N), Q.copy(), np.zeros(N)
    for _ in range(sweeps):
        before = tau.copy()
        for i in range(N):
            t = 1 / S[i, i] - tau[i]
            m, v = (mean[i] / S[i, i] - nu[i]) / t, 1 / t
            s = np.sqrt(1 + residual[i] + v)
            z = y[i] * m / s
            h = np.exp(norm.logpdf(z) - log_ndtr(z))
            tilted_mean = m + y[i] * v * h / s
            tilted_var = v - v**2 * h / s**2 * (z + h)
            new = 1 / tilted_var - 1 / v
            change, nu[i] = new - tau[i], tilted_mean / tilted_var - m / v
            tau[i] = new
            S = S - change / (1 + change * S[i, i]) * np.outer(S[:, i], S[i])
            mean = S @ nu
        if np.abs(tau - before).max() < 1e-14:
            break
    root = np.sqrt(tau)
    B = np.eye(N) + root[:, None] * Q * root
    S = Q - Q * root @ np.linalg.solve(B, root[:, None] * Q)
    mean = S @ nu
    t = 1 / np.diag(S) - tau
    m = (mean / np.diag(S) - nu) / t
    value = log_ndtr(y * m / np.sqrt(1 + residual + 1 / t)).sum() + 0.5 * np.log1p(tau / t).sum()
    value += 0.5 * nu @ (S - np.diag(1 / (t + tau))) @ nu
    value += 0.5 * (m * t) @ ((tau * m - 2 * nu) / (t + tau)) - 0.5 * np.linalg.slogdet(B)[1]
    return mean, S, value


def test_inducing_points_at_the_data_give_full_expectation_propagation(record_property) -> None:
    kernel = gpflow.kernels.Matern32(variance=4.0, lengthscales=0.7)
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-13)):
        model = settled(probit(kernel=kernel, inducing_variable=X.copy()))
        mean, var = model.predict_f(X)
        value = model.log_evidence()
    reference_mean, S, reference = sequential_ep(kernel(X).numpy(), np.zeros(30), Y[:, 0])
    record_property("difference to the full method", abs(float(value) - reference))
    np.testing.assert_allclose(value, reference, rtol=0, atol=1e-8)
    np.testing.assert_allclose(mean[:, 0], reference_mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(var[:, 0], np.diag(S), rtol=0, atol=1e-8)


@pytest.mark.parametrize("damping", [None, 0.3, 1.0])
def test_parallel_sweeps_reach_the_fixed_point_of_sequential_ones(damping: float | None) -> None:
    model = settled(probit(), damping)
    prior = model.prior()
    A, residual = prior.A[0].numpy(), prior.residual[:, 0].numpy()
    mean, S, reference = sequential_ep(A.T @ A, residual, Y[:, 0])
    np.testing.assert_allclose(model.log_evidence(), reference, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.predict_f(X)[0][:, 0], mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.predict_f(X)[1][:, 0], np.diag(S) + residual, rtol=0, atol=1e-8)


def test_the_evidence_is_that_of_orthants(record_property) -> None:
    """At N <= 3 p(y) is an orthant probability of N(0, K + I), known in closed form."""
    for num_data, seeds in ((1, 1), (2, 1), (3, 3)):
        for seed in range(seeds):
            inputs = problems.inputs(num_data, seed)
            labels = np.random.default_rng(seed).integers(0, 2, (num_data, 1)).astype(float)
            model = settled(probit((inputs, labels), inducing_variable=inputs.copy()))
            y = 2 * labels - 1
            C = (model.kernel(inputs).numpy() + np.eye(num_data)) * (y * y.T)
            angles = np.arcsin((C / np.sqrt(np.outer(np.diag(C), np.diag(C))))[np.triu_indices(num_data, 1)])
            exact = np.log(0.5**num_data * (1 + 2 / np.pi * angles.sum()))
            error = abs(float(model.log_evidence()) - exact)
            record_property("difference to orthants, nat", error)
            assert error <= (1e-12 if num_data == 1 else 0.01)


def test_a_gaussian_likelihood_gives_gprfitc() -> None:
    data, XNEW = problems.continuous(30), problems.inputs(6, seed=11)
    mean = gpflow.functions.Constant(0.4)
    model = settled(probit(data, likelihood=gpflow.likelihoods.Gaussian(0.2), mean_function=mean))
    reference = gpflow.models.GPRFITC(
        data, problems.kernel(), Z, mean_function=gpflow.utilities.deepcopy(mean), noise_variance=0.2
    )
    np.testing.assert_allclose(model.log_evidence(), reference.fitc_log_marginal_likelihood(), atol=1e-8)
    for ours, theirs in zip(model.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


def student() -> gpflow.likelihoods.Likelihood:
    likelihood = gpflow.likelihoods.StudentT(scale=1.0, df=4.0)
    likelihood.quadrature = gpflow.quadrature.NDiagGHQuadrature(1, 100)
    return likelihood


def outliers() -> tuple[np.ndarray, np.ndarray]:
    inputs, targets = problems.continuous(30)
    targets[::7] += 6.0
    return inputs, targets


@pytest.mark.slow
def test_a_dense_model_predicts_with_negative_precisions(tmp_path) -> None:
    """As NumPy does from the same sites: means and covariances, also served."""
    XNEW = problems.inputs(6, seed=11)
    model = VGPKMM(outliers(), problems.kernel(), student())
    gpflow.set_trainable(model, False)
    result = gpx.fit(model, recipe="ep", progress=False)
    assert result.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(model.maximum_log_likelihood_objective(), result.objective[-1], rtol=1e-6)
    nat1, prec = (part.numpy()[:, 0] for part in model.latent_sites)
    assert prec.min() < -0.01
    K, cross, own = (
        model.kernel(*pair).numpy() for pair in ((model.data[0],), (model.data[0], XNEW), (XNEW,))
    )
    B = np.eye(len(K)) + prec[:, None] * (K + gpflow.default_jitter() * np.eye(len(K)))
    mean = cross.T @ np.linalg.solve(B, nat1)
    cov = own - cross.T @ np.linalg.solve(B, prec[:, None] * cross)
    for predict in (model.predict_f, model.posterior().predict_f, tf.function(model.predict_f)):
        np.testing.assert_allclose(predict(XNEW)[0][:, 0], mean, rtol=0, atol=1e-9)
        np.testing.assert_allclose(predict(XNEW)[1][:, 0], np.diag(cov), rtol=0, atol=1e-9)
        np.testing.assert_allclose(predict(XNEW, full_cov=True)[1][0], cov, rtol=0, atol=1e-9)
    served = gpx.load_exported(gpx.export(model, tmp_path / "model"))
    np.testing.assert_allclose(served.predict_f(XNEW)["mean"][:, 0], mean, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("data", "likelihood", "tolerance"),
    [
        (problems.binary, BernoulliProbit, 1e-9),
        (problems.binary, BernoulliLogit, 1e-9),
        (problems.counts, PoissonLog, 1e-9),
        (outliers, student, 1e-3),  # as exact as 100 Gauss-Hermite nodes are
    ],
    ids=["probit", "logit", "poisson", "student"],
)
def test_the_sites_match_the_moments(data, likelihood, tolerance: float) -> None:
    """The tilted moments by the trapezoidal rule from ``log_prob``, which the model does not use."""
    model = settled(probit(data(), likelihood=likelihood()))
    prior = model.prior()
    cav = moment_matching.evaluate(prior, model.log_normaliser, model.sites).cavity
    mean, var = cav.mean.numpy()[:, 0], (cav.var + prior.residual).numpy()[:, 0]
    z = np.linspace(-12.0, 12.0, 6001)
    f = mean[:, None] + np.sqrt(var)[:, None] * z
    inputs, targets = (np.repeat(part, len(z), axis=0) for part in model.data)
    log_prob = model.likelihood.log_prob(inputs, f.reshape(-1, 1), targets).numpy().reshape(f.shape)
    weight = np.exp(log_prob - 0.5 * z**2)
    weight /= weight.sum(1, keepdims=True)
    tilted_mean = (weight * f).sum(1)
    tilted_var = (weight * (f - tilted_mean[:, None]) ** 2).sum(1)
    slope, bend = (tilted_mean - mean) / var, (var - tilted_var) / var**2
    shrinkage = 1 - bend * cav.var.numpy()[:, 0]
    np.testing.assert_allclose(model.prec[:, 0], bend / shrinkage, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(
        model.nat1[:, 0],
        (slope + bend * cav.mean.numpy()[:, 0]) / shrinkage,
        rtol=tolerance,
        atol=tolerance,
    )
    lowest = model.prec.numpy().min()
    assert lowest < -0.01 if likelihood is student else lowest > 0.0


def test_the_gradient_is_that_of_the_refitted_evidence() -> None:
    """In the variance, each length scale, the noise, the mean and two inducing inputs; relative 1e-5."""
    kernel = gpflow.kernels.SquaredExponential(4.0, [0.7, 1.1]) + gpflow.kernels.White(0.2)
    model = probit(kernel=kernel, mean_function=gpflow.functions.Constant(0.3))
    variables = model.trainable_variables
    matcher = MomentMatcher(model, variables, None, None, None)
    matcher.settle(300, 1e-12)
    gradients = [part.numpy() for part in matcher.differentiate()[1]]
    assert sum(part.size for part in gradients) == 5 + Z.size
    # With a step of 1e-4 truncation step² and rounding 1e-12/step leave 1e-8.
    problems.assert_refitted_gradient(variables, gradients, lambda: matcher.settle(300, 1e-12)[0], atol=1e-7)


def test_order_and_labels_do_not_matter() -> None:
    model = settled(probit())
    order = np.random.default_rng(3).permutation(30)
    shuffled = settled(probit((X[order], Y[order])))
    flipped = settled(probit((X, 1 - Y)))
    for other in (shuffled, flipped):
        np.testing.assert_allclose(other.log_evidence(), model.log_evidence(), rtol=1e-12)
    np.testing.assert_allclose(shuffled.prec, model.prec.numpy()[order], rtol=1e-10)
    np.testing.assert_allclose(flipped.predict_f(X)[0], -model.predict_f(X)[0], rtol=0, atol=1e-10)


def test_messages_of_shards_add_up() -> None:
    model = settled(probit(mean_function=gpflow.functions.Constant(0.3)))
    whole, parts = model.prior(), (slice(0, 11), slice(11, 30))
    priors = [model.prior(tf.constant(X[part])) for part in parts]
    shards = [sites.Sites(model.nat1[part], model.prec[part]) for part in parts]
    total = sites.Message(
        *map(tf.add_n, zip(*(p.message(s) for p, s in zip(priors, shards, strict=True)), strict=True))
    )
    for ours, theirs in zip(total, whole.message(model.sites), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)
    value = total.posterior().log_normaliser()
    for part, prior, shard in zip(parts, priors, shards, strict=True):
        data = tf.constant(X[part]), tf.constant(Y[part])
        log_normaliser = lambda m, v, data=data: model.log_normaliser(m, v, data)  # noqa: E731
        value += moment_matching.evaluate(prior, log_normaliser, shard, total).log_evidence
    np.testing.assert_allclose(value, model.log_evidence(), rtol=1e-13)


def test_a_factor_may_couple_latent_functions() -> None:
    """Φ((f₁ − f₂)/√…) in closed form: the sites of both latent functions match their marginal moments."""
    mean, var = np.array([[0.3, -0.8], [2.0, -1.0]]), np.array([[1.5, 0.7], [0.2, 3.0]])
    cav = moment_matching.Cavity(tf.constant(mean), tf.constant(var), tf.ones([2, 2], tf.float64))

    def log_normaliser(m: tf.Tensor, v: tf.Tensor) -> tf.Tensor:
        return BernoulliProbit()._log_expected_link(m[:, 0] - m[:, 1], v[:, 0] + v[:, 1])

    got = moment_matching.matched_sites(log_normaliser, cav, tf.zeros([1, 1], tf.float64))
    s2 = 1 + var.sum(1)
    z = (mean[:, 0] - mean[:, 1]) / np.sqrt(s2)
    h = np.exp(norm.logpdf(z) - log_ndtr(z))
    bend = (h * (z + h) / s2)[:, None]
    slope = (h / np.sqrt(s2))[:, None] * [1, -1]
    np.testing.assert_allclose(got.prec, bend / (1 - bend * var), rtol=1e-12)
    np.testing.assert_allclose(got.nat1, (slope + bend * mean) / (1 - bend * var), rtol=1e-12)


def test_variances_stay_positive_where_the_gram_matrix_is_nearly_singular() -> None:
    """Condition number 1e16: K_** − K_*u(K_uu⁻¹ − K_uu⁻¹SK_uu⁻¹)K_u* is negative at 99 of these inputs."""
    kernel = gpflow.kernels.SquaredExponential(variance=1e9, lengthscales=1e5)
    model = settled(probit(kernel=kernel), damping=0.5)
    new = np.random.default_rng(0).standard_normal((100, X.shape[1]))
    for predict in (model.predict_f, model.posterior().predict_f):
        mean, var = predict(new)
        assert np.isfinite(mean).all()
        assert (var.numpy() > 0.0).all()
