"""The cumulative logit: an exact decomposition, ordered thresholds, probabilities right in the tails."""

from __future__ import annotations

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import others_slow
from scipy.special import log_expit, logsumexp

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, CumulativeLogit
from gpflow_ext.likelihoods.ordinal import log_expected_interval
from gpflow_ext.models import VGPKMM
from gpflow_ext.numerics.bounds import piecewise_llp
from gpflow_ext.numerics.special import log_expected_sigmoid

CUTS = np.array([-1.3, 0.2, 0.2 + 1e-6, 1.9, 14.0])  # one level of width 1e-6, one of width 12
NUM_LEVELS = len(CUTS) + 1
BOUNDS = ("piecewise", "jaakkola", None)
MEANS = np.array([0.0, 0.7, -4.0, 9.0, 30.0, -60.0])
VARIANCES = np.array([1e-3, 0.1, 1.0, 7.0, 60.0, 1e3])
M, V = (grid.ravel()[:, None] for grid in np.meshgrid(MEANS, VARIANCES))


def ordinal(bound: str | None = "piecewise", **options) -> CumulativeLogit:
    return CumulativeLogit(NUM_LEVELS, bound, thresholds=CUTS, **options)


def log_level(k: int, f: np.ndarray) -> np.ndarray:
    """log p(y = k | f) in NumPy: σ(b - f) - σ(a - f) as a product, and by its tails at the ends."""
    if k == 0:
        return log_expit(CUTS[0] - f)
    if k == NUM_LEVELS - 1:
        return log_expit(f - CUTS[-1])
    low, high = CUTS[k - 1], CUTS[k]
    return log_expit(high - f) + log_expit(f - low) + np.log(-np.expm1(low - high))


def nodes(mean: float, var: float, tilt: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Trapezoid over all that N(mean, var) and N(mean ± tilt·var, var) reach: nodes and log weights."""
    reach = 12.0 * np.sqrt(var) + tilt * var
    offset = np.linspace(-reach, reach, 200001)
    log_step = np.log(2.0 * reach / 200000)
    return mean + offset, -0.5 * offset**2 / var - 0.5 * np.log(2 * np.pi * var) + log_step


def test_log_prob_is_a_difference_of_sigmoids() -> None:
    f = np.linspace(-6.0, 6.0, 25)[:, None]
    for k in (0, 1, 3, 4, 5):
        below, above = (1 / (1 + np.exp(f[:, 0] - cut)) for cut in ([-np.inf, *CUTS][k], [*CUTS, np.inf][k]))
        value = ordinal().log_prob(f, f, np.full_like(f, k))
        np.testing.assert_allclose(np.exp(value), above - below, rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
def test_log_prob_in_the_tails_and_between_close_thresholds(dtype: tf.DType) -> None:
    f = tf.constant([[1e3], [-1e3], [0.2]], dtype)
    for k in range(NUM_LEVELS):
        value = ordinal().log_prob(f, f, tf.fill([3, 1], tf.constant(k, dtype)))
        np.testing.assert_allclose(value, log_level(k, f[:, 0].numpy()), rtol=1e-6, atol=1e-30)
    narrow = ordinal().log_prob(f[2:], f[2:], tf.constant([[2.0]], dtype))
    np.testing.assert_allclose(narrow, np.log(1e-6 / 4.0), rtol=2e-6)  # width · σ'(0)


def test_levels_sum_to_one_given_f() -> None:
    F = np.linspace(-40.0, 40.0, 81)[:, None]
    total = sum(np.exp(ordinal().log_prob(F, F, np.full_like(F, k))) for k in range(NUM_LEVELS))
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bound", BOUNDS)
def test_two_levels_are_the_bernoulli_logit(bound: str | None) -> None:
    two, binary = CumulativeLogit(2, bound), BernoulliLogit(bound)
    for y in (0.0, 1.0):
        Y = np.full_like(M, y)
        for method, arguments in (
            ("log_prob", (M, Y)),
            ("variational_expectations", (M, V, Y)),
            ("predict_log_density", (M, V, Y)),
            ("predict_mean_and_var", (M, V)),
            ("class_probabilities", (M, V)),
        ):
            ours, theirs = (getattr(li, method)(M, *arguments) for li in (two, binary))
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(two.thresholds, [0.0])


@pytest.mark.parametrize("k", range(NUM_LEVELS))
def test_expectations(k: int) -> None:
    """Exact without a bound; below exact by at most the gap of each sigmoid with one."""
    exact = np.array([np.exp(w) @ log_level(k, x) for x, w in map(nodes, M[:, 0], V[:, 0])])
    Y, slack = np.full_like(M, k), 1e-10 * (1.0 + np.abs(exact))
    value = {bound: ordinal(bound).variational_expectations(M, M, V, Y).numpy() for bound in BOUNDS}
    np.testing.assert_allclose(value[None], exact, rtol=1e-10, atol=1e-10)
    num_sigmoids = 1 if k in (0, NUM_LEVELS - 1) else 2
    assert (value["piecewise"] <= exact + slack).all()
    assert (value["piecewise"] >= exact - num_sigmoids * piecewise_llp(20).max_gap - slack).all()
    assert (value["jaakkola"] <= exact + slack).all()
    assert (exact - value["jaakkola"]).max() > 1e-2  # a bound, not the value


@pytest.mark.parametrize("bound", BOUNDS)
def test_gradients(bound: str | None) -> None:
    """Those in the thresholds too: ``first`` and the unconstrained widths."""
    likelihood = CumulativeLogit(5, bound, thresholds=[-1.0, 0.1, 0.6, 2.5])
    m, v = contract.moments(1, 10)
    contract.check_gradients(likelihood, m, v, np.arange(10.0)[:, None] % 5)


@pytest.mark.parametrize("k", range(NUM_LEVELS))
def test_probabilities_against_dense_quadrature(k: int) -> None:
    """In the logarithm, so in the tails too; the window of the reference holds the tilted peak."""
    reference = [
        logsumexp(w + log_level(k, x))
        for x, w in (nodes(m, v, 1.0) for m, v in zip(M[:, 0], V[:, 0], strict=True))
    ]
    p = ordinal().class_probabilities(M, M, V)[:, k]
    np.testing.assert_allclose(np.log(p), reference, rtol=1e-9, atol=1e-9)  # of the reference: 1e-16·x²/v
    density = ordinal().predict_log_density(M, M, V, np.full_like(M, k))
    np.testing.assert_allclose(density, np.log(p), rtol=0, atol=2e-10)  # p is normalised, the density is not


def test_probabilities_sum_to_one_before_they_are_normalised() -> None:
    likelihood, m = ordinal(), M[..., None]
    half = 0.5 * np.diff(CUTS)
    log_interval = log_expected_interval(m - CUTS[:-1] - half, V[..., None], half)
    ends = [log_expected_sigmoid(s * (CUTS[i] - M), V)[..., None] for s, i in ((1, 0), (-1, -1))]
    total = tf.reduce_sum(tf.exp(tf.concat([*ends, log_interval], axis=-1)), axis=-1)
    np.testing.assert_allclose(total, 1.0, rtol=0, atol=2e-11)
    p = likelihood.class_probabilities(M, M, V)
    np.testing.assert_allclose(tf.reduce_sum(p, -1), 1.0, rtol=0, atol=1e-14)
    assert (p.numpy() >= 0.0).all()


def test_predictive_density_has_the_derivatives_of_the_integral() -> None:
    """E[p'/p], as EP needs it, at a mean of zero distance from a level too; against central differences."""
    m, v = (
        tf.constant(np.array([[0.2 + 5e-7], [-3.0], [8.0], [5.0]])),
        tf.constant([[0.5], [3.0], [60.0], [1e-2]], tf.float64),
    )
    Y = np.array([[2.0], [3.0], [1.0], [4.0]])

    def density(mean, var):
        return ordinal().predict_log_density(m, mean, var, Y)

    with tf.GradientTape() as outer:
        outer.watch(m)
        with tf.GradientTape() as tape:
            tape.watch((m, v))
            value = density(m, v)
        by_mean, by_var = tape.gradient(value, (m, v))
    second = outer.gradient(by_mean, m)
    h = 1e-4
    np.testing.assert_allclose(
        by_mean[:, 0], (density(m + h, v) - density(m - h, v)) / (2 * h), rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(
        (by_var * v)[:, 0], (density(m, v * (1 + h)) - density(m, v * (1 - h))) / (2 * h), rtol=0, atol=1e-7
    )
    bend = (density(m + h, v) - 2 * value + density(m - h, v)) / h**2
    np.testing.assert_allclose(second[:, 0], bend, rtol=0, atol=1e-5)  # rounding 1e-14/h²


def test_interval_bends_at_its_middle() -> None:
    """The reflection about the middle of the level must not lose the second derivative there."""
    m = tf.constant(0.0, tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(m)
        with tf.GradientTape() as tape:
            tape.watch(m)
            value = log_expected_interval(m, 2.0, 0.5)
        slope = tape.gradient(value, m)
    h = 1e-3  # truncation h², rounding 1e-15/h²
    ends = log_expected_interval([-h, h], 2.0, 0.5).numpy()
    np.testing.assert_allclose(slope, 0.0, atol=1e-14)
    np.testing.assert_allclose(outer.gradient(slope, m), (ends.sum() - 2.0 * value) / h**2, rtol=0, atol=1e-6)


def test_moments_of_the_level() -> None:
    p, levels = ordinal().class_probabilities(M, M, V).numpy(), np.arange(NUM_LEVELS)
    mean, var = ordinal().predict_mean_and_var(M, M, V)
    np.testing.assert_allclose(mean[:, 0], p @ levels, rtol=1e-13)
    np.testing.assert_allclose(var[:, 0], p @ levels**2 - (p @ levels) ** 2, rtol=0, atol=1e-12)
    conditional, spread = ordinal().conditional_mean(M, M), ordinal().conditional_variance(M, M)
    at_zero = ordinal().predict_mean_and_var(M, M, np.full_like(V, 1e-14))
    np.testing.assert_allclose(conditional, at_zero[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(spread, at_zero[1], rtol=0, atol=1e-6)


def test_several_columns_are_summed() -> None:
    m, v = contract.moments(2)
    Y = np.arange(12.0).reshape(6, 2) % NUM_LEVELS
    for method in ("variational_expectations", "predict_log_density"):
        both = getattr(ordinal(), method)(m, m, v, Y)
        single = [getattr(ordinal(), method)(m, m[:, [i]], v[:, [i]], Y[:, [i]]) for i in (0, 1)]
        np.testing.assert_allclose(both, single[0] + single[1], rtol=1e-12)
    with pytest.raises(ValueError, match=r"Fmu must have one column"):
        ordinal().class_probabilities(m, m, v)


def test_batches() -> None:
    contract.check_batches(ordinal(), 1, np.arange(6.0)[:, None])


@pytest.mark.parametrize(
    ("bound", "dtype"),
    [("piecewise", tf.float64), pytest.param("piecewise", tf.float32, marks=pytest.mark.slow)],
)
def test_xla(bound: str | None, dtype: tf.DType) -> None:
    contract.check_xla(ordinal(bound), 1, np.arange(6.0)[:, None], dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_inside_gpflow_models(dtype: type) -> None:
    contract.check_in_gpflow_models(lambda: CumulativeLogit(4), problems.ordinal(12), 1, dtype)


@pytest.mark.parametrize("bound", others_slow(BOUNDS, BOUNDS[0]))
def test_optimum_is_that_of_gpflow_vgp(bound: str | None) -> None:
    contract.check_optimum(lambda: CumulativeLogit(4, bound), problems.ordinal(20))


@pytest.mark.slow
def test_large_prior_variance() -> None:
    contract.fixed_optimum(problems.ordinal(20), CumulativeLogit(4), 1e3, stationarity=1e-6)


def test_thresholds_are_learned_and_stay_ordered() -> None:
    X, Y = problems.ordinal(40, seed=3)
    model = VGPKMM((X, Y), problems.kernel(), CumulativeLogit(4, thresholds=[5.0, 5.5, 6.0]))
    gpflow.set_trainable(model.kernel, False)
    gpx.fit(model, steps=3)
    learned = model.likelihood.thresholds.numpy()
    assert (np.diff(learned) > 0.0).all()
    assert np.abs(learned - [-2.0, 0.0, 2.0]).max() < 1.5  # those that made the data; 40 noisy levels
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    for slope in tape.gradient(loss, model.likelihood.trainable_variables):
        assert np.abs(slope).max() < 1e-2


def test_fixed_thresholds() -> None:
    assert CumulativeLogit(4, learn_thresholds=False).trainable_variables == ()
    np.testing.assert_allclose(ordinal().thresholds, CUTS, rtol=1e-14)
    equal = CumulativeLogit(5).log_prob(np.zeros((5, 1)), np.zeros((5, 1)), np.arange(5.0)[:, None])
    np.testing.assert_allclose(equal, np.log(0.2), rtol=1e-13)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, 2.0, 4.0], r"Y must hold the class numbers 0 to 3; found values \[4.\]: encode with Y - 1"),
        ([-1, 0, 1], r"found values \[-1\]: encode the classes as 0, …, 3"),
        ([0.5, 1.0], r"found values \[0.5\]: encode the classes"),
        ([0.0, np.nan], r"found values \[nan\]"),
        (["low", "high"], r"found values \['high', 'low'\]"),
        (list(range(12)), r"found values \[4, 5, 6, 7, 8\] and 3 more"),
    ],
)
def test_labels_are_checked(labels: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CumulativeLogit(4).check_targets(np.array(labels)[:, None])


def test_a_level_may_be_absent() -> None:
    CumulativeLogit(4).check_targets(np.array([[0.0], [3.0]]))


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"num_levels must be at least 2; found 1"):
        CumulativeLogit(1)
    with pytest.raises(ValueError, match=r"bound must be one of"):
        CumulativeLogit(3, "exact")
    for wrong in ([1.0], [1.0, 1.0], [2.0, 1.0], [0.0, np.inf]):
        with pytest.raises(ValueError, match=r"thresholds must be 2 increasing numbers for 3 levels"):
            CumulativeLogit(3, thresholds=wrong)
    with pytest.raises(ValueError, match="class numbers 0 to 2"):
        VGPKMM(problems.ordinal(20, 4), problems.kernel(), CumulativeLogit(3))


def test_two_levels_are_fitted() -> None:
    """They have no widths, and so a parameter without elements."""
    X = np.linspace(-1.0, 1.0, 8)[:, None]
    model = VGPKMM((X, (X > 0.1).astype(float)), gpflow.kernels.SquaredExponential(), CumulativeLogit(2))
    assert gpx.fit(model, steps=1, progress=False).status is not gpx.Status.NON_FINITE
