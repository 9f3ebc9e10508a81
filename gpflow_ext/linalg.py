"""Small pieces of linear algebra shared by every floor above."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


def cholesky(matrix: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Factorise a batch of symmetric matrices and say whether it worked.

    ``tf.linalg.cholesky`` returns NaN for an indefinite matrix without raising, and assertions vanish
    under XLA, so the status is returned as a tensor for the caller to read.

    Parameters
    ----------
    matrix
        Symmetric matrices, shape [..., M, M].

    Returns
    -------
    The lower factor, shape [..., M, M], and a scalar boolean that is true when every pivot is finite.
    """
    factor = tf.linalg.cholesky(matrix)
    return factor, tf.reduce_all(tf.math.is_finite(tf.linalg.diag_part(factor)))


def half_log_det(factor: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return ½ log|F Fᵀ| = Σ log Fᵢᵢ summed over all leading axes of Cholesky factors [..., M, M].

    The sum is taken in ``dtype``, by default that of the factors.
    """
    return tf.reduce_sum(tf.math.log(tf.cast(tf.linalg.diag_part(factor), dtype or factor.dtype)))


def rounding_slack(value: tf.Tensor, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return the change of ``value`` that is explained by rounding in a sum of many terms of ``dtype``.

    By default that is the dtype of ``value``.
    """
    epsilon = float(np.finfo((dtype or value.dtype).as_numpy_dtype).eps)
    return 256.0 * epsilon * tf.maximum(tf.abs(value), tf.ones_like(value))
