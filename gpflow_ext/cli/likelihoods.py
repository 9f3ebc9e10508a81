"""The likelihood that suits a target."""

from __future__ import annotations

from typing import Any

from gpflow_ext.cli import tables


def smooth(split: Any, bound: Any = "piecewise", num_pieces: int = 20) -> Any:
    """Return a log-concave likelihood of classes, levels or counts, with a bound where it takes one."""
    from gpflow_ext import likelihoods

    if split.task == "binary":
        return weighted(split, likelihoods.BernoulliLogit(bound, num_pieces))
    if split.task == "multiclass":
        return weighted(split, likelihoods.StickBreaking(len(split.labels), bound, num_pieces))
    if split.task == "ordinal":
        return weighted(split, likelihoods.CumulativeLogit(len(split.labels), bound, num_pieces))
    return counts(split)


def weighted(split: Any, likelihood: Any) -> Any:
    """Return a likelihood for targets with the weights of rows in the last column of Y, if there are any."""
    from gpflow_ext import likelihoods

    if split.weights is None:
        return likelihood
    return likelihoods.Weighted(likelihood, tables.outputs(split) + (split.exposure is not None))


def overdispersed(split: Any) -> Any:
    """Return the negative binomial likelihood of counts, with exposures if there are any."""
    from gpflow_ext import likelihoods

    return weighted(split, likelihoods.NegativeBinomialLog(exposure=split.exposure is not None))


def probit(split: Any, **robust_max: Any) -> Any:
    """Return the likelihood with closed-form moments where there is one."""
    from gpflow_ext import likelihoods

    if split.task == "binary":
        return weighted(split, likelihoods.BernoulliProbit())
    if split.task == "multiclass":
        return weighted(split, likelihoods.RobustMax(len(split.labels), **robust_max))
    return smooth(split)


def counts(split: Any) -> Any:
    """Return the Poisson likelihood with exponential link, and exposures if there are any."""
    from gpflow_ext import likelihoods

    return weighted(split, likelihoods.PoissonLog(exposure=split.exposure is not None))


def mean_of_counts(split: Any) -> Any:
    """Return the logarithm of the mean rate as a mean function that is not trained; for others nothing."""
    import gpflow
    import numpy as np

    if split.task != "count":
        return None
    Y = split.train[1]
    weight = np.ones(len(Y)) if split.weights is None else Y[:, -1]
    exposure = Y[:, 1] if split.exposure is not None else np.ones(len(Y))
    mean = gpflow.functions.Constant(np.log(max(weight @ Y[:, 0], 0.5) / (weight @ exposure)))
    gpflow.set_trainable(mean, False)
    return mean


def standardised(split: Any, likelihood: Any) -> Any:
    """Return a likelihood of real targets whose latent functions are in units of the targets' deviation.

    So that neither the start, the steps nor the jitter depend on the units of the table.
    """
    from gpflow_ext import likelihoods
    from gpflow_ext.data.datasets import Scaler

    Y, weight = split.train[1], None if split.weights is None else split.train[1][:, -1]
    scaler = Scaler.fit(Y[:, :1], weight)
    return weighted(split, likelihoods.Standardised(likelihood, scaler.mean, scaler.scale))


def variance_of_targets(split: Any) -> float:
    """Return the variance of real targets in the training rows."""
    return float(_moments(split)[1].item())


def in_units_of_targets(kernel: Any, split: Any, variance: float) -> Any:
    """Give a kernel the variance of real targets; return their mean as a mean function that is not trained.

    So that neither the start nor the steps depend on the units.
    """
    import gpflow

    middle, spread = _moments(split)
    logarithm = gpflow.utilities.positive(base="exp")
    kernel.variance = gpflow.Parameter(
        float(spread.item()) * variance, transform=logarithm, trainable=kernel.variance.trainable
    )
    mean = gpflow.functions.Constant(middle)
    gpflow.set_trainable(mean, False)
    return mean


def _moments(split: Any) -> tuple[Any, Any]:
    """Return mean and variance of the targets, rows counting by their weights, [1] each."""
    import numpy as np

    Y = split.train[1]
    if split.weights is None:
        return Y.mean(axis=0), Y.var(axis=0)
    mean = np.average(Y[:, :1], axis=0, weights=Y[:, -1])
    return mean, np.average(np.square(Y[:, :1] - mean), axis=0, weights=Y[:, -1])
