"""Lower triangular factors with a positive diagonal, as functions of unconstrained vectors."""

from __future__ import annotations

import tensorflow as tf
import tensorflow_probability as tfp

_FILLED = tfp.bijectors.FillTriangular()


class PositiveTriangular(tfp.bijectors.Bijector):
    """Takes vectors [..., n(n + 1)/2] to lower triangular matrices [..., n, n] with a positive diagonal.

    The same function as TensorFlow Probability's ``FillScaleTriL(diag_shift=least)``, which is several
    bijectors within each other: a parameter with it takes three times as long to make.

    Parameters
    ----------
    least
        What is added to the softplus that the diagonal is of.
    """

    def __init__(self, least: float = 1e-6, name: str = "positive_triangular") -> None:
        parameters = dict(locals())
        self._least = least
        super().__init__(
            forward_min_event_ndims=1, inverse_min_event_ndims=2, parameters=parameters, name=name
        )

    def _forward(self, x: tf.Tensor) -> tf.Tensor:
        filled = tfp.math.fill_triangular(x)
        diagonal = tf.math.softplus(tf.linalg.diag_part(filled)) + self._least
        return tf.linalg.set_diag(filled, diagonal)

    def _inverse(self, y: tf.Tensor) -> tf.Tensor:
        diagonal = tfp.math.softplus_inverse(tf.linalg.diag_part(y) - self._least)
        return tfp.math.fill_triangular_inverse(tf.linalg.set_diag(y, diagonal))

    def _forward_log_det_jacobian(self, x: tf.Tensor) -> tf.Tensor:
        diagonal = tf.linalg.diag_part(tfp.math.fill_triangular(x))
        return tf.reduce_sum(tf.math.log_sigmoid(diagonal), axis=-1)

    def _forward_event_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        return _FILLED.forward_event_shape(shape)

    def _forward_event_shape_tensor(self, shape: tf.Tensor) -> tf.Tensor:
        return _FILLED.forward_event_shape_tensor(shape)

    def _inverse_event_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        return _FILLED.inverse_event_shape(shape)

    def _inverse_event_shape_tensor(self, shape: tf.Tensor) -> tf.Tensor:
        return _FILLED.inverse_event_shape_tensor(shape)
