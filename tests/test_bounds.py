"""The bounds on log(1 + eˣ): true upper bounds, tight as stated, with exact and finite derivatives."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import norm

from gpflow_ext.numerics.bound_tables import TABLES
from gpflow_ext.numerics.bounds import (
    bernoulli_logit_bound,
    expected_llp_bound,
    expected_llp_piecewise,
    jaakkola_llp,
    piecewise_llp,
)
from scripts.tools import make_bound_tables

PIECES = sorted(TABLES)
MEANS, VARS = (g.ravel() for g in np.meshgrid(np.linspace(-60.0, 60.0, 61), 10.0 ** np.arange(-6.0, 4.0)))


def llp(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def expected(function, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """Dense trapezoid over ±12 standard deviations: exact to rounding for smooth functions up to var = 1e3."""
    z = np.linspace(-12.0, 12.0, 4001)
    weight = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    return function(mean[:, None] + np.sqrt(var)[:, None] * z) @ weight


def expected_bound(num_pieces: int, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    """E[b] as the sum of truncated Gaussian moments over the pieces."""
    b = piecewise_llp(num_pieces)
    sd, edges = np.sqrt(var)[:, None], np.concatenate([[-np.inf], b.knots, [np.inf]])
    z = (edges - mean[:, None]) / sd
    pdf, cdf, z = norm.pdf(z), norm.cdf(z), np.where(np.isinf(z), 0.0, z)
    mass, first = np.diff(cdf), -np.diff(pdf)
    second = mass - np.diff(z * pdf)
    m = mean[:, None]
    x1, x2 = m * mass + sd * first, m**2 * mass + 2.0 * m * sd * first + sd**2 * second
    return (b.a * x2 + b.b * x1 + b.c * mass).sum(1)


def with_gradients(function, mean, var, dtype=tf.float64) -> list[np.ndarray]:
    """Value, ∂mean, ∂var, ∂²mean and ∂²var."""
    mean, var = (tf.constant(a, dtype=dtype) for a in (mean, var))
    with tf.GradientTape(persistent=True) as outer:
        outer.watch([mean, var])
        with tf.GradientTape() as inner:
            inner.watch([mean, var])
            value = function(mean, var)
        by_mean, by_var = inner.gradient(value, [mean, var])
    second = outer.gradient(by_mean, mean), outer.gradient(by_var, var)
    return [t.numpy() for t in (value, by_mean, by_var, *second)]


# ------------------------------------------------------------------------------------------------ the tables


@pytest.mark.parametrize("num_pieces", PIECES)
def test_fit_reproduces_the_stored_table(num_pieces: int) -> None:
    fitted, stored = make_bound_tables.fit(num_pieces), TABLES[num_pieces]
    np.testing.assert_allclose(fitted.knots, stored.knots, atol=1e-10)
    np.testing.assert_allclose([p[:3] for p in fitted.pieces], np.transpose(stored[1:4]), atol=1e-10)
    np.testing.assert_allclose(fitted.max_gap, stored.max_gap, rtol=1e-10)


def test_table_is_written_by_the_script() -> None:
    rendered: dict = {}
    halves = {
        r: make_bound_tables.RightHalf(list(t.knots), list(zip(*t[1:4], strict=True)), t.max_gap)
        for r, t in TABLES.items()
    }
    text = make_bound_tables.render(halves)
    exec(text.replace("from __future__ import annotations", ""), rendered)
    assert rendered["TABLES"] == TABLES
    assert text == (Path(make_bound_tables.TARGET)).read_text(encoding="utf-8")


def test_fit_needs_three_pieces() -> None:
    with pytest.raises(ValueError, match="at least 3; found 2"):
        make_bound_tables.fit(2)


@pytest.mark.parametrize(
    ("num_pieces", "max_gap"),
    [(3, 5.1001e-2), (4, 3.2954e-2), (5, 9.4764e-3), (10, 1.3102e-3), (20, 1.4214e-4)],
)
def test_upper_bound_within_its_stated_gap(num_pieces: int, max_gap: float) -> None:
    bound = piecewise_llp(num_pieces)
    assert bound.max_gap == pytest.approx(max_gap, rel=5e-5)  # all the digits given
    x = np.concatenate([np.linspace(-40.0, 40.0, 700_001), np.linspace(-9.0, 9.0, 300_000), bound.knots])
    gap = bound(x) - llp(x)
    assert gap.min() >= -1e-15
    assert gap.max() <= bound.max_gap + 1e-12


@pytest.mark.parametrize("num_pieces", PIECES)
def test_every_piece_has_the_same_gap(num_pieces: int) -> None:
    """The condition of optimality: a piece with a smaller gap could be stretched."""
    bound = piecewise_llp(num_pieces)
    edges = np.concatenate([[-60.0], bound.knots, [60.0]])
    for i, (left, right) in enumerate(pairwise(edges)):
        x = np.concatenate([[left, right], np.linspace(left, right, 20_001)])
        gap = (bound.a[i] * x + bound.b[i]) * x + bound.c[i] - llp(x)
        assert gap.max() == pytest.approx(bound.max_gap, abs=1e-12)
        assert gap.min() == pytest.approx(0.0, abs=max_touch_error(left, right))


def max_touch_error(left: float, right: float) -> float:
    """A quadratic of curvature < ½ that touches between two points of the grid misses zero by at most this."""
    return 0.25 * ((right - left) / 20_000) ** 2 + 1e-12


@pytest.mark.parametrize("num_pieces", PIECES)
def test_symmetry(num_pieces: int) -> None:
    x = np.linspace(-30.0, 30.0, 4001) + 1e-7
    bound = piecewise_llp(num_pieces)
    np.testing.assert_allclose(bound(-x), bound(x) - x, atol=2e-14)


def test_unknown_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"num_pieces must be one of \[3, 4, 5, 10, 20\]; found 7"):
        piecewise_llp(7)
    with pytest.raises(
        ValueError, match=r"bound must be one of \['piecewise', 'jaakkola'\]; found 'bohning'"
    ):
        expected_llp_bound(0.0, 1.0, "bohning")


# ---------------------------------------------------------------------------------- piecewise expectations


@pytest.mark.parametrize("num_pieces", PIECES)
def test_piecewise_expectation_within_gap_of_exact(num_pieces: int) -> None:
    excess = expected_llp_piecewise(MEANS, VARS, num_pieces).numpy() - expected(llp, MEANS, VARS)
    assert excess.min() >= -1e-12  # rounding of values up to 60
    assert excess.max() <= TABLES[num_pieces].max_gap + 1e-12


@pytest.mark.parametrize("num_pieces", PIECES)
def test_piecewise_expectation_is_that_of_the_bound(num_pieces: int) -> None:
    keep = VARS >= 1e-4  # below, the reference itself cancels
    value = expected_llp_piecewise(MEANS[keep], VARS[keep], num_pieces).numpy()
    # The reference subtracts moments of size mean² + var <= 4600: absolute rounding 4600 x 2e-16 x a few.
    np.testing.assert_allclose(value, expected_bound(num_pieces, MEANS[keep], VARS[keep]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("num_pieces", [3, 4, 20])
def test_piecewise_gradients_against_finite_differences(num_pieces: int) -> None:
    rng = np.random.default_rng(0)
    mean, var = rng.uniform(-15.0, 15.0, 300), 10.0 ** rng.uniform(-1.0, 3.0, 300)

    def f(m, v):
        return expected_llp_piecewise(m, v, num_pieces).numpy()

    _, by_mean, by_var, by_mean2, _ = with_gradients(
        lambda m, v: expected_llp_piecewise(m, v, num_pieces), mean, var
    )
    h = 1e-5  # rounding 3e-15/h = 3e-10, truncation h²/6 times a third derivative of size one at most
    np.testing.assert_allclose(by_mean, (f(mean + h, var) - f(mean - h, var)) / (2 * h), rtol=0, atol=1e-8)
    step = h * var
    np.testing.assert_allclose(
        by_var, (f(mean, var + step) - f(mean, var - step)) / (2 * step), rtol=0, atol=1e-8
    )
    np.testing.assert_allclose(by_mean2, 2.0 * by_var, rtol=0, atol=1e-12)


def test_second_derivative_identity_where_the_jumps_rule() -> None:
    """∂²/∂mean² = 2 ∂/∂var also at small variance and at mean 0, where both reach max_gap/var in size."""
    mean = np.concatenate([[0.0], piecewise_llp(20).knots + 1e-3])
    for var in (1e-6, 1e-4, 1e-2):
        _, _, by_var, by_mean2, _ = with_gradients(expected_llp_piecewise, mean, np.full_like(mean, var))
        np.testing.assert_allclose(by_mean2, 2.0 * by_var, rtol=1e-9, atol=1e-12)


def test_second_derivatives_in_var() -> None:
    mean, var, h = np.array([-1.0, 0.3, 5.0]), np.array([0.5, 3.0, 40.0]), 1e-6

    def slope(v):
        return with_gradients(expected_llp_piecewise, mean, v)[2]

    by_var2 = with_gradients(expected_llp_piecewise, mean, var)[4]
    np.testing.assert_allclose(by_var2, (slope(var + h) - slope(var - h)) / (2 * h), rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
@pytest.mark.parametrize("function", [expected_llp_piecewise, jaakkola_llp])
def test_finite_everywhere(function, dtype: tf.DType) -> None:
    means = np.concatenate([[0.0, 1e-20, 1e3, -1e3, 1e6, -1e6], piecewise_llp(20).knots])
    variances = np.array([0.0, 1e-30, 1e-16, 1e-12, 1e-6, 1.0, 1e6])
    mean, var = (g.ravel() for g in np.meshgrid(means, variances))
    for quantity in with_gradients(function, mean, var, dtype):
        assert np.isfinite(quantity).all()


@pytest.mark.parametrize("num_pieces", PIECES)
def test_zero_variance_is_the_bound_itself(num_pieces: int) -> None:
    bound = piecewise_llp(num_pieces)
    mean = np.concatenate([np.linspace(-12.0, 12.0, 97) + 1e-3, [-1e6, 1e6]])
    value, by_mean, by_var, *_ = with_gradients(
        lambda m, v: expected_llp_piecewise(m, v, num_pieces), mean, np.zeros_like(mean)
    )
    piece = np.searchsorted(bound.knots, mean)
    np.testing.assert_allclose(value, bound(mean), rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(by_mean, 2.0 * bound.a[piece] * mean + bound.b[piece], atol=1e-14)
    np.testing.assert_allclose(by_var, bound.a[piece], atol=1e-14)


def test_far_means() -> None:
    """Where the Gaussian lies inside an end piece the value is exactly c_R, or mean + c_R."""
    gap = TABLES[20].max_gap
    np.testing.assert_array_equal(expected_llp_piecewise([-1e6, -1e4], [1.0, 1e3]).numpy(), [gap, gap])
    np.testing.assert_array_equal(expected_llp_piecewise([1e6], [1.0]).numpy(), [1e6 + gap])


def test_float32_piecewise() -> None:
    """Single precision: 24 bits of |mean| + sd, and of the slopes, of size one."""
    single = with_gradients(expected_llp_piecewise, MEANS, VARS, tf.float32)
    double = with_gradients(expected_llp_piecewise, np.float32(MEANS), np.float32(VARS))
    size = 1.0 + np.abs(MEANS) + np.sqrt(VARS)
    assert (np.abs(single[0] - double[0]) / size).max() < 2e-6
    smooth = VARS >= 1e-2
    assert np.abs(single[1] - double[1])[smooth].max() < 1e-5
    assert np.abs(single[2] - double[2])[smooth].max() < 1e-5


@pytest.mark.parametrize("dtype", [tf.float64, tf.float32])
@pytest.mark.parametrize("function", [expected_llp_piecewise, jaakkola_llp])
def test_xla(function, dtype: tf.DType) -> None:
    mean, var = tf.constant(MEANS, dtype), tf.constant(VARS, dtype)

    def value_and_gradients(m, v):
        with tf.GradientTape() as tape:
            tape.watch([m, v])
            value = function(m, v)
        return value, *tape.gradient(value, [m, v])

    size = 1.0 + np.abs(MEANS) + 1.0 / VARS
    tolerance = 1e-12 if dtype == tf.float64 else 1e-5
    compiled = tf.function(value_and_gradients, jit_compile=True, autograph=False)(mean, var)
    for a, b in zip(compiled, value_and_gradients(mean, var), strict=True):
        assert (np.abs(a - b) / size).max() < tolerance


def test_broadcasting_and_shapes() -> None:
    assert expected_llp_piecewise(np.zeros((4, 1, 3)), np.ones((5, 1))).shape == (4, 5, 3)
    mean = tf.zeros((4, 1), tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(mean)
        value = expected_llp_piecewise(mean, tf.ones((3,), tf.float32))
    assert value.dtype == tf.float32
    np.testing.assert_allclose(tape.gradient(value, mean), np.full((4, 1), 1.5), atol=1e-6)


# ------------------------------------------------------------------------------------------------- Jaakkola


def test_jaakkola_is_an_upper_bound() -> None:
    excess = jaakkola_llp(MEANS, VARS).numpy() - expected(llp, MEANS, VARS)
    assert excess.min() >= -1e-13  # rounding of values up to 60
    assert excess.max() < 6.0  # loose, as known, at large variance


def test_jaakkola_is_exact_at_zero_variance() -> None:
    mean = np.array([-1e6, -800.0, -30.0, -1e-9, 0.0, 2.0, 700.0, 1e6])
    np.testing.assert_allclose(jaakkola_llp(mean, 0.0), llp(mean), rtol=2e-15)


def test_jaakkola_tail_keeps_its_digits_in_float32() -> None:
    """Far left the bound is var/(4 |mean|), which mean/2 + ξ/2 would lose."""
    np.testing.assert_allclose(jaakkola_llp(tf.constant([-1e6], tf.float32), 2.0), [2.0 / 4e6], rtol=1e-6)


def test_jaakkola_gradients() -> None:
    rng = np.random.default_rng(1)
    mean, var = rng.normal(size=400) * 10.0 ** rng.uniform(-4, 1, 400), 10.0 ** rng.uniform(-6.0, 3.0, 400)
    _, by_mean, by_var, by_mean2, _ = with_gradients(jaakkola_llp, mean, var)
    xi = np.sqrt(mean**2 + var)
    np.testing.assert_allclose(by_var, np.tanh(xi / 2) / (4 * xi), rtol=1e-13)

    def f(m, v):
        return jaakkola_llp(m, v).numpy()

    def slope(m):
        return with_gradients(jaakkola_llp, m, var)[1]

    h = 1e-5
    np.testing.assert_allclose(by_mean, (f(mean + h, var) - f(mean - h, var)) / (2 * h), rtol=0, atol=1e-8)
    np.testing.assert_allclose(by_mean2, (slope(mean + h) - slope(mean - h)) / (2 * h), rtol=0, atol=1e-8)
    at_zero = with_gradients(jaakkola_llp, [0.0], [0.0])
    np.testing.assert_allclose(np.ravel(at_zero[:4]), [np.log(2.0), 0.5, 0.125, 0.25], rtol=1e-15)


# ------------------------------------------------------------------------------------------- Bernoulli bound


@pytest.mark.parametrize("bound", ["piecewise", "jaakkola"])
def test_bernoulli_bound(bound: str) -> None:
    for y in (0, 1):
        value = bernoulli_logit_bound(y, MEANS, VARS, bound).numpy()
        np.testing.assert_allclose(
            value, y * MEANS - expected_llp_bound(MEANS, VARS, bound), rtol=0, atol=1e-13
        )
        assert (value <= y * MEANS - expected(llp, MEANS, VARS) + 1e-12).all()


def test_bernoulli_bound_does_not_cancel() -> None:
    value = bernoulli_logit_bound(
        np.array([1.0, 0.0]), tf.constant([1e6, -1e6], tf.float32), 1.0, "piecewise"
    )
    np.testing.assert_allclose(value, -TABLES[20].max_gap, rtol=1e-6)
