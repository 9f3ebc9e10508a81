"""The arc-cosine kernel of infinitely wide networks, safe against NaN angles from rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.kernels import ArcCosine

_UNITS = 8.0  # of rounding, by which a cosine stays below one


class RoundedArcCosine(ArcCosine):
    """GPflow's ``ArcCosine`` (Cho & Saul 2009) with cosines held below one by some units of rounding.

    GPflow shifts them by 1e-15. The cosine between two equal rows of a hundred inputs, x·x / (|x| |x|),
    misses one by more than that, and in single precision by more in any case: its angle is NaN then.
    """

    @inherit_check_shapes
    def _full_weighted_product(self, X: Any, X2: Any | None) -> tf.Tensor:
        product = super()._full_weighted_product(X, X2)
        lengths = tf.sqrt(self._diag_weighted_product(X))
        if X2 is None:
            most = lengths[..., :, None] * lengths[..., None, :]
        else:  # [batch, N] by [batch2, N2]
            others = tf.sqrt(self._diag_weighted_product(X2))
            open_axes = tf.ones([tf.rank(others)], tf.int32)
            most = tf.reshape(lengths, tf.concat([tf.shape(lengths), open_axes], 0)) * others
        most *= 1.0 - _UNITS * float(np.finfo(product.dtype.as_numpy_dtype).eps)
        return tf.clip_by_value(product, -most, most)
