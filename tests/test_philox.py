"""Random numbers of a seed: the same in a plain graph and under XLA, and made in one place."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from gpflow_ext.functions.features import features_of
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.gprn import conditional, members
from gpflow_ext.numerics import philox

ROOT = Path(__file__).parent.parent
# As those of GPflow's posteriors, draws at given inputs follow `tf.random.set_seed`, and take no seed.
STATEFUL = {"gpflow_ext/sampling/draws_posterior.py": {"uniform", "normal"}}
UNNAMED = {"stateless_gamma", "stateless_poisson"}  # they take no algorithm
DTYPES = [tf.float64, tf.float32]


def _random_calls(path: Path) -> list[tuple[str, set[str | None]]]:
    """Return the names of the functions of ``tf.random`` that a file calls, and their keywords."""
    calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    named = [(ast.unparse(call.func), {keyword.arg for keyword in call.keywords}) for call in calls]
    return [(name.split(".")[-1], keywords) for name, keywords in named if name.startswith("tf.random.")]


@pytest.mark.parametrize("folder", ["gpflow_ext", "scripts"])
def test_all_random_numbers_are_drawn_in_one_module(folder: str) -> None:
    found = {}
    for path in (ROOT / folder).rglob("*.py"):
        names = {name for name, _ in _random_calls(path)} - {"set_seed"}
        if names and path != Path(philox.__file__):
            found[path.relative_to(ROOT).as_posix()] = names
    assert found == {name: calls for name, calls in STATEFUL.items() if name.startswith(folder)}


def test_each_stateless_call_names_its_algorithm() -> None:
    calls = _random_calls(Path(philox.__file__))
    assert len(calls) >= 6
    assert {name for name, keywords in calls if "alg" not in keywords} == UNNAMED


def _both(function: Callable[[], tf.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    plain, compiled = (tf.function(function, jit_compile=jit, autograph=False)() for jit in (False, True))
    return plain.numpy(), compiled.numpy()


@pytest.mark.parametrize("dtype", DTYPES)
def test_xla_draws_the_same(dtype: tf.DType) -> None:
    seed, shape = tf.constant([3, 4]), [200, 5]
    np.testing.assert_array_equal(*_both(lambda: philox.uniform(shape, seed, dtype)))
    plain, compiled = _both(lambda: philox.normal(shape, seed, dtype))  # by logarithms and cosines of each
    np.testing.assert_allclose(compiled, plain, rtol=0.0, atol=100 * np.finfo(plain.dtype).eps)
    np.testing.assert_array_equal(*_both(lambda: philox.integers(shape, seed, -2, 9)))
    np.testing.assert_array_equal(*_both(lambda: members.folded(seed, 7, 8)))


@pytest.mark.parametrize(
    "kernel", [gpflow.kernels.SquaredExponential, gpflow.kernels.Matern12, gpflow.kernels.Matern52]
)
def test_xla_draws_the_same_features(kernel: type[gpflow.kernels.Kernel]) -> None:
    of, X = kernel(), tf.constant(np.linspace(-1.0, 1.0, 7)[:, None])
    features = features_of(of)

    def drawn() -> tf.Tensor:
        return features.at(features.draw(Numbers(1, 0, tf.float64), 50, 1), X)

    plain, compiled = _both(drawn)
    np.testing.assert_allclose(compiled, plain, rtol=0.0, atol=1e-10)


def test_xla_draws_the_same_numbers_for_networks() -> None:
    like = tf.zeros([6, 2], tf.float64)
    plain, compiled = _both(lambda: conditional.normal(tf.constant([1, 2]), 4, like))
    assert plain.shape == (4, 6, 2)
    np.testing.assert_allclose(compiled, plain, rtol=0.0, atol=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_numbers_have_their_distributions(dtype: tf.DType) -> None:
    """By Kolmogorov and Smirnov's test at a fixed seed; other seeds fail once in ten thousand."""
    seed = tf.constant([5, 6])
    assert stats.kstest(philox.normal([20_000], seed, dtype), stats.norm.cdf).pvalue > 1e-4
    assert stats.kstest(philox.uniform([20_000], seed, dtype), stats.uniform.cdf).pvalue > 1e-4
    counts = np.bincount(philox.integers([60_000], seed, 0, 6), minlength=6)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_normal_numbers_have_the_moments_of_the_distribution() -> None:
    """Within four standard errors of 200,000 draws."""
    drawn = philox.normal([200_000], tf.constant([3, 4]), tf.float64).numpy()
    for power, expected, error in ((1, 0.0, 1.0), (2, 1.0, np.sqrt(2.0)), (4, 3.0, np.sqrt(96.0))):
        np.testing.assert_allclose(np.mean(drawn**power), expected, atol=4.0 * error / np.sqrt(200_000))
