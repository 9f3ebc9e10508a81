"""A trained model of standardised targets as a model of the targets in their own units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.base import MeanAndVariance, Parameter
from gpflow.models import GPModel

from gpflow_ext.prediction import densities
from gpflow_ext.prediction.composed import ComposedModel, PerOutput


class RescaledTargets(ComposedModel):
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

    def parts(self) -> Sequence[GPModel]:
        """See `ComposedModel`."""
        return [self.member]

    def combined(self, each: Sequence[densities.Predictions]) -> densities.RescaledPredictions:
        """See `ComposedModel`."""
        (of_z,) = each
        return densities.RescaledPredictions(of_z, *map(tf.convert_to_tensor, (self.shift, self.scale)))

    def some_outputs(self, each: Sequence[PerOutput | None]) -> PerOutput | None:
        """See `ComposedModel`."""
        (of_z,) = each
        if of_z is None:
            return None

        def of_y(X: tf.Tensor, outputs: tf.Tensor) -> MeanAndVariance:
            shift, scale = (
                tf.gather(tf.convert_to_tensor(part), outputs) for part in (self.shift, self.scale)
            )
            mean, var = of_z(X, outputs)
            return shift + scale * mean, tf.square(scale) * var

        return of_y

    def _log_density(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | xₙ) as the model of z has it, NaN left out, [N]."""
        units = tf.where(tf.math.is_nan(Y), tf.zeros_like(Y), tf.math.log(tf.convert_to_tensor(self.scale)))
        z = (Y - self.shift) / self.scale
        return self.member.predict_log_density((X, z)) - tf.reduce_sum(units, axis=-1)
