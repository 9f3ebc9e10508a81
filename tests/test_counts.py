"""The Poisson likelihood: closed forms, exposures, and a predictive density for any count and variance."""

from __future__ import annotations

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.models import SVGP
from marks import others_slow
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

import gpflow_ext as gpx
from gpflow_ext.ep.moment_matching import Cavity, matched_sites
from gpflow_ext.likelihoods import NegativeBinomialLog, PoissonLog
from gpflow_ext.likelihoods.counts import log_expected_poisson
from gpflow_ext.models import VGPKMM, GPLaplace

COUNTS = np.array([0.0, 1.0, 2.0, 7.0, 100.0, 1e4])
EXPOSURES = np.array([0.01, 0.3, 1.0, 2.5, 40.0, 1e3])
BOTH = np.stack([COUNTS, EXPOSURES], axis=1)


def dense(y: float, mean: float, var: float) -> float:
    """log E[Poisson(y | eˣ)], x ~ N(mean, var): 40001 points to where the integrand has fallen by e⁻⁶⁰."""

    def log_integrand(x):
        return y * x - np.exp(x) - 0.5 * (x - mean) ** 2 / var

    def slope(x):
        return y - np.exp(x) - (x - mean) / var

    low, high = mean - 1.0, mean + 1.0
    while slope(low) < 0.0:
        low -= 2.0 * (mean - low) + 1.0
    while slope(high) > 0.0:
        high += 1.0
    peak = brentq(slope, low, high, xtol=1e-14)
    ends = []
    for sign in (-1.0, 1.0):
        distance = 1e-6
        while log_integrand(peak) - log_integrand(peak + sign * distance) < 60.0:
            distance *= 1.3
        ends.append(peak + sign * distance)
    x = np.linspace(*ends, 40001)
    return float(
        logsumexp(log_integrand(x)) + np.log(x[1] - x[0]) - gammaln(y + 1) - 0.5 * np.log(2 * np.pi * var)
    )


@pytest.mark.parametrize(
    "method", ["log_prob", "variational_expectations", "predict_mean_and_var", "conditional_mean"]
)
def test_without_exposure_it_is_the_poisson_of_gpflow(method: str) -> None:
    m, v = contract.moments(1)
    v = np.minimum(v, 1.0)  # GPflow's predictions are a quadrature, good for a moderate variance
    Y = COUNTS[:, None]
    arguments = {"log_prob": (m, Y), "variational_expectations": (m, v, Y), "conditional_mean": (m,)}
    values = [
        tf.nest.flatten(getattr(likelihood, method)(m, *arguments.get(method, (m, v))))
        for likelihood in (PoissonLog(), gpflow.likelihoods.Poisson())
    ]
    for ours, theirs in zip(*values, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)


def test_an_exposure_is_a_shift_of_the_log_rate() -> None:
    m, v = contract.moments(1)
    shift = np.log(EXPOSURES)[:, None]
    for method, arguments in (
        ("log_prob", ()),
        ("variational_expectations", (v,)),
        ("predict_log_density", (v,)),
    ):
        ours = getattr(PoissonLog(exposure=True), method)(m, m, *arguments, BOTH)
        shifted = getattr(PoissonLog(), method)(m, m + shift, *arguments, COUNTS[:, None])
        np.testing.assert_allclose(ours, shifted, rtol=1e-12)


def test_binsize_of_gpflow_is_one_exposure_for_all() -> None:
    m, v = contract.moments(1)
    Y = np.stack([COUNTS, np.full(6, 0.25)], axis=1)
    reference = gpflow.likelihoods.Poisson(binsize=0.25)
    ours = PoissonLog(exposure=True)
    np.testing.assert_allclose(ours.log_prob(m, m, Y), reference.log_prob(m, m, Y[:, :1]), rtol=1e-12)
    np.testing.assert_allclose(
        ours.variational_expectations(m, m, v, Y),
        reference.variational_expectations(m, m, v, Y[:, :1]),
        rtol=1e-12,
    )


def test_gradients() -> None:
    m, v = contract.moments(1)
    contract.check_gradients(
        PoissonLog(exposure=True),
        0.3 * m,
        np.minimum(v, 2.0),
        np.stack([COUNTS[[0, 1, 2, 3, 1, 0]], EXPOSURES[[2] * 6]], 1),
    )


@pytest.mark.parametrize("y", COUNTS)
def test_predictive_density_against_dense_integration(y: float) -> None:
    mean, var = (
        g.ravel()
        for g in np.meshgrid(
            [-40.0, -8.0, -1.0, 0.0, 3.0, 9.2, 12.0, 20.0], [1e-2, 0.1, 1.0, 5.0, 25.0, 400.0]
        )
    )
    reference = np.array([dense(y, *pair) for pair in zip(mean, var, strict=True)])
    np.testing.assert_allclose(
        log_expected_poisson(np.full_like(mean, y), mean, var), reference, rtol=1e-9, atol=1e-9
    )


def test_predictive_density_at_no_variance_is_the_likelihood() -> None:
    m = np.array([[-30.0], [-2.0], [0.0], [1.0], [4.0], [9.0]])
    expected = PoissonLog().log_prob(m, m, COUNTS[:, None])
    value = PoissonLog().predict_log_density(m, m, np.zeros_like(m), COUNTS[:, None])
    # A variance counts as 2e-16 at least; the smallest value is that of 1 - 9e-14, to rounding.
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-15)


def test_predictive_density_sums_to_one() -> None:
    y = np.arange(4000.0)
    total = np.exp(log_expected_poisson(y, np.full_like(y, 1.0), np.full_like(y, 0.8))).sum()
    assert total == pytest.approx(1.0, abs=1e-9)  # beyond 4000 lie 8 standard deviations: 1e-15


def test_predictive_density_has_the_derivatives_of_the_integral() -> None:
    m, v = (
        tf.constant([[0.5], [-3.0], [8.0], [2.0]], tf.float64),
        tf.constant([[0.5], [9.0], [2.0], [1e-2]], tf.float64),
    )
    Y = np.array([[0.0], [3.0], [1e4], [12.0]])

    def density(mean, var):
        return PoissonLog().predict_log_density(m, mean, var, Y)

    with tf.GradientTape() as tape:
        tape.watch((m, v))
        value = density(m, v)
    by_mean, by_var = tape.gradient(value, (m, v))
    h = 1e-4  # truncation h², rounding 1e-11/h (the terms of the largest count are of size 1e5)
    np.testing.assert_allclose(
        by_mean[:, 0], (density(m + h, v) - density(m - h, v)) / (2 * h), rtol=1e-6, atol=1e-6
    )
    difference = (density(m, v * (1 + h)) - density(m, v * (1 - h))) / (2 * h)
    np.testing.assert_allclose((by_var * v)[:, 0], difference, rtol=1e-6, atol=1e-6)


def test_moments_are_those_at_exposure_one() -> None:
    m, v = np.array([[0.3], [-1.0]]), np.array([[0.7], [0.1]])
    mean, var = PoissonLog(exposure=True).predict_mean_and_var(m, m, v)
    y = np.arange(3000.0)
    for row in range(2):
        p = np.exp(log_expected_poisson(y, np.full_like(y, m[row, 0]), np.full_like(y, v[row, 0])))
        assert mean[row, 0].numpy() == pytest.approx(p @ y, rel=1e-7)
        assert var[row, 0].numpy() == pytest.approx(p @ y**2 - (p @ y) ** 2, rel=1e-6)


@pytest.mark.parametrize("likelihood", [PoissonLog(), NegativeBinomialLog(0.5)])
def test_moments_are_numbers_where_their_factors_are_not(likelihood) -> None:
    """μ² underflows or overflows, and its expectation does the opposite or is one."""
    m, v = np.array([[-800.0], [-750.0], [400.0], [1000.0]]), np.array([[800.0], [720.0], [0.0], [0.0]])
    mean, var = likelihood.predict_mean_and_var(m, m, v)
    excess = 0.0 if isinstance(likelihood, PoissonLog) else 0.5
    np.testing.assert_allclose(var[:2, 0], (1.0 + excess) * np.exp([0.0, -60.0]), rtol=1e-12)
    assert not np.isnan(var).any()
    assert np.isfinite(mean[2, 0])
    assert np.isinf(var[3, 0])


def test_a_rejected_trial_is_minus_infinity_and_not_nan() -> None:
    m, v = tf.constant([[800.0], [5.0], [0.0]], tf.float64), tf.constant([[1.0], [4000.0], [1.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch((m, v))
        value = PoissonLog().variational_expectations(m, m, v, np.array([[3.0], [0.0], [2.0]]))
    assert value.numpy()[0] == value.numpy()[1] == -np.inf
    assert np.isfinite(value.numpy()[2])
    assert not any(np.isnan(g).any() for g in tape.gradient(value, (m, v)))
    far = tf.constant([[600.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(far)
        value = PoissonLog().variational_expectations(far, far, tf.ones_like(far), np.zeros((1, 1)))
    assert np.isfinite([value.numpy()[0], tape.gradient(value, far).numpy()[0, 0]]).all()


@pytest.mark.parametrize("exposure", [False, True])
def test_batches(exposure: bool) -> None:
    contract.check_batches(PoissonLog(exposure), 1, BOTH if exposure else COUNTS[:, None])


def test_several_columns_are_summed() -> None:
    m, v = contract.moments(2)
    Y = np.stack([COUNTS, COUNTS[::-1]], axis=1)
    for method in ("variational_expectations", "predict_log_density"):
        both = getattr(PoissonLog(), method)(m, m, v, Y)
        single = [getattr(PoissonLog(), method)(m, m[:, [i]], v[:, [i]], Y[:, [i]]) for i in (0, 1)]
        np.testing.assert_allclose(both, single[0] + single[1], rtol=1e-12)


@pytest.mark.parametrize("dtype", others_slow([tf.float64, tf.float32], tf.float64))
def test_xla(dtype: tf.DType) -> None:
    Y = np.stack([COUNTS[[0, 1, 2, 3, 4, 4]], EXPOSURES[[0, 1, 2, 3, 3, 3]]], 1)
    contract.check_xla(PoissonLog(exposure=True), 1, Y, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_inside_gpflow_models(dtype: type) -> None:
    contract.check_in_gpflow_models(lambda: PoissonLog(exposure=True), problems.exposed_counts(12), 1, dtype)


@pytest.mark.parametrize(
    ("exposure", "data"),
    [pytest.param(False, problems.counts(20), marks=pytest.mark.slow), (True, problems.exposed_counts(20))],
)
def test_optimum_is_that_of_gpflow_vgp(exposure: bool, data) -> None:
    contract.check_optimum(lambda: PoissonLog(exposure), data)


def test_large_prior_variance() -> None:
    contract.fixed_optimum(problems.exposed_counts(20), PoissonLog(exposure=True), 1e3, stationarity=1e-6)


def test_one_latent_function_for_counts_with_exposures() -> None:
    data = problems.exposed_counts(20)
    model = VGPKMM(data, problems.kernel(), PoissonLog(exposure=True))
    assert model.num_latent_gps == 1
    gpx.fit(model, steps=2)
    assert model.predict_y(data[0])[0].shape == (20, 1)
    assert model.predict_log_density(data).shape == (20,)


@pytest.mark.parametrize(
    ("exposure", "Y", "message"),
    [
        (False, [[-1.0]], r"Y must hold counts 0, 1, 2, …; found -1: correct or drop"),
        (False, [[1.0, 0.5]], r"found 0.5: .*; exposures in a second column need exposure=True"),
        (False, [[np.nan]], r"found nan"),
        (True, [[1.0]], r"Y must have two columns, count and exposure; its shape is \(1, 1\)"),
        (True, [[1.5, 1.0]], r"counts 0, 1, 2, …; found 1.5"),
        (True, [[1.0, 0.0], [1.0, -2.0]], r"positive exposures in column 1; found -2, 0"),
        (True, [[1.0, np.inf]], r"positive exposures in column 1; found inf"),
    ],
)
def test_targets_are_checked(exposure: bool, Y: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PoissonLog(exposure).check_targets(np.array(Y))


def test_good_targets_pass() -> None:
    PoissonLog().check_targets(COUNTS[:, None])
    PoissonLog(exposure=True).check_targets(BOTH)
    with pytest.raises(ValueError, match=r"two columns, count and exposure; its shape is \(6, 1\)"):
        PoissonLog(exposure=True).counts_and_exposures(COUNTS[:, None])
    counts, exposures = PoissonLog(exposure=True).counts_and_exposures(BOTH)
    np.testing.assert_array_equal(np.concatenate([counts, exposures], axis=1), BOTH)
    assert (PoissonLog().counts_and_exposures(COUNTS[:, None])[1].numpy() == 1.0).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("alpha", [2e-6, 1e-4, 1e-2, 1.0, 30.0])
def test_negative_binomial_keeps_its_digits_at_any_dispersion(alpha: float, dtype: type) -> None:
    """Density and derivative in α by log Γ(y + r) - log Γ(r) - y log r = Σ_{j<y} log(1 + jα)."""
    counts, eps = np.array([0.0, 1.0, 2.0, 7.0, 100.0, 1000.0]), np.finfo(dtype).eps
    F = (np.log(counts + 0.5) + 0.4)[:, None].astype(dtype)
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        likelihood = NegativeBinomialLog(alpha)
    raw = likelihood.dispersion.unconstrained_variable
    with tf.GradientTape(persistent=True) as tape:
        density = likelihood.log_prob(F, F, counts[:, None].astype(dtype))
        parts, dispersion = tf.unstack(density), tf.convert_to_tensor(likelihood.dispersion)
    expected = likelihood.variational_expectations(F, F, np.zeros_like(F), counts[:, None].astype(dtype))
    slopes = np.array([tape.gradient(part, raw) / tape.gradient(dispersion, raw) for part in parts])

    f, alpha, j = F[:, 0].astype(float), float(dispersion), np.arange(1000)
    mean, lower, total = np.exp(f), j < counts[:, None], counts + 1.0 / alpha
    rest = np.log1p(alpha * mean)
    exact = (lower * np.log1p(j * alpha)).sum(1) + counts * f - gammaln(counts + 1) - total * rest
    slope = (lower * j / (1 + j * alpha)).sum(1) + rest / alpha**2 - total * mean / (1 + alpha * mean)
    scale = eps * (1 + np.minimum(counts, 1 / alpha) * (1 + np.abs(f)) + mean / (1 + alpha * mean))
    scale += 2.2e-16 * counts * (1 + np.abs(f))  # of the sums here
    np.testing.assert_array_less(np.abs(density - exact), 4.0 * scale)
    np.testing.assert_array_less(np.abs(expected - exact), (60.0 if dtype == np.float32 else 1e5) * scale)
    np.testing.assert_array_less(np.abs(slopes - slope), 4.0 * scale / alpha + 4.0 * eps * np.abs(slope))


@pytest.mark.parametrize("kind", [VGPKMM, GPLaplace, SVGP])
def test_counts_of_many_millions_are_reached_from_a_rate_of_one(kind: type) -> None:
    """Newton's first step is as long as the counts are large, and all but a billionth of it too long."""
    X = np.linspace(0.0, 1.0, 12)[:, None]
    data = X, np.round(1e8 * np.exp(np.sin(6.0 * X)))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.3)
    if kind is SVGP:
        model = SVGP(kernel, PoissonLog(), X.copy(), num_data=12)
        result = gpx.fit(model, data)
    else:
        model = kind(data, kernel, PoissonLog())
        result = gpx.fit(model)
    assert result.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(model.predict_f(X)[0], np.log(data[1]), atol=1e-3)


def test_the_site_of_a_large_count_is_matched_from_a_wide_cavity() -> None:
    """The site is the likelihood's own expansion, as the cavity is 10¹¹ times as wide.

    Of 1 − γv that leaves 10⁻¹¹, so that rounding alone is 10⁻⁴ of it.
    """
    y, var = tf.constant([[1e9]], tf.float64), tf.constant([[400.0]], tf.float64)
    likelihood = PoissonLog()

    def log_normaliser(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        return likelihood.predict_log_density(tf.zeros_like(mean), mean, var, y)

    cavity = Cavity(tf.zeros_like(var), var, tf.ones_like(var))
    nat1, prec = matched_sites(log_normaliser, cavity, tf.zeros_like(var))
    np.testing.assert_allclose(prec, y, rtol=1e-3)
    np.testing.assert_allclose(nat1, y * np.log(1e9), rtol=1e-3)
