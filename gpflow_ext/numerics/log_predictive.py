"""The log predictive density of scalar likelihoods that leave it to quadrature, by nodes where it is."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.integrals import Window, log_expectation, positive_variance
from gpflow_ext.numerics.special import Elementwise
from gpflow_ext.numerics.target_moments import by_quadrature

_ROUNDS, _POINTS = 6, 32  # of the search for the peak: each narrows it 15 times
_FURTHEST = 12.0  # asinh of the standard deviations at which a peak is looked for
_FALL = 40.0  # of the logarithm from the peak to the ends


def log_predictive(likelihood: Any, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
    """Return log ∫ p(yₙ | f) N(f; mean, var) df for f [N, L] and targets Y [N, Q], as [N].

    By ``likelihood.predict_log_density``, unless that is GPflow's quadrature of scalar likelihoods. Its nodes
    are where the Gaussian is, and miss a likelihood that is narrow or far beside it, by up to millions of
    nats. Here they are where the product is, which is taken to have one peak. O(N) densities. Variances below
    zero, as those of GPflow's ``GPR`` may be by rounding, are taken for zero.
    """
    var = tf.maximum(var, tf.zeros([], var.dtype))
    if isinstance(likelihood, gpflow.likelihoods.SwitchedLikelihood):
        return _of_parts(likelihood, X, mean, var + tf.zeros_like(mean), Y)
    if not by_quadrature(likelihood, "_predict_log_density"):
        return likelihood.predict_log_density(X, mean, var, Y)

    def log_density(f: tf.Tensor) -> tf.Tensor:  # [N, L, nodes]
        return tf.transpose(likelihood._scalar_log_prob(X, tf.transpose(f, [2, 0, 1]), Y), [1, 2, 0])

    var = positive_variance(var + tf.zeros_like(mean))
    window = _window(log_density, *map(tf.stop_gradient, (mean, var)))
    return tf.reduce_sum(log_expectation(log_density, mean, var, window), axis=-1)


def _of_parts(likelihood: Any, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
    """Return the log density of each row by the likelihood that the last column of Y numbers, [N].

    It is NaN where there is no such likelihood: a partition of the rows would end in an error of TensorFlow.
    """
    number = len(likelihood.likelihoods)
    are = Y[:, -1:] == tf.range(number, dtype=Y.dtype)  # [N, parts]
    which = tf.argmax(are, axis=-1, output_type=tf.int32)
    each = (tf.dynamic_partition(rows, which, number) for rows in (X, mean, var, Y[:, :-1]))
    found = [log_predictive(*part) for part in zip(likelihood.likelihoods, *each, strict=True)]
    stitched = tf.dynamic_stitch(tf.dynamic_partition(tf.range(tf.size(which)), which, number), found)
    return tf.where(tf.reduce_any(are, axis=-1), stitched, tf.constant(np.nan, stitched.dtype))


def _window(log_density: Elementwise, mean: tf.Tensor, var: tf.Tensor) -> Window:
    """Return where p(y | f) N(f; mean, var) is, by values alone."""
    sd = tf.sqrt(var)

    def height(z: tf.Tensor) -> tf.Tensor:
        value = log_density(mean[..., None] + sd[..., None] * z) - 0.5 * tf.square(z)
        return tf.where(tf.math.is_nan(value), tf.constant(-np.inf, value.dtype), value)

    share = tf.constant(np.linspace(0.0, 1.0, _POINTS), mean.dtype)
    low, high = tf.fill(tf.shape(mean), -_FURTHEST), tf.fill(tf.shape(mean), _FURTHEST)
    low, high = tf.cast(low, mean.dtype), tf.cast(high, mean.dtype)
    for _ in range(_ROUNDS):  # u = asinh z
        u = low[..., None] + (high - low)[..., None] * share
        at = tf.argmax(height(tf.sinh(u)), axis=-1, output_type=tf.int32)
        low, high = (
            tf.gather(u, tf.clip_by_value(at + step, 0, _POINTS - 1), batch_dims=len(u.shape) - 1)
            for step in (-1, 1)
        )
    peak = tf.sinh(0.5 * (low + high))
    distance = tf.constant(np.geomspace(1e-7, 1e1, 2 * _POINTS), mean.dtype)
    falls = [height(peak[..., None]) - height(peak[..., None] + sign * distance) for sign in (-1.0, 1.0)]

    def reached(fall: tf.Tensor, least: float) -> tf.Tensor:
        return 2.0 * tf.reduce_max(tf.where(fall < least, distance, distance[0]), axis=-1)

    low, high = -reached(falls[0], _FALL), reached(falls[1], _FALL)
    scale = tf.minimum(*(reached(fall, 1.0) for fall in falls))
    fraction = tf.minimum(tf.square((high - low) / 36.0), 1.0)
    return Window(mean + sd * peak, peak, scale, low, high, fraction)
