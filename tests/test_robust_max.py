"""Robust-max: the probability of the largest against dense quadrature, also in the tails; derivatives."""

from __future__ import annotations

import functools

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import tensorflow as tf
from scipy.special import log_ndtr, logsumexp

from gpflow_ext.likelihoods import RobustMax, largest
from gpflow_ext.likelihoods.largest import log_probability_largest, probability_largest

LABELS = np.arange(6.0)[:, None] % 3
each_dtype = pytest.mark.parametrize("dtype", [tf.float64, tf.float32])


def dense(mean: np.ndarray, var: np.ndarray, y: int) -> float:
    """log P by 40 Gauss-Legendre nodes between all points mₖ ± i·sₖ and mode ± 2ʲ·min s."""
    sd = np.sqrt(var)
    others = np.arange(len(mean)) != y

    def log_integrand(x: np.ndarray) -> np.ndarray:
        density = -0.5 * ((x - mean[y]) / sd[y]) ** 2 - np.log(sd[y] * np.sqrt(2.0 * np.pi))
        return density + log_ndtr((x[..., None] - mean[others]) / sd[others]).sum(-1)

    low, high = mean[y] - sd[y], max(mean.max() + 10.0 * sd.max(), mean[y] + 10.0 * sd[y])
    for _ in range(300):  # ternary search: the integrand is log-concave
        a, b = low + (high - low) / 3.0, high - (high - low) / 3.0
        low, high = (a, high) if log_integrand(np.array(a)) < log_integrand(np.array(b)) else (low, b)
    steps = sd.min() * 2.0 ** np.arange(-12, 40)
    steps = np.concatenate([-steps, [0.0], steps])
    points = np.concatenate([low + steps, (mean + sd * np.arange(-12, 13)[:, None]).ravel()])
    ends = low - 12.0 * sd[y], low + 12.0 * sd[y]
    points = np.unique(np.concatenate([points[(points > ends[0]) & (points < ends[1])], ends]))
    half = 0.5 * np.diff(points)[:, None]
    x, w = np.polynomial.legendre.leggauss(40)
    return logsumexp(log_integrand(points[:-1, None] + half * (1.0 + x)) + np.log(half * w))


@functools.cache
def cases(name: str, K: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Means and variances [40, K], classes [40] and the exact log P."""
    rng = np.random.default_rng(0)
    far = np.where(rng.uniform(size=(40, K)) < 0.5, -40.0, 40.0) if name == "tails" else 0.0
    mean = far + 1.5 * rng.normal(size=(40, K))
    var = 10.0 ** rng.uniform(-0.7 if name == "mild" else -3.0, 0.5, (40, K))
    if name == "one wide":
        var = np.where(np.arange(K) == 0, 3.0, 1e-3) * np.ones((40, 1))
    y = rng.integers(0, K, 40)
    return mean, var, y, np.array([dense(*case) for case in zip(mean, var, y, strict=True)])


def log_p(mean, var, y, dtype=tf.float64) -> np.ndarray:
    own = tf.one_hot(y, mean.shape[1], True, False)
    return log_probability_largest(tf.constant(mean, dtype), tf.constant(var, dtype), own).numpy()


@each_dtype
@pytest.mark.parametrize("K", [3, 10])
@pytest.mark.parametrize("name", ["mild", "mixed", "one wide", "tails"])
def test_the_probability_is_that_of_dense_quadrature(name: str, K: int, dtype: tf.DType) -> None:
    """In float32 a mean of 40 is rounded by 2e-6, a tenth of a thousandth of the smallest deviation."""
    mean, var, y, exact = cases(name, K)
    got = log_p(mean, var, y, dtype)
    assert exact.min() < (-1e4 if name == "tails" else -1.0)
    tolerance = 1e-9 if dtype == tf.float64 else 5e-5 if name == "tails" else 2e-6
    np.testing.assert_allclose(got, exact, rtol=tolerance, atol=tolerance)


def test_gauss_hermite_quadrature_of_gpflow_would_fail() -> None:
    mean, var, y, exact = cases("mixed", 10)
    theirs = gpflow.likelihoods.RobustMax(10)
    p = theirs.prob_is_largest(y[:, None], mean, var, *np.polynomial.hermite.hermgauss(20))
    assert np.abs(p[:, 0] - np.exp(exact)).max() > 1e-2


def test_extremely_different_deviations_and_far_means() -> None:
    """Standard deviations from 1e-3 to 10, and a hopeless class 1e4 deviations away."""
    rng = np.random.default_rng(1)
    mean, var = 2.0 * rng.normal(size=(40, 4)), 10.0 ** rng.uniform(-6.0, 2.0, (40, 4))
    exact = np.array([dense(m, v, 0) for m, v in zip(mean, var, strict=True)])
    np.testing.assert_allclose(log_p(mean, var, np.zeros(40, int)), exact, rtol=1e-5, atol=1e-5)
    hopeless = np.array([[-40.0, 40.0, 39.0]]), np.array([[1e-4, 1e-3, 1.0]])
    exact = dense(hopeless[0][0], hopeless[1][0], 0)
    assert exact < -2e6
    np.testing.assert_allclose(log_p(*hopeless, [0]), exact, rtol=1e-9)


@pytest.mark.parametrize("K", [2, 3, 10])
def test_probabilities_sum_to_one_before_normalising(K: int, record_property) -> None:
    rng = np.random.default_rng(2)
    mean, var = 1.5 * rng.normal(size=(60, K)), 10.0 ** rng.uniform(-3.0, 0.5, (60, K))
    each = [np.exp(log_p(mean, var, np.full(60, k))) for k in range(K)]
    record_property("error of the sum of rows", np.abs(np.sum(each, axis=0) - 1.0).max())
    np.testing.assert_allclose(np.sum(each, axis=0), 1.0, rtol=0, atol=1e-9)
    for dtype, tolerance in ((np.float64, 1e-14), (np.float32, 1e-6)):
        p = RobustMax(K).class_probabilities(None, mean.astype(dtype), var.astype(dtype))
        np.testing.assert_allclose(tf.reduce_sum(p, axis=1), 1.0, rtol=0, atol=tolerance)
        np.testing.assert_allclose(p, np.stack(each, axis=1), rtol=0, atol=max(1e-9, 3 * tolerance))


@pytest.mark.parametrize("deviation", [1e-3, 1e-2, 1.0])
def test_a_common_mean_costs_no_digits_in_single_precision(deviation: float) -> None:
    """Only differences of the means matter; those of 300 and of 300 plus a few deviations are exact here."""
    likelihood, steps = RobustMax(3, epsilon=0.01), np.array([[0.0, 1.0, -3.0], [0.0, 8.0, 1.0]])
    Y = tf.constant([[1.0], [1.0]])
    size = 2.0 ** np.round(np.log2(deviation))
    found = []
    for shift, dtype in ((300.0, tf.float32), (0.0, tf.float64)):
        m = tf.constant(shift + size * steps, dtype)
        v = tf.fill(m.shape, tf.constant(size**2, dtype))
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = likelihood.variational_expectations(m, m, v, tf.cast(Y, dtype))
        by_mean, by_var = tape.gradient(value, (m, v))
        probability = likelihood.class_probabilities(m, m, v)
        found.append([value, size * by_mean, size**2 * by_var, probability])
    for single, double in zip(*found, strict=True):
        np.testing.assert_allclose(single, double, rtol=0, atol=2e-5)


def test_identities() -> None:
    """A third class far below leaves the probit of two; equal moments give 1/K; shifts do not matter."""
    mean, var = np.array([[0.3, -0.4, -1e3], [-30.0, 30.0, -1e3]]), np.array([[0.7, 1.9, 0.5]] * 2)
    two = log_ndtr((mean[:, 0] - mean[:, 1]) / np.sqrt(var[:, 0] + var[:, 1]))
    np.testing.assert_allclose(log_p(mean, var, [0, 0]), two, rtol=1e-11)
    np.testing.assert_allclose(log_p(mean[:, :2], var[:, :2], [0, 0]), two, rtol=1e-13)
    for K in (2, 3, 20, 100):
        equal = np.full((1, K), 40.0), np.full((1, K), 1e-3)
        np.testing.assert_allclose(log_p(*equal, [K - 1]), -np.log(K), rtol=1e-11)


@pytest.mark.parametrize("name", [pytest.param("mixed", marks=pytest.mark.slow), "tails"])
def test_derivatives_are_those_of_the_exact_value(name: str) -> None:
    """First derivatives against differences of the dense quadrature; second ones against the first."""
    mean, var, y, _ = cases(name, 3)
    m, v = tf.constant(mean), tf.constant(var)
    own = tf.one_hot(y, 3, True, False)

    def gradient(m, v):
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = tf.reduce_sum(log_probability_largest(m, v, own))
        return tape.gradient(value, (m, v))

    with tf.GradientTape(persistent=True) as tape:
        tape.watch((m, v))
        slopes = gradient(m, v)
        columns = [s[:, k] for s in slopes for k in range(3)]
    units = [(np.sqrt(var), 0.0), (0.0, var)]
    for i, (by_mean, by_var) in enumerate(units):
        for k in range(3):
            step = 1e-4 * np.eye(3)[k]
            shift, grow = by_mean * step, by_var * step
            h = (shift + grow)[:, k]
            ends = [
                np.array([dense(*c) for c in zip(mean + s * shift, var + s * grow, y, strict=True)])
                for s in (1.0, -1.0)
            ]
            scale = np.abs(slopes[i].numpy()[:, k]).max()
            difference = (ends[0] - ends[1]) / (2 * h)
            rounding = 1e-7 * scale if name == "mixed" else 1e-11 * 1e5 / np.abs(h).min()
            np.testing.assert_allclose(slopes[i][:, k], difference, rtol=1e-5, atol=rounding)
            if name == "tails":  # the second derivatives there are constants, -1/(v_y + vₖ) and the like
                continue
            moved = [gradient(m + s * shift, v + s * grow) for s in (1.0, -1.0)]
            for j, column in enumerate(columns):
                difference = (moved[0][j // 3] - moved[1][j // 3])[:, j % 3] / (2 * h)
                second = tape.gradient(column, (m, v)[i])[:, k]
                np.testing.assert_allclose(second, difference, rtol=1e-4, atol=1e-5 * np.abs(second).max())


@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 1.0), (0.02, 1.0), (1e-3, 3.0)], ids=["few", "many", "graded"]
)
def test_evenly_spaced_nodes_where_they_are_enough(low: float, high: float) -> None:
    rng = np.random.default_rng(3)
    mean = tf.constant(2.0 * rng.normal(size=(40, 5)) + np.array([0.0, 0.0, 0.0, 0.0, -90.0]))
    var = tf.constant(rng.uniform(low, high, (40, 5)))
    own = tf.one_hot(rng.integers(0, 5, 40), 5, True, False)
    found, expected = [], []
    for results, function in (
        (found, probability_largest),
        (expected, lambda *a: tf.exp(log_probability_largest(*a))),
    ):
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            value = function(mean, var, own)
        results += [value, *tape.gradient(value, [mean, var])]
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    likelihood = RobustMax(5, 0.01)
    np.testing.assert_allclose(
        likelihood.class_probabilities(mean, mean, var),
        tf.exp(likelihood._log_probabilities(mean, var)),
        atol=1e-9,
    )


@each_dtype
@pytest.mark.parametrize("K", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_many_classes_that_are_alike(K: int, dtype: tf.DType) -> None:
    """They need closer nodes than one narrow class does: by those 0.7 deviations apart P was off by 1e-6."""
    rng = np.random.default_rng(5)
    mean, var = 0.5 * rng.normal(size=(10, K)), np.full((10, K), 1.2)
    mean[:, 0], var[:, 0] = -1.0, 7.0  # the widest window
    exact = np.exp([dense(m, v, 0) for m, v in zip(mean, var, strict=True)])
    own = tf.one_hot(np.zeros(10, int), K, True, False)
    found = probability_largest(tf.constant(mean, dtype), tf.constant(var, dtype), own)
    tolerance = 1e-9 if dtype == tf.float64 else 1e-6
    np.testing.assert_allclose(found, exact, rtol=0, atol=tolerance)
    p = RobustMax(K).class_probabilities(None, tf.constant(mean, dtype), tf.constant(var, dtype))
    np.testing.assert_allclose(p[:, 0], exact, rtol=0, atol=tolerance)


@each_dtype
def test_rows_that_need_no_quadrature(dtype: tf.DType) -> None:
    """From no rival within reach to all, on both sides of where a row is settled by one or none."""
    rng = np.random.default_rng(6)
    mean, var = rng.normal(size=(3000, 4)), rng.uniform(0.3, 1.0, (3000, 4))
    mean[:, 0] += np.linspace(-14.0, 14.0, 3000)
    near = mean.max(axis=1, where=np.arange(4) > 1, initial=-np.inf)
    mean[::2, 1] = near[::2] + np.linspace(0.0, 12.0, 1500)  # one rival ahead of the others
    own = tf.one_hot(np.zeros(3000, int), 4, True, False)

    def derivatives(function, dtype):
        m, v = tf.constant(mean, dtype), tf.constant(var, dtype)
        with tf.GradientTape() as tape:
            tape.watch([m, v])
            value = function(m, v, own)
        return value, *tape.gradient(value, [m, v])

    expected = derivatives(lambda *a: tf.exp(log_probability_largest(*a)), tf.float64)
    _, hard = largest._nearest(tf.constant(mean, dtype), tf.constant(var, dtype), own)
    assert 0.1 < np.mean(hard) < 0.9
    tolerance = 1e-9 if dtype == tf.float64 else 1e-6
    for ours, exact in zip(derivatives(probability_largest, dtype), expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_mapped_by_tensorflow(compiled: bool) -> None:
    """The number of rows that need nodes differs from member to member, which maps cannot have."""
    rng = np.random.default_rng(7)
    mean, var = rng.normal(size=(2, 20, 3)), rng.uniform(0.1, 1.0, (2, 20, 3))
    mean[1, :, 0] += np.linspace(0.0, 20.0, 20)
    own = tf.one_hot(np.zeros(20, int), 3, True, False)

    def all_of(mean, var):
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            found = tf.vectorized_map(lambda pair: probability_largest(*pair, own), (mean, var))
        return found, *tape.gradient(found, [mean, var])

    mapped = tf.function(all_of, autograph=False) if compiled else all_of
    mean, var = tf.constant(mean), tf.constant(var)
    with tf.GradientTape() as tape:
        tape.watch([mean, var])
        value = probability_largest(mean, var, own)
    expected = value, *tape.gradient(value, [mean, var])
    for ours, exact in zip(mapped(mean, var), expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-9)


def test_a_row_that_is_not_finite_leaves_the_others_alone() -> None:
    mean, var, y, exact = cases("mild", 10)
    own, lost = tf.one_hot(y, 10, True, False), np.array(mean)
    lost[3, (y[3] + 1) % 10] = np.nan
    others = np.arange(40) != 3
    found = probability_largest(tf.constant(lost), tf.constant(var), own).numpy()
    assert np.isnan(found[3])
    np.testing.assert_allclose(found[others], np.exp(exact)[others], rtol=0, atol=1e-9)
    p = RobustMax(10).class_probabilities(None, tf.constant(lost), tf.constant(var)).numpy()
    np.testing.assert_allclose(p[others, y[others]], np.exp(exact)[others], rtol=0, atol=1e-9)


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize(
    ("low", "high"), [(0.5, 1.0), (0.02, 1.0), (1e-3, 3.0)], ids=["few", "many", "graded"]
)
def test_second_derivatives_in_the_means(low: float, high: float, classes: int) -> None:
    rng = np.random.default_rng(4)
    mean = tf.constant(rng.normal(size=(30, classes)))
    var = tf.constant(rng.uniform(low, high, (30, classes)))
    y = rng.integers(0, classes, 30)
    with tf.GradientTape() as outer:
        outer.watch(mean)
        with tf.GradientTape() as inner:
            inner.watch([mean, var])
            value = tf.exp(log_probability_largest(mean, var, tf.one_hot(y, classes, True, False)))
        slopes = inner.gradient(value, [mean, var])
    expected = value, *slopes, outer.batch_jacobian(slopes[0], mean)
    found = RobustMax(classes, 0.01).second_order(mean, var, tf.constant(y[:, None], tf.float64))
    missed = np.log(0.01 / (classes - 1))
    gain = np.log(0.99) - missed
    for k, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_allclose(a, gain * b + (missed if k == 0 else 0.0), atol=1e-8)


def test_a_second_derivative_is_refused_where_there_is_none() -> None:
    mean, own = tf.constant([[0.0, 1.0, 2.0]]), tf.constant([[True, False, False]])
    with tf.GradientTape() as outer:
        outer.watch(mean)
        with tf.GradientTape() as inner:
            inner.watch(mean)
            value = probability_largest(mean, tf.ones_like(mean), own)
        slope = inner.gradient(value, mean)
        with pytest.raises(LookupError, match="twice"):
            outer.gradient(slope, mean)


def test_expected_log_and_log_expected_probability() -> None:
    mean, var, y, exact = cases("mixed", 3)
    P, Y, likelihood = np.exp(exact), y[:, None].astype(float), RobustMax(3, 0.02)
    np.testing.assert_allclose(
        likelihood.variational_expectations(mean, mean, var, Y),
        P * np.log(0.98) + (1 - P) * np.log(0.01),
        rtol=1e-8,
    )
    np.testing.assert_allclose(
        likelihood.predict_log_density(mean, mean, var, Y), np.log(0.98 * P + 0.01 * (1 - P)), rtol=1e-8
    )
    p = likelihood.class_probabilities(mean, mean, var).numpy()
    np.testing.assert_allclose(p[np.arange(40), y], 0.98 * P + 0.01 * (1 - P), rtol=1e-8)
    np.testing.assert_allclose(p.sum(1), 1.0, rtol=1e-14)
    X, F = np.zeros((1, 1)), np.array([[0.0, 2.0, 1.0]])
    np.testing.assert_allclose(likelihood.log_prob(X, F, [[1.0]]), [np.log(0.98)])
    np.testing.assert_allclose(likelihood.conditional_mean(X, F), [[0.01, 0.98, 0.01]])
    assert RobustMax(3).log_prob(X, F, [[0.0]]) == -np.inf


@pytest.mark.parametrize("K", [2, 3])
def test_gradients(K: int) -> None:
    contract.check_gradients(RobustMax(K, 1e-3), *contract.moments(K), LABELS % K)


def test_batches() -> None:
    contract.check_batches(RobustMax(3, 1e-3), 3, LABELS)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_xla(dtype: tf.DType) -> None:
    contract.check_xla(RobustMax(3, 1e-3), 3, LABELS, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gpflow_models(dtype: type) -> None:
    contract.check_in_gpflow_models(lambda: RobustMax(3, 1e-3), problems.classes(), 3, dtype)


def test_errors_name_the_fix() -> None:
    with pytest.raises(ValueError, match=r"epsilon must be in \[0, 1 - 1/K\) = \[0, 0.5\); got 0.5"):
        RobustMax(2, 0.5)
    with pytest.raises(ValueError, match="at least 2"):
        RobustMax(1)
    with pytest.raises(ValueError, match=r"class numbers 0 to 2; found values .3.*encode with Y - 1"):
        RobustMax(3).check_targets(1.0 + LABELS)
    with pytest.raises(ValueError, match="give RobustMax an epsilon"):
        RobustMax(3).variational_expectations(*(np.ones((1, 3)),) * 3, [[0.0]])
