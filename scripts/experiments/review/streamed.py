"""The collapsed bound of sparse regression from blocks of rows, so that memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]
BLOCK = 20_000


class StreamedSGPR(tf.Module):
    """Titsias's bound (2009, eq. 9) and its gradient, the objective of vi-means, by two passes over the rows.

        log N(y | 0, K_nm K_mm⁻¹ K_mn + σ²I) − tr(K_nn − K_nm K_mm⁻¹ K_mn) / 2σ²

    It depends on the rows through Φ = K_mn K_nm, ψ = K_mn y, yᵀy and tr K_nn. The first pass sums these, the second
    the gradients of Φ and ψ, weighted by those of the bound in them. O(nm²) time, O(bm + m²) memory for b rows.

    Parameters
    ----------
    data
        Inputs [N, D] and targets [N, 1].
    kernel
        A stationary kernel.
    Z
        Inducing inputs [M, D], which stay where they are.
    noise_variance
        σ² at the start.
    """

    def __init__(
        self, data: tuple[Array, Array], kernel: gpflow.kernels.Kernel, Z: Array, noise_variance: float = 0.1
    ) -> None:
        super().__init__()
        self._data, self.kernel, self._Z = data, kernel, tf.constant(Z)
        self.likelihood = gpflow.likelihoods.Gaussian(noise_variance)
        self._squares = float(np.sum(data[1] ** 2))
        self._sums = tf.function(self._summed, autograph=False)
        self._pulled = tf.function(self._pulled_back, autograph=False)
        self._bound = tf.function(self._bound_and_gradients, autograph=False)

    def evaluate(self) -> tuple[float, Sequence[tf.Tensor]]:
        """Return the bound and its gradient in the trainable variables."""
        value, by_sums, total = self._bound(*self._statistics())
        for X, Y in self._blocks():
            total = [a + b for a, b in zip(total, self._pulled(X, Y, *by_sums), strict=True)]
        return float(value), total

    def predict_f(self, X: Array) -> tuple[tf.Tensor, None]:
        """Return the mean at X [X, D], by the sums of the parameters as they are."""
        Phi, psi = self._statistics()
        noise = self.likelihood.variance
        inner = self._gram() + Phi / noise
        weights = tf.linalg.cholesky_solve(tf.linalg.cholesky(inner), psi / noise)
        return tf.matmul(self.kernel(X, self._Z), weights), None

    def _statistics(self) -> tuple[tf.Tensor, tf.Tensor]:
        Phi = psi = tf.zeros([], self._Z.dtype)
        for X, Y in self._blocks():
            more = self._sums(X, Y)
            Phi, psi = Phi + more[0], psi + more[1]
        return Phi, psi

    def _blocks(self) -> Any:
        X, Y = self._data
        return (
            (tf.constant(X[i : i + BLOCK]), tf.constant(Y[i : i + BLOCK])) for i in range(0, len(X), BLOCK)
        )

    def _gram(self) -> tf.Tensor:
        jitter = gpflow.default_jitter() * tf.eye(self._Z.shape[0], dtype=self._Z.dtype)
        return self.kernel(self._Z) + jitter

    def _summed(self, X: tf.Tensor, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        cross = self.kernel(self._Z, X)
        return tf.matmul(cross, cross, transpose_b=True), tf.matmul(cross, Y)

    def _pulled_back(
        self, X: tf.Tensor, Y: tf.Tensor, by_Phi: tf.Tensor, by_psi: tf.Tensor
    ) -> list[tf.Tensor]:
        variables = self.trainable_variables
        with tf.GradientTape() as tape:
            Phi, psi = self._summed(X, Y)
            value = tf.reduce_sum(by_Phi * Phi) + tf.reduce_sum(by_psi * psi)
        found: list[tf.Tensor] = tape.gradient(value, variables, unconnected_gradients="zero")
        return found

    def _bound_and_gradients(
        self, Phi: tf.Tensor, psi: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
        variables, n = self.trainable_variables, float(len(self._data[0]))
        with tf.GradientTape() as tape:
            tape.watch([Phi, psi])
            noise, chol = tf.convert_to_tensor(self.likelihood.variance), tf.linalg.cholesky(self._gram())
            half = tf.linalg.triangular_solve(chol, Phi)
            A = tf.linalg.triangular_solve(chol, tf.transpose(half)) / noise
            factor = tf.linalg.cholesky(A + tf.eye(A.shape[0], dtype=A.dtype))
            c = tf.linalg.triangular_solve(factor, tf.linalg.triangular_solve(chol, psi)) / noise
            own = n * self.kernel(self._Z[:1], full_cov=False)[0]
            value = -0.5 * n * (np.log(2.0 * np.pi) + tf.math.log(noise))
            value -= tf.reduce_sum(tf.math.log(tf.linalg.diag_part(factor)))
            value += 0.5 * tf.reduce_sum(tf.square(c)) - 0.5 * (self._squares + own) / noise
            value += 0.5 * tf.linalg.trace(A)
        gradients = tape.gradient(value, [Phi, psi, *variables], unconnected_gradients="zero")
        return value, gradients[:2], gradients[2:]
