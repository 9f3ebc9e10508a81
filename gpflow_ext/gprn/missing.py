"""Targets that are missing in rows of the data whose other targets are known."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.gprn.posterior import NetworkPosterior


class Predicting(Protocol):
    """What is asked of a network."""

    data: tuple[tf.Tensor, ...]

    def posterior(self, precompute_cache: Any = None) -> NetworkPosterior:
        """Return the posterior."""


class PredictsMissing:
    """A base of networks that predict what is missing in the rows of their data."""

    def predict_missing(self: Predicting) -> MeanAndVariance:
        """Return mean and variance of y in the rows of the data, [N, D], for targets that are missing there.

        What other outputs say of a row's nodes counts, their white noise included, which at the same inputs
        ``predict_y`` takes for that of another row. Inducing inputs know nothing of it.
        """
        posterior = self.posterior(None)
        mean, var = posterior.at_data()
        return mean, var + posterior.noise()

    def missing_log_density(self: Predicting, Y: Any, *, draws: int = 200, seed: int = 0) -> tf.Tensor:
        """Return Σ_d log p(y_nd | data) of targets [N, D] in the rows of the data, NaN counts zero; [N].

        See `predict_missing` and `predict_log_density`.
        """
        return self.posterior(None).log_density(None, tf.cast(Y, self.data[0].dtype), draws, seed)
