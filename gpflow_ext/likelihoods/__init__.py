"""Likelihoods: subclasses of ``gpflow.likelihoods.Likelihood`` that any GPflow model accepts."""

from gpflow_ext.likelihoods.binary import (
    BernoulliLogit,
    BernoulliProbit,
    BinaryLikelihood,
    check_binary_labels,
)

__all__ = ["BernoulliLogit", "BernoulliProbit", "BinaryLikelihood", "check_binary_labels"]
