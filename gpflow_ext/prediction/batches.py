"""Predictions of many rows: compiled once for each structure of a model, for batches of any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.compiled import Preferred
from gpflow_ext.prediction import densities
from gpflow_ext.prediction.classes import class_probabilities


class Predicting(tf.Module):
    """Functions to compile: predictions as functions of a model's variables and data, and of new rows.

    Parameters
    ----------
    model
        Any model with ``predict_f`` and a ``likelihood``; one with a ``posterior`` for what is cached.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def scored(self, X: tf.Tensor, Y: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return log densities [B] and "probabilities" [B, K] or else "mean" [B, P], for X [B, D], Y [B, P].

        The densities of rows whose target is not a class are those of the first class.
        """
        predictions = densities.predictions(self._model, X)
        probabilities = predictions.probabilities()
        if probabilities is None:
            return {"log_density": predictions.log_density(Y), "mean": predictions.mean_and_var()[0]}
        known = tf.range(tf.shape(probabilities)[-1])
        labels = Y[:, :1]
        labels = tf.where(tf.reduce_any(labels == tf.cast(known, Y.dtype), 1, keepdims=True), labels, 0.0)
        return {"log_density": predictions.log_density(labels), "probabilities": probabilities}

    def moments(self, X: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and the variance of y at X [B, D], each [B, P]."""
        return densities.predictions(self._model, X).mean_and_var()

    def probabilities(self, X: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of the classes at X [B, D], [B, K]."""
        found = densities.predictions(self._model, X).probabilities()
        if found is None:
            raise ValueError(f"{type(self._model.likelihood).__name__} has no classes")
        return found

    def cache(self) -> tuple[tf.Tensor, ...]:
        """Return what the model's posterior computes before it predicts, each with an axis of one in front.

        To be called as it is: GPflow's own cannot be traced. The axis is there because the first one of an
        argument, here of `cached_probabilities`, is open.
        """
        return tuple(part.value[None] for part in self._posterior()._precompute())

    def cached_probabilities(self, cache: tuple[tf.Tensor, ...], X: tf.Tensor) -> tf.Tensor:
        """Return the probabilities of the classes at X [B, D], [B, K], from the `cache`."""
        posterior = self._posterior()
        posterior.cache = tuple(part[0] for part in cache)
        return class_probabilities(self._model.likelihood, X, *posterior.predict_f(X))

    def _posterior(self) -> gpflow.posteriors.AbstractPosterior:
        return self._model.posterior(PrecomputeCacheType.NOCACHE)


class Predicted:
    """Calls the methods of `Predicting` for one model, compiled.

    They run eagerly for a model that has a ``predict_f`` of its own instance, and where a graph would be of
    little use: for what is no GPflow model, averages over draws, or shares its graphs with no other model.

    Parameters
    ----------
    model
        As for `Predicting`.
    jit_compile
        Compile with XLA, with static shapes.
    lasting
        Whether enough will be predicted that a graph is worth tracing in any case.
    """

    def __init__(self, model: Any, jit_compile: bool = False, lasting: bool = False) -> None:
        self.of = Predicting(model)
        simple = isinstance(model, gpflow.models.GPModel) and not hasattr(model, "predictions")
        compiled = (simple or lasting) and "predict_f" not in vars(model)
        self._call = Preferred(self.of, jit_compile, lasting) if compiled else None

    def __call__(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of ``of``."""
        return method(*arguments) if self._call is None else self._call(method, *arguments)
