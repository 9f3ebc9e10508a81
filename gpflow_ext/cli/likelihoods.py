"""The likelihood that suits a target."""

from __future__ import annotations

from typing import Any


def smooth(split: Any, bound: Any = "piecewise", num_pieces: int = 20) -> Any:
    """Return a log-concave likelihood of classes, levels or counts, with a bound where it takes one."""
    from gpflow_ext import likelihoods

    if split.task == "binary":
        return likelihoods.BernoulliLogit(bound, num_pieces)
    if split.task == "multiclass":
        return likelihoods.StickBreaking(len(split.labels), bound, num_pieces)
    if split.task == "ordinal":
        return likelihoods.CumulativeLogit(len(split.labels), bound, num_pieces)
    return counts(split)


def overdispersed(split: Any) -> Any:
    """Return the negative binomial likelihood of counts, with exposures if there are any."""
    from gpflow_ext import likelihoods

    return likelihoods.NegativeBinomialLog(exposure=split.exposure is not None)


def probit(split: Any, **robust_max: Any) -> Any:
    """Return the likelihood with closed-form moments where there is one."""
    from gpflow_ext import likelihoods

    if split.task == "binary":
        return likelihoods.BernoulliProbit()
    if split.task == "multiclass":
        return likelihoods.RobustMax(len(split.labels), **robust_max)
    return smooth(split)


def counts(split: Any) -> Any:
    """Return the Poisson likelihood with exponential link, and exposures if there are any."""
    from gpflow_ext import likelihoods

    return likelihoods.PoissonLog(exposure=split.exposure is not None)


def mean_of_counts(split: Any) -> Any:
    """Return the logarithm of the mean rate as a mean function that is not trained; for others nothing."""
    import gpflow
    import numpy as np

    if split.task != "count":
        return None
    Y = split.train[1]
    exposure = Y[:, 1].sum() if split.exposure is not None else len(Y)
    mean = gpflow.functions.Constant(np.log(max(Y[:, 0].sum(), 0.5) / exposure))
    gpflow.set_trainable(mean, False)
    return mean


def in_units_of_targets(kernel: Any, Y: Any, variance: float) -> Any:
    """Give a kernel the variance of real targets; return their mean as a mean function that is not trained.

    So that neither the start nor the steps depend on the units.
    """
    import gpflow

    logarithm = gpflow.utilities.positive(base="exp")
    kernel.variance = gpflow.Parameter(
        float(Y.var()) * variance, transform=logarithm, trainable=kernel.variance.trainable
    )
    mean = gpflow.functions.Constant(Y.mean(axis=0))
    gpflow.set_trainable(mean, False)
    return mean
