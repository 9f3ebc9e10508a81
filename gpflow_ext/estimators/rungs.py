"""The rungs of a comparison: rows that are held out, and more and more rows to train candidates on."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gpflow.models import GPModel

from gpflow_ext.cross_validation import dealt
from gpflow_ext.estimators import ladder, warm
from gpflow_ext.estimators.base import Array, GPEstimator
from gpflow_ext.fitting import fit
from gpflow_ext.prediction import metrics
from gpflow_ext.training.deadline import whole_steps
from gpflow_ext.training.loop import Status

Rows = npt.NDArray[np.int64]
FIRST = 1000  # training rows of the first rung, at most
_GROWTH = 4  # times as many on the next one
_LEAST = 1.5  # times as many at least: fewer more tell nothing new
_FOLDS = 5
_HELD = 5000  # rows of a fold that are predicted, at most
_ENOUGH = 1000  # predicted rows: one fold is held out if it has as many, and further ones if not
_SECONDS = 12.0  # for comparing, which a rung takes at least, and the first one twice


class Part(NamedTuple):
    """Rows to train on, and held-out rows to predict."""

    train: Rows
    held: Rows


class Data(NamedTuple):
    """Inputs [N, D], targets [N, P], exposures among them, and weights [N] of the rows, if they have any."""

    X: Array
    Y: Array
    weight: Array | None = None

    def rows(self, which: Any) -> Data:
        """Return some of the rows."""
        return Data(self.X[which], self.Y[which], None if self.weight is None else self.weight[which])


@dataclass(frozen=True, eq=False)
class Score:
    """How a candidate predicts the held-out rows of a rung.

    Attributes
    ----------
    rows
        Training rows.
    log_densities
        Those of the held-out rows, [H].
    second
        The error rate or RMSE of all held-out rows, by its name.
    seconds
        Of training and prediction.
    beside
        Of these, the seconds of no step: of building, of the end of a training, and of prediction.
    least
        Of these, the seconds that no clock can save: those beside, and of each first step.
    first
        The seconds of the first steps that trainings which go on from these have too: where minibatches have
        tried several starts, those of any step.
    pace
        Seconds of a step after the first, on average; zero where there was none.
    cut
        Whether the clock ended each training after its first step.
    models
        The trained models, one of each part.
    weights
        Weights of the held-out rows, [H], if they have any: in ``nlpd``, its error and ``second`` a row
        counts as its weight of copies.
    """

    rows: int
    log_densities: Array
    second: tuple[str, float]
    seconds: float
    beside: float = 0.0
    least: float = 0.0
    first: float = 0.0
    pace: float = 0.0
    cut: bool = False
    models: tuple[GPModel, ...] = ()
    weights: Array | None = None

    @property
    def nlpd(self) -> float:
        """The negative log predictive density of a held-out row, on average."""
        return -mean_and_error(self.log_densities, self.weights)[0]

    @property
    def first_call(self) -> float:
        """What a training that goes on from one of these takes at least, in seconds."""
        return (self.beside + self.first) / max(len(self.models), 1)

    @property
    def first_step(self) -> float:
        """Of these, the seconds of its first step."""
        return self.first / max(len(self.models), 1)

    @property
    def standard_error(self) -> float:
        """The standard error of ``nlpd`` for the choice of the held-out rows; NaN for a single one."""
        number = len(self.log_densities)
        error = mean_and_error(self.log_densities, self.weights)[1]
        return error * math.sqrt(number / (number - 1)) if number > 1 else math.nan


def mean_and_error(values: Array, weights: Array | None) -> tuple[float, float]:
    """Return the mean of values [H] of rows with weights [H], and its error for the choice of rows."""
    if weights is None:
        return float(values.mean()), float(values.std() / math.sqrt(len(values)))
    mean = np.average(values, weights=weights)
    return float(mean), float(np.linalg.norm(weights * (values - mean)) / weights.sum())


def rungs(Y: Array, seed: int, seconds: float) -> list[list[Part]]:
    """Return the parts of each rung.

    Rows are dealt in five folds. As many of them are held out, one after the other, as hold 1,000 rows
    together; of a fold at most 5,000 rows are. The other rows are for training: on the first rung 1,000 of
    them, then 4,000, 16,000, ..., and all on the last one. A rung has the rows of the one before too.

    Parameters
    ----------
    Y
        Targets [N, P]; folds have their share of each class.
    seed
        Seed of the folds and of the order of rows.
    seconds
        For all rungs, of which there are two from 36, three from 48, and so on: the first ones and the last.

    Raises
    ------
    ValueError
        For a single row.
    """
    parts = whole(Y, seed)
    numbers = sizes(min(len(part.train) for part in parts))
    most = max(1, int(seconds / _SECONDS) - 1)
    if most < len(numbers):  # the last one is that whose outcome counts most
        numbers = numbers[: most - 1] + numbers[-1:] if most > 1 else numbers[:1]
    return [[part._replace(train=part.train[:size]) for part in parts] for size in numbers]


def whole(Y: Array, seed: int) -> list[Part]:
    """Return the parts of a rung of all rows that are not held out; see `rungs`."""
    if len(Y) < 2:
        raise ValueError(f"candidates are compared on rows held out from others; there is {len(Y)}")
    folds = dealt(Y, min(_FOLDS, len(Y)), seed)
    number = min(len(folds), math.ceil(_ENOUGH / len(folds[0])))
    order = np.random.default_rng(seed).permutation(len(Y))
    return [_part(order, fold) for fold in folds[:number]]


def _part(order: Rows, fold: Rows) -> Part:
    """Return the first rows of a fold in some order, and all others in that order."""
    inside = np.isin(order, fold)
    held = order[inside][:_HELD]
    return Part(order[~np.isin(order, held)], np.sort(held))


def sizes(most: int) -> list[int]:
    """Return the numbers of training rows of all rungs, of which there are ``most`` at most."""
    found = [min(FIRST, most)]
    while most >= _LEAST * found[-1]:
        following = _GROWTH * found[-1]
        found.append(following if most >= _LEAST * following else most)
    return found


def affordable(ahead: Sequence[list[Part]], seconds: float, least: float) -> list[list[Part]]:
    """Return the rungs for which there is time: if not for all, the last one and the first of the others.

    Parameters
    ----------
    ahead
        The rungs that follow, each with more rows.
    seconds
        What is left for them.
    least
        What a rung takes at least, as far as is known.
    """
    if seconds <= 0.0:
        return []
    number = len(ahead) if least * len(ahead) <= seconds else int(seconds / least)
    return [*ahead[: number - 1], ahead[-1]] if number else []


def scored(estimator: GPEstimator, data: Data, parts: Sequence[Part], seconds: float, seed: int) -> Score:
    """Train a candidate on each part of a rung, and predict what is held out.

    Parameters
    ----------
    estimator
        The candidate; for classes its ``classes_`` are known. A training begins at the hyperparameters that
        it has found on the rung before, on fewer rows of the same part.
    data
        All rows.
    parts
        The rung.
    seconds
        Of each training at most.
    seed
        Seed of the minibatches.

    Raises
    ------
    ArithmeticError
        If a held-out row has no finite density.
    """
    begin, models, results, found, weights = time.perf_counter(), [], [], [], []
    for (train, held), earlier in itertools.zip_longest(parts, estimator._earlier):
        model, options = estimator.model_of(*data.rows(train))
        with warm.begun(model, earlier, held=estimator._held), whole_steps():
            options = ladder.timed(model, options, seconds, earlier)
            results.append(fit(model, seed=seed, progress=False, **options))
        X, Y, weight = data.rows(held)
        found.append(metrics.evaluated_rows(model, (X, Y), weights=weight))
        weights.append(np.ones(len(X)) if weight is None else weight)
        models.append(model)
    errors, densities = zip(*found, strict=True)
    together = np.concatenate(densities)
    if not np.isfinite(together).all():
        raise ArithmeticError("a held-out row has no finite density")
    spent = time.perf_counter() - begin
    of_steps = sum(result.seconds for result in results)
    first = sum(float(result.times[:1].sum()) for result in results)
    pace = (of_steps - first) / max(1, sum(result.steps - 1 for result in results))
    return Score(
        len(parts[0].train),
        together,
        _pooled(errors, [float(each.sum()) for each in weights]),
        spent,
        beside=spent - of_steps,
        least=spent - of_steps + first,
        first=pace * len(parts) if options.get("starts", 1) > 1 else first,
        pace=pace,
        cut=all(result.status is Status.OUT_OF_TIME and result.steps == 1 for result in results),
        models=tuple(models),
        weights=None if data.weight is None else np.concatenate(weights),
    )


def _pooled(each: Sequence[Mapping[str, float]], numbers: Sequence[float]) -> tuple[str, float]:
    """Return the error rate or RMSE of all held-out rows from those of the parts."""
    name, power = ("error", 1) if "error" in each[0] else ("rmse", 2)
    mean = np.average([found[name] ** power for found in each], weights=numbers)
    return name, float(mean ** (1.0 / power))
