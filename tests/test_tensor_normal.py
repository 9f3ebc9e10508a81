"""Tensor normals through their factors against dense Gaussians and Monte Carlo."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

from gpflow_ext.gprn import tensor_normal

SHAPES = [(4, 2), (4, 5, 2), (4, 3, 2, 2), (3, 2, 3, 2, 2)]  # (N, d₁, …, d_M, K) for M = 0, 1, 2, 3


def lower(rng: np.random.Generator, size: int) -> np.ndarray:
    factor = np.tril(0.5 * rng.normal(size=(size, size)))
    factor[np.diag_indices(size)] = np.abs(factor.diagonal()) + 0.3
    return factor


def draw(shape: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """A mean, factors, and the factor of a prior covariance of the first axis."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), [lower(rng, size) for size in shape], lower(rng, shape[0])


def dense(factors: list[np.ndarray]) -> np.ndarray:
    return functools.reduce(np.kron, [factor @ factor.T for factor in factors])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_divergence_is_that_of_the_dense_gaussian(shape) -> None:
    """Acceptance check C1."""
    mean, factors, chol = draw(shape)
    S = dense(factors)
    P = np.kron(chol @ chol.T, np.eye(mean.size // shape[0]))
    expected = 0.5 * (
        np.trace(np.linalg.solve(P, S))
        + mean.ravel() @ np.linalg.solve(P, mean.ravel())
        - mean.size
        + np.linalg.slogdet(P)[1]
        - np.linalg.slogdet(S)[1]
    )
    np.testing.assert_allclose(
        tensor_normal.kl(tf.constant(mean), factors, tf.constant(chol)), expected, rtol=1e-10
    )
    white = np.linalg.solve(chol, mean.reshape(shape[0], -1))
    factors[0] = np.linalg.solve(chol, factors[0])
    np.testing.assert_allclose(tensor_normal.kl(tf.constant(white), factors), expected, rtol=1e-10)
    np.testing.assert_allclose(tensor_normal.diagonal(factors), np.diag(dense(factors)), rtol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_samples_are_the_mean_plus_the_dense_factor_times_noise(shape) -> None:
    mean, factors, _ = draw(shape)
    noise = tf.constant(np.random.default_rng(1).normal(size=(2, *shape)))
    G = functools.reduce(np.kron, factors)
    expected = mean + np.einsum("ij,sj->si", G, noise.numpy().reshape(2, -1)).reshape(2, *shape)
    np.testing.assert_allclose(tensor_normal.sample(mean, factors, noise), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("missing", [False, True])
def test_the_closed_form_of_the_squares_is_what_samples_say(missing) -> None:
    """Acceptance check C2.

    Four standard errors of 100,000 draws: one in 16,000 sound runs would fail; the seed is fixed.
    """
    U, factors, _ = draw((4, 3, 2, 2), seed=2)
    M, node_factors, _ = draw((4, 2), seed=3)
    rng = np.random.default_rng(4)
    Y, observed = rng.normal(size=(4, 6)), (rng.uniform(size=(4, 6)) > 0.3) * 1.0
    if not missing:
        observed = np.ones((4, 6))
    Y *= observed
    found = tensor_normal.expected_squares(
        tf.constant(Y),
        U.reshape(4, 6, 2),
        covariances(factors[0], factors[-1]),
        tensor_normal.diagonal(factors[1:-1]),
        tf.constant(M),
        covariances(*node_factors),
        tf.constant(observed) if missing else None,
    )
    W = tensor_normal.sample(U, factors, tf.constant(rng.normal(size=(100_000, *U.shape)))).numpy()
    F = tensor_normal.sample(M, node_factors, tf.constant(rng.normal(size=(100_000, *M.shape)))).numpy()
    means = np.einsum("sndk,snk->snd", W.reshape(-1, 4, 6, 2), F)
    squares = (observed * (Y - means) ** 2).sum(axis=2)
    found = found.numpy()
    error = squares.std(axis=0) / np.sqrt(len(squares))
    assert (np.abs(squares.mean(axis=0) - found) < 4.0 * error).all()
    assert (4.0 * error < 0.03 * found).all()


def covariances(rows: np.ndarray, column: np.ndarray) -> tf.Tensor:
    return tensor_normal.moments(tf.linalg.matrix_transpose(tf.constant(rows))[None], tf.constant(column))


def test_rows_of_their_own_have_the_moments_and_the_divergence_of_dense_algebra() -> None:
    """The covariance blkdiag(G_k)(Γ ⊗ I)blkdiag(G_k)ᵀ of one output, in the order (k, n)."""
    rng = np.random.default_rng(0)
    rows = np.tril(0.3 * rng.normal(size=(2, 4, 4))) + 0.6 * np.eye(4)
    column, mean = np.tril(rng.normal(size=(2, 2))) + 2.0 * np.eye(2), rng.normal(size=(4, 3, 2))
    outputs = np.diag([0.7, 1.2, 0.9])
    dense = scipy.linalg.block_diag(*rows)
    dense = dense @ np.kron(column @ column.T, np.eye(4)) @ dense.T
    found = tensor_normal.moments(tf.linalg.matrix_transpose(tf.constant(rows)), tf.constant(column))
    expected = np.einsum("knln->nkl", dense.reshape(2, 4, 2, 4))
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    value = 0.5 * np.sum(mean**2)
    for scale in np.diag(outputs) ** 2:
        value += 0.5 * (scale * np.trace(dense) - 8 - np.linalg.slogdet(scale * dense)[1])
    factors = [tf.constant(part) for part in (rows, outputs, column)]
    np.testing.assert_allclose(tensor_normal.kl(tf.constant(mean), factors), value, rtol=1e-10)


@pytest.mark.parametrize(
    ("number", "shape"),
    [
        (1, (1, 1)),
        (4096, (64, 64)),
        (800, (25, 32)),
        (7, (1, 7)),
        (62, (2, 31)),
        (251, (1, 251)),
        (509, (22, 24)),
    ],
)
def test_any_number_of_outputs_has_a_shape_that_few_outputs_fill(number, shape) -> None:
    assert tensor_normal.output_shape(number) == shape
    assert number == np.prod(shape) or number > 256
    assert number <= np.prod(shape) < number + max(1, np.sqrt(number))
