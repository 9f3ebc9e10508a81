"""The posterior of more rows, given hyperparameters that were learnt on fewer.

Hyperparameters are few, and a thousand rows tell most of what there is to know of them; of the function, each
row tells something. With the hyperparameters held its posterior is computed once, where training them takes
dozens of such evaluations. In the same time more rows can be points of the model, or all rows have more
inducing points: the first is better where the noise is small, the second where it is large.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpflow_ext.estimators import kernels, ladder, rungs
from gpflow_ext.estimators.base import GPEstimator
from gpflow_ext.estimators.candidates import like_all_rows
from gpflow_ext.estimators.halving import Comparison
from gpflow_ext.estimators.outputs import GPMultiOutputRegressor
from gpflow_ext.prediction import metrics

_DENSE = (2000, 3000, ladder.HELD)  # rows, with one latent function, each of which is a point
_POINTS = (1000, 2000, 4000)  # inducing points of all rows
_NUMBERS = 64_000_000  # in a matrix [M, N] at most, which is half a gigabyte
_SAME = 0.6  # of the seconds of the first size, which are the same for any: compilation above all
_OF_FEW = 2 / 3  # of the seconds that are left: as many rows take half as long again, without held-out ones
_SEEN = 1000  # training rows that are predicted too, at most


class Size(NamedTuple):
    """Training rows, and the number of inducing points; ``None`` if each row is one."""

    rows: int
    points: int | None

    @property
    def operations(self) -> float:
        """How much work it is, up to a constant."""
        return float(self.rows * (self.points or self.rows) ** 2)


def suits(estimator: GPEstimator, data: rungs.Data) -> bool:
    """Tell whether a candidate has a log-concave likelihood, and inducing points for all rows, not a few."""
    if isinstance(estimator, GPMultiOutputRegressor):
        return False
    problem = estimator.problem_of(*data)
    given = problem.num_inducing, problem.minibatch_size
    plain = problem.inference == "sites" and given == (None, None) and problem.prior is None
    return plain and not problem.dense


def sizes(rows: int, num_latent_gps: int = 1) -> list[Size]:
    """Return what may be tried for N rows and L latent functions, the least work first.

    Rows that are trained on minibatches are not given more inducing points: in the seconds of one posterior
    of all rows hundreds of minibatches train the hyperparameters too.
    """
    dense = {min(rows, int(number / np.cbrt(num_latent_gps))) for number in _DENSE}
    found = [Size(number, None) for number in dense]
    if max(dense) < rows <= ladder.MINIBATCHES:
        found += [Size(rows, min(number, _NUMBERS // rows)) for number in _POINTS if number < rows]
    return sorted(found, key=lambda size: size.operations)


def twin(estimator: GPEstimator, size: Size) -> GPEstimator:
    """Return a candidate that keeps the hyperparameters it has found on fewer rows."""
    new = copy.copy(estimator)
    new._held, new._rows, new._most = True, size.rows, size.rows
    new.kernel = estimator._earlier[0].kernel  # by which the points are chosen
    new.num_inducing, new.minibatch_size = size.points, None if size.points is None else size.rows
    return new


def extend(comparison: Comparison, data: rungs.Data, ends: float, seed: int) -> None:
    """Try the best candidate that `suits` in ever larger sizes, as long as it gains and there is time.

    The time of a size is foreseen from that of the one before, and that of the first one from the training on
    fewer rows; most of it is compilation. That of all rows is spent twice: here, and on what is held out too.
    Inducing points, or each row as one, are given up when they gain nothing over what was best, and the rows
    where a training on minibatches is better. Points are too when rows they were trained on are predicted
    worse than others: the posterior is then too certain near the points. If they are best, so that the noise
    is large, the hyperparameters may gain from all rows too: these are trained in the time that is left.

    Parameters
    ----------
    comparison
        To which it is added, with a score of each size.
    data
        All rows.
    ends
        Reading of the clock by which all shall be over.
    seed
        Seed of the parts and the inducing points.
    """
    best = next((name for name in comparison.ranked() if _may(name, comparison, data)), None)
    if best is None:
        return
    parts, learnt, few = rungs.whole(data.Y, seed), comparison.found[best], comparison.ranked()[best]
    name = f"{best} as learnt on {few.rows:,} rows"
    least = _tried(comparison, name, learnt, data, parts, few.least, ends, seed)
    left, chosen = 0.5 * (ends - time.perf_counter()), comparison.found.get(name)
    if chosen is not None and chosen.num_inducing and few.rows < len(parts[0].train) and left > least:
        like_all_rows([learnt], data.X, data.Y)
        comparison.try_(best, learnt, data, parts, left / len(parts), seed)
        if comparison.best == best:  # the same kernel twice is of no use to an average
            del comparison.found[name], comparison.scores[name]


def _tried(
    comparison: Comparison,
    name: str,
    learnt: GPEstimator,
    data: rungs.Data,
    parts: Sequence[rungs.Part],
    least: float,
    ends: float,
    seed: int,
) -> float:
    """Add a candidate in ever larger sizes by its name, and return the seconds of the first one.

    That is not tried unless there is as much time as training on fewer rows took at ``least``.
    """
    tried: list[tuple[Size, float]] = []
    given_up: set[bool] = set()
    problem = learnt.problem_of(*data)
    for size in sizes(len(data.X), problem.num_latent_gps):
        dense = size.points is None
        left = (_OF_FEW if dense else 0.5) * (ends - time.perf_counter())
        if dense in given_up:
            continue
        if left <= (_foreseen(tried, size) if tried else least):
            break
        new, some = twin(learnt, size), [part._replace(train=part.train[: size.rows]) for part in parts]
        before = comparison.ranked().get(name)
        try:
            score = rungs.scored(new, data, some, left / len(parts), seed)
        except (ValueError, NotImplementedError, ArithmeticError):
            break
        tried.append((size, score.seconds))
        if before is not None and not _gains(before, score):
            given_up.add(dense)
        if dense or not _too_certain(score, data, some):
            comparison.add(name, new, score)
        else:
            given_up.add(dense)
        if problem.batches and comparison.best != name:  # minibatches are better
            break
    return tried[0][1] if tried else 0.0


def _may(name: str, comparison: Comparison, data: rungs.Data) -> bool:
    found = comparison.found[name]
    return name != kernels.LINEAR and bool(found._earlier) and suits(found, data)


def _foreseen(tried: Sequence[tuple[Size, float]], size: Size) -> float:
    """Return the seconds that a size will take, from those of others."""
    same, (last, seconds) = _SAME * tried[0][1], tried[-1]
    return same + (seconds - same) * size.operations / last.operations


def _gains(before: rungs.Score, after: rungs.Score) -> bool:
    """Tell whether held-out rows are predicted better by more than a standard error."""
    gain, error = rungs.mean_and_error(after.log_densities - before.log_densities, after.weights)
    return gain > error


def _too_certain(score: rungs.Score, data: rungs.Data, parts: Sequence[rungs.Part]) -> bool:
    """Tell whether training rows are predicted worse than held-out ones, by more than two standard errors."""
    some = [data.rows(part.train[:_SEEN]) for part in parts]
    seen = np.concatenate(
        [
            metrics.evaluated_rows(model, (rows.X, rows.Y))[1]
            for model, rows in zip(score.models, some, strict=True)
        ]
    )
    weights = [rows.weight for rows in some if rows.weight is not None]
    mean, its_error = rungs.mean_and_error(seen, np.concatenate(weights) if weights else None)
    return bool(-mean > score.nlpd + 2.0 * np.hypot(score.standard_error, its_error))
