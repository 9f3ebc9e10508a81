"""Predictions that average over draws of the parameters of a sparse model."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext import stacked
from gpflow_ext.classes import class_probabilities
from gpflow_ext.stacked import Stack

BLOCK = 32  # draws treated at once: memory O(BLOCK·M·N)


class DrawnModel(Protocol):
    """What the posterior reads from its model."""

    likelihood: gpflow.likelihoods.Likelihood

    def gram(self, stack: Stack) -> tf.Tensor:
        """Return K_uu of each member, [S or 1, M, M]."""

    def moments(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> MeanAndVariance:
        """Return mean and variance of f(X) given each member, [S, N, P]."""

    def covariance(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor) -> MeanAndVariance:
        """Return mean [S, N, P] and covariance [S or 1, N, N] of f(X) given each member."""


class DrawsPosterior(tf.Module):
    """The mixture (1/S) Σ_s p(· | draw s), with the Cholesky factors of K_uu of all draws cached.

    Densities and probabilities are averaged, never means and variances (Hensman et al. 2015, section 3).

    Parameters
    ----------
    model
        The model.
    stack
        The draws, [S, *shape] of each sampled parameter.
    """

    def __init__(self, model: DrawnModel, stack: Stack) -> None:
        super().__init__()
        self._model, self._stack = model, stack
        self._chol = tf.linalg.cholesky(model.gram(stack))
        self._size = int(stack.values[0][1].shape[0])

    def predict_f(
        self, Xnew: tf.Tensor, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Return mean [N, P] and variance [N, P] of f, or its covariance [P, N, N] with ``full_cov``."""
        if full_output_cov:
            raise NotImplementedError(
                "Given a draw the latent functions are independent: leave out full_output_cov."
            )
        Xnew = tf.convert_to_tensor(Xnew)
        if not full_cov:
            return self._mixture(lambda stack, chol: self._model.moments(stack, Xnew, chol))
        parts = self._blocks(lambda stack, chol: self._model.covariance(stack, Xnew, chol))
        mean, cov = (tf.concat(part, axis=0) for part in zip(*parts, strict=True))
        apart = mean - tf.reduce_mean(mean, axis=0)  # [S, N, P]
        between = tf.einsum("snp,smp->pnm", apart, apart) / self._size
        return tf.reduce_mean(mean, axis=0), tf.reduce_mean(cov, axis=0) + between

    def predict_mean_and_var(self, Xnew: tf.Tensor) -> MeanAndVariance:
        """Return the mean and variance of y, each [N, Q]."""
        return self._mixture(
            lambda stack, chol: self._of_likelihood("predict_mean_and_var", stack, chol, Xnew)
        )

    def predict_log_density(self, Xnew: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return the log density of Y [N, Q], [N]."""
        parts = self._blocks(
            lambda stack, chol: self._of_likelihood("predict_log_density", stack, chol, Xnew, Y)
        )
        return tf.reduce_logsumexp(tf.concat(parts, axis=0), axis=0) - math.log(self._size)

    def class_probabilities(self, Xnew: tf.Tensor) -> tf.Tensor | None:
        """Return the probabilities of the classes [N, K], or ``None`` where the likelihood has no classes."""
        likelihood = self._model.likelihood

        def block(stack: Stack, chol: tf.Tensor) -> tf.Tensor:
            moments = self._model.moments(stack, Xnew, chol)
            return stacked.per_datum(
                lambda X, mean, var: class_probabilities(likelihood, X, mean, var),
                likelihood,
                stack,
                Xnew,
                *moments,
            )

        if (
            class_probabilities(likelihood, Xnew[:1], *(part[:1] for part in self.predict_f(Xnew[:1])))
            is None
        ):
            return None
        return tf.add_n([tf.reduce_sum(part, axis=0) for part in self._blocks(block)]) / self._size

    def _of_likelihood(
        self, method: str, stack: Stack, chol: tf.Tensor, X: tf.Tensor, *targets: tf.Tensor
    ) -> Any:
        moments = self._model.moments(stack, X, chol)
        likelihood = self._model.likelihood
        return stacked.per_datum(getattr(likelihood, method), likelihood, stack, X, *moments, *targets)

    def _mixture(self, moments: Callable[[Stack, tf.Tensor], MeanAndVariance]) -> MeanAndVariance:
        """Return the mean of the means, and the mean of the variances plus the variance of the means."""
        mean, var = (tf.concat(part, axis=0) for part in zip(*self._blocks(moments), strict=True))
        average = tf.reduce_mean(mean, axis=0)
        return average, tf.reduce_mean(var, axis=0) + tf.reduce_mean((mean - average) ** 2, axis=0)

    def _blocks(self, function: Callable[[Stack, tf.Tensor], Any]) -> list[Any]:
        """Return the results for the draws, `BLOCK` at a time."""
        results = []
        for begin in range(0, self._size, BLOCK):
            block = slice(begin, begin + BLOCK)
            stack = Stack((parameter, value[block]) for parameter, value in self._stack.values)
            results.append(function(stack, self._chol[block] if self._chol.shape[0] != 1 else self._chol))
        return results
