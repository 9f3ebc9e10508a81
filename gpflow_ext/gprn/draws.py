"""Predictions of a regression network that average over draws of its nodes and hyperparameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.gprn import conditional, network
from gpflow_ext.gprn.collapsed import CollapsedView, covariance
from gpflow_ext.gprn.posterior import NetworkPosterior, Parts, Seen
from gpflow_ext.gprn.sampled import node_chol, weight_gram
from gpflow_ext.numerics import batched, stacked
from gpflow_ext.numerics.batched import Rows

_SHARED = 4  # parts of a draw before its hyperparameters


class DrawsPosterior(NetworkPosterior):
    """The mixture of the exact posteriors of the weights and nodes given each draw of V and θ.

    Given a draw, whose nodes F = L_f V are known at the data, each output is a Gaussian process there with
    the covariance K_w ∘ FFᵀ.
    """

    def predictions(self, X: tf.Tensor) -> NetworkPredictions:
        """Return what the draws predict at X [X, Q]."""
        return NetworkPredictions(self, X)

    def noise(self) -> tf.Tensor:
        """See `NetworkPosterior`."""
        return tf.reduce_mean(self._model.held()[1][self._model.likelihood.variance])

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return V, F, L_f and the factors of the targets' covariances, and the hyperparameters. O(SPN³)."""
        V, stack = self._model.held()
        chol = node_chol(self._model, stack)
        F = tf.matmul(chol, V)
        cov = weight_gram(self._model, stack) * tf.matmul(F, F, transpose_b=True)
        noise = stack[self._model.likelihood.variance]
        factor = tf.linalg.cholesky(network.noisy(self._model.q.patterns.observed, cov[:, None], noise))
        chol = tf.broadcast_to(chol, [V.shape[0], *chol.shape[1:]])
        return V, F, chol, factor, *(tf.convert_to_tensor(value) for _, value in stack.values)

    def _size(self, parts: Parts) -> int:
        return int(parts[0].shape[0])

    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        rows = tf.random.stateless_uniform([number], [seed, 1], 0, self._size(parts), tf.int32)
        return [tf.gather(part, rows) for part in parts], 1

    def _seen(self, parts: Parts, Xnew: tf.Tensor, pairs: bool = False) -> Seen:
        """See `NetworkPosterior`. One draw at a time, O(SPN²XK)."""
        hyperparameters = [parameter for parameter, _ in self._model.held()[1].values]
        Xnew = tf.cast(Xnew, parts[0].dtype)

        def over(function: Callable[..., Any], number: int) -> Callable[..., Any]:
            like = parts[0].dtype if number == 1 else (parts[0].dtype,) * number

            def members(*block: tf.Tensor) -> Any:
                def one(member: tuple[tf.Tensor, ...]) -> Any:
                    index, *own = member
                    with stacked.substituted(zip(hyperparameters, own[_SHARED:], strict=True)):
                        return function(self._view(own[:_SHARED], Xnew, pairs), index, *block)

                return tf.map_fn(one, (tf.range(parts[0].shape[0]), *parts), fn_output_signature=like)

            return _compiled(members)

        return over

    def _view(self, draw: Parts, Xnew: tf.Tensor, pairs: bool) -> CollapsedView:
        """Return the posterior given one draw. O(PN²XK)."""
        V, F, chol, factor = draw
        model, K = self._model, V.shape[1]
        eye = tf.eye(K, dtype=V.dtype)
        f = conditional.condition(
            model.kernel, model.data[0], chol, Xnew, pairs, tf.convert_to_tensor(model.nugget)
        )
        cross = model.weight_kernel(model.data[0], Rows(Xnew).flat)[:, :, None] * F[:, None, :]  # [N, X, K]
        rhs = model.q.patterns.observed[:, :, None] * tf.reshape(cross, [F.shape[0], -1])
        half = tf.linalg.triangular_solve(factor, rhs)
        smoother = tf.linalg.triangular_solve(factor, half, adjoint=True)
        shape = [factor.shape[0], F.shape[0], -1, K]
        own = model.weight_kernel
        prior = batched.gram(own, Xnew) if pairs else own(Xnew, full_cov=False)
        return CollapsedView(
            f.mean(V),
            tf.reshape(f.residual, [-1, 1, 1]) * eye,
            tf.transpose(tf.reshape(smoother, shape), [0, 2, 3, 1]),
            -covariance(tf.reshape(half, shape), -prior),
        )


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that is compiled for each shape of its arguments: draw by draw it would be slow.

    TensorFlow warns of functions that are made anew, as this one is in each prediction, only where it traces
    them itself.
    """
    compiled, traced = tf.function(function, autograph=False), {}

    def call(*tensors: tf.Tensor) -> Any:
        if not tf.executing_eagerly():
            return function(*tensors)
        shapes = tuple(map(tuple, (tensor.shape for tensor in tensors)))
        if shapes not in traced:
            traced[shapes] = compiled.get_concrete_function(*tensors)
        return traced[shapes](*tensors)

    return call


class NetworkPredictions:
    """See `prediction.densities.Predictions`: f is W(x)f(x)."""

    def __init__(self, posterior: DrawsPosterior, X: tf.Tensor) -> None:
        self._posterior, self._X = posterior, X

    def f(self) -> MeanAndVariance:
        """See `Predictions`."""
        cached = self._posterior.cache is not None
        return (self._posterior.predict_f if cached else self._posterior.fused_predict_f)(self._X)

    def mean_and_var(self) -> MeanAndVariance:
        """See `Predictions`."""
        mean, var = self.f()
        return mean, var + self._posterior.noise()

    def probabilities(self) -> None:
        """See `Predictions`."""

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        return self._posterior.log_density(self._X, Y)
