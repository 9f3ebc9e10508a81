"""Multinomial logit and stick-breaking: bounds below the exact value, probabilities against brute force."""

from __future__ import annotations

import functools

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import tensorflow as tf
from scipy.special import log_expit, log_softmax, logsumexp

from gpflow_ext.likelihoods import BernoulliLogit, MultinomialLogit, StickBreaking
from gpflow_ext.likelihoods.softmax import (
    expected_lse,
    expected_lse_rise,
    log_expected_probability,
    log_expected_softmax,
)
from gpflow_ext.models import VGPKMM
from gpflow_ext.numerics import bounds
from gpflow_ext.numerics.logistic import expected_llp
from gpflow_ext.numerics.special import log_expected_sigmoid

STICK_BOUNDS = ("piecewise", "jaakkola", None)
LSE_BOUNDS = [
    ("log", "piecewise"),
    ("bouchard", "piecewise"),
    ("bouchard", "jaakkola"),
    ("best", "piecewise"),
]
each_multinomial = pytest.mark.parametrize(("bound", "inner"), LSE_BOUNDS)
each_dtype = pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
LABELS = np.arange(6.0)[:, None] % 3
WEIGHTS = np.array([[1.0, -2.0, 0.5, 3.0, 1.5, -1.0]])  # of a derivative's parts


def brute_force(function, mean: np.ndarray, var: np.ndarray, spacing: float = 0.8) -> np.ndarray:
    """E[function(f)] for independent f ~ N(mean, var), [K], by the product trapezoid rule over ±9 sd.

    Functions of sigmoids have their poles at ±iπ: the error is about exp(-2π²/spacing), 2e-11 at 0.8.
    """
    axes, weights = [], []
    for m, sd in zip(mean, np.sqrt(var), strict=True):
        z = np.linspace(-9.0, 9.0, max(31, int(18.0 * sd / spacing)))
        axes.append(m + sd * z)
        weights.append(np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum())
    value = function(np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1))
    for weight in weights:
        value = np.tensordot(weight, value, axes=1)
    return value


# --------------------------------------------------------------------------------- bounds on the log-sum-exp


@functools.cache
def lse_problems() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means [P, 3] with far classes, variances [P, 3] in mixtures, and the exact E[log Σ exp]."""
    rng = np.random.default_rng(0)
    scales = np.repeat([1e-3, 0.3, 3.0, 20.0], 4)[:, None]
    mean = rng.normal(size=(16, 3)) * np.array([1.0, 4.0, 12.0, 40.0] * 4)[:, None]
    var = scales * 10.0 ** rng.uniform(-1.0, 0.3, (16, 3))
    exact = [brute_force(lambda f: logsumexp(f, axis=-1), *pair) for pair in zip(mean, var, strict=True)]
    return mean, var, np.array(exact)


def test_log_sum_exp_bounds_are_above_the_exact_expectation() -> None:
    mean, var, exact = lse_problems()
    slack = 1e-9 * (1.0 + np.abs(exact))  # of the brute force
    value = {pair: bounds.expected_lse_bound(mean, var, *pair).numpy() for pair in LSE_BOUNDS}
    for bound in value.values():
        assert (bound >= exact - slack).all()
    np.testing.assert_allclose(value["log", "piecewise"], logsumexp(mean + 0.5 * var, axis=1), rtol=1e-14)
    small, large = var.max(axis=1) < 0.1, var.min(axis=1) > 1.5
    assert (value["log", "piecewise"] - exact)[small].max() < 0.02  # ½ Σ π(1 - π) v and less
    assert large.sum() >= 3
    assert (value["bouchard", "piecewise"] < value["bouchard", "jaakkola"])[large].all()
    np.testing.assert_array_equal(
        value["best", "piecewise"], np.minimum(value["log", "piecewise"], value["bouchard", "piecewise"])
    )
    assert (value["log", "piecewise"] < value["bouchard", "piecewise"]).any()
    assert (value["log", "piecewise"] > value["bouchard", "piecewise"]).any()


@pytest.mark.parametrize("inner", ["piecewise", "jaakkola"])
def test_bouchard_offset_is_the_best(inner: str) -> None:
    """A bracket that misses the root, or a root of something else, would leave a better offset nearby."""
    rng = np.random.default_rng(1)
    for num_classes in (2, 3, 10):
        mean = rng.normal(size=(40, num_classes)) * 10.0 ** rng.uniform(-1, 2, (40, 1))
        var = 10.0 ** rng.uniform(-2.0, 3.0, (40, num_classes))
        best = bounds.bouchard_lse(mean, var, inner).numpy()
        offsets = np.linspace(mean.min(1) - 20.0, mean.max(1) + 120.0, 4001)[..., None]  # [A, P, 1]
        trials = np.concatenate(
            [
                part[..., 0] + tf.reduce_sum(bounds.expected_llp_bound(mean - part, var, inner), -1)
                for part in np.array_split(offsets, 40)
            ]
        )
        assert (best <= trials.min(axis=0) + 1e-9 * np.abs(best)).all()
        np.testing.assert_allclose(best, trials.min(axis=0), rtol=0, atol=5e-2)  # curvature · spacing²


def test_bouchard_bound_with_one_dominant_class_and_shift() -> None:
    """Shifting every class by c shifts the bound by c; a class far above the others leaves its mean."""
    mean, var = np.array([[1.0, -2.0, 0.5]]), np.array([[0.5, 2.0, 30.0]])
    shifted, plain = (bounds.bouchard_lse(mean + c, var) for c in (1000.0, 0.0))
    np.testing.assert_allclose(shifted - 1000.0, plain, rtol=1e-11)
    far = bounds.bouchard_lse(np.array([[500.0, -300.0, 0.0]]), np.array([[1.0, 1.0, 1.0]]))
    assert 500.0 <= far.numpy()[0] <= 500.0 + 3 * bounds.piecewise_llp(20).max_gap + 1e-12


@pytest.mark.parametrize(
    ("var", "tolerance"),
    [
        ((0.1, 0.2, 0.1), 1e-10),
        ((25.0, 25.0, 25.0), 1e-10),
        ((1e-6, 2.0, 25.0), 1e-9),
        ((6.2, 6.3, 25.0), 1e-10),  # on both sides of the change of rule
        ((1e-6, 1e-6, 100.0), 2e-7),
    ],
)
def test_expected_log_sum_exp_against_brute_force(var: tuple[float, ...], tolerance: float) -> None:
    rng = np.random.default_rng(2)
    for scale in (0.5, 3.0, 12.0):
        mean = scale * rng.normal(size=3)
        exact = brute_force(lambda f: logsumexp(f, axis=-1), mean, np.array(var))
        found = expected_lse(tf.constant(mean), tf.constant(var, tf.float64))
        np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance)


def test_expected_log_sum_exp_of_two_classes_and_of_many() -> None:
    """Two are one logistic of the difference; a class that is never chosen changes nothing."""
    rng = np.random.default_rng(5)
    mean, var = 5.0 * rng.normal(size=(200, 2)), 10.0 ** rng.uniform(-8.0, 4.0, (200, 1)) * [[1.0, 0.3]]
    exact = mean[:, 0] + expected_llp(mean[:, 1] - mean[:, 0], var.sum(axis=1))
    np.testing.assert_allclose(expected_lse(tf.constant(mean), tf.constant(var)), exact, rtol=0, atol=1e-9)
    many = np.concatenate([mean, np.full((200, 8), -400.0)], axis=1)
    found = expected_lse(tf.constant(many), tf.constant(np.concatenate([var, np.ones((200, 8))], axis=1)))
    near = var.max(axis=1) < 1e3
    np.testing.assert_allclose(found[near], exact[near], rtol=0, atol=1e-9)
    certain = expected_lse(tf.constant(mean), tf.zeros([200, 2], tf.float64))
    np.testing.assert_allclose(certain, logsumexp(mean, axis=1), rtol=0, atol=1e-11)


def test_derivatives_of_the_expected_log_sum_exp() -> None:
    """In the means the expected softmax, and half of its second derivatives in the variances (Price)."""
    m, v = (tf.constant(part) for part in contract.moments(3, 8))
    v = tf.minimum(v, 10.0)
    with tf.GradientTape() as outer:
        outer.watch(m)
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = tf.reduce_sum(expected_lse(m, v))
        by_mean, by_var = tape.gradient(value, (m, v))
        first = tf.reduce_sum(by_mean[:, 0])
    np.testing.assert_allclose(by_mean, np.exp(log_expected_softmax(m, v)), rtol=0, atol=1e-7)
    np.testing.assert_allclose(by_var[:, 0], 0.5 * outer.gradient(first, m)[:, 0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("rise", [1e-3, 3.0, 14.0])
def test_rise_of_the_expected_log_sum_exp(rise: float) -> None:
    """As the difference of both, for narrow functions and for wide ones."""
    m, v = (tf.constant(part) for part in contract.moments(3, 8))
    v = tf.minimum(v, 10.0)
    own = tf.constant(np.arange(3) == LABELS[:1] + np.arange(8)[:, None] % 3)
    size = tf.constant(rise, tf.float64)
    for narrow in (False, True):
        var = 0.3 * v if narrow else v
        exact = expected_lse(m + tf.where(own, size, 0.0), var) - expected_lse(m, var)
        found = expected_lse_rise(m, var, own, size)
        np.testing.assert_allclose(found, exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("which_integral", "graph"), [("rise", False), ("rise", True), ("probability", True), ("rare", True)]
)
def test_all_derivatives_of_the_integrals(which_integral: str, graph: bool) -> None:
    """To the third order against differences, of a narrow and a wide function; of a rare class too."""
    own, rise = tf.constant([[False, True, False]]), tf.constant(2.0, tf.float64)
    far = tf.constant([[0.0, 60.0 if which_integral == "rare" else 0.0, 0.0]], tf.float64)

    def value(x: tf.Tensor) -> tf.Tensor:
        if which_integral == "rise":
            return tf.reduce_sum(expected_lse_rise(x[:, :3], x[:, 3:], own, rise))
        return tf.reduce_sum(log_expected_probability(x[:, :3] - far, x[:, 3:], own))

    def derivatives(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = []
        with tf.GradientTape() as third, tf.GradientTape() as second, tf.GradientTape() as first:
            for tape in (third, second, first):
                tape.watch(x)
            total = value(x)
            found.append(first.gradient(total, x))
            found.append(second.gradient(tf.reduce_sum(found[-1] * WEIGHTS), x))
            last = tf.reduce_sum(found[-1] * WEIGHTS)
        return total, *found, third.gradient(last, x)

    at = tf.function(derivatives) if graph else derivatives
    x = tf.constant([[0.3, -0.5, 1.0, 0.5, 1.7, 9.0]], tf.float64)
    step = 1e-4
    found = at(x)
    for which in range(6):
        move = step * tf.one_hot([which], 6, dtype=tf.float64)
        above, below = at(x + move), at(x - move)
        for order in range(3):
            change = (above[order] - below[order]) / (2.0 * step)
            change = tf.reduce_sum(change * WEIGHTS) if order else change
            np.testing.assert_allclose(found[order + 1][0, which], change, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("bound", "inner"), [*LSE_BOUNDS, (None, "piecewise")])
def test_multinomial_gradients(bound: str | None, inner: str) -> None:
    """Bouchard's are those at a fixed offset, and must be those of the value all the same."""
    m, v = contract.moments(4, 8)
    contract.check_gradients(MultinomialLogit(4, bound, inner), m, v, np.arange(8.0)[:, None] % 4)


def test_multinomial_expectations_without_a_bound_are_exact() -> None:
    """Every bound is below, and GPflow's Monte Carlo about it, within five standard errors."""
    mean, var, exact = lse_problems()
    gpflow_own = gpflow.likelihoods.Softmax(3)
    gpflow_own.num_monte_carlo_points = 20000
    tf.random.set_seed(0)
    for y in range(3):
        Y = np.full((16, 1), y)
        value = MultinomialLogit(3, None).variational_expectations(mean, mean, var, Y)
        np.testing.assert_allclose(value, mean[:, y] - exact, rtol=0, atol=1e-9)
        estimate = gpflow_own.variational_expectations(mean, mean, var, Y)
        error = 5.0 * np.sqrt(var.sum(axis=1) / 20000)  # of log-softmax, whose slopes are at most one
        assert (np.abs(estimate - value) < error).all()


@each_multinomial
def test_multinomial_expectations_are_lower_bounds(bound: str, inner: str) -> None:
    mean, var, exact = lse_problems()
    for y in range(3):
        value = MultinomialLogit(3, bound, inner).variational_expectations(
            mean, mean, var, np.full((16, 1), y)
        )
        assert (value.numpy() <= mean[:, y] - exact + 1e-9 * (1.0 + np.abs(exact))).all()


# ---------------------------------------------------------------------------------------------- probabilities


@pytest.mark.parametrize(
    ("var", "tolerance"),
    [
        ((0.1, 0.1, 0.1), 1e-10),
        ((25.0, 25.0, 25.0), 1e-8),
        ((1e-6, 2.0, 25.0), 1e-8),
        ((6.2, 6.3, 25.0), 1e-8),  # on both sides of the change of rule
        ((1e-6, 1e-6, 100.0), 1e-6),
        pytest.param((100.0, 100.0, 1.0), 1e-6, marks=pytest.mark.slow),
    ],
)
def test_expected_softmax_against_brute_force(var: tuple[float, ...], tolerance: float) -> None:
    rng = np.random.default_rng(2)
    for scale in (0.5, 3.0, 12.0):
        mean = scale * rng.normal(size=3)
        exact = brute_force(lambda f: np.exp(log_softmax(f, axis=-1)), mean, np.array(var))
        p = np.exp(log_expected_softmax(tf.constant(mean), tf.constant(var, tf.float64)))
        np.testing.assert_allclose(p, exact, rtol=0, atol=tolerance)
        np.testing.assert_allclose(p.sum(), 1.0, rtol=0, atol=1e-13)


def test_expected_softmax_of_two_classes_is_a_logistic_normal() -> None:
    rng = np.random.default_rng(3)
    mean, var = 5.0 * rng.normal(size=(200, 2)), 10.0 ** rng.uniform(-6.0, 2.0, (200, 2))
    p = np.exp(log_expected_softmax(tf.constant(mean), tf.constant(var)))[:, 1]
    exact = np.exp(log_expected_sigmoid(mean[:, 1] - mean[:, 0], var.sum(axis=1)))
    np.testing.assert_allclose(p, exact, rtol=0, atol=1e-6)
    small = var.max(axis=1) < 25.0
    np.testing.assert_allclose(p[small], exact[small], rtol=0, atol=1e-8)
    mean, var = 40.0 * mean, 10.0 ** rng.uniform(2.0, 4.0, (200, 2))  # large ones within a factor of 100
    p = np.exp(log_expected_softmax(tf.constant(mean), tf.constant(var)))[:, 1]
    exact = np.exp(log_expected_sigmoid(mean[:, 1] - mean[:, 0], var.sum(axis=1)))
    np.testing.assert_allclose(p, exact, rtol=0, atol=1e-6)


def test_probability_of_one_class_is_that_of_all() -> None:
    """Whatever the variances, up to where integrals of rare classes leave the numbers that there are."""
    rng = np.random.default_rng(5)
    for scale, low, high in ((3.0, -6.0, 1.3), (10.0, -2.0, 1.3), (10.0, 1.0, 2.5)):
        mean = tf.constant(scale * rng.normal(size=(60, 4)))
        var = tf.constant(10.0 ** rng.uniform(low, high, (60, 4)))
        own = tf.one_hot(tf.constant(rng.integers(0, 4, 60)), 4, True, False)
        exact = log_expected_softmax(mean, var)[own]
        np.testing.assert_allclose(log_expected_probability(mean, var, own), exact, rtol=0, atol=1e-7)


@each_dtype
def test_log_probability_of_a_rare_class(dtype: tf.DType) -> None:
    """Without variance it is the softmax itself, with the slopes of that, where p underflows by far."""
    mean = tf.constant(np.random.default_rng(0).normal(size=(50, 5)) * 1000.0, dtype)
    own = tf.one_hot(tf.range(50) % 5, 5, True, False)
    with tf.GradientTape() as tape:
        tape.watch(mean)
        found = log_expected_probability(mean, tf.zeros_like(mean), own)
    exact = log_softmax(mean.numpy(), axis=1)
    tight = np.finfo(dtype.as_numpy_dtype).eps
    assert exact[own.numpy()].min() < -2000.0
    np.testing.assert_allclose(found, exact[own.numpy()], rtol=4.0 * tight, atol=1e4 * tight)
    slopes = tf.cast(own, dtype).numpy() - np.exp(exact)
    np.testing.assert_allclose(tape.gradient(found, mean), slopes, rtol=0, atol=1e-5)


def test_expected_softmax_has_finite_gradients_at_any_variance() -> None:
    """A rule that is not used must not spoil the gradient of the one that is: against central differences."""
    mean = tf.constant([[0.3, -2.0, 1.0], [60.0, 0.0, -50.0]], tf.float64)
    var = tf.constant([[1e-2, 4.0, 40.0], [1e4, 3e3, 900.0]], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch((mean, var))
        value = log_expected_softmax(mean, var)[:, 1]
    by_mean, by_var = tape.gradient(value, (mean, var))
    for column in np.eye(3):
        h = 1e-4 * column
        difference = log_expected_softmax(mean + h, var) - log_expected_softmax(mean - h, var)
        np.testing.assert_allclose(by_mean @ column[:, None], difference[:, 1:2] / 2e-4, rtol=0, atol=1e-6)
        difference = log_expected_softmax(mean, var * (1 + h)) - log_expected_softmax(mean, var * (1 - h))
        np.testing.assert_allclose(
            (by_var * var) @ column[:, None], difference[:, 1:2] / 2e-4, rtol=0, atol=1e-6
        )


def test_expected_softmax_of_many_classes() -> None:
    """Ten classes. Merging: with equal moments each has 1/10; with no variance it is the softmax itself."""
    equal = np.exp(log_expected_softmax(tf.zeros([10], tf.float64), 7.0 * tf.ones([10], tf.float64)))
    np.testing.assert_allclose(equal, 0.1, rtol=1e-12)
    mean = tf.constant(np.random.default_rng(4).normal(size=(5, 10)) * 6.0)
    log_p = log_expected_softmax(mean, tf.zeros_like(mean))
    np.testing.assert_allclose(log_p, log_softmax(mean, axis=-1), rtol=1e-7, atol=1e-9)  # the tails too
    spread = np.exp(log_expected_softmax(mean, tf.fill(mean.shape, tf.constant(1e4, tf.float64))))
    np.testing.assert_allclose(spread, 0.1, rtol=0, atol=0.05)  # a variance of 1e4 drowns any mean
    # A class that is certain never to be chosen leaves the problem of the others.
    three = np.array([0.4, -1.0, 2.0]), np.array([0.5, 4.0, 9.0])
    nine = np.append(three[0], np.full(6, -80.0)), np.append(three[1], np.ones(6))
    few, many = (np.exp(log_expected_softmax(tf.constant(m), tf.constant(v))) for m, v in (three, nine))
    np.testing.assert_allclose(many[:3], few, rtol=0, atol=1e-9)


def test_multinomial_density_is_that_of_the_probabilities() -> None:
    m, v = contract.moments(3)
    likelihood = MultinomialLogit(3)
    p = likelihood.class_probabilities(m, m, v).numpy()
    density = likelihood.predict_log_density(m, m, v, LABELS)
    np.testing.assert_allclose(
        density, np.log(np.take_along_axis(p, LABELS.astype(int), 1)[:, 0]), rtol=1e-10
    )
    far = np.array([[0.0, -900.0, 3.0]])
    value = likelihood.predict_log_density(far, far, 1e-3 * np.ones((1, 3)), np.array([[1.0]]))
    np.testing.assert_allclose(value, log_softmax(far)[:, 1], atol=2e-3)  # and not minus infinity


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_stick_breaking_probabilities(num_classes: int) -> None:
    """Products of E[σ] against the product rule; the conditional forms against their definition."""
    m, v = contract.moments(num_classes - 1, 4)
    likelihood = StickBreaking(num_classes)

    def given(f: np.ndarray) -> np.ndarray:
        left = np.cumprod(1.0 / (1.0 + np.exp(f)), axis=-1)
        before = np.concatenate([np.ones_like(left[..., :1]), left[..., :-1]], axis=-1)
        return np.concatenate([before - left, left[..., -1:]], axis=-1)

    np.testing.assert_allclose(likelihood.conditional_mean(m, m), given(m), rtol=0, atol=1e-15)
    for y in range(num_classes):
        log_prob = likelihood.log_prob(m, m, np.full((4, 1), y))
        np.testing.assert_allclose(np.exp(log_prob), given(m)[:, y], rtol=0, atol=1e-15)
    p = likelihood.class_probabilities(m, m, v).numpy()
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=0, atol=1e-14)
    if num_classes <= 3:
        exact = [brute_force(given, *pair, spacing=0.5) for pair in zip(m, v, strict=True)]
        np.testing.assert_allclose(p, exact, rtol=0, atol=1e-11)
    density = likelihood.predict_log_density(m, m, v, np.full((4, 1), num_classes - 1.0))
    np.testing.assert_allclose(density, np.log(p[:, -1]), rtol=1e-12)
    unnormalised = np.exp(log_expected_sigmoid(m, v)) + np.exp(log_expected_sigmoid(-m, v))
    np.testing.assert_allclose(unnormalised, 1.0, rtol=0, atol=1e-15)


def test_moments_are_those_of_the_indicators() -> None:
    m, v = contract.moments(3)
    for likelihood, width in ((MultinomialLogit(3), 3), (StickBreaking(4), 3)):
        mean, var = likelihood.predict_mean_and_var(m, m[:, :width], v[:, :width])
        p = likelihood.class_probabilities(m, m, v).numpy()
        np.testing.assert_array_equal(mean, p)
        np.testing.assert_allclose(var, p - p**2, rtol=1e-12, atol=1e-16)
        p = np.exp([likelihood.log_prob(m, m, np.full((6, 1), k)) for k in range(likelihood.num_classes)]).T
        np.testing.assert_allclose(likelihood.conditional_mean(m, m), p, rtol=1e-13)
        np.testing.assert_allclose(likelihood.conditional_variance(m, m), p * (1 - p), rtol=1e-12)


@pytest.mark.parametrize("likelihood", [MultinomialLogit(3), StickBreaking(4)])
def test_log_prob_is_stable(likelihood) -> None:
    F = np.array([[1e3, -1e3, 5e2], [-1e3, -1e3, 1e3]])
    for y in range(3):
        value = likelihood.log_prob(F, F, np.full((2, 1), y)).numpy()
        assert np.isfinite(value).all()
    sign = np.where(np.arange(3) == 1, 1.0, -1.0)
    expected = (
        log_softmax(F, axis=1)[:, 1]
        if likelihood.latent_dim == likelihood.num_classes
        else log_expit(sign * F)[:, :2].sum(1)
    )
    np.testing.assert_allclose(likelihood.log_prob(F, F, np.ones((2, 1))), expected, rtol=1e-14)


# --------------------------------------------------------------------------------------------- stick-breaking


@pytest.mark.parametrize("bound", STICK_BOUNDS)
def test_two_sticks_are_the_bernoulli_logit_with_the_labels_exchanged(bound: str | None) -> None:
    m, v = contract.moments(1)
    two, binary = StickBreaking(2, bound), BernoulliLogit(bound)
    for y in (0.0, 1.0):
        Y = np.full((6, 1), y)
        for method, arguments in (
            ("log_prob", ()),
            ("variational_expectations", (v,)),
            ("predict_log_density", (v,)),
        ):
            ours, theirs = (
                getattr(two, method)(m, m, *arguments, Y),
                getattr(binary, method)(m, m, *arguments, 1 - Y),
            )
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(
        two.class_probabilities(m, m, v), binary.class_probabilities(m, m, v)[:, ::-1], rtol=1e-12
    )


@pytest.mark.parametrize("bound", STICK_BOUNDS)
def test_stick_breaking_expectations_and_gradients(bound: str | None) -> None:
    m, v = contract.moments(3, 8)
    Y = np.arange(8.0)[:, None] % 4
    likelihood, binary = StickBreaking(4, bound), BernoulliLogit(bound)
    value = likelihood.variational_expectations(m, m, v, Y)
    expected = np.zeros(8)
    for n in range(8):
        for j in range(min(int(Y[n, 0]), 2) + 1):
            part = slice(j, j + 1)
            label = np.array([[float(Y[n, 0] == j)]])
            expected[n] += binary.variational_expectations(m[[n], part], m[[n], part], v[[n], part], label)[0]
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    exact = StickBreaking(4, None).variational_expectations(m, m, v, Y)
    gap = 3 * bounds.piecewise_llp(20).max_gap if bound == "piecewise" else np.inf
    assert (value <= exact + 1e-10).numpy().all()
    assert (value >= exact - gap - 1e-10).numpy().all()
    contract.check_gradients(likelihood, m, v, Y)


@pytest.mark.parametrize("bound", STICK_BOUNDS)
def test_a_stick_that_a_datum_does_not_see_has_no_gradient(bound: str | None) -> None:
    m, v = (tf.constant(part) for part in contract.moments(3))
    Y = np.zeros((6, 1))
    with tf.GradientTape() as tape:
        tape.watch((m, v))
        value = StickBreaking(4, bound).variational_expectations(m, m, v, Y)
    for slope in tape.gradient(value, (m, v)):
        np.testing.assert_array_equal(slope[:, 1:], 0.0)
        assert (slope[:, 0] != 0.0).numpy().all()


@pytest.mark.slow
def test_masked_sticks_are_the_problems_of_the_subsets() -> None:
    """Stick j of the whole is the binary problem of the data with y >= j; the others have no site there."""
    X, Y = problems.classes(24, 3)
    model = contract.fixed_optimum((X, Y), StickBreaking(3))
    new, total = problems.inputs(7, seed=11), 0.0
    mean, var = model.predict_f(new)
    for j in range(2):
        seen = Y[:, 0] >= j
        subset = contract.fixed_optimum((X[seen], (Y[seen] == j).astype(float)), BernoulliLogit())
        total += float(subset.elbo())
        for ours, theirs in zip((mean, var), subset.predict_f(new), strict=True):
            np.testing.assert_allclose(ours[:, j : j + 1], theirs, rtol=0, atol=1e-8)
        np.testing.assert_array_equal(model.prec.numpy()[~seen, j], 0.0)
        np.testing.assert_array_equal(model.nat1.numpy()[~seen, j], 0.0)
    np.testing.assert_allclose(model.elbo(), total, rtol=1e-8)


# ------------------------------------------------------------------------------------------- at home in GPflow


@pytest.mark.parametrize(
    "likelihood", [MultinomialLogit(3, "best"), MultinomialLogit(3, None), StickBreaking(4)]
)
def test_batches(likelihood) -> None:
    contract.check_batches(likelihood, 3, LABELS)


@pytest.mark.parametrize(
    ("likelihood", "dtype"),
    [
        (MultinomialLogit(3, "best"), tf.float32),
        pytest.param(StickBreaking(4), tf.float64, marks=pytest.mark.slow),
        pytest.param(MultinomialLogit(3, "best"), tf.float64, marks=pytest.mark.slow),
        pytest.param(MultinomialLogit(3, None), tf.float64, marks=pytest.mark.slow),
        pytest.param(MultinomialLogit(3, None), tf.float32, marks=pytest.mark.slow),
        pytest.param(StickBreaking(4), tf.float32, marks=pytest.mark.slow),
    ],
)
def test_xla(likelihood, dtype: tf.DType) -> None:
    contract.check_xla(likelihood, 3, LABELS, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("make", [lambda: MultinomialLogit(3, "bouchard"), lambda: StickBreaking(3)])
def test_inside_gpflow_models(make, dtype: type) -> None:
    contract.check_in_gpflow_models(make, problems.classes(12), make().latent_dim, dtype)


@pytest.mark.parametrize(
    "make",
    [
        StickBreaking,
        pytest.param(MultinomialLogit, marks=pytest.mark.slow),
        pytest.param(lambda k: MultinomialLogit(k, "bouchard"), marks=pytest.mark.slow),
        pytest.param(lambda k: MultinomialLogit(k, None), marks=pytest.mark.slow),
    ],
    ids=["stick", "log", "bouchard", "exact"],
)
def test_optimum_is_that_of_gpflow_vgp(make) -> None:
    contract.check_optimum(lambda: make(3), problems.classes(20))


@pytest.mark.slow
def test_the_best_bound_is_at_least_as_good_as_the_log_bound() -> None:
    """It has a kink where they cross, so L-BFGS may stop short of what the fixed point finds."""
    data = problems.classes(12)
    elbo = [
        float(contract.fixed_optimum(data, MultinomialLogit(3, bound)).elbo()) for bound in ("log", "best")
    ]
    assert elbo[1] >= elbo[0] - 1e-6


@pytest.mark.parametrize(
    "likelihood",
    [StickBreaking(3), pytest.param(MultinomialLogit(3, "bouchard"), marks=pytest.mark.slow)],
)
def test_large_prior_variance(likelihood) -> None:
    contract.fixed_optimum(problems.classes(20), likelihood, 1e3, stationarity=1e-6)


@pytest.mark.parametrize(
    "likelihood", [MultinomialLogit(3), pytest.param(StickBreaking(3), marks=pytest.mark.slow)]
)
def test_in_the_model(likelihood) -> None:
    data = problems.classes(20)
    model = contract.fixed_optimum(data, likelihood, stationarity=1e-5)
    assert model.num_latent_gps == likelihood.latent_dim
    p, _ = model.predict_y(data[0])
    assert p.shape == (20, 3)
    assert np.mean(p.numpy().argmax(axis=1) == data[1][:, 0]) > 0.7
    assert (model.predict_log_density(data) > np.log(0.01)).numpy().all()
    assert "num_classes" not in gpflow.utilities.tabulate_module_summary(model, "plain")


# ----------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("likelihood", [MultinomialLogit(3), StickBreaking(3)])
def test_labels_are_checked(likelihood) -> None:
    likelihood.check_targets(np.array([[0.0], [2.0]]))
    with pytest.raises(ValueError, match=r"class numbers 0 to 2; found values \[3.\]: encode with Y - 1"):
        likelihood.check_targets(np.array([[1.0], [3.0]]))
    with pytest.raises(ValueError, match=r"one column of class numbers.*its shape is \(2, 3\): .*argmax"):
        likelihood.check_targets(np.eye(3)[:2])
    with pytest.raises(ValueError, match="class numbers 0 to 2"):
        VGPKMM(problems.classes(20, 5), problems.kernel(), likelihood)


def test_arguments_are_checked() -> None:
    for cls in (MultinomialLogit, StickBreaking):
        with pytest.raises(ValueError, match="num_classes must be at least 2; found 1"):
            cls(1)
        with pytest.raises(ValueError, match=r"bound must be one of .*; found 'exact'"):
            cls(3, "exact")
    with pytest.raises(ValueError, match=r"inner must be one of .*; found 'log'"):
        MultinomialLogit(3, inner="log")
    with pytest.raises(ValueError, match=r"num_pieces must be one of .*; found 7"):
        MultinomialLogit(3, "bouchard", num_pieces=7)


def test_gradients_taken_outside_of_a_vectorised_map_are_those_without_it() -> None:
    """``tf.vectorized_map`` drops custom gradients: those of the quadrature were zero there."""
    likelihood = MultinomialLogit(2, None)
    rng = np.random.default_rng(0)
    mean, var = tf.constant(rng.normal(size=(2, 2))), tf.constant(rng.gamma(2.0, size=(2, 2)))
    Y = tf.constant([[0.0], [1.0]], tf.float64)

    def one(row):
        return likelihood.variational_expectations(Y[:1], *(part[None] for part in row))[0]

    found = []
    for values in (
        lambda: likelihood.variational_expectations(Y, mean, var, Y),
        lambda: tf.vectorized_map(one, (mean, var, Y)),
    ):
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            value = tf.reduce_sum(values())
        found.append(tf.concat(tape.gradient(value, [mean, var]), axis=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-9, atol=1e-12)
