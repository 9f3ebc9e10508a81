"""Predictions of y from those of f: from one Gaussian, or from the mixture over draws."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.likelihoods.classes import class_probabilities
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.numerics.target_moments import target_moments

NODES = 128  # numbers that the quadrature of a likelihood may hold for each latent function of a row


class Predictions(Protocol):
    """Predictions at inputs [N, D]; what is not asked for is not computed."""

    def f(self) -> MeanAndVariance:
        """Return mean and variance of the latent functions, each [N, P]."""

    def mean_and_var(self) -> MeanAndVariance:
        """Return mean and variance of y, each [N, Q]."""

    def probabilities(self) -> tf.Tensor | None:
        """Return the probabilities of the classes [N, K]; ``None`` where the likelihood has no classes."""

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | xₙ) of targets [N, Q], [N]."""


class GaussianPredictions:
    """Predictions from f ~ N(mean, var), each [N, P]."""

    def __init__(
        self, likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor
    ) -> None:
        self._likelihood, self._X, self._f = likelihood, X, (mean, var)
        self._y: MeanAndVariance | None = None

    def f(self) -> MeanAndVariance:
        """See `Predictions`."""
        return self._f

    def mean_and_var(self) -> MeanAndVariance:
        """See `Predictions`."""
        if self._y is None:
            self._y = target_moments(self._likelihood, self._X, *self._f)
        return self._y

    def probabilities(self) -> tf.Tensor | None:
        """See `Predictions`."""
        if _of_indicators(self._likelihood):
            return self.mean_and_var()[0]
        return class_probabilities(self._likelihood, self._X, *self._f)

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        return log_predictive(self._likelihood, self._X, *self._f, Y)


class MixturePredictions:
    """Predictions of the mixture (1/S) Σ_s p(y | f), f ~ N(mean_s, var_s), each [S, N, P].

    Densities and probabilities are averaged, never means and variances of f (Hensman et al. 2015, section 3).
    ``stack`` holds the likelihood's own parameters if these were drawn too.
    """

    def __init__(
        self,
        likelihood: gpflow.likelihoods.Likelihood,
        stack: Stack,
        X: tf.Tensor,
        mean: tf.Tensor,
        var: tf.Tensor,
    ) -> None:
        self._likelihood, self._stack, self._X, self._f = likelihood, stack, X, (mean, var)
        self._y: MeanAndVariance | None = None

    def f(self) -> MeanAndVariance:
        """See `Predictions`."""
        return _moments(*self._f)

    def mean_and_var(self) -> MeanAndVariance:
        """See `Predictions`."""
        if self._y is None:
            self._y = _moments(*self._each(functools.partial(target_moments, self._likelihood)))
        return self._y

    def probabilities(self) -> tf.Tensor | None:
        """See `Predictions`."""
        if _of_indicators(self._likelihood):
            return self.mean_and_var()[0]
        one = class_probabilities(self._likelihood, self._X[:1], *(part[0, :1] for part in self._f))
        if one is None:
            return None
        found = self._each(lambda X, mean, var: class_probabilities(self._likelihood, X, mean, var))
        return tf.reduce_mean(found, axis=0)

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        found = self._each(functools.partial(log_predictive, self._likelihood), Y)
        return tf.reduce_logsumexp(found, axis=0) - math.log(found.shape[0])

    def _each(self, function: Any, *targets: tf.Tensor) -> Any:
        """Return function(X, mean_s, var_s, *targets), [S, N, ...], by blocks of draws and of rows."""
        X, (mean, var) = self._X, self._f
        S, N, P = mean.shape
        if N is None:
            return stacked.per_datum(function, self._likelihood, self._stack, X, mean, var, *targets)
        size = stacked.ELEMENTS // (P * NODES + X.shape[-1])
        draws, rows = max(size // max(N, 1), 1), max(size, 1)

        def block(s: slice, n: slice) -> Any:
            some = X[n], mean[s, n], var[s, n], *(part[n] for part in targets)
            return stacked.per_datum(function, self._likelihood, self._stack.members(s), *some)

        blocks = stacked.slices(N, rows)
        along = [_joined([block(s, n) for n in blocks], axis=1) for s in stacked.slices(S, draws)]
        return _joined(along, axis=0)


class WeightedPredictions:
    """Predictions of the mixture Σ_k w_k p_k(y | x) of those of K models; the weights [K] sum to one."""

    def __init__(self, each: Sequence[Predictions], weights: tf.Tensor) -> None:
        self._each, self._weights = each, weights

    def f(self) -> MeanAndVariance:
        """See `Predictions`."""
        return self._mixed([one.f() for one in self._each])

    def mean_and_var(self) -> MeanAndVariance:
        """See `Predictions`."""
        return self._mixed([one.mean_and_var() for one in self._each])

    def probabilities(self) -> tf.Tensor | None:
        """See `Predictions`."""
        found = [one.probabilities() for one in self._each]
        return None if found[0] is None else tf.tensordot(self._weights, tf.stack(found), 1)

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        found = tf.stack([one.log_density(Y) for one in self._each], axis=-1)  # [N, K]
        return tf.reduce_logsumexp(found + tf.math.log(self._weights), axis=-1)

    def _mixed(self, moments: Sequence[MeanAndVariance]) -> MeanAndVariance:
        """Return the mean, and the mean of the variances plus the variance of the means.

        A model of weight 0 adds nothing, even where its variance is infinite.
        """
        used = self._weights[:, None, None] > 0.0
        means, variances = (
            tf.where(used, tf.stack(parts), 0.0)
            for parts in zip(*moments, strict=True)  # [K, N, P]
        )
        mean = tf.tensordot(self._weights, means, 1)
        spread = variances + tf.square(means - mean)
        return mean, tf.tensordot(self._weights, spread, 1)


class RescaledPredictions:
    """Predictions of shift + scale · z, [P] each, from those of z."""

    def __init__(self, of_z: Predictions, shift: tf.Tensor, scale: tf.Tensor) -> None:
        self._of_z, self._shift, self._scale = of_z, shift, scale

    def f(self) -> MeanAndVariance:
        """See `Predictions`."""
        return self._moments(*self._of_z.f())

    def mean_and_var(self) -> MeanAndVariance:
        """See `Predictions`."""
        return self._moments(*self._of_z.mean_and_var())

    def probabilities(self) -> tf.Tensor | None:
        """See `Predictions`."""
        return None

    def log_density(self, Y: tf.Tensor) -> tf.Tensor:
        """See `Predictions`."""
        units = tf.reduce_sum(tf.math.log(self._scale))
        return self._of_z.log_density((Y - self._shift) / self._scale) - units

    def _moments(self, mean: tf.Tensor, var: tf.Tensor) -> MeanAndVariance:
        return self._shift + self._scale * mean, tf.square(self._scale) * var


def _joined(parts: list[Any], axis: int) -> Any:
    return tf.nest.map_structure(lambda *each: tf.concat(each, axis), *parts)


def _of_indicators(likelihood: gpflow.likelihoods.Likelihood) -> bool:
    """Tell whether the mean of y is that of the indicators of the classes: their probabilities."""
    return getattr(likelihood, "mean_of_indicators", False)


def _moments(mean: tf.Tensor, var: tf.Tensor) -> MeanAndVariance:
    """Return the mean of means [S, N, P], and the mean of the variances plus the variance of the means."""
    average = tf.reduce_mean(mean, axis=0)
    return average, tf.reduce_mean(var, axis=0) + tf.reduce_mean((mean - average) ** 2, axis=0)


def predictions(model: Any, X: tf.Tensor) -> Predictions:
    """Return what a model, or a posterior with a likelihood of its own, predicts at X [N, D]."""
    own = getattr(model, "predictions", None)
    return GaussianPredictions(model.likelihood, X, *model.predict_f(X)) if own is None else own(X)
