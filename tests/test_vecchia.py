"""Vecchia priors: with few neighbours what dense algebra makes of the same factor."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Kernel, Matern32

import gpflow_ext as gpx
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.stacked import Frozen
from gpflow_ext.sites import Sites
from gpflow_ext.sites.vecchia import (
    blocks,
    coefficients,
    conditionals,
    dissection,
    fronts,
    grouping,
    ordering,
    posterior,
)
from gpflow_ext.sites.vecchia.prior import Vecchia, VecchiaFactor
from gpflow_ext.sites.vecchia.structure import Structure, VecchiaOptions

RNG = np.random.default_rng(0)
N = 80
X = RNG.uniform(0.0, 1.0, (N, 2))
Y = RNG.poisson(np.exp(np.sin(5.0 * X[:, :1]))).astype(float)
PREC = RNG.gamma(1.0, 3.0, (N, 1))
B = RNG.standard_normal((N, 1))


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several levels of the tree, and several blocks of rows."""
    monkeypatch.setattr(dissection, "LEAF", 12)
    monkeypatch.setattr(blocks, "ENTRIES", 9 * 7**2)


class Functions:
    """What `conditionals.at` reads from a model."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.num_latent_gps = kernel, 1
        self.mean_function = gpflow.functions.Constant(0.3)


def _prior(options: VecchiaOptions, kernel: Kernel) -> Vecchia:
    structure = Structure(X, np.array([0.3, 0.5]), options)
    return conditionals.at(Functions(kernel), structure, tf.constant(X))


def _kernel() -> Kernel:
    return Matern32(1.3, [0.3, 0.5])


def _dense(options: VecchiaOptions) -> np.ndarray:
    """Return BᵀD⁻¹B, each row of B from dense algebra in the order of the data."""
    K = _kernel()(tf.constant(X)).numpy() + gpflow.default_jitter() * np.eye(N)
    points = X / [0.3, 0.5]
    order = ordering.order(points, options.ordering, options.seed)
    rows, D = np.eye(N), np.empty(N)
    for place, n in enumerate(order):
        before = order[:place]
        c = before[((points[before] - points[n]) ** 2).sum(axis=1).argsort()[: options.neighbours]]
        a = np.linalg.solve(K[np.ix_(c, c)], K[c, n])
        rows[n, c], D[n] = -a, K[n, n] - a @ K[c, n]
    return rows.T @ (rows / D[:, None])


@pytest.mark.parametrize("how", ordering.ORDERINGS)
@pytest.mark.usefixtures("small_parts")
def test_the_factor_is_dense_algebra(how: str) -> None:
    """Solutions, variances, log determinant and products, over several levels of the tree; negative precisions."""
    options = VecchiaOptions(neighbours=6, ordering=how, seed=3)
    prior, omega = _prior(options, _kernel()), _dense(options)
    assert len(fronts.in_order(prior.tree.root)) == 4
    for prec in (PREC, np.where(np.arange(N)[:, None] % 7 == 0, -0.02, PREC)):
        factor = prior.factorise(tf.constant(prec))
        inverse = np.linalg.inv(omega + np.diag(prec[:, 0]))
        h = inverse @ B
        log_det = np.linalg.slogdet(np.eye(N) + prec * np.linalg.inv(omega))[1]
        expected = B - prec * h, h, np.diag(inverse)[:, None], 0.5 * log_det
        found = *factor.solve(tf.constant(B)), factor.variance(), factor.half_log_det()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-9 * np.abs(other).max())
        assert factor.finite
    np.testing.assert_allclose(prior.product(tf.constant(B)), np.linalg.solve(omega, B), atol=1e-9)
    assert not prior.factorise(tf.constant(-PREC)).finite


@pytest.mark.usefixtures("small_parts")
def test_variances_are_exact_given_all_before_and_larger_given_fewer_data() -> None:
    """Those of the factor with N − 1 neighbours, and those that see the ten nearest data alone."""
    K = _kernel()(tf.constant(X)).numpy() + gpflow.default_jitter() * np.eye(N)
    exact = np.diag(np.linalg.inv(np.linalg.inv(K) + np.diag(PREC[:, 0])))
    found = _prior(VecchiaOptions(neighbours=N - 1), _kernel()).factorise(tf.constant(PREC)).variance()
    np.testing.assert_allclose(found[:, 0], exact, rtol=1e-8)
    points = X / [0.3, 0.5]
    near = posterior.nearest(tf.constant(points), tf.constant(points), 10).numpy()
    np.testing.assert_array_equal(near[:, 0], np.arange(N))
    local = posterior.conditioned(tf.constant(K[near[:, :, None], near[:, None]][None]), PREC[near, 0][None])
    local = tf.linalg.diag_part(local)[0, :, 0].numpy()
    assert (local >= exact).all()
    assert (local > 1.001 * exact).any()


@pytest.mark.parametrize("rows", [0, 1, 7, 23])
@pytest.mark.parametrize("held", [1, 5 * N, 100 * N])
def test_the_nearest_data_of_places_are_found_in_blocks(
    rows: int, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one place, of five, and of all; eagerly, and in a graph that leaves the number of places open."""
    monkeypatch.setattr(posterior, "DISTANCES", held)
    new = np.random.default_rng(1).uniform(size=(rows, 2))
    expected = np.argsort(((new[:, None] - X[None]) ** 2).sum(-1), axis=1)[:, :6]
    np.testing.assert_array_equal(posterior.nearest(tf.constant(X), tf.constant(new), 6), expected)
    open_rows = [tf.TensorSpec([None, 2], tf.float64)] * 2
    graph = tf.function(lambda X, new: posterior.nearest(X, new, 6), open_rows, autograph=False)
    np.testing.assert_array_equal(graph(tf.constant(X), tf.constant(new)), expected)


@pytest.mark.usefixtures("small_parts")
def test_groups_by_size_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nodes divided whenever that saves an operation, or by the memory of their fronts; two functions."""
    prec, b = tf.constant(np.hstack([PREC, 2.0 * PREC])), tf.constant(np.hstack([B, np.cos(B)]))
    found, numbers, entries = [], [], []
    for most, saving in ((10**9, 1e20), (10**9, 1e-6), (900, 1e20)):
        monkeypatch.setattr(grouping, "MOST", most)
        monkeypatch.setattr(grouping, "SAVING", saving)
        prior = _prior(VecchiaOptions(neighbours=6), _kernel())
        factor = prior.factorise(prec)
        found.append((*factor.solve(b), factor.variance(), factor.half_log_det()))
        groups = fronts.in_order(prior.tree.root)
        numbers.append(len(groups))
        entries.append(len(prior.omega))
        shapes = [(*group.own.shape, group.boundary.shape[1]) for group in groups]
        assert all(nodes == 1 or nodes * (o + b) ** 2 <= most for nodes, o, b in shapes)
    assert numbers[0] == 4 < min(numbers[1:])
    assert entries[1] < entries[0]
    for other in found[1:]:
        for one, same in zip(other, found[0], strict=True):
            np.testing.assert_allclose(one, same, rtol=0.0, atol=1e-10 * np.abs(same).max())


@pytest.mark.usefixtures("small_parts")
def test_the_normaliser_and_products_have_their_gradients() -> None:
    """Against central differences, in the variance, a length scale and the mean."""
    kernel = _kernel()
    structure = Structure(X, np.array([0.3, 0.5]), VecchiaOptions(neighbours=6))
    functions, sites = Functions(kernel), Sites(tf.constant(B), tf.constant(PREC))
    mean = functions.mean_function.c

    @tf.function(autograph=False)
    def values() -> tuple[tf.Tensor, tf.Tensor]:
        prior = conditionals.at(functions, structure, tf.constant(X))
        return prior.log_normaliser(sites), tf.reduce_sum(tf.sin(prior.product(tf.constant(B))))

    for index in (0, 1):
        with tf.GradientTape() as tape:
            value = values()[index]
        variables = [kernel.variance, kernel.lengthscales, mean][: 3 - index]
        slopes = tape.gradient(value, [each.unconstrained_variable for each in variables])
        for variable, slope in zip(variables, slopes, strict=True):
            raw, step = variable.unconstrained_variable, 1e-5
            at, unit = raw.numpy(), np.eye(1, raw.numpy().size).reshape(raw.shape)
            ends = []
            for sign in (1.0, -1.0):
                raw.assign(at + sign * step * unit)
                ends.append(float(values()[index]))
            raw.assign(at)
            np.testing.assert_allclose(
                np.ravel(slope)[0], (ends[0] - ends[1]) / (2.0 * step), rtol=2e-6, atol=1e-8
            )


@pytest.mark.usefixtures("small_parts")
def test_a_factor_solves_systems_of_other_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """α and h to a tolerance; with too few iterations, or a factor that is none, they are not said to be."""
    prior = _prior(VecchiaOptions(neighbours=6), _kernel())
    b, other = tf.constant(B), tf.constant(PREC * np.exp(np.sin(9.0 * X[:, :1])))
    factor, expected = prior.factorise(tf.constant(PREC)), prior.factorise(other).solve(b)
    found, close = factor.near(other, b, tf.constant(1e-10))
    assert close
    for one, same in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, same, rtol=0.0, atol=1e-8 * np.abs(same).max())
    np.testing.assert_allclose(
        prior.precision(b), _dense(VecchiaOptions(neighbours=6)) @ B, atol=1e-7 * np.abs(B).max()
    )
    broken = prior.factorise(tf.constant(-1e3 * PREC))
    assert not broken.near(other, b, tf.constant(1e-10))[1]
    monkeypatch.setattr("gpflow_ext.sites.vecchia.prior.ITERATIONS", 2)
    assert not factor.near(other, b, tf.constant(1e-10))[1]


@pytest.mark.parametrize("likelihood", [gpflow.likelihoods.Poisson(), gpflow.likelihoods.StudentT(1.5, 4.0)])
@pytest.mark.usefixtures("small_parts")
def test_one_factor_finds_the_mode(likelihood: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a factor for each step finds it, and as it does where conjugate gradients take too long."""
    factors = []
    factorise = fronts.factorise
    monkeypatch.setattr(fronts, "factorise", lambda *given: factors.append(1) or factorise(*given))
    found = []
    for most, number in ((25, 1), (0, None)):
        monkeypatch.setattr("gpflow_ext.sites.vecchia.prior.ITERATIONS", most)
        model = gpx.models.GPLaplace((X, Y), _kernel(), likelihood, prior=VecchiaOptions(neighbours=6))
        for _ in range(2):  # from nothing, and from a mode that has moved
            factors.clear()
            state, finite = model.settle_sites()
            assert finite
            assert state.violation < 1e-9
            assert len(factors) == number if number else len(factors) > 2
            found.append(state.mean.numpy())
            model.kernel.variance.assign(1.5)
    np.testing.assert_allclose(found[2:], found[:2], rtol=0.0, atol=1e-7)
    assert np.abs(found[1] - found[0]).max() > 1e-2


def test_steps_are_exact_where_iterated_ones_gain_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of half of a Newton step the violation is half: near the mode the factor is renewed."""
    model = gpx.models.GPLaplace(
        (X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=VecchiaOptions(neighbours=N)
    )
    near = VecchiaFactor.near

    def half(self: VecchiaFactor, *given: tf.Tensor) -> Any:
        change, close = near(self, *given)
        return tf.nest.map_structure(lambda part: 0.5 * part, change), close

    monkeypatch.setattr(VecchiaFactor, "near", half)
    state, _ = model.settle_sites(steps=24)
    assert state.violation < 1e-9  # halves alone would leave 1e-7


class Own(Matern32):
    """A kernel with a variable that is no parameter."""

    def __init__(self) -> None:
        super().__init__(1.3, [0.3, 0.5])
        self.log_scale = tf.Variable(0.1, dtype=tf.float64)

    def K_r(self, r: tf.Tensor) -> tf.Tensor:
        return super().K_r(r * tf.exp(self.log_scale))


@pytest.mark.usefixtures("small_parts")
def test_coefficients_have_the_gradients_of_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parameters, also where these are tensors, and in other variables of the kernel."""
    kernel = Own()
    kernel.variance = Frozen(kernel.variance, tf.constant(1.3, tf.float64))
    structure = Structure(X, np.array([0.3, 0.5]), VecchiaOptions(neighbours=6))
    given = tf.constant(0.7, tf.float64)
    sources = [given, kernel.lengthscales.unconstrained_variable, kernel.log_scale]

    def of(how: Any) -> Any:
        with tf.GradientTape() as tape, stacked.with_raw([kernel.variance], [given]):
            tape.watch(given)
            a, D = how([kernel], tf.constant(X), structure.tree().cliques)
            value = tf.reduce_sum(tf.sin(a)) + tf.reduce_sum(tf.math.log(D))
        return a, D, *tape.gradient(value, sources)

    def at_once(kernels: Any, X: tf.Tensor, cliques: tf.Tensor) -> Any:
        there = tf.cast(cliques < N, tf.float64)
        K = coefficients.gram(kernels, tf.gather(X, tf.minimum(cliques, N - 1)), there)
        K += gpflow.default_jitter() * tf.eye(7, dtype=tf.float64)
        a = tf.linalg.solve(K[..., 1:, 1:], K[..., 1:, :1])[..., 0]
        D = K[..., 0, 0] - tf.reduce_sum(a * K[..., 1:, 0], axis=-1)
        return tf.transpose(a, [1, 2, 0]), tf.transpose(D)

    expected = of(at_once)
    for found in (of(coefficients.coefficients), tf.function(of, autograph=False)(coefficients.coefficients)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-10 * np.abs(other).max())


@pytest.mark.parametrize("known", [11, None])
@pytest.mark.parametrize("entries", [5, 15, 1000])
def test_blocks_are_all_rows_once(entries: int, known: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one row, of three with two left over, and of all, where the number of rows is known and where not."""
    monkeypatch.setattr(blocks, "ENTRIES", entries)
    rows, longest = tf.reshape(tf.range(22.0, dtype=tf.float64), [11, 2]), tf.Variable(0)

    def step(parts: list[tf.Tensor], sums: list[tf.Tensor]) -> Any:
        longest.assign(tf.maximum(longest, tf.shape(parts[0])[0]))
        return [2.0 * parts[0], parts[1]], [sums[0] + tf.reduce_sum(parts[0])]

    @tf.function(input_signature=[tf.TensorSpec([known, 2], tf.float64)], autograph=False)
    def found_of(rows: tf.Tensor) -> Any:
        return blocks.over(step, [rows, rows[:, 0]], 5, [[2], []], [tf.constant(1.0, tf.float64)])

    found, sums = found_of(rows)
    np.testing.assert_array_equal(found[0], 2.0 * rows)
    np.testing.assert_array_equal(found[1], rows[:, 0])
    assert sums[0] == 1.0 + tf.reduce_sum(rows)
    assert longest == min(11, entries // 5)


def test_neighbours_are_the_nearest_before() -> None:
    """Of each of 400 points in the order, as by sorting all distances."""
    points = np.random.default_rng(1).uniform(size=(400, 3))
    found = ordering.nearest_before(points, 5)
    for n, row in enumerate(found):
        expected = ((points[:n] - points[n]) ** 2).sum(axis=1).argsort()[:5]
        np.testing.assert_array_equal(row[: len(expected)], expected)
        assert (row[len(expected) :] == -1).all()
