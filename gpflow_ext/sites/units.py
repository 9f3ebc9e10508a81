"""The unit of latent functions: that of the targets where a likelihood has no link, else one.

Sites have units too: 1/unit² is that of a precision, 1/unit that of its product with a mean. What is small
beside them depends on it: of house prices, all precisions are.
"""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.sites.algebra import Sites

_UNLINKED = gpflow.likelihoods.Gaussian, gpflow.likelihoods.StudentT  # about targets as they are


def unweighted(model: Any) -> Any:
    """Return the likelihood of a model, of data of weight one where it is weighted, or None."""
    likelihood: Any = getattr(model, "likelihood", None)
    return likelihood.likelihood if hasattr(likelihood, "num_targets") else likelihood


def is_unlinked(model: Any) -> bool:
    """Tell whether latent functions have the units of the targets."""
    return isinstance(unweighted(model), _UNLINKED)


def targets(model: Any, Y: Any) -> tf.Tensor:
    """Return the targets [N, P] without a column of weights."""
    return tf.convert_to_tensor(Y)[..., : getattr(model.likelihood, "num_targets", None)]


def squares(model: Any, Y: Any) -> tuple[float, float]:
    """Return the mean square and the variance of the targets that there are."""
    known = np.asarray(targets(model, Y), np.float64)
    return float(np.nanmean(known**2)), float(np.nanvar(known))


def unit(model: Any) -> tf.Tensor:
    """Return the unit of the latent functions of a model with sites that holds its data (X, Y), []."""
    return unit_of(model, model.data[1], model.sites.nat1.dtype)


def unit_of(model: Any, Y: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return the unit of the latent functions of a model for targets Y: their deviation, or one, []."""
    if not is_unlinked(model):
        return tf.ones([], dtype)
    Y = tf.cast(targets(model, Y), dtype)
    known = tf.math.is_finite(Y)
    number = tf.reduce_sum(tf.cast(known, dtype))
    mean = tf.reduce_sum(tf.where(known, Y, tf.zeros_like(Y))) / number
    deviation = tf.sqrt(tf.reduce_sum(tf.where(known, tf.square(Y - mean), tf.zeros_like(Y))) / number)
    return tf.stop_gradient(tf.where(deviation > 0.0, deviation, tf.ones_like(deviation)))


def violation(change: Sites, prec: tf.Tensor, unit: tf.Tensor) -> tf.Tensor:
    """Return the largest change of a site [N, L] relative to 1 + |prec|, all in the unit of functions, []."""
    square = tf.square(unit)
    worst = tf.maximum(tf.abs(change.nat1) * unit, tf.abs(change.prec) * square)
    return tf.reduce_max(worst / (1.0 + tf.abs(prec) * square))
