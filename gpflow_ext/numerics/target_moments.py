"""Mean and variance of targets, of any likelihood."""

from __future__ import annotations

import math

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.base import MeanAndVariance

from gpflow_ext.numerics.integrals import positive_variance

_NUM_NODES = 128
_REACH = 8.0  # standard deviations at which a Gaussian has fallen below rounding


def target_moments(
    likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor
) -> MeanAndVariance:
    """Return mean and variance of y [N, Q] at inputs [N, D] where f ~ N(mean, var), each [N, P].

    By ``likelihood.predict_mean_and_var``, unless that is GPflow's quadrature of scalar likelihoods: its 20
    nodes are too few where f is uncertain. At a variance of 25 they lost 97 % of that of y by a log link.

    The variance of Student's t with two degrees of freedom or fewer is infinite; what stands for its mean is
    the centre, which is the mean where there is one, above one degree of freedom.

    Raises
    ------
    NotImplementedError
        If the likelihood, which can be trained without, defines no mean of its targets.
    """
    if not has_variance(likelihood):  # GPflow's is negative, or a division by zero
        centre = likelihood.conditional_mean(X, mean)
        return centre, tf.fill(tf.shape(centre), tf.constant(math.inf, centre.dtype))
    try:
        if isinstance(likelihood, gpflow.likelihoods.SwitchedLikelihood):
            parts = [target_moments(part, X, mean, var) for part in likelihood.likelihoods]
            return tuple(tf.concat(each, axis=-1) for each in zip(*parts, strict=True))
        if by_quadrature(likelihood, "_predict_mean_and_var"):
            return _by_nodes(likelihood, X, mean, var)
        return likelihood.predict_mean_and_var(X, mean, var)
    except NotImplementedError as error:
        if error.args:
            raise
        raise NotImplementedError(
            f"{type(likelihood).__name__} does not say what mean and variance its targets have, which "
            "predictions need: give it `_conditional_mean(X, F)` and `_conditional_variance(X, F)`."
        ) from None


def by_quadrature(likelihood: gpflow.likelihoods.Likelihood, method: str) -> bool:
    """Tell whether a likelihood leaves a method to the quadrature of GPflow's scalar likelihoods."""
    base = gpflow.likelihoods.ScalarLikelihood
    return isinstance(likelihood, base) and getattr(type(likelihood), method) is getattr(base, method)


def _by_nodes(
    likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor
) -> MeanAndVariance:
    """Return E[m(f)] and E[v(f) + (m(f) − E[m(f)])²] of conditional moments m and v, each [..., L]."""
    var = positive_variance(var + tf.zeros_like(mean))
    z, weights = _nodes(*map(tf.stop_gradient, (mean, var)))
    F = mean + tf.sqrt(var) * z
    means = likelihood.conditional_mean(X, F)
    centre = tf.reduce_sum(weights * means, axis=0)
    each = likelihood.conditional_variance(X, F) + tf.square(means - centre)
    return centre, tf.reduce_sum(weights * each, axis=0)


def _nodes(mean: tf.Tensor, var: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return nodes z = (f − mean)/sd and weights of expectations under N(mean, var), each [nodes, ..., L].

    Trapezoid rule in u, f = s sinh u: dense about zero, where links bend, if the Gaussian reaches it. The
    ends leave room for the peak of e^{2f} N(f; mean, var), at mean + 2 var, as far as that is representable.
    """
    sd = tf.sqrt(var)
    limit = 0.45 * math.log(np.finfo(mean.dtype.as_numpy_dtype).max)
    near, far = _REACH * sd, _REACH * sd + 2.0 * var
    low = tf.minimum(mean - near, tf.maximum(mean - far, -limit))
    high = tf.maximum(mean + near, tf.minimum(mean + far, limit))
    scale = tf.maximum(tf.maximum(0.01 * sd, 1.0), tf.abs(mean) - near)
    at = tf.asinh(mean / scale)
    first, last = tf.asinh(low / scale) - at, tf.asinh(high / scale) - at
    share = np.linspace(0.0, 1.0, _NUM_NODES).reshape([-1] + [1] * mean.shape.rank)
    step = first + (last - first) * tf.constant(share, mean.dtype)
    z = 2.0 * scale / sd * tf.cosh(at + 0.5 * step) * tf.sinh(0.5 * step)  # without cancellation
    return z, tf.nn.softmax(tf.math.log(tf.cosh(at + step)) - 0.5 * tf.square(z), axis=0)


def has_variance(likelihood: gpflow.likelihoods.Likelihood) -> bool:
    """Tell whether targets have a variance, as those of ``StudentT`` have above two degrees of freedom."""
    inner = innermost(likelihood)
    return not (isinstance(inner, gpflow.likelihoods.StudentT) and inner.df <= 2.0)


def innermost(likelihood: gpflow.likelihoods.Likelihood) -> gpflow.likelihoods.Likelihood:
    """Return the likelihood that ``Weighted`` and ``Standardised`` ones are of."""
    within = getattr(likelihood, "likelihood", None)  # AutoGraph, of a user's function, knows no walrus
    return innermost(within) if isinstance(within, gpflow.likelihoods.Likelihood) else likelihood
