"""A trained model of standardised targets as a model of the targets in their own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import InputData, MeanAndVariance, Parameter, RegressionData
from gpflow.models import GPModel

from gpflow_ext.prediction import densities


class RescaledTargets(GPModel):
    """Model of y = shift + scale · z, where a trained model predicts z.

    Moments of f are in the units of y too. It is not trained itself.

    Parameters
    ----------
    member
        The model of z, of P real numbers.
    shift, scale
        In the units of y, [P] each, the scale positive.
    """

    def __init__(self, member: GPModel, shift: npt.ArrayLike, scale: npt.ArrayLike) -> None:
        super().__init__(member.kernel, member.likelihood, member.mean_function, member.num_latent_gps)
        self.member = member
        self.shift, self.scale = (Parameter(np.asarray(part), trainable=False) for part in (shift, scale))

    def rescaled(self, predictions: densities.Predictions) -> densities.RescaledPredictions:
        """Return predictions of z as those of y."""
        return densities.RescaledPredictions(
            predictions, *map(tf.convert_to_tensor, (self.shift, self.scale))
        )

    def predictions(self, X: tf.Tensor) -> densities.RescaledPredictions:
        """Return what is predicted at X [N, D]."""
        return self.rescaled(densities.predictions(self.member, X))

    def maximum_log_likelihood_objective(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raise: the model of z is trained by itself."""
        raise NotImplementedError("train the model of standardised targets, then rescale it")

    @inherit_check_shapes
    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Return mean and variance of f at Xnew [N, D], each [N, P], in the units of y."""
        densities.refuse_covariances(full_cov, full_output_cov)
        return self.predictions(Xnew).f()

    @inherit_check_shapes
    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Return mean and variance of y at Xnew [N, D], each [N, P]."""
        densities.refuse_covariances(full_cov, full_output_cov)
        return self.predictions(Xnew).mean_and_var()

    @inherit_check_shapes
    def predict_log_density(
        self, data: RegressionData, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Return log p(yₙ | xₙ) as the model of z has it, of Y [N, P] at X [N, D], [N]; NaN is left out."""
        densities.refuse_covariances(full_cov, full_output_cov)
        X, Y = data
        Y = tf.convert_to_tensor(Y)
        units = tf.where(tf.math.is_nan(Y), tf.zeros_like(Y), tf.math.log(tf.convert_to_tensor(self.scale)))
        z = (Y - self.shift) / self.scale
        return self.member.predict_log_density((X, z)) - tf.reduce_sum(units, axis=-1)
