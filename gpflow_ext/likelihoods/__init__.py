"""Likelihoods: subclasses of ``gpflow.likelihoods.Likelihood`` that any GPflow model accepts."""

from gpflow_ext.likelihoods.binary import (
    BernoulliLogit,
    BernoulliProbit,
    BinaryLikelihood,
    check_binary_labels,
)
from gpflow_ext.likelihoods.categorical import CategoricalLikelihood, MultinomialLogit, StickBreaking
from gpflow_ext.likelihoods.counts import PoissonLog
from gpflow_ext.likelihoods.ordinal import CumulativeLogit
from gpflow_ext.likelihoods.robust_max import RobustMax

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "BinaryLikelihood",
    "CategoricalLikelihood",
    "CumulativeLogit",
    "MultinomialLogit",
    "PoissonLog",
    "RobustMax",
    "StickBreaking",
    "check_binary_labels",
]
