"""What a regression network predicts; see `prediction.densities.Predictions`. f is W(x)f(x)."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.gprn import outputs


class NetworkPredictions:
    """By the moments of y, each output with its noise; densities are those of the Gaussian with them."""

    def __init__(self, posterior: Any, X: tf.Tensor) -> None:
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
        """See `Predictions`; missing targets count zero."""
        mean, var = self.mean_and_var()
        known, there = outputs.known(Y)
        terms = tf.math.log(2.0 * math.pi * var) + tf.square(known - mean) / var
        return -0.5 * tf.reduce_sum(there * terms, axis=-1)


class MixturePredictions(NetworkPredictions):
    """By draws, over which densities are averaged."""

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        return self._posterior.log_density(self._X, Y)
