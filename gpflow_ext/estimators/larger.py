"""Larger models of the best candidates, once a comparison on few rows has found these."""

from __future__ import annotations

import math
import time
from itertools import islice

from gpflow.likelihoods import Gaussian

from gpflow_ext.estimators import conditioning, kernels, ladder, rungs
from gpflow_ext.estimators.candidates import on_minibatches, with_points
from gpflow_ext.estimators.halving import Comparison
from gpflow_ext.numerics.target_moments import innermost

_FIRST = 1 / 3  # of the seconds that are left, for minibatches of the best candidates
_SECOND = 1 / 2  # of those left then, for more points
_SECONDS = 12.0  # for one candidate on minibatches
_MORE = 2  # times as many points


def extend(comparison: Comparison, data: rungs.Data, ends: float, seed: int) -> None:
    """Add larger models of the best candidates to a comparison.

    Where all rows are so many that training is on minibatches, the better half of the candidates is trained
    on these, or as many as have 12 seconds each in a third of the time, as long as they then predict better
    than from few rows. What the best one has learnt on few rows is tried with more rows or inducing points,
    see `conditioning.extend`: before the minibatches where the noise is Gaussian, so that a posterior of more
    rows is cheap, and these have as many candidates as 12 seconds each allow, or none. If minibatches are
    better, they are tried with twice as many points, from the hyperparameters that they have found. Their
    steps take four times as long: seconds too few for a pass through the rows would tell little, and are left
    to the last training.

    Parameters
    ----------
    comparison
        To which they are added.
    data
        All rows.
    ends
        Reading of the clock by which all shall be over, the training of the best on all rows among it.
    seed
        Seed of the parts, the inducing points and the minibatches.
    """
    parts = rungs.whole(data.Y, seed)
    if more_rows_first(comparison, data):
        conditioning.extend(comparison, data, ends, seed)
        score = comparison.ranked()[comparison.best]
        first = _on_minibatches(comparison, data, parts, ends - score.seconds, seed, 0)
    else:
        first = _on_minibatches(comparison, data, parts, ends, seed, 1)
        best = comparison.best
        left = ends - (comparison.ranked()[best].first_call if best in first else 0.0)
        conditioning.extend(comparison, data, left, seed)
    best = comparison.best
    score = comparison.ranked()[best]
    seconds = _SECOND * (ends - time.perf_counter()) / len(parts)
    if best in first and seconds > _foreseen(score, len(parts[0].train)):
        new = with_points(comparison.found[best], _MORE * ladder.POINTS)
        name = f"{first[best]}, {new.num_inducing:,} points"
        comparison.try_(name, new, data, parts, seconds, seed)


def more_rows_first(comparison: Comparison, data: rungs.Data) -> bool:
    """Tell whether the noise is Gaussian: a posterior of more rows is then one solution of equations."""
    best = comparison.found[comparison.best]
    return isinstance(innermost(best.problem_of(*data).likelihood), Gaussian)


def _on_minibatches(
    comparison: Comparison,
    data: rungs.Data,
    parts: list[rungs.Part],
    ends: float,
    seed: int,
    fewest: int,
) -> dict[str, str]:
    """Train the best candidates on minibatches of all rows; return their names by those of the new ones.

    The ``fewest`` are trained even if there are not 12 seconds for each.
    """
    begin, ranked = time.perf_counter(), comparison.ranked()
    names: dict[str, str] = {}
    until = begin + _FIRST * (ends - begin)
    number = min(math.ceil(len(ranked) / 2), max(fewest, int((until - begin) / _SECONDS)))
    fit = (
        name
        for name in ranked
        if name != kernels.LINEAR and on_minibatches(comparison.found[name], *data[:2])
    )
    least = beside = 0.0
    for place, name in enumerate(islice(fit, number)):
        left = until - time.perf_counter()
        if left <= least:
            break
        new, longer = with_points(comparison.found[name], ladder.POINTS), f"{name}, {ladder.POINTS:,} points"
        seconds = (left / (number - place) - beside) / len(parts)
        comparison.try_(longer, new, data, parts, max(seconds, 1.0), seed)
        score, names[longer] = comparison.ranked().get(longer), name
        if score is None or score.nlpd > ranked[name].nlpd:  # they are too few to be of use
            break
        least, beside = score.least, score.beside
    return names


def _foreseen(score: rungs.Score, rows: int) -> float:
    """Return the seconds of a pass through rows with more points than a training had, from those it took."""
    return score.first_call + _MORE**2 * score.pace * rows / ladder.BATCH
