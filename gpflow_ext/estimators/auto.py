"""Choose a model for a table: candidates are compared on held-out rows, and the best is trained on all."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.data import datasets
from gpflow_ext.estimators import averaging, ladder, rungs
from gpflow_ext.estimators.base import Array, GPEstimator
from gpflow_ext.estimators.candidates import SURE, candidates, of_neighbours, on_minibatches
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.ends import FitWarning
from gpflow_ext.training.loop import Status

_CLASSES = ("binary", "multiclass", "ordinal")
_COMPARING = 0.6  # of the budget, after which no further candidate is tried
_LEAST = 0.1  # of the budget, which the training of the best has left in any case
_SHORTEST = 1.0  # seconds that a training may take in any case


@dataclass(frozen=True, eq=False)
class Auto:
    """A model that `auto` has chosen; `gpflow_ext.export` writes it with all that raw rows need.

    Attributes
    ----------
    estimator
        The fitted estimator; it takes inputs as ``split`` has them, and classes as numbers.
    split
        The data: inputs, their scaling, labels, and how a table was read.
    table
        A pandas ``DataFrame`` of the candidates: the training rows of the last rung that each has reached;
        the negative log predictive density (NLPD) of the held-out rows there, which is their order; its
        standard error; the error rate or RMSE; the seconds of all rungs; and the weight in the model.
    why
        Two sentences: what was built for these data, and what it was preferred to; a third one if several
        candidates are averaged.
    """

    estimator: GPEstimator
    split: datasets.Split
    table: Any
    why: str

    @property
    def model(self) -> Any:
        """The trained model: a `prediction.average.ModelAverage` where several candidates are averaged."""
        return self.estimator.model_

    def predict(self, rows: Any, exposure: npt.ArrayLike | None = None) -> npt.NDArray[Any]:
        """Return labels or expected values for raw rows: a data frame, or an array [N, D] of numbers.

        Counts are those at the exposures [N], by default at exposure one.
        """
        exposed = {} if exposure is None else {"exposure": exposure}
        found = self.estimator.predict(self._inputs(rows), **exposed)
        if self.split.task not in _CLASSES or self.split.labels is None:
            return found
        return np.asarray(self.split.labels)[found.astype(int)]

    def predict_proba(self, rows: Any) -> Array:
        """Return the probabilities of ``split.labels`` for raw rows, [N, K]."""
        return self.estimator.predict_proba(self._inputs(rows))

    def exported_parts(self) -> tuple[Any, Any, Any, datasets.Split]:
        """Return what `gpflow_ext.export` takes: model, scaler, labels and data."""
        split = self.split
        return self.model, split.scaler, split.labels if split.task in _CLASSES else None, split

    def _inputs(self, rows: Any) -> Array:
        treatment = self.split.treatment
        if treatment is None:
            return self.split.scaler.transform(rows)
        if hasattr(rows, "columns"):
            return self.split.inputs(rows)
        import pandas

        names = [column.name for column in treatment.columns]
        return self.split.inputs(pandas.DataFrame(np.asarray(rows), columns=names))

    def __str__(self) -> str:
        return f"{self.why}\n\n{self.table.to_string(index=False, float_format=lambda x: f'{x:.4g}')}"


def auto(
    table: Any,
    target: str | None = None,
    *,
    task: str | None = None,
    budget: float = 60.0,
    seed: int = 0,
    average: bool = True,
    progress: bool | None = None,
    **options: Any,
) -> Auto:
    """Choose a model for a table, and train it.

    The task and the number of rows decide the likelihood and the inference, see `estimators.ladder`. Kernels,
    a linear one among them, and noise models are compared by successive halving (Jamieson & Talwalkar 2016),
    see `estimators.rungs`: all are trained on at most 1,000 rows and predict rows held out from them; the
    better half goes on with four times as many rows, and so on, until those who are left have been trained
    on all that are not held out. Up to 1,000 rows this is one rung, a 5-fold cross-validation. On the second
    rung the best candidate is tried with nearest neighbours too (``prior="vecchia"``) if the inputs are
    places, see `estimators.candidates.of_neighbours`. The candidate with the lowest negative log predictive
    density (NLPD) on the last rung is then trained on all rows, or several of those there if their average
    has a lower one.

    The choice depends on the seed, on the budget, which decides how many rungs there are, and on the clock
    where a training is cut short: each candidate of a rung has an equal part of what is left of the
    rung's time. With a budget in which every training ends by itself the choice is the same each time.

    Parameters
    ----------
    table
        What `datasets.load` takes: a file, the name of a set or a data frame; a pair of inputs [N, D] and
        targets [N] or [N, P]; or a `datasets.Split`, whose test rows are left alone.
    target
        The column that holds the targets, if ``table`` is a table.
    task
        "binary", "multiclass", "ordinal", "count" or "regression"; inferred by default, see `datasets.load`.
    budget
        Seconds for comparison and training. Rungs share 60 % of them, at least 12 seconds each and twice as
        many for the first one. A candidate for which there is no time is left out; the first two of a rung
        are always tried, the linear one among them. The training of the best has the rest, and at least 10 %;
        ``why`` says so if it was cut short. Reading data is not counted, nor what a training needs to compile
        beyond its time. Tables of tens of thousands of rows deserve several minutes.
    seed
        Seed of the folds, the inducing points and the minibatches.
    average
        Train several candidates if a weighted mean of their predictive densities does better on held-out
        rows than the best of them; the weights are those of stacking, see
        `prediction.average.stacking_weights`. Beyond 20,000 rows the best one has all of the time.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    **options
        Options of `datasets.load`, such as ``missing="mean"``, or ``exposure="days"`` for counts.

    Raises
    ------
    ValueError
        For a table that cannot be used, and for whatever the first candidate fails with.

    Examples
    --------
    >>> best = gpx.auto("table.csv", "ill", budget=120)
    >>> print(best)
    >>> gpx.export(best, "saved_models/ill")
    """
    if not budget > 0.0:
        raise ValueError(f"budget must be positive, in seconds; got {budget}")
    split = _read(table, target, task, options)
    begin = time.perf_counter()
    X, Y = split.train
    found = candidates(split.task, len(X), X.shape[1], Y.shape[1])
    scores = _compared(found, split, _COMPARING * budget, seed, progress)
    order = sorted(scores, key=lambda name: (-scores[name][-1].rows, scores[name][-1].nlpd))
    last = {name: each[-1] for name, each in scores.items() if each[-1].rows == scores[order[0]][-1].rows}
    average = average and len(X) <= ladder.MINIBATCHES
    weights = averaging.weights({name: each.log_densities for name, each in last.items()}) if average else {}
    members = list(weights) or order[:1]
    left = max(budget - (time.perf_counter() - begin), _LEAST * budget)
    for name in members:
        found[name]._seconds = left / len(members)
        _train(found[name].set_params(random_state=seed), split)
    best = found[members[0]]
    why = _reasons(best, split, [(name, scores[name][-1]) for name in order], len(found))
    if len(members) > 1:
        best.model_ = ModelAverage([found[name].model_ for name in members], list(weights.values()))
        why += f" Predictions are averaged: {averaging.shares(weights)}."
    return Auto(best, split, _table(order, scores, weights), why)


def _whole(split: datasets.Split) -> tuple[Array, Array]:
    """Return inputs and targets, exposures beside them if there are any."""
    X, Y = split.train
    return X, Y if split.exposure is None else np.column_stack([Y, split.exposure[0]])


def _train(estimator: GPEstimator, split: datasets.Split) -> None:
    X, Y = split.train
    exposed = {} if split.exposure is None else {"exposure": split.exposure[0][:, 0]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        estimator.fit(X, Y if Y.shape[1] > 1 else Y[:, 0], **exposed)


def _read(table: Any, target: str | None, task: str | None, options: dict[str, Any]) -> datasets.Split:
    if isinstance(table, datasets.Split):
        if target is not None or task is not None or options:
            raise ValueError("target, task and options are for tables: a Split has been read already")
        return table
    if isinstance(table, tuple):
        if target is not None:
            raise ValueError("target names a column of a table: leave it out where y is given")
        table, target = _frame(*table)
    return datasets.load(table, target=target, task=task, test_fraction=0.0, **options)


def _frame(X: Any, y: Any) -> tuple[Any, Any]:
    """Return a data frame of inputs and targets, and the names of its targets."""
    import pandas

    named = hasattr(X, "columns")
    frame = X.copy() if named else pandas.DataFrame(np.asarray(X))
    if not named:
        frame.columns = [f"x{n}" for n in range(frame.shape[1])]
    targets = np.asarray(y)
    if len(targets) != len(frame):
        raise ValueError(f"X and y must have as many rows; they have {len(frame)} and {len(targets)}")
    columns = targets.reshape(len(targets), -1).T
    names = ["y"] if len(columns) == 1 else [f"y{n}" for n in range(len(columns))]
    for name, column in zip(names, columns, strict=True):
        frame[name] = column
    return frame, names[0] if len(names) == 1 else names


def _compared(
    found: dict[str, GPEstimator], split: datasets.Split, seconds: float, seed: int, progress: bool | None
) -> dict[str, list[rungs.Score]]:
    """Return the scores of each candidate on the rungs that it has reached; add one of neighbours to them."""
    X, Y = data = _whole(split)
    if split.task in _CLASSES:
        for estimator in found.values():
            estimator.classes_ = np.unique(Y)  # of all rows: a part may miss one
    begin, names = time.perf_counter(), list(found)
    scores: dict[str, list[rungs.Score]] = {}
    parts_of = rungs.rungs(Y, seed, seconds)
    for number, parts in enumerate(parts_of):
        ends = begin + seconds * (number + 2) / (len(parts_of) + 1)  # the first one has two shares
        if number and time.perf_counter() > ends:
            break
        if number == 1:
            on_minibatches([found[name] for name in names], X, Y)
        if number == 1 and split.train[1].shape[1] == 1:
            found |= (new := of_neighbours(found, names, X, Y))
            names += new
        new_scores = _on_rung({name: found[name] for name in names}, data, parts, ends, seed, progress)
        if number and len(new_scores) < 2:  # none beats another there
            break
        for name, score in new_scores.items():
            scores.setdefault(name, []).append(score)
        order = sorted(new_scores, key=lambda name: new_scores[name].nlpd)
        names = order[: max(2, math.ceil(len(order) / 2))]
    return scores


def _on_rung(
    found: dict[str, GPEstimator],
    data: tuple[Array, Array],
    parts: list[rungs.Part],
    ends: float,
    seed: int,
    progress: bool | None,
) -> dict[str, rungs.Score]:
    """Return the scores of the candidates for which there is time until some reading of the clock."""
    scores: dict[str, rungs.Score] = {}
    rows = len(parts[0].train)
    with warnings.catch_warnings(), progress_bar.bar(f"{rows:,} rows", len(found), 0, progress) as show:
        warnings.simplefilter("ignore", UserWarning)  # of a candidate: its score tells what comes of it
        for number, (name, estimator) in enumerate(found.items()):
            left = ends - time.perf_counter()
            if number >= SURE and left < 0.0:
                break
            each = max(left / ((len(found) - number) * len(parts)), _SHORTEST)
            try:
                scores[name] = rungs.scored(estimator, data, parts, each, seed)
            except (ValueError, NotImplementedError, ArithmeticError):
                if not number and rows <= rungs.FIRST:
                    raise
                continue
            show(number + 1, -scores[name].nlpd)
    return scores


def _table(order: list[str], scores: dict[str, list[rungs.Score]], weights: Mapping[str, float]) -> Any:
    import pandas

    rows = []
    for name in order:
        last = scores[name][-1]
        rows.append(
            {
                "candidate": name,
                "rows": last.rows,
                "nlpd": last.nlpd,
                "standard error": last.standard_error,
                last.second[0]: last.second[1],
                "seconds": sum(each.seconds for each in scores[name]),
                "weight": weights.get(name, 0.0) if weights else float(name == order[0]),
            }
        )
    return pandas.DataFrame(rows)


def _reasons(
    best: GPEstimator, split: datasets.Split, ranked: list[tuple[str, rungs.Score]], number: int
) -> str:
    """Return what was built, and what it was preferred to."""
    model, (N, D) = best.model_, split.train[0].shape
    likelihood = type(getattr(model.likelihood, "likelihood", model.likelihood)).__name__
    first = (
        f"The target {split.target!r} is {split.task}, with {N} rows and {D} inputs: {type(model).__name__} "
        f"with {likelihood}, and {_size(model)}."
    )
    name, score = ranked[0]
    second = (
        f"{name} predicts best of {len(ranked)} candidates, NLPD {score.nlpd:.4g} ± "
        f"{score.standard_error:.2g} of {len(score.log_densities):,} held-out rows from {score.rows:,} others"
    )
    if len(ranked) > 1:
        second += f", before {ranked[1][0]} with {ranked[1][1].nlpd:.4g}"
    if len(ranked) < number:
        second += f"; there was no time for, or no use in, {number - len(ranked)} more"
    if best.result_.status is Status.OUT_OF_TIME:
        second += "; the budget ended its training before it had settled"
    return f"{first} {second}."


def _size(model: Any) -> str:
    """Return what a model is built of."""
    prior, points = getattr(model, "prior_name", None), getattr(model, "inducing_variable", None)
    if prior == "vecchia":
        return f"each value depends on its {model.prior_options.neighbours} nearest neighbours"
    if prior is not None:
        return f"its prior is that of {'a state space' if prior == 'markov' else 'the cells of a grid'}"
    return (
        "every row is a point of it"
        if points is None
        else f"it has {int(points.num_inducing)} inducing points"
    )
