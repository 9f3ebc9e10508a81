"""The mixture posterior of Nguyen & Bonilla (2013) for regression networks, as a baseline.

q(W, F) = 1/Q Σ_q N(u_q, σ_q² I), of all weights and nodes together (Gershman et al. 2012). The expected log density of
targets, weights and nodes is in closed form for each component; the entropy is bounded from below by Jensen's
inequality, −1/Q Σ_q log 1/Q Σ_r N(u_q; u_r, (σ_q² + σ_r²) I).
"""

from __future__ import annotations

import time
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]
LOG_2PI = float(np.log(2.0 * np.pi))


class Mixture:
    """Complete targets [N, D]; kernels and noise of the network that is given are trained in place.

    The components start at the nodes [N, K] that are given and at what the weights are in independent regressions on
    them, scattered a little to part them.
    """

    def __init__(self, network: Any, X: Array, Y: Array, start: Array, components: int, seed: int) -> None:
        self._network, self._X, self._Y = network, tf.constant(X), tf.constant(Y)
        rng, (N, D), K = np.random.default_rng(seed), Y.shape, start.shape[1]
        prior = network.prior()
        K_w, noise = (prior.weights @ tf.transpose(prior.weights)).numpy(), float(prior.noise)
        cov = noise * np.eye(N) + sum(K_w * np.outer(node, node) for node in start.T)
        weights = np.stack([K_w @ (node[:, None] * np.linalg.solve(cov, Y)) for node in start.T], axis=2)
        self.nodes = tf.Variable(start + 0.1 * rng.standard_normal((components, N, K)))
        self.weights = tf.Variable(weights + 0.01 * rng.standard_normal((components, N, D, K)))
        self.log_scales = tf.Variable(np.full(components, np.log(0.05)))

    def elbo(self) -> tf.Tensor:
        """Return the bound."""
        return tf.reduce_mean(self._expected()) + self._entropy()

    def train(self, seconds: float) -> None:
        """Maximise the bound in all by L-BFGS, for about so long."""
        network, end = self._network, time.perf_counter() + seconds
        variables = [self.nodes, self.weights, self.log_scales, *network.weight_kernel.trainable_variables]
        variables += [*network.kernel.trainable_variables, *network.nugget.trainable_variables]
        variables += network.likelihood.trainable_variables
        loss = tf.function(lambda: -self.elbo(), autograph=False)
        while time.perf_counter() < end:
            found = gpflow.optimizers.Scipy().minimize(
                loss, variables, compile=False, options={"maxiter": 50}
            )
            if found.success:
                return

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return mean and variance of y at X, each [X, D]."""
        network, prior = self._network, self._network.prior()
        means, seconds = [], []
        for q, scale in enumerate(tf.exp(2.0 * self.log_scales).numpy()):
            parts = []
            for kernel, chol, values, extra in (
                (network.weight_kernel, prior.weights, self.weights[q], 0.0),
                (network.kernel, prior.nodes, self.nodes[q], float(network.nugget.numpy())),
            ):
                K = (chol @ tf.transpose(chol)).numpy()
                gain = np.linalg.solve(K, kernel(self._X, X).numpy())
                own = kernel(X, full_cov=False).numpy() + extra - np.sum(gain * (K @ gain), axis=0)
                spread = np.maximum(own, 0.0) + scale * np.sum(gain**2, axis=0)
                parts.append((np.einsum("nx,n...->x...", gain, values.numpy()), spread))
            (w, s), (f, v) = parts
            mean = np.einsum("xdk,xk->xd", w, f)
            var = np.einsum("xdk,xk->xd", w**2, np.repeat(v[:, None], f.shape[1], 1))
            var += (s[:, None] * (f**2 + v[:, None])).sum(axis=1, keepdims=True)
            means.append(mean)
            seconds.append(var + mean**2)
        mean = np.mean(means, axis=0)
        return mean, np.mean(seconds, axis=0) - mean**2 + float(prior.noise)

    def _expected(self) -> tf.Tensor:
        """Return E[log p(Y, W, F)] under each component, [Q]."""
        prior = self._network.prior()
        (N, D), K = self._Y.shape, self.nodes.shape[-1]
        var = tf.exp(2.0 * self.log_scales)
        error = self._Y - tf.einsum("qndk,qnk->qnd", self.weights, self.nodes)
        squares = tf.reduce_sum(error**2, axis=[1, 2]) + N * D * K * var**2
        squares += var * (
            tf.reduce_sum(self.weights**2, axis=[1, 2, 3]) + D * tf.reduce_sum(self.nodes**2, axis=[1, 2])
        )
        value = -0.5 * (N * D * (LOG_2PI + tf.math.log(prior.noise)) + squares / prior.noise)
        flat = tf.reshape(self.weights, [self.weights.shape[0], N, D * K])
        for chol, values in ((prior.weights, flat), (prior.nodes, self.nodes)):
            count = float(values.shape[-1])
            inverse = tf.linalg.triangular_solve(chol, tf.eye(N, dtype=chol.dtype))
            solved = tf.reduce_sum(tf.matmul(inverse, values) ** 2, axis=[1, 2])
            logs = 2.0 * tf.reduce_sum(tf.math.log(tf.linalg.diag_part(chol)))
            value -= 0.5 * (solved + count * (var * tf.reduce_sum(inverse**2) + logs + N * LOG_2PI))
        return value

    def _entropy(self) -> tf.Tensor:
        """Return the lower bound of the entropy of the mixture."""
        parts = [tf.reshape(part, [part.shape[0], -1]) for part in (self.nodes, self.weights)]
        centres = tf.concat(parts, axis=1)
        size = float(centres.shape[1])
        var = tf.exp(2.0 * self.log_scales)
        total = var[:, None] + var
        apart = tf.reduce_sum((centres[:, None] - centres) ** 2, axis=2)
        logs = -0.5 * (size * (LOG_2PI + tf.math.log(total)) + apart / total)
        return -tf.reduce_mean(tf.reduce_logsumexp(logs, axis=1) - np.log(float(centres.shape[0])))
