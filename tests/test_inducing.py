"""Inducing points: good centres, none wasted, the same ones for the same seed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from scipy.spatial.distance import cdist

import gpflow_ext as gpx
from gpflow_ext.data import inducing as choice
from gpflow_ext.data.inducing import conditional_variance, distinct, kmeans, subset

cluster = pytest.importorskip("sklearn.cluster")

CORNERS = 10.0 * np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


def _blobs(num_data: int = 400) -> np.ndarray:
    return np.repeat(CORNERS, num_data // 4, axis=0) + np.random.default_rng(0).normal(size=(num_data, 2))


def _crowded() -> np.ndarray:
    """Two rows that occur 500 times each, and 30 others among which a random start draws almost none."""
    rare = np.random.default_rng(1).normal(size=(30, 2)).round(2)
    return np.concatenate([np.zeros((500, 2)), np.ones((500, 2)), rare])


def _num_wasted(X: np.ndarray, Z: np.ndarray) -> int:
    """Number of centres that are the nearest one (the first among equals) of no row."""
    return len(Z) - len(np.unique(cdist(X, Z).argmin(axis=1)))


def test_centres_are_those_of_the_clusters() -> None:
    X = _blobs()
    Z = kmeans(X, 4)
    order = cdist(CORNERS, Z).argmin(axis=1)
    np.testing.assert_allclose(Z[order], X.reshape(4, 100, 2).mean(axis=1), atol=0.15)


def test_seed_decides_the_points() -> None:
    X = _blobs()
    np.testing.assert_array_equal(kmeans(X, 20, seed=3), kmeans(X, 20, seed=3))
    assert not np.array_equal(kmeans(X, 20, seed=3), kmeans(X, 20, seed=4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_centre_is_wasted_where_few_rows_differ(dtype: type) -> None:
    X = _crowded().astype(dtype)
    wasted = 0
    for seed in range(2):
        for number in (10, 31):
            raw = cluster.MiniBatchKMeans(number, random_state=seed, n_init=1).fit(X).cluster_centers_
            wasted += _num_wasted(X, raw)
            Z = kmeans(X, number, seed=seed)
            assert Z.shape == (number, 2)
            assert len(np.unique(Z, axis=0)) == number
            assert _num_wasted(X, Z) == 0
    assert wasted, "scikit-learn leaves no empty cluster here: the test guards nothing"


@pytest.mark.parametrize(("dtype", "expected"), [("f4", "f4"), ("f8", "f8"), ("i8", "f8"), ("?", "f8")])
def test_dtype_is_that_of_the_inputs(dtype: str, expected: str) -> None:
    X = (_blobs() > 5.0).astype(dtype)
    for points in (kmeans(X, 2), kmeans(X, 4), subset(X, 2)):
        assert points.dtype == expected


def test_data_far_from_zero_have_the_same_centres() -> None:
    X, shift = _blobs(), 2.0**26  # whose square leaves no digit for squared distances of size 1
    np.testing.assert_allclose(kmeans(X + shift, 30) - shift, kmeans(X, 30), atol=1e-6)


def test_as_many_points_as_distinct_rows_are_these_rows() -> None:
    X = _blobs(40)
    np.testing.assert_array_equal(kmeans(X, 40), X)
    np.testing.assert_array_equal(kmeans(np.tile(X, (3, 1)), 40), X)


def test_distinct_rows_are_counted_as_numbers() -> None:
    X = np.array([[1.0, -0.0], [2.0, 3.0], [1.0, 0.0], [2.0, 3.0]])
    np.testing.assert_array_equal(distinct(X), X[:2])


def test_subset_draws_rows_once() -> None:
    X = _blobs()
    Z = subset(X, 399, seed=1)
    assert len(np.unique(Z, axis=0)) == 399
    assert (cdist(Z, X).min(axis=1) == 0.0).all()
    np.testing.assert_array_equal(Z, subset(X, 399, seed=1))
    assert not np.array_equal(Z, subset(X, 399, seed=2))


@pytest.mark.parametrize("choose", [kmeans, subset])
@pytest.mark.parametrize(
    ("X", "number", "message"),
    [
        (np.zeros(5), 1, r"shape \(5,\)"),
        (np.zeros((5, 0)), 1, r"shape \(5, 0\)"),
        (np.array([["a"], ["b"]]), 1, "of numbers"),
        (np.array([[1.0], [np.nan]]), 1, "row 1 is not"),
        (np.eye(4), 0, "from 1 to 4.*got 0"),
        (np.eye(4), 5, "from 1 to 4.*got 5"),
    ],
)
def test_wrong_inputs_are_refused(choose: object, X: np.ndarray, number: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(X, number)


def test_too_few_distinct_rows_are_counted() -> None:
    with pytest.raises(ValueError, match="only 3 distinct rows"):
        kmeans(np.tile(np.eye(3), (10, 1)), 4)


def test_rows_equal_up_to_rounding_are_refused() -> None:
    """Their distances come out positive or zero at random: centres put there would move for ever."""
    X = np.repeat([0.0, 1.0], 50)[:, None] + 1e-8 * np.random.default_rng(0).normal(size=(100, 3))
    with pytest.raises(ValueError, match="more than rounding"):
        kmeans(X, 30)


def test_missing_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(ImportError, match=r'pip install "gpflow-ext\[data\]"'):
        gpx.inducing.kmeans(_blobs(), 4)


def test_conditional_variance_is_greedy() -> None:
    """Against variances by a solve, for each choice among all rows."""
    X = np.random.default_rng(3).normal(size=(40, 2))
    kernel = gpflow.kernels.SquaredExponential(2.0, lengthscales=0.8) + gpflow.kernels.White(0.5)
    K = kernel(X, X).numpy()
    Z = conditional_variance(X, kernel, 12, share=0.0)
    chosen = [int(np.flatnonzero((z == X).all(axis=1))[0]) for z in Z]
    assert len(set(chosen)) == 12
    for m in range(12):
        known = chosen[:m]
        left = K.diagonal() - np.einsum(
            "mn,mn->n", K[known], np.linalg.solve(K[np.ix_(known, known)], K[known])
        )
        assert left[chosen[m]] == pytest.approx(left.max(), rel=1e-9)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.001])
def test_conditional_variance_ends_at_the_share(share: float) -> None:
    X = np.random.default_rng(3).normal(size=(150, 2))
    kernel = gpflow.kernels.Matern52(3.0, lengthscales=1.5)

    def left(Z: np.ndarray) -> float:
        K, Kzz, Kzx = kernel(X).numpy(), kernel(Z).numpy(), kernel(Z, X).numpy()
        return 1.0 - np.trace(Kzx.T @ np.linalg.solve(Kzz, Kzx)) / np.trace(K)

    Z = conditional_variance(X, kernel, share=share)
    assert left(Z) <= share < left(Z[:-1])


class _Counting(gpflow.kernels.SquaredExponential):
    """Counts how often Python computes it."""

    calls = 0

    def K(self, X: gpflow.base.TensorType, X2: gpflow.base.TensorType | None = None) -> tf.Tensor:
        type(self).calls += 1
        return super().K(X, X2)


def test_conditional_variance_computes_the_kernel_in_a_graph() -> None:
    """Its operations one by one, for each point, took ten times as long as the choice."""
    X = np.random.default_rng(3).normal(size=(200, 2))
    Z = conditional_variance(X, _Counting(), 50, share=0.0)
    np.testing.assert_array_equal(
        Z, conditional_variance(X, gpflow.kernels.SquaredExponential(), 50, share=0.0)
    )
    assert _Counting.calls <= 2


def test_rows_of_many_columns_are_read_for_several_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same points, by covariances that are asked for a few times."""
    rng, asked = np.random.default_rng(3), [0]
    X, make = rng.normal(size=(200, 5)) @ rng.normal(size=(5, 256)), choice._covariance

    def counting(kernel: gpflow.kernels.Kernel) -> Callable[..., np.ndarray]:
        covariance = make(kernel)

        def counted(A: tf.Tensor, B: tf.Tensor) -> np.ndarray:
            asked[0] += len(B) == len(X)
            return covariance(A, B)

        return counted

    monkeypatch.setattr(choice, "_covariance", counting)
    kernel = gpflow.kernels.Matern52(lengthscales=20.0)
    several = conditional_variance(X, kernel, 60, share=0.0)
    assert asked[0] < 30
    monkeypatch.setattr(choice, "_COLUMNS", 1000)
    np.testing.assert_array_equal(several, conditional_variance(X, kernel, 60, share=0.0))


def test_conditional_variance_takes_no_row_twice() -> None:
    X = _crowded()
    Z = conditional_variance(X, gpflow.kernels.SquaredExponential(lengthscales=0.01), len(X), share=0.0)
    assert len(Z) == len(distinct(X)) == len(distinct(Z))


@pytest.mark.parametrize("kernel", [gpflow.kernels.White(), gpflow.kernels.Linear()])
def test_nothing_to_explain_takes_one_row(kernel: gpflow.kernels.Kernel) -> None:
    np.testing.assert_array_equal(conditional_variance(np.zeros((9, 2)), kernel), np.zeros((1, 2)))


def test_conditional_variance_of_several_kernels() -> None:
    X = np.random.default_rng(3).normal(size=(60, 1))
    parts = [gpflow.kernels.SquaredExponential(lengthscales=s) for s in (0.05, 5.0)]
    both = conditional_variance(X, gpflow.kernels.SeparateIndependent(parts), 60)
    one, other = (conditional_variance(X, part, 60) for part in parts)
    assert len(other) < len(both) <= len(one)


@pytest.mark.parametrize(("most", "share"), [(0, 0.1), (3, 1.0), (3, -0.1)])
def test_conditional_variance_checks_its_arguments(most: int, share: float) -> None:
    with pytest.raises(ValueError, match="most must be at least 1 and share in"):
        conditional_variance(_blobs(), gpflow.kernels.Matern32(), most, share=share)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_inducing_points_by_themselves_do_not_depend_on_the_scale(scale: float) -> None:
    rng = np.random.default_rng(5)
    X = rng.normal(size=(400, 2))
    Y = (np.sin(2.0 * X[:, :1]) + 0.3 * rng.normal(size=(400, 1)) > 0.0).astype(float)
    kernel, likelihood = gpflow.kernels.SquaredExponential(), gpx.likelihoods.BernoulliProbit()
    model = gpx.models.SparseEP((scale * X, Y), kernel, likelihood, inducing_variable="auto")
    Z = model.inducing_variable.Z.numpy()
    assert 5 <= len(Z) <= 60
    assert len(distinct(np.concatenate([scale * X, Z]))) == 400
    np.testing.assert_array_equal(kernel.lengthscales, 1.0)  # the model's own are left alone
    assert not model.inducing_variable.Z.trainable
    assert gpx.models.VGPKMM(
        (X, Y), kernel, gpx.likelihoods.BernoulliLogit(), inducing_variable="auto"
    ).inducing_variable.Z.trainable


@pytest.mark.parametrize("name", ["VGPKMM", "SGPMCFreeForm"])
def test_several_outputs_take_points_by_themselves(name: str) -> None:
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(80, 2)), rng.poisson(2.0, size=(80, 2)).astype(float)
    kernel = gpflow.kernels.SharedIndependent(gpflow.kernels.SquaredExponential(), 2)
    model = getattr(gpx.models, name)((X, Y), kernel, gpx.likelihoods.PoissonLog(), inducing_variable="auto")
    assert 5 <= model.inducing_variable.num_inducing <= 60


def test_another_name_than_auto_is_refused() -> None:
    data = np.zeros((3, 1)), np.array([[0.0], [1.0], [0.0]])
    with pytest.raises(ValueError, match="or \"auto\"; got 'kmeans'"):
        gpx.models.VGPKMM(
            data, gpflow.kernels.Matern32(), gpx.likelihoods.BernoulliLogit(), inducing_variable="kmeans"
        )
