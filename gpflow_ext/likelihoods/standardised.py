"""Standardised targets: a likelihood of targets in any units, by a shift and a scale."""

from __future__ import annotations

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import Likelihood

from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.numerics.target_moments import target_moments


class Standardised(Likelihood):
    """Likelihood of y = shift + scale · z, where z has a likelihood such as ``Gaussian`` or ``StudentT``.

    The latent functions and the noise are in the units of z, which is of order one; data, predictions and
    densities are in those of y. So a model of targets in any units starts from the same hyperparameters, and
    GPflow's lower bound of 1e-6 on the noise variance is relative to the variance of the targets.

    Parameters
    ----------
    likelihood
        The likelihood of z, real numbers [..., P].
    shift, scale
        In the units of y, [P] each, the scale positive. They are not trained.

    Raises
    ------
    ValueError
        For other shapes, or a scale that is not positive and finite.
    """

    def __init__(self, likelihood: Likelihood, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        super().__init__(likelihood.input_dim, likelihood.latent_dim, likelihood.observation_dim)
        begin, unit = np.atleast_1d(shift), np.atleast_1d(scale)
        if begin.ndim != 1 or begin.shape != unit.shape:
            raise ValueError(f"shift and scale must be [P]; their shapes are {begin.shape}, {unit.shape}")
        if not (np.isfinite(begin).all() and np.isfinite(unit).all() and (unit > 0.0).all()):
            raise ValueError("shift must be finite, and scale finite and positive")
        self.likelihood = likelihood
        self.shift = gpflow.Parameter(begin, trainable=False)
        self.scale = gpflow.Parameter(unit, trainable=False)

    def _standard(self, Y: TensorType) -> tf.Tensor:
        return (tf.convert_to_tensor(Y) - self.shift) / self.scale

    def _density(self, of_z: tf.Tensor) -> tf.Tensor:
        """Return the log density of y from that of z."""
        return of_z - tf.reduce_sum(tf.math.log(tf.convert_to_tensor(self.scale)))

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        return self._density(self.likelihood.log_prob(X, F, self._standard(Y)))

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._density(self.likelihood.variational_expectations(X, Fmu, Fvar, self._standard(Y)))

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._density(log_predictive(self.likelihood, X, Fmu, _from_zero(Fvar), self._standard(Y)))

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        mean, var = target_moments(self.likelihood, X, Fmu, _from_zero(Fvar))
        return self.shift + self.scale * mean, tf.square(self.scale) * var

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self.shift + self.scale * self.likelihood.conditional_mean(X, F)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return tf.square(self.scale) * self.likelihood.conditional_variance(X, F)


def _from_zero(Fvar: TensorType) -> tf.Tensor:
    """Return a variance that the rounding of a posterior without noise has not left below zero."""
    return tf.nn.relu(tf.convert_to_tensor(Fvar))
