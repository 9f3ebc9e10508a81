"""The binary likelihoods: exact in the tails, right for any variance, at home in GPflow's own models."""

from __future__ import annotations

import copy
import itertools

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from marks import others_slow
from scipy.special import log_ndtr as scipy_log_ndtr
from scipy.special import logsumexp

from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, check_binary_labels
from gpflow_ext.numerics.bound_tables import TABLES
from gpflow_ext.numerics.special import gaussian_expectation, log_expected_sigmoid, log_ndtr

LIKELIHOODS = {
    "piecewise": BernoulliLogit(),
    "jaakkola": BernoulliLogit(bound="jaakkola"),
    "quadrature": BernoulliLogit(bound=None),
    "probit": BernoulliProbit(),
}
each_likelihood = pytest.mark.parametrize("name", list(LIKELIHOODS))
each_dtype = pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
each_likelihood_and_some_dtypes = pytest.mark.parametrize(
    ("name", "dtype"),
    others_slow(
        itertools.product(LIKELIHOODS, (tf.float64, tf.float32)),
        *(("piecewise", tf.float32), ("quadrature", tf.float64), ("probit", tf.float64)),
    ),
)
MEANS = np.array([0.0, 0.4, -1.7, 3.0, -8.0, 25.0, -60.0])
VARIANCES = np.array([1e-6, 1e-3, 0.1, 1.0, 7.0, 60.0, 1e3, 1e4, 1e6])
M, V = (g.ravel() for g in np.meshgrid(MEANS, VARIANCES))
NO_X = np.zeros((M.size, 1))
FEW_ROWS = [0.0, 0.0, 0.0, 0.0], [0.7, -5.0, 3.0, -0.2], [1e-4, 0.8, 50.0, 1e4], [0.0, 1.0, 0.0, 1.0]


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    return -np.logaddexp(0.0, -x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(log_sigmoid(x))


def dense_nodes(mean: float, var: float) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of N(mean, var), fine enough for any function here: trapezoid in z, or in asinh x."""
    sd = np.sqrt(var)
    if var <= 10.0:
        z = np.linspace(-12.0, 12.0, 4001)
        return mean + sd * z, -0.5 * z**2 - 0.5 * np.log(2 * np.pi) + np.log(24.0 / 4000)
    low, high = np.arcsinh(mean - 12 * sd), np.arcsinh(mean + 12 * sd)
    u = np.linspace(low, high, 8001)
    x = np.sinh(u)
    log_density = -0.5 * ((x - mean) / sd) ** 2 - 0.5 * np.log(2 * np.pi * var)
    return x, log_density + np.log(np.cosh(u)) + np.log((high - low) / 8000)


def dense(function, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    nodes = (dense_nodes(*pair) for pair in zip(mean, var, strict=True))
    return np.array([np.exp(log_weight) @ function(x) for x, log_weight in nodes])


def log_dense(log_function, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    nodes = (dense_nodes(*pair) for pair in zip(mean, var, strict=True))
    return np.array([logsumexp(log_weight + log_function(x)) for x, log_weight in nodes])


def with_gradients(function, *arguments) -> list[np.ndarray]:
    """Value, first derivatives, and the second derivative in the first argument."""
    with tf.GradientTape() as outer:
        outer.watch(arguments[0])
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            value = function(*arguments)
        slopes = inner.gradient(value, arguments)
    return [t.numpy() for t in (value, *slopes, outer.gradient(slopes[0], arguments[0]))]


def columns(*arrays, dtype=tf.float64) -> list[tf.Tensor]:
    return [tf.constant(np.reshape(a, [-1, 1]), dtype=dtype) for a in arrays]


# ---------------------------------------------------------------------------------------------------- log Φ


@each_dtype
def test_log_ndtr_and_its_derivatives(dtype: tf.DType) -> None:
    """Against 50-digit arithmetic, to a few roundings of the result."""
    x = tf.constant([-1e4, -40.0, -6.0, 0.0, 5.0], dtype)
    value = [
        -50000010.129278915,
        -804.60844201375379,
        -20.736768949974706,
        -0.69314718055994531,
        -2.8665161296376359e-7,
    ]
    first = [
        10000.000099999998,
        40.024968847207264,
        6.1584826045445989,
        0.79788456080286536,
        1.4867199409049057e-6,
    ]
    second = [
        -0.9999999900000006,
        -0.99937733162140861,
        -0.97601236321083323,
        -0.63661977236758134,
        -7.4336019148607112e-6,
    ]
    rtol = 20 * np.finfo(dtype.as_numpy_dtype).eps
    for got, expected in zip(with_gradients(log_ndtr, x), (value, first, second), strict=True):
        np.testing.assert_allclose(got, expected, rtol=rtol)


def test_log_ndtr_is_smooth_across_its_seams() -> None:
    x = np.concatenate([np.linspace(-30.0, 6.0, 2001), [-4.0, np.nextafter(-4.0, -5.0), 0.0]])
    value, first, second = with_gradients(log_ndtr, tf.constant(x))
    np.testing.assert_allclose(value, scipy_log_ndtr(x), rtol=2e-14)
    h = 1e-4 * np.maximum(1.0, np.abs(x))  # five points: truncation ~h⁴, rounding ~1e-13/h
    v = scipy_log_ndtr
    difference = (8 * (v(x + h) - v(x - h)) - v(x + 2 * h) + v(x - 2 * h)) / (12 * h)
    np.testing.assert_allclose(first, difference, rtol=0, atol=2e-10 * np.maximum(1.0, np.abs(x)).max())
    np.testing.assert_allclose(second, -first * (x + first), rtol=0, atol=1e-11)


# --------------------------------------------------------------------------------------------- expectations


@pytest.mark.parametrize("pair", [(tf.math.log_sigmoid, log_sigmoid), (log_ndtr, scipy_log_ndtr)])
def test_gaussian_expectation_at_any_variance(pair) -> None:
    value = gaussian_expectation(pair[0], M, V).numpy()
    np.testing.assert_allclose(value, dense(pair[1], M, V), rtol=5e-12, atol=1e-15)


def test_gaussian_expectation_gradients() -> None:
    m, v = tf.constant(M), tf.constant(V)
    _, by_mean, by_var, by_mean2 = with_gradients(
        lambda m, v: gaussian_expectation(tf.math.log_sigmoid, m, v), m, v
    )
    curvature = dense(lambda x: sigmoid(x) * sigmoid(-x), M, V)
    np.testing.assert_allclose(by_mean, dense(lambda x: sigmoid(-x), M, V), rtol=5e-12, atol=1e-15)
    np.testing.assert_allclose(by_var, -0.5 * curvature, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(by_mean2, -curvature, rtol=1e-11, atol=1e-15)


def test_zero_variance_is_the_function_itself() -> None:
    m, v = tf.constant(MEANS), tf.zeros_like(tf.constant(MEANS))
    value, by_mean, by_var, by_mean2 = with_gradients(lambda m, v: gaussian_expectation(log_ndtr, m, v), m, v)
    exact = with_gradients(log_ndtr, m)
    np.testing.assert_allclose(value, exact[0], rtol=1e-14)
    np.testing.assert_allclose(by_mean, exact[1], rtol=1e-13)
    np.testing.assert_allclose(by_mean2, exact[2], rtol=1e-13)
    np.testing.assert_allclose(by_var, 0.5 * exact[2], rtol=1e-13)
    np.testing.assert_allclose(log_expected_sigmoid(m, v), log_sigmoid(MEANS), rtol=1e-14)


def test_log_expected_sigmoid() -> None:
    # Both tails: for each mean the smaller probability comes from its own quadrature, and the other is 1 minus it.
    mean, var = np.concatenate([M, -V / 2, -0.9 * V, 0.3 * V]), np.concatenate([V, V, V, V])
    keep = mean**2 / var < 130.0  # the reference's window does not reach further
    mean, var = mean[keep], var[keep]
    reference = log_dense(log_sigmoid, -np.abs(mean), var)
    reference = np.where(mean > 0, np.log1p(-np.exp(reference)), reference)
    np.testing.assert_allclose(log_expected_sigmoid(mean, var), reference, rtol=5e-12)


def test_log_expected_sigmoid_far_tails() -> None:
    """E[σ] = exp(m + v/2) far left; a 30-digit integral between; log E[σ] = -E[σ(-f)] far right."""
    np.testing.assert_allclose(
        log_expected_sigmoid([-1000.0, -30.0], [4.0, 4.0]), [-998.0, -28.000000000037751], rtol=1e-14
    )
    np.testing.assert_allclose(log_expected_sigmoid(-40.0, 100.0), -10.079870841836146, rtol=1e-13)
    np.testing.assert_allclose(log_expected_sigmoid(100.0, 4.0), -np.exp(-98.0), rtol=1e-12)
    # v large, -v < m < 0: σ is e^x/(1 + e^x) under the tilt τ = -m/v, and ∫ σ(x) e^(-τx) dx = π/sin(πτ).
    m, v = -3e5, 1e6
    expected = -0.5 * m**2 / v - 0.5 * np.log(2 * np.pi * v) + np.log(np.pi / np.sin(np.pi * 0.3))
    assert log_expected_sigmoid(m, v).numpy() == pytest.approx(expected, abs=1e-4)  # next order: x²/2v ~ 1e-5


def tilted(function, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """E[function(x) σ(x)]/E[σ(x)]."""
    log_mass = log_dense(log_sigmoid, mean, var)
    return dense(lambda x: function(x) * np.exp(log_sigmoid(x)), mean, var) / np.exp(log_mass)


@each_dtype
def test_log_expected_sigmoid_derivatives(dtype: tf.DType) -> None:
    mean = np.array([0.0, -3.0, 2.0, -150.0, 40.0, -30.0, -5.0])
    var = np.array([1e-6, 0.5, 3.0, 400.0, 2.0, 60.0, 1e4])
    _, by_mean, by_var, by_mean2 = with_gradients(
        log_expected_sigmoid, tf.constant(mean, dtype), tf.constant(var, dtype)
    )
    slope = tilted(lambda x: sigmoid(-x), mean, var)
    bend = tilted(lambda x: sigmoid(-x) * (sigmoid(-x) - sigmoid(x)), mean, var)
    atol = 1e-11 if dtype == tf.float64 else 1e-6
    np.testing.assert_allclose(by_mean, slope, rtol=0, atol=atol)
    np.testing.assert_allclose(by_var, 0.5 * bend, rtol=0, atol=atol)
    np.testing.assert_allclose(by_mean2, bend - slope**2, rtol=0, atol=atol)


def test_log_expected_sigmoid_derivatives_at_zero_variance() -> None:
    m, v = tf.constant([-2.0, 0.0, 1.0], tf.float64), tf.zeros(3, tf.float64)
    _, by_mean, by_var, by_mean2 = with_gradients(log_expected_sigmoid, m, v)
    below = sigmoid(-m.numpy())
    np.testing.assert_allclose(by_mean, below, rtol=1e-13)
    np.testing.assert_allclose(by_var, 0.5 * below * (2 * below - 1), atol=1e-15)
    np.testing.assert_allclose(by_mean2, -below * (1 - below), rtol=1e-13)


# ---------------------------------------------------------------------------------------------- likelihoods


@each_likelihood
@each_dtype
def test_log_prob_is_stable(name: str, dtype: tf.DType) -> None:
    F, Y = columns([1e3, -1e3, 1e3, -1e3, 0.0], [1.0, 1.0, 0.0, 0.0, 1.0], dtype=dtype)
    value = LIKELIHOODS[name].log_prob(tf.zeros_like(F), F, Y)
    far = scipy_log_ndtr(-1e3) if name == "probit" else -1e3
    np.testing.assert_allclose(value, [0.0, far, far, 0.0, -np.log(2.0)], rtol=1e-6)
    if name != "probit":
        F, Y = columns([1e30, -1e30], [0.0, 1.0], dtype=dtype)
        np.testing.assert_allclose(
            LIKELIHOODS[name].log_prob(tf.zeros_like(F), F, Y), [-1e30, -1e30], rtol=1e-6
        )


@each_likelihood
def test_probabilities_sum_to_one(name: str) -> None:
    likelihood = LIKELIHOODS[name]
    F, ones, zeros = columns(MEANS, np.ones_like(MEANS), np.zeros_like(MEANS))
    X = tf.zeros_like(F)
    total = tf.exp(likelihood.log_prob(X, F, ones)) + tf.exp(likelihood.log_prob(X, F, zeros))
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        likelihood.conditional_mean(X, F)[:, 0], tf.exp(likelihood.log_prob(X, F, ones)), rtol=1e-15
    )
    p = likelihood.conditional_mean(X, F)
    np.testing.assert_allclose(likelihood.conditional_variance(X, F), p * (1 - p), rtol=1e-13, atol=1e-16)


@each_likelihood
@each_dtype
def test_class_probabilities(name: str, dtype: tf.DType) -> None:
    likelihood, extra = LIKELIHOODS[name], ([0.0, 1e3, -1e3, 1e6, -1e6], [0.0, 1.0, 1.0, 0.0, 1e-9])
    m, v = columns(np.concatenate([M, extra[0]]), np.concatenate([V, extra[1]]), dtype=dtype)
    X = tf.zeros_like(m)
    p = likelihood.class_probabilities(X, m, v)
    assert p.shape == (m.shape[0], 2)
    assert p.dtype == dtype
    assert (p.numpy() > 0.0).all()
    assert (p.numpy() < 1.0).all()
    np.testing.assert_allclose(tf.reduce_sum(p, -1), 1.0, rtol=0, atol=4 * np.finfo(dtype.as_numpy_dtype).eps)
    mean, variance = likelihood.predict_mean_and_var(X, m, v)
    np.testing.assert_array_equal(mean, p[:, 1:])
    np.testing.assert_allclose(variance, p[:, 1:] * p[:, :1], rtol=1e-6)
    log_p = likelihood.predict_log_density(X, m, v, tf.ones_like(m))
    rtol = 64 * np.finfo(dtype.as_numpy_dtype).eps  # both lose digits as the argument of the tail is squared
    np.testing.assert_allclose(tf.exp(log_p), p[:, 1], rtol=max(1e-12, rtol), atol=1e-30)


@each_likelihood
def test_predictions_against_dense_quadrature(name: str) -> None:
    link = scipy_log_ndtr if name == "probit" else log_sigmoid
    likelihood, (m, v) = LIKELIHOODS[name], columns(M, V)
    for y, sign in ((1.0, 1.0), (0.0, -1.0)):
        log_p = likelihood.predict_log_density(NO_X, m, v, y * tf.ones_like(m)).numpy()
        reference = dense(lambda x, sign=sign: np.exp(link(sign * x)), M, V)
        np.testing.assert_allclose(np.exp(log_p), reference, rtol=0, atol=2e-13)
        np.testing.assert_allclose(
            likelihood.class_probabilities(NO_X, m, v)[:, int(y)], reference, rtol=0, atol=2e-13
        )


def test_variational_expectations() -> None:
    """Exact without a bound; below exact, by no more than the gap, with one."""
    m, v = columns(M, V)
    for y in (0.0, 1.0):
        Y, signs = y * tf.ones_like(m), 2 * y - 1
        value = {k: li.variational_expectations(NO_X, m, v, Y).numpy() for k, li in LIKELIHOODS.items()}
        logit = dense(log_sigmoid, signs * M, V)
        np.testing.assert_allclose(value["quadrature"], logit, rtol=5e-12, atol=1e-15)
        error = np.abs(value["probit"] - dense(scipy_log_ndtr, signs * M, V))
        assert (error <= 2e-9 * (1.0 + M**2 + V)).all()
        slack = 5e-12 * np.abs(logit) + 1e-14
        assert (value["jaakkola"] <= logit + slack).all()
        assert (value["piecewise"] <= logit + slack).all()
        assert (value["piecewise"] >= logit - TABLES[20].max_gap - slack).all()


def test_probit_predictive_density_is_differentiable_in_the_tails() -> None:
    """EP's log Ẑ: with z = m/√(1 + v), ∂ = h/√(1 + v) and ∂² = -h (z + h)/(1 + v)."""
    mean, var = np.array([-1e4, -40.0, 0.0, 7.0]), np.array([3.0, 1.0, 2.0, 0.5])
    m, v = columns(mean, var)
    y = tf.ones_like(m)
    value, by_mean, _, by_mean2 = with_gradients(
        lambda m, v: BernoulliProbit().predict_log_density(y, m, v, y), m, v
    )
    z = tf.constant(mean / np.sqrt(1 + var))
    expected = with_gradients(log_ndtr, z)
    np.testing.assert_allclose(value, expected[0], rtol=1e-14)
    np.testing.assert_allclose(by_mean[:, 0], expected[1] / np.sqrt(1 + var), rtol=1e-13)
    np.testing.assert_allclose(by_mean2[:, 0], expected[2] / (1 + var), rtol=1e-13)


@each_likelihood
def test_leading_batch_dimensions(name: str) -> None:
    likelihood, rng = LIKELIHOODS[name], np.random.default_rng(0)
    X, F, V_, Y = (
        np.zeros((6, 2)),
        rng.normal(size=(3, 4, 6, 1)),
        rng.gamma(2.0, size=(3, 4, 6, 1)),
        np.eye(6)[:, :1],
    )
    for method, arguments in (
        ("log_prob", (F, Y)),
        ("predict_log_density", (F, V_, Y)),
        ("variational_expectations", (F, V_, Y)),
    ):
        batched = getattr(likelihood, method)(X, *arguments)
        assert batched.shape == (3, 4, 6)
        one = getattr(likelihood, method)(X, *(a if a is Y else a[1, 2] for a in arguments))
        np.testing.assert_allclose(batched[1, 2], one, rtol=1e-14)
    assert likelihood.class_probabilities(X, F, V_).shape == (3, 4, 6, 2)


@each_likelihood_and_some_dtypes
def test_inside_gpflow_models(name: str, dtype: tf.DType) -> None:
    rng = np.random.default_rng(0)
    with gpflow.config.as_context(gpflow.config.Config(float=dtype.as_numpy_dtype, jitter=1e-4)):
        X = rng.normal(size=(12, 2)).astype(dtype.as_numpy_dtype)
        Y = (X[:, :1] > 0).astype(dtype.as_numpy_dtype)
        kernel, likelihood = gpflow.kernels.SquaredExponential(variance=9.0), copy.deepcopy(LIKELIHOODS[name])
        vgp = gpflow.models.VGP((X, Y), kernel, likelihood)
        svgp = gpflow.models.SVGP(kernel, likelihood, X[:5], num_data=12)
        for loss, model in ((vgp.training_loss, vgp), (lambda: svgp.training_loss((X, Y)), svgp)):
            with tf.GradientTape() as tape:
                value = loss()
            gradients = tape.gradient(value, model.trainable_variables)
            assert value.dtype == dtype
            assert all(np.isfinite(g).all() for g in (value, *gradients))
        gpflow.optimizers.Scipy().minimize(vgp.training_loss, vgp.trainable_variables, options={"maxiter": 5})
        twin = copy.deepcopy(vgp)
        np.testing.assert_array_equal(twin.predict_y(X)[0], vgp.predict_y(X)[0])
        assert np.mean((vgp.predict_y(X)[0] > 0.5) == (Y > 0.5)) == 1.0


@each_likelihood_and_some_dtypes
def test_xla(name: str, dtype: tf.DType) -> None:
    likelihood = LIKELIHOODS[name]
    m, v, Y = columns(M[:24], V[:24], np.arange(24) % 2, dtype=dtype)

    def everything(m, v):
        with tf.GradientTape() as tape:
            tape.watch([m, v])
            expectation = likelihood.variational_expectations(m, m, v, Y)
        gradients = tape.gradient(expectation, [m, v])
        return (
            expectation,
            *gradients,
            likelihood.class_probabilities(m, m, v),
            likelihood.predict_log_density(m, m, v, Y),
        )

    tolerance = 1e-11 if dtype == tf.float64 else 2e-4
    for a, b in zip(
        tf.function(everything, jit_compile=True, autograph=False)(m, v), everything(m, v), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@each_likelihood
def test_unknown_shapes_and_per_point_jacobians(name: str) -> None:
    """Exported functions have inputs [None, 1]; samplers differentiate under a vectorised map."""
    likelihood, spec = LIKELIHOODS[name], tf.TensorSpec([None, 1], tf.float64)
    predict = tf.function(lambda m, v: likelihood.class_probabilities(m, m, v), input_signature=[spec, spec])
    m, v = columns(MEANS, 1.0 + MEANS**2)
    np.testing.assert_allclose(predict(m, v), likelihood.class_probabilities(m, m, v), rtol=1e-14)

    def slope(mv: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(mv)
            value = likelihood.variational_expectations(mv[:1], mv[:1], mv[1:], tf.ones([1], tf.float64))
        return tape.gradient(value, mv)

    pairs = tf.concat([m, v], axis=1)
    np.testing.assert_allclose(
        tf.vectorized_map(slope, pairs), tf.stack([slope(p) for p in pairs]), rtol=1e-12, atol=1e-15
    )


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, 2.0], r"Y must hold 0 and 1; found values \[1., 2.\]: encode with Y - 1, or load through"),
        ([-1, 1], r"found values \[-1,  1\]: encode with \(Y \+ 1\) / 2"),
        ([0.3, 0.7], r"found values \[0.3, 0.7\]: encode the two classes"),
        ([0.0, 1.0, np.nan], r"found values \[ 0.,  1., nan\]: encode the two classes"),
        (["0", "1"], r"found values \['0', '1'\]: encode the two classes"),
        (list(range(9)), r"found values \[0, 1, 2, 3, 4\] and 4 more"),
    ],
)
def test_labels_are_checked(labels: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_binary_labels(np.array(labels)[:, None])


@pytest.mark.parametrize("labels", [[0, 1, 1], [0.0, 1.0], [True, False], [1, 1]])
def test_good_labels_pass(labels: list) -> None:
    check_binary_labels(np.array(labels)[:, None])


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"bound must be one of .*; found 'jj'"):
        BernoulliLogit(bound="jj")
    with pytest.raises(ValueError, match=r"num_pieces must be one of .*; found 8"):
        BernoulliLogit(num_pieces=8)
    with pytest.raises(ValueError, match=r"Fmu must have one column.*\(3, 2\)"):
        BernoulliProbit().class_probabilities(np.zeros((3, 1)), np.zeros((3, 2)), np.ones((3, 2)))


@pytest.mark.parametrize(
    "likelihood",
    [
        BernoulliLogit(),
        BernoulliLogit("jaakkola"),
        BernoulliLogit(None),
        BernoulliLogit(flip=0.05),
        BernoulliProbit(),
        BernoulliProbit(flip=0.05),
    ],
)
@pytest.mark.parametrize("method", ["variational_expectations", "predict_log_density"])
def test_gradients_taken_outside_of_a_vectorised_map_are_those_without_it(likelihood, method):
    """``tf.vectorized_map`` drops custom gradients: what is left has to have the same derivatives."""
    X, mean, var, Y = (tf.constant(part, tf.float64)[:, None] for part in FEW_ROWS)
    function = getattr(likelihood, method)

    def one(row):
        return function(*(part[None] for part in row))[0]

    found = []
    for values in (lambda: function(X, mean, var, Y), lambda: tf.vectorized_map(one, (X, mean, var, Y))):
        with tf.GradientTape() as tape:
            tape.watch([mean, var])
            value = tf.reduce_sum(values())
        found.append(tf.concat(tape.gradient(value, [mean, var]), axis=0))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6, atol=1e-9)
