"""Predictions of a regression network that average over draws of its nodes and hyperparameters."""

from __future__ import annotations

from typing import Any

import gpflow
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.product import Product
from gpflow_ext.gprn import conditional, network, node_kernels
from gpflow_ext.gprn.collapsed import CollapsedView, covariance
from gpflow_ext.gprn.functions import of_draws
from gpflow_ext.gprn.members import Question
from gpflow_ext.gprn.posterior import Network, NetworkPosterior, Parts, Seen
from gpflow_ext.gprn.predictions import MixturePredictions
from gpflow_ext.gprn.sampled import drawn_nodes, node_chol, weight_gram
from gpflow_ext.numerics import batched, philox, stacked
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.numerics.stacked import Stack

_SHARED = 4  # parts of a draw before its hyperparameters


class DrawsPosterior(SamplesFunctions, NetworkPosterior):
    """The mixture of the exact posteriors of the weights and nodes given each draw of V and θ.

    Given a draw, whose nodes F = L_f V are known at the data, each output is a Gaussian process there with
    the covariance K_w ∘ FFᵀ.
    """

    def functions(self) -> Product:
        """See `SamplesFunctions`; each function is of a draw taken at random."""
        payload, trait, *parts = self.cache or self._cached()
        block = tf.convert_to_tensor(payload), tf.convert_to_tensor(trait)
        names = [parameter for parameter, _ in self._model.held()[1].values]
        stack = Stack(zip(names, parts[_SHARED:], strict=True))
        return of_draws(self._model, *block, parts[:_SHARED], stack)

    def predictions(self, X: tf.Tensor) -> MixturePredictions:
        """See `NetworkPosterior`."""
        return MixturePredictions(self, X)

    def noise(self) -> tf.Tensor:
        """See `NetworkPosterior`."""
        variance = tf.reduce_mean(self._model.held()[1][self._model.likelihood.variance])
        return variance if self._model.output_noise is None else variance * self._model.output_noise

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return V, F, L_f and the factors of the targets' covariances, and the hyperparameters. O(SPN³)."""
        V, stack = self._model.held()
        chol = node_chol(self._model, stack)
        F = drawn_nodes(chol, V)
        cov = weight_gram(self._model, stack) * tf.matmul(F, F, transpose_b=True)
        seen = self._model.q.seen(self._model.scales())
        cov = tf.square(seen.gain())[:, None, None] * cov[:, None]
        noise = seen.noise(stack[self._model.likelihood.variance])
        factor = tf.linalg.cholesky(network.noisy(seen.observed, cov, noise))
        chol = tf.broadcast_to(chol, [V.shape[0], *chol.shape[1:]])
        return V, F, chol, factor, *(tf.convert_to_tensor(value) for _, value in stack.values)

    def _size(self, parts: Parts) -> int:
        return int(parts[0].shape[0])

    def _chosen(self, parts: Parts, number: int, seed: int) -> tuple[Parts, int]:
        rows = philox.integers([number], [seed, 1], 0, self._size(parts))
        return [tf.gather(part, rows) for part in parts], 1

    def _seen(self, parts: Parts, Xnew: tf.Tensor | None, pairs: bool = False) -> Seen:
        """See `NetworkPosterior`. One draw at a time, O(SPN²XK)."""
        at_data, Xnew = Xnew is None, tf.cast(self._model.data[0] if Xnew is None else Xnew, parts[0].dtype)

        def ask(question: Question, *tensors: tf.Tensor) -> Any:
            asking = Asking(self._model, question, pairs, at_data)
            return Compiled(asking, rows=None)(asking.all, tuple(parts), Xnew, *tensors)

        return ask


class Asking(tf.Module):
    """Functions to compile: a question asked of one draw after the other, which would be slow otherwise.

    Parameters
    ----------
    model
        The model that holds the draws.
    question
        The question.
    pairs
        Whether the draws are seen from pairs of inputs.
    at_data
        Whether they are seen from the rows of the data, whose nodes are known.
    """

    def __init__(self, model: Network, question: Question, pairs: bool, at_data: bool = False) -> None:
        super().__init__()
        self._model, self._question, self._pairs, self._at_data = model, question, pairs, at_data

    def all(self, parts: Parts, Xnew: tf.Tensor, *tensors: tf.Tensor) -> Any:
        """Return the results for all draws, each [S, ...]; see `DrawsPosterior._parts` for ``parts``."""
        hyperparameters = [parameter for parameter, _ in self._model.held()[1].values]

        def one(member: tuple[tf.Tensor, ...]) -> Any:
            index, *own = member
            with stacked.substituted(zip(hyperparameters, own[_SHARED:], strict=True)):
                view = self._view(own[:_SHARED], Xnew)
                return self._question(self._model, view, index, *tensors)

        dtype, number = parts[0].dtype, self._question.results
        like = dtype if number == 1 else (dtype,) * number
        return one_by_one(one, (tf.range(parts[0].shape[0]), *parts), fn_output_signature=like)

    def _view(self, draw: Parts, Xnew: tf.Tensor) -> CollapsedView:
        """Return the posterior given one draw. O(PN²XK)."""
        (V, F, chol, factor), pairs = draw, self._pairs
        model, K = self._model, V.shape[1]
        if self._at_data:  # known but for rounding
            f = conditional.at_data(chol, gpflow.default_jitter())
        else:
            nugget = tf.convert_to_tensor(model.nugget)
            f = conditional.condition(model.kernel, model.data[0], chol, Xnew, pairs, nugget)
        cross = node_kernels.gram(model.weight_kernel, model.data[0], Rows(Xnew).flat)  # [N, X]
        cross = cross[:, :, None] * F[:, None, :]  # [N, X, K]
        seen = model.q.seen(model.scales())
        gain = seen.gain()[:, None, None]
        rhs = gain * seen.observed[:, :, None] * tf.reshape(cross, [F.shape[0], -1])
        half = tf.linalg.triangular_solve(factor, rhs)
        smoother = gain * tf.linalg.triangular_solve(factor, half, adjoint=True)
        shape = [factor.shape[0], F.shape[0], -1, K]
        own = model.weight_kernel
        prior = batched.gram(own, Xnew) if pairs else own(Xnew, full_cov=False)
        return CollapsedView(
            f.mean(V),
            tf.reshape(conditional.on_diagonal(f.residual, K, pairs), [-1, K, K]),
            tf.transpose(tf.reshape(smoother, shape), [0, 2, 3, 1]),
            -tf.square(gain)[..., None] * covariance(tf.reshape(half, shape), -prior),
        )
