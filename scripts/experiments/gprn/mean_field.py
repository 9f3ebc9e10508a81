"""The fully factorised variational inference of Wilson et al. (2012) for regression networks, as a baseline.

q(W, F) = Π_k q(f_k) Π_dk q(w_dk), updated in turn in closed form; then one step of EM for the hyperparameters. The
covariance of q(w_dk) does not depend on d, so that a sweep costs O(K N³ + K N² D).
"""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]


class MeanField:
    """Complete targets [N, D]; kernels and noise of the network that is given are trained in place."""

    def __init__(self, network: Any, X: Array, Y: Array, start: Array) -> None:
        self._network, self._X, self._Y = network, tf.constant(X), Y
        self.means = start.copy()  # of f_k, [N, K]
        self.weights = np.zeros((*Y.shape, start.shape[1]))  # [N, D, K]
        self._node_cov = np.zeros((start.shape[1], len(X), len(X)))
        self._weight_cov = np.zeros_like(self._node_cov)
        self._sums = [tf.Variable(np.zeros((len(X), len(X)))) for _ in range(2)]
        self._loss = tf.function(self._divergence)

    def grams(self) -> tuple[Array, Array, float]:
        """Return K_w, K_f + nugget and the noise variance."""
        prior = self._network.prior()
        K_w, K_f = ((chol @ tf.transpose(chol)).numpy() for chol in (prior.weights, prior.nodes))
        return K_w, K_f, float(prior.noise)

    def sweep(self) -> None:
        """Update all weights, then all nodes, then the hyperparameters."""
        K_w, K_f, noise = self.grams()
        for k in range(self.means.shape[1]):
            second = self.means[:, k] ** 2 + self._node_cov[k].diagonal()
            self._weight_cov[k] = _posterior(K_w, second / noise)
            self.weights[:, :, k] = self._weight_cov[k] @ (self.means[:, [k]] * self._rest(k)) / noise
        for k in range(self.means.shape[1]):
            second = np.sum(self.weights[:, :, k] ** 2, axis=1)
            second += self._Y.shape[1] * self._weight_cov[k].diagonal()
            self._node_cov[k] = _posterior(K_f, second / noise)
            self.means[:, k] = (
                self._node_cov[k] @ np.sum(self.weights[:, :, k] * self._rest(k), axis=1) / noise
            )
        self._maximise()

    def elbo(self) -> float:
        """Return the bound."""
        N, D = self._Y.shape
        K_w, K_f, noise = self.grams()
        weight_terms, node_terms = self._scatter()
        value = -0.5 * N * D * np.log(2.0 * np.pi * noise) - 0.5 * self._squares() / noise
        for k in range(self.means.shape[1]):
            for K, scatter, cov, count in (
                (K_w, weight_terms[k], self._weight_cov[k], D),
                (K_f, node_terms[k], self._node_cov[k], 1),
            ):
                trace = np.trace(np.linalg.solve(K, scatter))
                logs = np.linalg.slogdet(K)[1] - np.linalg.slogdet(cov)[1]
                value -= 0.5 * (trace - count * N + count * logs)
        return float(value)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of y at X, each [X, D]."""
        K_w, K_f, noise = self.grams()
        network = self._network
        shape = len(X), self.weights.shape[1]
        mean, var = np.zeros(shape), np.full(shape, noise)
        nugget = float(network.nugget.numpy())
        for k in range(self.means.shape[1]):
            parts = []
            for kernel, K, cov, values, extra in (
                (network.weight_kernel, K_w, self._weight_cov[k], self.weights[:, :, k], 0.0),
                (network.kernel, K_f, self._node_cov[k], self.means[:, [k]], nugget),
            ):
                gain = np.linalg.solve(K, kernel(self._X, X).numpy())
                own = kernel(X, full_cov=False).numpy() + extra
                spread = own - np.sum(gain * (K @ gain), axis=0) + np.sum(gain * (cov @ gain), axis=0)
                parts.append((gain.T @ values, np.maximum(spread, 0.0)[:, None]))
            (u, s), (m, v) = parts
            mean = mean + u * m
            var = var + u**2 * v + s * (m**2 + v)
        return mean, var

    def _rest(self, k: int) -> Array:
        """Return what the other nodes leave of the targets, [N, D]."""
        others = np.delete(np.arange(self.means.shape[1]), k)
        return self._Y - np.einsum("ndk,nk->nd", self.weights[:, :, others], self.means[:, others])

    def _squares(self) -> float:
        """Return E‖Y − WF‖²."""
        total = float(np.sum((self._Y - np.einsum("ndk,nk->nd", self.weights, self.means)) ** 2))
        for k in range(self.means.shape[1]):
            s, v = self._weight_cov[k].diagonal(), self._node_cov[k].diagonal()
            squared = np.sum(self.weights[:, :, k] ** 2, axis=1)
            total += float(np.sum(squared * v + self._Y.shape[1] * s * (self.means[:, k] ** 2 + v)))
        return total

    def _scatter(self) -> tuple[list[Array], list[Array]]:
        """Return Σ_d E[w_dk w_dkᵀ] and E[f_k f_kᵀ] of each node."""
        K = self.means.shape[1]
        weights = [
            self._Y.shape[1] * self._weight_cov[k] + self.weights[:, :, k] @ self.weights[:, :, k].T
            for k in range(K)
        ]
        return weights, [self._node_cov[k] + np.outer(self.means[:, k], self.means[:, k]) for k in range(K)]

    def _maximise(self) -> None:
        """Raise the bound in the hyperparameters with q held: the noise in closed form, the kernels by L-BFGS."""
        network, (N, D) = self._network, self._Y.shape
        low, high = (float(part) for part in (network.likelihood.variance.transform.low, 10.0))
        network.likelihood.variance.assign(np.clip(self._squares() / (N * D), 1.01 * low, 0.99 * high))
        for variable, parts in zip(self._sums, self._scatter(), strict=True):
            variable.assign(sum(parts))
        variables = [*network.weight_kernel.trainable_variables, *network.kernel.trainable_variables]
        variables += network.nugget.trainable_variables
        gpflow.optimizers.Scipy().minimize(self._loss, variables, compile=False, options={"maxiter": 5})

    def _divergence(self) -> tf.Tensor:
        """Return what of the divergences depends on the kernels."""
        prior, K, D = self._network.prior(), self.means.shape[1], self._Y.shape[1]
        value = tf.zeros([], prior.noise.dtype)
        counts = float(K * D), float(K)
        for chol, scatter, count in zip(prior[:2], self._sums, counts, strict=True):
            half = tf.linalg.triangular_solve(chol, scatter)
            trace = tf.linalg.trace(tf.linalg.triangular_solve(chol, tf.transpose(half)))
            logs = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)))
            value += 0.5 * trace + count * logs
        return value


def _posterior(K: Array, prec: Array) -> Array:
    """Return (K⁻¹ + diag(prec))⁻¹."""
    root = np.sqrt(prec)
    inner = np.eye(len(K)) + root[:, None] * K * root
    return K - (K * root) @ np.linalg.solve(inner, root[:, None] * K)
