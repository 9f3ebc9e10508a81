"""Predictions of many rows: compiled once for each structure of a model, for batches of any length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gpflow
import numpy.typing as npt
import tensorflow as tf
from gpflow.posteriors import (
    AbstractPosterior,
    GPRPosterior,
    PrecomputeCacheType,
    SGPRPosterior,
    VGPPosterior,
)

from gpflow_ext.compiled import Preferred
from gpflow_ext.prediction import densities
from gpflow_ext.prediction.composed import ComposedModel
from gpflow_ext.prediction.densities import Predictions

Array = npt.NDArray[Any]
Cache = tuple[Any, ...]  # tensors, or for a model made of others the cache of each
_OF_GPFLOW = GPRPosterior, SGPRPosterior, VGPPosterior  # which compute it for each fused prediction
_MANY = 1000  # data whose share in a prediction is worth a graph of its own


class Predicting(tf.Module):
    """Functions to compile: predictions as functions of a model's variables and data, and of new rows.

    With a ``cache`` they are those of the model's posterior that has computed it, else of its ``predict_f``.

    Parameters
    ----------
    model
        Any model with ``predict_f`` and a ``likelihood``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def scored(self, X: tf.Tensor, Y: tf.Tensor, cache: Cache = ()) -> dict[str, tf.Tensor]:
        """Return log densities [B] and "probabilities" [B, K] or else "mean" [B, P], for X [B, D], Y [B, P].

        The densities of rows whose target is not a class are those of the first class.
        """
        predictions = self._at(X, cache)
        probabilities = predictions.probabilities()
        if probabilities is None:
            return {"log_density": predictions.log_density(Y), "mean": predictions.mean_and_var()[0]}
        known = tf.range(tf.shape(probabilities)[-1])
        labels = Y[:, :1]
        labels = tf.where(tf.reduce_any(labels == tf.cast(known, Y.dtype), 1, keepdims=True), labels, 0.0)
        return {"log_density": predictions.log_density(labels), "probabilities": probabilities}

    def moments(self, X: tf.Tensor, cache: Cache = ()) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean and the variance of y at X [B, D], each [B, P]."""
        return self._at(X, cache).mean_and_var()

    def probabilities(self, X: tf.Tensor, cache: Cache = ()) -> tf.Tensor:
        """Return the probabilities of the classes at X [B, D], [B, K]."""
        found = self._at(X, cache).probabilities()
        if found is None:
            raise ValueError(f"{type(self._model.likelihood).__name__} has no classes")
        return found

    def cache(self) -> Cache:
        """Return what the model's posterior computes before it predicts, each with an axis of one in front.

        Nothing where an object or a subclass has a ``predict_f`` of its own, which the posterior does not
        follow. To be called as it is: GPflow's own cannot be traced. The axis is there because the first one
        of an argument is open.
        """
        if self._made_of_parts():
            return tuple(part.cache() for part in self._parts())
        if not self._together("predict_f", "posterior"):
            return ()
        return tuple(part.value[None] for part in self._posterior()._precompute())

    def repeated(self, least: int) -> Cache:
        """Return the `cache` if each prediction computes just that, and of as many data or more."""
        if self._made_of_parts():
            each = tuple(part.repeated(least) for part in self._parts())
            return each if any(each) else ()
        data = getattr(self._model, "data", None)
        if data is None or int(tf.shape(data[0])[0]) < least or not self._together("predict_f", "posterior"):
            return ()
        posterior = self._posterior()
        exact = isinstance(posterior, _OF_GPFLOW) or getattr(posterior, "repeats_cache", False)
        return self.cache() if exact else ()

    def _made_of_parts(self) -> bool:
        return isinstance(self._model, ComposedModel) and self._together("predict_f", "predictions")

    def _parts(self) -> list[Predicting]:
        return [Predicting(part) for part in self._model.parts()]

    def _together(self, *methods: str) -> bool:
        """Tell whether what the model predicts by is defined where all of these are."""
        levels = (self._model, *type(self._model).__mro__)
        own = next((level for level in levels if {"predict_f", "predictions"} & vars(level).keys()), object)
        return vars(own).keys() >= {*methods}

    def _at(self, X: tf.Tensor, cache: Cache) -> Predictions:
        if not cache:
            return densities.predictions(self._model, X)
        if self._made_of_parts():
            each = zip(self._parts(), cache, strict=True)
            return self._model.combined([part._at(X, of_part) for part, of_part in each])
        posterior = self._posterior()
        posterior.cache = tuple(part[0] for part in cache)
        if hasattr(posterior, "predictions"):  # of draws, or of a network
            return posterior.predictions(X)
        return densities.GaussianPredictions(self._model.likelihood, X, *posterior.predict_f(X))

    def _posterior(self) -> AbstractPosterior:
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

    def in_batches(self, method: Callable[..., Any], *arrays: Array, size: int) -> list[Any]:
        """Return what a method of ``of`` says of each batch of ``size`` rows of arrays [N, ...]."""
        begins = range(0, len(arrays[0]), size)
        if len(begins) == 1:
            return [self(method, *map(tf.constant, arrays))]
        return list(self.over(method, ([part[begin : begin + size] for part in arrays] for begin in begins)))

    def over(self, method: Callable[..., Any], batches: Iterable[Iterable[Array]]) -> Iterator[Any]:
        """Yield what a method of ``of`` says of each of several batches.

        They share what the posterior of the model computes of its data.
        """
        cache = self.of.repeated(0 if self._call is None else _MANY)
        for batch in batches:
            yield self(method, *map(tf.constant, batch), *([cache] if cache else []))
