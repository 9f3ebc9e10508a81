"""Mean and variance of targets, of any likelihood."""

from __future__ import annotations

import math

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance


def target_moments(
    likelihood: gpflow.likelihoods.Likelihood, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor
) -> MeanAndVariance:
    """Return mean and variance of y [N, Q] at inputs [N, D] where f ~ N(mean, var), each [N, P].

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
        return likelihood.predict_mean_and_var(X, mean, var)
    except NotImplementedError as error:
        if error.args:
            raise
        raise NotImplementedError(
            f"{type(likelihood).__name__} does not say what mean and variance its targets have, which "
            "predictions need: give it `_conditional_mean(X, F)` and `_conditional_variance(X, F)`."
        ) from None


def has_variance(likelihood: gpflow.likelihoods.Likelihood) -> bool:
    """Tell whether targets have a variance, as those of ``StudentT`` have above two degrees of freedom."""
    inner = innermost(likelihood)
    return not (isinstance(inner, gpflow.likelihoods.StudentT) and inner.df <= 2.0)


def innermost(likelihood: gpflow.likelihoods.Likelihood) -> gpflow.likelihoods.Likelihood:
    """Return the likelihood that ``Weighted`` and ``Standardised`` ones are of."""
    while isinstance(within := getattr(likelihood, "likelihood", None), gpflow.likelihoods.Likelihood):
        likelihood = within
    return likelihood
