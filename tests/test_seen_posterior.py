"""The posterior seen from the data against NumPy, and its closed-form derivatives against differences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.ep.seen_posterior import seen_posterior


@pytest.mark.parametrize("shared", [True, False])
def test_values_and_derivatives(shared: bool) -> None:
    rng = np.random.default_rng(0)
    L, M, N = 3, 4, 6
    A = rng.normal(size=(1 if shared else L, M, N))
    rho, prec = rng.normal(size=(N, L)), rng.uniform(-0.02, 1.0, (N, L))  # one negative site is allowed
    weights = rng.normal(size=(N, L)), rng.normal(size=(N, L)), 0.7

    def combined(A, rho, prec):
        parts = seen_posterior(tf.constant(A), tf.constant(rho), tf.constant(prec))
        return sum(tf.reduce_sum(weight * part) for weight, part in zip(weights, parts, strict=True))

    mean, var, log_z = seen_posterior(tf.constant(A), tf.constant(rho), tf.constant(prec))
    total = 0.0
    for k in range(L):
        own = A[0 if shared else k]
        B = np.eye(M) + own * prec[:, k] @ own.T
        C, s = np.linalg.inv(B), own @ rho[:, k]
        np.testing.assert_allclose(mean[:, k], own.T @ C @ s, rtol=1e-10)
        np.testing.assert_allclose(var[:, k], np.diag(own.T @ C @ own), rtol=1e-10)
        total += 0.5 * s @ C @ s - 0.5 * np.linalg.slogdet(B)[1]
    np.testing.assert_allclose(log_z, total, rtol=1e-10)
    arguments = [A, rho, prec]
    tensors = list(map(tf.constant, arguments))
    with tf.GradientTape() as tape:
        tape.watch(tensors)
        parts = seen_posterior(*tensors)
        value = sum(tf.reduce_sum(weight * part) for weight, part in zip(weights, parts, strict=True))
    for number, gradient in enumerate(tape.gradient(value, tensors)):
        for index in np.ndindex(tuple(gradient.shape)):
            ends = []
            for sign in (1.0, -1.0):
                moved = [part.copy() for part in arguments]
                moved[number][index] += sign * 1e-5
                ends.append(float(combined(*moved)))
            # Truncation 1e-10, rounding 1e-15 · |value| / 1e-5.
            np.testing.assert_allclose(
                gradient.numpy()[index], (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-7
            )


def test_an_indefinite_precision_is_seen() -> None:
    parts = seen_posterior(
        tf.ones([1, 2, 2], tf.float64), tf.ones([2, 1], tf.float64), -tf.ones([2, 1], tf.float64)
    )
    assert not np.isfinite(parts[2])
