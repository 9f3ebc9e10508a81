"""Successive halving: candidates are compared on more and more rows, each time the better half of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpflow_ext.estimators import rungs
from gpflow_ext.estimators.base import GPEstimator
from gpflow_ext.estimators.candidates import SURE, like_all_rows, of_neighbours
from gpflow_ext.training import progress as progress_bar

_SHORTEST = 1.0  # seconds that a training has after its first step in any case


class Comparison(NamedTuple):
    """What has been compared.

    Attributes
    ----------
    found
        The candidates by name, with those that joined on the way.
    scores
        The scores of each candidate on the rungs that it has reached; the best one has its models.
    held
        The held-out rows, in the order of the log densities of a score.
    """

    found: dict[str, GPEstimator]
    scores: dict[str, list[rungs.Score]]
    held: rungs.Rows

    @property
    def best(self) -> str:
        """The name of the candidate that is ranked first."""
        return next(iter(self.ranked()))

    def ranked(self) -> dict[str, rungs.Score]:
        """Return the best score of each candidate, the lowest NLPD first.

        All are of the same rows. More rows to train on are of no use to a candidate whose time was too short
        for them.
        """
        best = {name: min(reversed(each), key=lambda score: score.nlpd) for name, each in self.scores.items()}
        return dict(sorted(best.items(), key=lambda item: item[1].nlpd))

    def add(self, name: str, estimator: GPEstimator, score: rungs.Score) -> None:
        """Add a score of a candidate; if it is the best its models are kept, from which it goes on."""
        before = self.scores.get(name, [])
        if all(score.nlpd <= each.nlpd for each in before):
            before = [dataclasses.replace(each, models=()) for each in before]
            self.found[name], estimator._earlier = estimator, score.models
        else:
            score = dataclasses.replace(score, models=())
        self.scores[name] = [*before, score]

    def try_(
        self,
        name: str,
        estimator: GPEstimator,
        data: rungs.Data,
        parts: Sequence[rungs.Part],
        seconds: float,
        seed: int,
    ) -> None:
        """Add a candidate that `rungs.scored` trains, unless that fails."""
        with contextlib.suppress(ValueError, NotImplementedError, ArithmeticError):
            self.add(name, estimator, rungs.scored(estimator, data, parts, seconds, seed))


def compared(
    entrants: Mapping[str, GPEstimator],
    data: rungs.Data,
    seconds: float,
    seed: int,
    progress: bool | None,
    most: int | None = None,
) -> Comparison:
    """Compare candidates on the rungs for which there is time.

    From the second rung on, and on a first one that has most of the rows, the models of a part are built as
    that of all rows would be. There the best candidate is tried with nearest neighbours too.

    Parameters
    ----------
    entrants
        Candidates by name; for classes their ``classes_`` are known.
    data
        All rows.
    seconds
        For all rungs. The first one has twice the share of another; what a training took at least on one
        tells how many more there is time for.
    seed
        Seed of the rungs and of minibatches.
    progress
        Whether to show a bar, see `auto`.
    most
        Rungs at most.
    """
    X, Y, _ = data
    end = time.perf_counter() + seconds
    ahead, alike = rungs.rungs(Y, seed, seconds)[:most], False
    held = np.concatenate([part.held for part in ahead[0]])
    found, scores, _ = comparison = Comparison(dict(entrants), {}, held)
    names = list(found)
    ends = end - seconds * (len(ahead) - 1) / (len(ahead) + 1)
    while ahead:
        parts, ahead = ahead[0], ahead[1:]
        new: dict[str, GPEstimator] = {}
        if not alike and (scores or 2 * len(parts[0].train) > len(X)):
            alike = True
            like_all_rows([found[name] for name in names], X, Y)
            new |= of_neighbours(found, names, X, Y)
        found.update(new)
        entered = {name: found[name] for name in [*names, *new]}
        on_rung = _on_rung(entered, data, parts, ends, seed, progress)
        if scores and len(on_rung) < 2:  # none beats another there
            break
        for name, score in on_rung.items():
            comparison.add(name, found[name], score)
        order = [name for name in comparison.ranked() if name in on_rung]
        names = order[: max(2, math.ceil(len(order) / 2))]
        left = end - time.perf_counter()
        ahead = rungs.affordable(ahead, left, SURE * max(on_rung[name].least for name in names))
        ends = end - left * (len(ahead) - 1) / max(len(ahead), 1)
    return comparison


def _on_rung(
    found: Mapping[str, GPEstimator],
    data: rungs.Data,
    parts: list[rungs.Part],
    ends: float,
    seed: int,
    progress: bool | None,
) -> dict[str, rungs.Score]:
    """Return the scores of the candidates for which there is time until some reading of the clock.

    What the last candidate took at least the next one is expected to take.
    """
    scores: dict[str, rungs.Score] = {}
    rows, least = len(parts[0].train), 0.0
    with warnings.catch_warnings(), progress_bar.bar(f"{rows:,} rows", len(found), 0, progress) as show:
        warnings.simplefilter("ignore", UserWarning)  # of a candidate: its score tells what comes of it
        for number, (name, estimator) in enumerate(found.items()):
            left = ends - time.perf_counter()
            if number >= SURE and left < least:
                break
            share = left / ((len(found) - number) * len(parts))
            each = max(share, least / len(parts) + _SHORTEST)
            try:
                scores[name] = rungs.scored(estimator, data, parts, each, seed)
            except (ValueError, NotImplementedError, ArithmeticError):
                if not number and rows <= rungs.FIRST:
                    raise
                continue
            least = scores[name].least
            show(number + 1, -scores[name].nlpd)
    return scores
