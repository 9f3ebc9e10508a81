"""Weights of data, targets in units of their own, counts that scatter: likelihoods around and beside others."""

from __future__ import annotations

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import scipy.optimize
import scipy.stats
import tensorflow as tf
from marks import others_slow
from scipy.special import logsumexp

import gpflow_ext as gpx
from gpflow_ext.likelihoods import (
    BernoulliLogit,
    CumulativeLogit,
    NegativeBinomialLog,
    PoissonLog,
    Standardised,
    StickBreaking,
    Weighted,
)
from gpflow_ext.likelihoods.overdispersed import log_expected_negative_binomial
from gpflow_ext.models import VGPKMM, GPLaplace, SparseEP
from gpflow_ext.numerics.log_predictive import log_predictive

COUNTS = np.array([0.0, 1.0, 2.0, 7.0, 100.0, 1e4])
X = np.linspace(-1.0, 1.0, 5)[:, None]
LEVELS = np.array([[0.0], [1.0], [2.0], [0.0], [2.0]])
COPIES = np.array([1, 3, 2, 1, 2])
BASES = {
    "binary": (BernoulliLogit(), np.minimum(LEVELS, 1.0)),
    "ordinal": (CumulativeLogit(3), LEVELS),
    "classes": (StickBreaking(3), LEVELS),
    "counts": (PoissonLog(exposure=True), np.column_stack([LEVELS, 0.5 + LEVELS])),
    "numbers": (Standardised(gpflow.likelihoods.Gaussian(0.3), 5.0, 2.0), 3.0 * LEVELS),
}


@pytest.mark.parametrize("kind", BASES)
def test_a_weight_counts_as_copies(kind: str) -> None:
    base, Y = BASES[kind]
    likelihood = Weighted(base, Y.shape[1])
    mean, var = contract.moments(likelihood.latent_dim, 5)
    weighted = np.column_stack([Y, COPIES])
    some = np.zeros_like(mean)
    for method, arguments in (
        ("log_prob", (mean,)),
        ("variational_expectations", (mean, var)),
        ("predict_log_density", (mean, var)),
    ):
        plain = getattr(base, method)(some, *arguments, Y)
        np.testing.assert_allclose(getattr(likelihood, method)(some, *arguments, weighted), COPIES * plain)
        np.testing.assert_array_equal(getattr(likelihood, method)(some, *arguments, Y), plain)
    for ours, theirs in zip(
        likelihood.predict_mean_and_var(some, mean, var),
        base.predict_mean_and_var(some, mean, var),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("build", others_slow([GPLaplace, VGPKMM], GPLaplace))
def test_a_weighted_row_is_its_copies_in_a_model(build: type) -> None:
    """At one set of hyperparameters; what differs is the jitter of each copy, 1e-6 of the prior variance."""
    Y = np.minimum(LEVELS, 1.0)
    weighted = build((X, np.column_stack([Y, COPIES])), problems.kernel(), Weighted(BernoulliLogit()))
    rows = np.repeat(np.arange(5), COPIES)
    copied = build((X[rows], Y[rows]), problems.kernel(), BernoulliLogit())
    losses = []
    for model in (weighted, copied):
        gpflow.set_trainable(model, False)
        gpx.fit(model, progress=False)
        losses.append(float(model.maximum_log_likelihood_objective()))
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
    for ours, theirs in zip(weighted.predict_f(X), copied.predict_f(X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [*BASES, "binary of gpflow"])
def test_scores_count_a_row_as_its_copies(kind: str) -> None:
    base, Y = BASES.get(kind, (gpflow.likelihoods.Bernoulli(), np.minimum(LEVELS, 1.0)))
    copies = np.array([1, 3, 0, 1, 2])
    rows = np.repeat(np.arange(5), copies)
    weighted = np.column_stack([Y, copies])
    model = VGPKMM((X, weighted), problems.kernel(), Weighted(base, Y.shape[1]))
    found, expected = (gpx.metrics.evaluate(model, data) for data in ((X, weighted), (X[rows], Y[rows])))
    assert found.keys() == expected.keys()
    assert ("error" in found) == (kind not in ("counts", "numbers"))
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-12, err_msg=name)
    for name, (low, high) in gpx.metrics.intervals(model, (X, weighted), resamples=50).items():
        assert name == "nmae" or low <= found[name] <= high, name
    with pytest.raises(ValueError, match="finite, from 0"):
        gpx.metrics.evaluate(model, (X, np.column_stack([Y, -copies])))


@pytest.mark.slow
def test_folds_keep_their_weights() -> None:
    inputs = np.linspace(-1.0, 1.0, 16)[:, None]
    found = gpx.cross_validate(
        lambda data: VGPKMM(data, problems.kernel(), Weighted(gpflow.likelihoods.Gaussian(0.1))),
        (inputs, np.column_stack([np.sin(5.0 * inputs), 1.0 + np.arange(16) % 3])),
        folds=2,
    )
    assert np.isfinite(found.scores["nlpd"]).all()


@pytest.mark.parametrize(
    ("Y", "message"),
    [
        (LEVELS[:, :1], "must have 2 columns, the weight last"),
        (np.column_stack([np.minimum(LEVELS, 1.0), -COPIES]), "from 0, and not all 0; found -1"),
        (np.column_stack([np.minimum(LEVELS, 1.0), 0 * COPIES]), "found 0 only"),
        (np.column_stack([LEVELS, COPIES]), "Y must hold 0 and 1"),
    ],
)
def test_wrong_weights_are_refused(Y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VGPKMM((X, Y), problems.kernel(), Weighted(BernoulliLogit()))


def test_expectation_propagation_refuses_weights() -> None:
    data = X, np.column_stack([np.minimum(LEVELS, 1.0), COPIES])
    with pytest.raises(NotImplementedError, match="VGPKMM, or repeat the rows"):
        SparseEP(data, problems.kernel(), Weighted(BernoulliLogit()), inducing_variable=X)


@pytest.mark.parametrize("base", [gpflow.likelihoods.Gaussian(0.3), gpflow.likelihoods.StudentT(0.4, 5.0)])
def test_standardised_targets_have_the_density_of_their_units(base: gpflow.likelihoods.Likelihood) -> None:
    likelihood = Standardised(base, [5.0, -1.0], [2.0, 1e-3])
    mean, var = contract.moments(2, 5)
    Z = np.random.default_rng(0).normal(size=(5, 2))
    Y = np.array([5.0, -1.0]) + np.array([2.0, 1e-3]) * Z
    for ours, theirs in (
        (likelihood.log_prob(mean, mean, Y), base.log_prob(mean, mean, Z)),
        (
            likelihood.variational_expectations(mean, mean, var, Y),
            base.variational_expectations(mean, mean, var, Z),
        ),
        (
            likelihood.predict_log_density(mean, mean, var, Y),
            log_predictive(base, mean, mean, var, tf.constant(Z)),
        ),
    ):
        np.testing.assert_allclose(ours, theirs - np.log(2.0 * 1e-3), rtol=1e-8)
    m, v = likelihood.predict_mean_and_var(mean, mean, var)
    m_z, v_z = base.predict_mean_and_var(mean, mean, var)
    np.testing.assert_allclose(m, [5.0, -1.0] + np.array([2.0, 1e-3]) * m_z, rtol=1e-12)
    np.testing.assert_allclose(v, np.array([4.0, 1e-6]) * v_z, rtol=1e-12)


def test_a_model_of_standardised_targets_is_that_of_gpflow() -> None:
    Y = 100.0 + 7.0 * LEVELS
    likelihood = Standardised(gpflow.likelihoods.Gaussian(0.3), 100.0, 7.0)
    ours = VGPKMM((X, Y), problems.kernel(), likelihood)
    theirs = gpflow.models.GPR((X, LEVELS), problems.kernel(), noise_variance=0.3)
    np.testing.assert_allclose(
        ours.maximum_log_likelihood_objective(),
        theirs.log_marginal_likelihood() - 5.0 * np.log(7.0),
        rtol=1e-5,
    )


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, [1.0, 2.0]])
def test_wrong_scales_are_refused(scale: object) -> None:
    with pytest.raises(ValueError, match="shift"):
        Standardised(gpflow.likelihoods.Gaussian(), 0.0, scale)


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 20.0])
def test_the_negative_binomial_is_that_of_scipy(dispersion: float) -> None:
    F = np.linspace(-3.0, 9.0, 6)[:, None]
    likelihood = NegativeBinomialLog(dispersion)
    size, mean = 1.0 / dispersion, np.exp(F)
    theirs = scipy.stats.nbinom(size, size / (size + mean))
    np.testing.assert_allclose(
        likelihood.log_prob(F, F, COUNTS[:, None]), theirs.logpmf(COUNTS[:, None])[:, 0], rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(likelihood.conditional_mean(F, F), theirs.mean(), rtol=1e-10)
    np.testing.assert_allclose(likelihood.conditional_variance(F, F), theirs.var(), rtol=1e-10)


def _dense(y: float, size: float, mean: float, var: float) -> float:
    """log E[NB(y | eˣ, r)], x ~ N(mean, var), by 50,001 points to where the logarithm has fallen by 60."""

    def log_integrand(x: np.ndarray) -> np.ndarray:
        logit = x - np.log(size)
        density = -y * np.logaddexp(0.0, -logit) - size * np.logaddexp(0.0, logit)
        return density - 0.5 * (x - mean) ** 2 / var

    lowest, highest = mean - size * var - 1.0, mean + y * var + 1.0  # the slope of log p is in [-r, y]
    found = scipy.optimize.minimize_scalar(
        lambda x: -log_integrand(x), bounds=(lowest, highest), method="bounded", options={"xatol": 1e-12}
    )
    ends = []
    for sign in (-1.0, 1.0):
        distance = 1e-6
        while log_integrand(found.x) - log_integrand(found.x + sign * distance) < 60.0:
            distance *= 1.2
        ends.append(found.x + sign * distance)
    x = np.linspace(*ends, 50_001)
    coefficient = np.sum(np.array([1.0, -1.0, -1.0]) * scipy.special.gammaln([y + size, size, y + 1.0]))
    return coefficient + logsumexp(log_integrand(x)) + np.log(x[1] - x[0]) - 0.5 * np.log(2.0 * np.pi * var)


def test_the_predictive_density_holds_for_any_count_dispersion_and_variance() -> None:
    cases = [
        (y, size, mean, var)
        for y in (0.0, 1.0, 40.0, 1e5)
        for size in (0.05, 1.0, 30.0, 1e5)
        for mean in (-6.0, 2.0, 11.0)
        for var in (1e-4, 0.3, 25.0)
    ]
    y, size, mean, var = (tf.constant(part, tf.float64) for part in zip(*cases, strict=True))
    ours = log_expected_negative_binomial(y, size, mean, var)
    np.testing.assert_allclose(ours, [_dense(*case) for case in cases], rtol=1e-9, atol=1e-8)


def test_the_negative_binomial_keeps_the_contract() -> None:
    mean, var = contract.moments(1)
    Y = COUNTS[:, None]
    contract.check_gradients(NegativeBinomialLog(0.5), mean, np.minimum(var, 2.0), Y)
    contract.check_batches(NegativeBinomialLog(0.5, exposure=True), 1, np.column_stack([Y, 1.0 + Y]))


def test_a_small_dispersion_is_poisson() -> None:
    mean, var = contract.moments(1)
    mean, var = np.minimum(mean, 3.0), np.minimum(var, 1.0)
    Y = np.minimum(COUNTS, 10.0)[:, None]
    few, none = NegativeBinomialLog(1.1e-6), PoissonLog()
    for method in ("variational_expectations", "predict_log_density"):
        ours, theirs = (getattr(each, method)(mean, mean, var, Y) for each in (few, none))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    for ours, theirs in zip(
        few.predict_mean_and_var(mean, mean, var), none.predict_mean_and_var(mean, mean, var), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_fractions_are_taken_where_they_are_allowed() -> None:
    Y = LEVELS + 0.5
    with pytest.raises(ValueError, match="counts 0, 1, 2"):
        VGPKMM((X, Y), problems.kernel(), PoissonLog())
    VGPKMM((X, Y), problems.kernel(), PoissonLog(fractions=True))
    with pytest.raises(ValueError, match=r"numbers from 0; found -2\.5, -1\.5, -0\.5"):
        VGPKMM((X, -Y), problems.kernel(), PoissonLog(fractions=True))
