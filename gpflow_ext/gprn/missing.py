"""Prediction of targets that are missing in rows of the data whose other targets are known."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.gprn.posterior import NetworkPosterior
from gpflow_ext.gprn.predictions import NetworkPredictions


class Predicting(Protocol):
    """Protocol of a network that predicts."""

    data: tuple[tf.Tensor, ...]

    def posterior(self, precompute_cache: Any = None) -> NetworkPosterior:
        """Return the posterior."""


class PredictsMissing:
    """Mixin of networks that predict missing targets in the rows of their data."""

    def predictions(self: Predicting, X: tf.Tensor) -> NetworkPredictions:
        """Return what is evaluated and served at X [X, Q]."""
        return self.posterior(None).predictions(X)

    def predict_missing(self: Predicting) -> MeanAndVariance:
        """Return mean and variance of y in the rows of the data, [N, D], for targets that are missing there.

        It uses what the other outputs of a row say about its nodes, including their white noise, whereas
        ``predict_y`` at the same inputs predicts another row. With inducing inputs there is no such gain.
        """
        posterior = self.posterior(None)
        mean, var = posterior.at_data()
        return mean, var + posterior.noise()

    def missing_log_density(self: Predicting, Y: Any, *, draws: int = 200, seed: int = 0) -> tf.Tensor:
        """Return Σ_d log p(y_nd | data) of targets [N, D] in the rows of the data, [N]; NaN counts as zero.

        See `predict_missing` and `predict_log_density`.
        """
        return self.posterior(None).log_density(None, tf.cast(Y, self.data[0].dtype), draws, seed)
