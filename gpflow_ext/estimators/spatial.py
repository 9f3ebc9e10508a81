"""Nearest neighbours or inducing points: the prior of places that are too many for a dense model."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpflow_ext.estimators import ladder
from gpflow_ext.estimators.base import GPEstimator
from gpflow_ext.fitting import fit
from gpflow_ext.prediction import metrics

Array = npt.NDArray[Any]
_ROWS = 5000  # of a comparison, at most
_HELD = 0.2  # of these, which are predicted


class Compared(NamedTuple):
    """The negative log predictive densities of held-out rows by both priors, and their number."""

    vecchia: float
    inducing: float
    rows: int

    @property
    def better(self) -> bool:
        """Whether nearest neighbours predict better."""
        return self.vecchia < self.inducing

    def __str__(self) -> str:
        found = ("nearest neighbours", self.vecchia), (f"{ladder.POINTS} inducing points", self.inducing)
        (first, low), (second, high) = found if self.better else found[::-1]
        return f"{first} predict {self.rows:,} held-out rows with NLPD {low:.4g}, {second} with {high:.4g}"


def suits(estimator: GPEstimator, X: Array, Y: Array) -> bool:
    """Tell whether a Vecchia prior is worth trying: for places of two or three inputs, too many to be dense.

    The kernel is stationary, and there are no more rows than go without minibatches.
    """
    if X.shape[1] not in (2, 3) or len(X) > ladder.MINIBATCHES:
        return False
    return ladder.takes_vecchia(estimator.problem_of(X, Y))


def compared(estimator: GPEstimator, X: Array, Y: Array, seed: int, seconds: float) -> Compared | None:
    """Compare both priors on rows held out from at most 5,000.

    Parameters
    ----------
    estimator
        As it is compared by `auto`.
    X, Y
        Inputs [N, D], and targets as `cross_validate` takes them, [N, P].
    seed
        Seed of the choice of rows.
    seconds
        Of each training.

    Returns
    -------
    The comparison; ``None`` where one of the trainings fails.
    """
    rows = np.random.default_rng(seed).permutation(len(X))[:_ROWS]
    number = math.ceil(_HELD * len(rows))
    test, train = rows[:number], rows[number:]
    sparse, neighbours = copy.copy(estimator), copy.copy(estimator)
    sparse.num_inducing = ladder.POINTS  # the training rows may be few enough for a dense model
    neighbours._prior = "vecchia"
    parts = (X[train], Y[train]), (X[test], Y[test])
    try:
        found = Compared(_nlpd(neighbours, *parts, seconds), _nlpd(sparse, *parts, seconds), number)
    except (ValueError, NotImplementedError, ArithmeticError):
        return None
    return found if np.isfinite(found).all() else None


def _nlpd(estimator: GPEstimator, train: Any, test: Any, seconds: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the score tells what comes of it
        model, options = estimator.model_of(*train)
        fit(model, seconds=seconds, progress=False, **options)
    return float(metrics.evaluate(model, test)["nlpd"])
