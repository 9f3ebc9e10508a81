"""The training on all rows of what a comparison has chosen, and its check on the rows held out there."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gpflow.models import GPModel

from gpflow_ext.data import datasets
from gpflow_ext.estimators.base import Array, GPEstimator
from gpflow_ext.estimators.halving import Comparison
from gpflow_ext.estimators.rungs import Data, Score, mean_and_error
from gpflow_ext.prediction import metrics
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.training.ends import FitWarning


@dataclass(eq=False)
class Refit:
    """Trained models with their weights in an average.

    Attributes
    ----------
    models, weights
        The models, and a weight of each.
    worse
        The NLPD of the held-out rows after the training on all rows, for each candidate that predicted them
        better on its last rung: the models of that rung are kept in its place.
    untimely
        Candidates for whose training there was no time: the models of their last rungs are kept.
    """

    models: list[GPModel] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    worse: dict[str, float] = field(default_factory=dict)
    untimely: list[str] = field(default_factory=list)

    def add(self, models: Sequence[GPModel], weight: float) -> None:
        """Add the models of a candidate, which share its weight."""
        self.models += models
        self.weights += [weight / len(models)] * len(models)

    @property
    def model(self) -> GPModel:
        """The model, or the average of several."""
        return self.models[0] if len(self.models) == 1 else ModelAverage(self.models, self.weights)


def whole(split: datasets.Split) -> Data:
    """Return all training rows."""
    X, Y = split.train
    weight = None if split.weights is None else split.weights[0][:, 0]
    return Data(X, Y if split.exposure is None else np.column_stack([Y, split.exposure[0]]), weight)


def refitted(
    members: Mapping[str, float],
    comparison: Comparison,
    split: datasets.Split,
    seconds: float,
    end: float,
    seed: int,
) -> Refit:
    """Train candidates on all rows from what they found, and keep what predicts the held-out rows better.

    These rows are then among those of the training, which may only help. So if it predicts them worse than
    the models of its last rung do, by more than the standard error of the difference, it has failed.

    Parameters
    ----------
    members
        Names and weights of candidates.
    comparison
        What they were chosen by.
    split
        The data.
    seconds
        For all trainings together, beside what a first step took on the last rung.
    end
        A reading of the clock: none but the first candidate is trained whose first step would end later.
    seed
        Seed of the inducing points and the minibatches.
    """
    result, ranked = Refit(), comparison.ranked()
    for number, (name, weight) in enumerate(members.items()):
        estimator, last = comparison.found[name], ranked[name]
        if number and time.perf_counter() + last.first_call > end:
            result.untimely.append(name)
            result.add(last.models, weight)
            continue
        estimator._seconds, learns = seconds / len(members) + last.first_step, not estimator._held
        _train(estimator.set_params(random_state=seed), split, seed)
        _free(estimator)  # the next training is the user's
        kept: tuple[Any, ...] = (estimator.model_,)
        if learns:  # a posterior of known hyperparameters cannot fail otherwise than before
            X, Y, _ = whole(split).rows(comparison.held)
            _, log_densities = metrics.evaluated_rows(estimator.model_, (X, Y))
            if is_worse(log_densities, last):
                result.worse[name] = -mean_and_error(log_densities, last.weights)[0]
                kept = last.models
        result.add(kept, weight)
    return result


def _free(estimator: GPEstimator) -> None:
    """Let a training be as if `auto` had not been: all rows, no clock, nothing that it has chosen."""
    if estimator._held:  # so many points were for one evaluation: to learn by them takes dozens
        estimator.num_inducing = estimator.minibatch_size = None
    estimator._seconds, estimator._earlier = None, ()
    estimator._held, estimator._most = False, None


def is_worse(log_densities: Array, score: Score) -> bool:
    """Tell whether rows [H] are predicted worse than before by more than a standard error, or not at all."""
    if not np.isfinite(log_densities).all():
        return True
    lost, error = mean_and_error(score.log_densities - log_densities, score.weights)
    return lost > error


def _train(estimator: GPEstimator, split: datasets.Split, seed: int) -> None:
    """Train on all rows, or on as many of them as the estimator is to have, every class among them."""
    X, Y = split.train
    rows = np.sort(np.random.default_rng(seed).permutation(len(X))[: estimator._most])
    if split.labels is not None:
        rows = np.union1d(rows, np.unique(Y[:, 0], return_index=True)[1])
    beside = {"exposure": split.exposure, "sample_weight": split.weights}
    given = {name: each[0][rows, 0] for name, each in beside.items() if each is not None}
    X, Y = X[rows], Y[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        estimator.fit(X, Y if Y.shape[1] > 1 else Y[:, 0], **given)
