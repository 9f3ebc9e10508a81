"""Likelihoods: subclasses of ``gpflow.likelihoods.Likelihood`` that any GPflow model accepts."""

from gpflow_ext.likelihoods.binary import (
    BernoulliLogit,
    BernoulliProbit,
    BinaryLikelihood,
    check_binary_labels,
)
from gpflow_ext.likelihoods.categorical import CategoricalLikelihood, MultinomialLogit, StickBreaking
from gpflow_ext.likelihoods.counts import CountLikelihood, PoissonLog
from gpflow_ext.likelihoods.ordinal import CumulativeLogit
from gpflow_ext.likelihoods.overdispersed import NegativeBinomialLog
from gpflow_ext.likelihoods.robust_max import RobustMax
from gpflow_ext.likelihoods.standardised import Standardised
from gpflow_ext.likelihoods.student_t import StudentT
from gpflow_ext.likelihoods.weighted import Weighted

__all__ = [
    "BernoulliLogit",
    "BernoulliProbit",
    "BinaryLikelihood",
    "CategoricalLikelihood",
    "CountLikelihood",
    "CumulativeLogit",
    "MultinomialLogit",
    "NegativeBinomialLog",
    "PoissonLog",
    "RobustMax",
    "Standardised",
    "StickBreaking",
    "StudentT",
    "Weighted",
    "check_binary_labels",
]
