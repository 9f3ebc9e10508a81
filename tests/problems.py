"""Small problems shared by the tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data.datasets import Split


def inputs(num_data: int = 30, seed: int = 0, width: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-2.0, 2.0, (num_data, width))


def kernel(variance: float = 4.0, lengthscale: float = 0.7) -> gpflow.kernels.SquaredExponential:
    return gpflow.kernels.SquaredExponential(variance=variance, lengthscales=lengthscale)


def latent(X: np.ndarray, variance: float = 4.0, lengthscale: float = 0.7, seed: int = 1) -> np.ndarray:
    """A draw from the prior at X, [N]."""
    K = kernel(variance, lengthscale)(X).numpy() + 1e-8 * variance * np.eye(len(X))
    return np.linalg.cholesky(K) @ np.random.default_rng(seed).standard_normal(len(X))


def binary(
    num_data: int = 30, variance: float = 4.0, lengthscale: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(num_data, seed)
    f = latent(X, variance, lengthscale, seed + 1)
    uniform = np.random.default_rng(seed + 2).uniform(size=num_data)
    return X, (uniform < 1.0 / (1.0 + np.exp(-f))).astype(float)[:, None]


def counts(
    num_data: int = 30, variance: float = 1.0, lengthscale: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(num_data, seed)
    rate = np.exp(np.minimum(latent(X, variance, lengthscale, seed + 1), 7.0))
    return X, np.random.default_rng(seed + 2).poisson(rate).astype(float)[:, None]


def continuous(num_data: int = 30, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(num_data, seed)
    noise = 0.3 * np.random.default_rng(seed + 2).standard_normal(num_data)
    return X, (latent(X, seed=seed + 1) + noise)[:, None]


def raw_parts(split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Both parts in the order of the source, in raw units."""
    X = np.concatenate([split.scaler.inverse(X) for X, _ in split])
    Y = np.concatenate([Y for _, Y in split])
    order = np.argsort(np.concatenate(split.rows))
    return X[order], Y[order]


def ordinal(
    num_data: int = 30, num_levels: int = 4, variance: float = 4.0, lengthscale: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(num_data, seed)
    f = latent(X, variance, lengthscale, seed + 1)
    noisy = f + np.random.default_rng(seed + 2).logistic(size=num_data)
    return X, np.digitize(noisy, np.linspace(-2.0, 2.0, num_levels - 1)).astype(float)[:, None]


def classes(
    num_data: int = 30, num_classes: int = 3, variance: float = 4.0, lengthscale: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    X = inputs(num_data, seed)
    F = np.stack([latent(X, variance, lengthscale, seed + 1 + k) for k in range(num_classes)], axis=1)
    utility = F + np.random.default_rng(seed + 50).gumbel(size=F.shape)
    return X, utility.argmax(axis=1).astype(float)[:, None]


def exposed_counts(
    num_data: int = 30, variance: float = 1.0, lengthscale: float = 0.7, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    X, rng = inputs(num_data, seed), np.random.default_rng(seed + 2)
    exposures = rng.uniform(0.2, 5.0, num_data)
    rate = exposures * np.exp(np.minimum(latent(X, variance, lengthscale, seed + 1), 7.0))
    return X, np.stack([rng.poisson(rate), exposures], axis=1)


def assert_refitted_gradient(
    variables: Sequence[tf.Variable], gradients: Sequence[np.ndarray], refit: Callable[[], float], atol: float
) -> None:
    """Compare two elements of each gradient with central differences of what ``refit`` returns."""
    step = 1e-4
    for variable, gradient in zip(variables, gradients, strict=True):
        for index in list(np.ndindex(gradient.shape))[:2]:
            middle, unit, ends = variable.numpy(), np.zeros(gradient.shape), []
            unit[index] = step
            for moved in (middle + unit, middle - unit):
                variable.assign(moved)
                ends.append(refit())
            variable.assign(middle)
            difference = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(gradient[index], difference, rtol=1e-5, atol=atol)


def value_and_derivatives(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], mean: np.ndarray, var: np.ndarray
) -> list[np.ndarray]:
    """The function, its derivatives in the mean and the variance, and the second one in the mean."""
    mean, var = tf.constant(mean), tf.constant(var)
    with tf.GradientTape() as outer:
        outer.watch(mean)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch((mean, var))
            value = function(mean, var)
        by_mean, by_var = tape.gradient(value, mean), tape.gradient(value, var)
    return [part.numpy() for part in (value, by_mean, by_var, outer.gradient(by_mean, mean))]
