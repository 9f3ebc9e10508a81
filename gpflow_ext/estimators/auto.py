"""Choose a model for a table: candidates are compared on held-out rows, and the best is trained on all."""

from __future__ import annotations

import time
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.data import datasets
from gpflow_ext.data.datasets.targets import CLASSIFICATION, values_of
from gpflow_ext.data.reading.frames import as_frame, column_names
from gpflow_ext.data.reading.problems import listed
from gpflow_ext.estimators import averaging, conditioning, halving, ladder, larger, reasons, refit
from gpflow_ext.estimators.candidates import candidates, on_minibatches
from gpflow_ext.estimators.chosen import Auto

_COMPARING = 0.6  # of the budget, after which no further candidate is tried
_COMPARING_MANY = 0.4  # where rows are so many that larger models follow
_COMPARING_BATCHES = 0.3  # where the better half is then trained on minibatches of all rows
_LEAST = 0.1  # of the budget, which the training of the best has left in any case


def auto(
    table: Any,
    target: str | None = None,
    *,
    task: str | None = None,
    budget: float = 60.0,
    seed: int = 0,
    average: bool = True,
    progress: bool | None = None,
    weights: Any = None,
    **options: Any,
) -> Auto:
    """Choose a model for a table, and train it.

    The task and the number of rows decide the likelihood and the inference, see `estimators.ladder`. Kernels,
    a linear one among them, and noise models are compared by successive halving (Jamieson & Talwalkar 2016),
    see `estimators.rungs`: all are trained on at most 1,000 rows and predict rows held out from them; the
    better half goes on with four times as many rows, from the hyperparameters that it has found, and so on,
    until those who are left have been trained on all that are not held out. Up to 1,000 rows this is one
    rung, a 5-fold cross-validation. From the second rung on models are built as that of all rows will be, and
    the best candidate is tried with nearest neighbours too (``prior="vecchia"``) if the inputs are places,
    see `estimators.candidates.of_neighbours`. Where all rows are for minibatches there is one rung of fewer,
    after which the better half is trained on minibatches of all; see `estimators.larger`.
    Where all rows would have inducing points, the best candidate is at last given up to 4,000 rows that are
    points, or more inducing points if training is not on minibatches, with the hyperparameters that it has
    learnt on fewer, as many as the seconds allow; see `estimators.conditioning`. The candidate with the
    lowest negative log predictive density (NLPD), each at its best rung, is then trained on all rows, or
    several of its rung if their average has a lower one. If that predicts the held-out rows worse than
    before, by more than a standard error, the models of the rung are kept, see `estimators.refit`.

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
        Seconds for comparison and training. Rungs share 60 % of them, or 40 % where larger models with the
        hyperparameters of the best candidate follow, which may take half of what is left, or two thirds. It
        is 30 % where minibatches of all rows follow, for which a third of what is left is. A rung takes at
        least 12 seconds and the first one twice as many. A candidate for which there is no time is left out,
        by what the one before took to compile and for its first step; the first two of a rung are always
        tried, the linear one among them. A rung is left out if two would take too long. The training of the
        best has the rest, and beside its first step at least 10 %. Of others in an average, those for which
        there is no time keep the models of their last rungs. ``why`` says so if it was cut short, or
        the comparison, and if all took more than one and a half times the budget. Reading data is not
        counted, nor the end of a first step. Tables of tens of thousands of rows deserve several minutes.
    seed
        Seed of the folds, the inducing points and the minibatches.
    average
        Train several candidates if a weighted mean of their predictive densities does better on held-out
        rows than the best of them; the weights are those of stacking, see
        `prediction.average.stacking_weights`. Beyond 20,000 rows the best one has all of the time.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    weights
        Weights of the rows: a column of the table, which is then not an input, or numbers [N] from 0. A row
        of weight w counts as w copies of it in each training, in all scores by which candidates are chosen
        and averaged, and in the scaling of the inputs. See `datasets.load`.
    **options
        Options of `datasets.load`, such as ``missing="mean"``, or ``exposure="days"`` for counts.

    Raises
    ------
    ValueError
        For a table that cannot be used, a class that only test rows have, and for whatever the first
        candidate fails with.

    Examples
    --------
    >>> best = gpx.auto("table.csv", "ill", budget=120)
    >>> print(best)
    >>> gpx.export(best, "saved_models/ill")
    """
    if not isinstance(budget, Real) or not budget > 0.0:
        raise ValueError(f"budget must be positive, in seconds; got {budget!r}")
    table = tuple(map(as_frame, table)) if isinstance(table, tuple) else as_frame(table)
    options |= {} if weights is None else {"weights": weights}
    split = _without_idle_classes(_read(table, target, task, options))
    begin = time.perf_counter()
    X, Y = split.train
    entrants = candidates(split.task, len(X), X.shape[1], Y.shape[1], split.weights is not None)
    if split.task in CLASSIFICATION:
        for estimator in entrants.values():
            estimator.classes_ = np.unique(Y)  # of all rows: a part may miss one
    data = refit.whole(split)
    batches = any(on_minibatches(each, X, data.Y) for each in entrants.values())
    many = batches or any(conditioning.suits(each, data) for each in entrants.values())
    share = _COMPARING_BATCHES if batches else _COMPARING_MANY if many else _COMPARING
    comparison = halving.compared(entrants, data, share * budget, seed, progress, 1 if batches else None)
    if many:
        larger.extend(comparison, data, begin + budget, seed)
    ranked = comparison.ranked()
    best, *_ = ranked
    level = {name: each.log_densities for name, each in ranked.items() if each.rows == ranked[best].rows}
    average = average and len(X) <= ladder.MINIBATCHES
    shares = (averaging.weights(level, ranked[best].weights) if average else {}) or {best: 1.0}
    spent = time.perf_counter() - begin + sum(ranked[name].first_call for name in shares)
    left = max(budget - spent, _LEAST * budget)
    trained = refit.refitted(shares, comparison, split, left, begin + budget, seed)
    estimator = comparison.found[next(iter(shares))]
    estimator.model_ = trained.model
    why = reasons.sentences(estimator, split, comparison, ranked, shares, trained)
    why += reasons.overrun(time.perf_counter() - begin, budget)
    shown = reasons.table(ranked, comparison.scores, shares)
    return Auto(estimator, split, shown, why, _classes(table, split))


def _read(table: Any, target: str | None, task: str | None, options: dict[str, Any]) -> datasets.Split:
    if isinstance(table, datasets.Split):
        if target is not None or task is not None or options:
            raise ValueError(
                "target, weights and other options are for tables: a Split has been read already"
            )
        return table
    if isinstance(table, np.ndarray | list) or _are_values(target):
        raise ValueError("arrays of inputs and targets are given as a pair: auto((X, y))")
    if isinstance(table, tuple):
        if target is not None:
            raise ValueError("target names a column of a table: leave it out where y is given")
        table, target = _frame(*table)
    return datasets.load(table, target=target, task=task, **{"test_fraction": 0.0, **options})


def _are_values(target: Any) -> bool:
    """Tell whether a target is many values in place of the names of columns."""
    a_list = isinstance(target, list | tuple)
    return hasattr(target, "dtype") or (a_list and not all(isinstance(each, str) for each in target))


def _without_idle_classes(split: datasets.Split) -> datasets.Split:
    """Return the data without classes that no row has: estimators know those of their data alone.

    Raises
    ------
    ValueError
        For a class that only test rows have.
    """
    Y, Y_test = split.train[1], split.test[1]
    if split.task not in CLASSIFICATION or split.labels is None:
        return split
    used = np.unique(Y)
    if (unseen := np.setdiff1d(Y_test, used)).size:
        names = listed([split.labels[int(number)] for number in unseen])
        raise ValueError(
            f"no training row has {names} as its {split.target}, which test rows have: leave these out, or "
            "have rows of each class to train on"
        )
    idle = [label for number, label in enumerate(split.labels) if number not in used]
    if not idle:
        return split
    return replace(
        split,
        train=(split.train[0], np.searchsorted(used, Y).astype(Y.dtype)),
        test=(split.test[0], np.searchsorted(used, Y_test).astype(Y.dtype)),
        labels=tuple(label for label in split.labels if label not in idle),
        notes=(*split.notes, f"no row has {listed(idle)} as its {split.target}: left out of the classes"),
    )


def _classes(table: Any, split: datasets.Split) -> npt.NDArray[Any] | None:
    """Return the values of the labels as the table has them; ``None`` where nothing is classified."""
    if split.task not in CLASSIFICATION or split.labels is None:
        return None
    given = table[1] if isinstance(table, tuple) else None
    if hasattr(table, "columns"):
        given = table.iloc[:, column_names(table).index(split.target)]
    return values_of(split.labels, given)


def _frame(X: Any, y: Any) -> tuple[Any, Any]:
    """Return a data frame of inputs and targets, and the names of its targets."""
    import pandas

    named = hasattr(X, "columns")
    if named:
        column_names(X, "X")  # which are of one level
    values = X if named else np.asarray(X)
    if values.ndim not in (1, 2):
        fix = "give X.toarray()" if hasattr(X, "toarray") else f"its shape is {values.shape}"
        raise ValueError(f"X must be a data frame or an array [N, D] of numbers: {fix}")
    frame = X.copy() if named else pandas.DataFrame(values)
    if not named:
        frame.columns = [f"x{n}" for n in range(frame.shape[1])]
    targets = np.asarray(y)
    if len(targets) != len(frame):
        raise ValueError(f"X and y must have as many rows; they have {len(frame)} and {len(targets)}")
    columns = targets.reshape(len(targets), -1).T
    names = ["y"] if len(columns) == 1 else [f"y{n}" for n in range(len(columns))]
    while not frame.columns.intersection(names).empty:  # inputs may be called so
        names = [f"target_{name}" for name in names]
    for name, column in zip(names, columns, strict=True):
        frame[name] = column
    if isinstance(getattr(y, "dtype", None), pandas.CategoricalDtype):  # which an array does not tell
        frame[names[0]] = pandas.Categorical(y)
    return frame, names[0] if len(names) == 1 else names
