"""Choose a model for a table: candidates are compared by cross-validation, and the best is trained."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpflow_ext.cross_validation import Build, CrossValidation, cross_validate
from gpflow_ext.data import datasets
from gpflow_ext.estimators import averaging, spatial
from gpflow_ext.estimators.base import Array, GPEstimator
from gpflow_ext.estimators.candidates import SURE, candidates
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.ends import FitWarning
from gpflow_ext.training.loop import Status

_CLASSES = ("binary", "multiclass", "ordinal")
_COMPARED = 1000  # rows of the cross-validation, at most
_FOLDS = 5
_COMPARING = 0.6  # of the budget, after which no further candidate is tried
_PLACES = 0.1  # of it, for each training of the comparison between priors of places
_LEAST = 0.1  # of the budget, which the training of the best has left in any case


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
        A pandas ``DataFrame`` of the candidates in the order of their negative log predictive density (NLPD):
        its standard error, the error rate or RMSE, the seconds, and the weight in the model.
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
    a linear one among them, and noise models are compared by 5-fold cross-validation on at most 1,000 rows.
    The candidate with the lowest negative log predictive density (NLPD) is then trained on all rows, or
    several of them if their average has a lower one. Of places with two or three inputs, more than a dense
    model takes, a fifth is held out and predicted by nearest neighbours (``prior="vecchia"``) and by inducing
    points: all rows are trained with what predicts better.

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
        Seconds for comparison and training. After 60 % of them no further candidate is tried; the plain one
        and the linear one always are. The training of the best has the rest, and at least 10 %; ``why`` says
        so if it was cut short. Reading data and compiling are not counted.
    seed
        Seed of the folds, the inducing points and the minibatches.
    average
        Train several candidates if a weighted mean of their predictive densities does better on held-out
        rows than the best of them; the weights are those of stacking, see
        `prediction.average.stacking_weights`.
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
    some = np.random.default_rng(seed).permutation(len(X))[:_COMPARED]
    found = candidates(split.task, len(X), X.shape[1], Y.shape[1])
    scores, densities = _compared(found, split, some, budget, seed, progress)
    order = sorted(scores, key=lambda name: scores[name].mean["nlpd"])
    weights = averaging.weights(densities) if average else {}
    places = _places(found, split, order, seed, _PLACES * budget)
    if places is not None and places[1].better:
        weights, members = {places[0]: 1.0}, [places[0]]
        found[places[0]]._prior = "vecchia"
    else:
        members = list(weights) or order[:1]
    left = max(budget - (time.perf_counter() - begin), _LEAST * budget)
    for name in members:
        found[name]._seconds = left / len(members)
        _train(found[name].set_params(random_state=seed), split)
    best = found[members[0]]
    why = _reasons(best, split, order, scores, len(found), "" if places is None else f"; {places[1]}")
    if len(members) > 1:
        best.model_ = ModelAverage([found[name].model_ for name in members], list(weights.values()))
        why += f" Predictions are averaged: {averaging.shares(weights)}."
    return Auto(best, split, _table(order, scores, weights), why)


def _places(
    found: dict[str, GPEstimator], split: datasets.Split, order: list[str], seed: int, seconds: float
) -> tuple[str, spatial.Compared] | None:
    """Compare the priors of many places, by the best candidate that allows both; return its name too."""
    X, Y = _whole(split)
    alone = split.train[1].shape[1] == 1
    name = next((name for name in order if alone and spatial.suits(found[name], X, Y)), None)
    outcome = None if name is None else spatial.compared(found[name], X, Y, seed, seconds)
    return None if name is None or outcome is None else (name, outcome)


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
    found: dict[str, GPEstimator],
    split: datasets.Split,
    rows: npt.NDArray[np.int64],
    budget: float,
    seed: int,
    progress: bool | None,
) -> tuple[dict[str, CrossValidation], dict[str, Array]]:
    """Return the scores of the candidates for which there is time, and log densities of all rows by each."""
    X, Y = _whole(split)
    data, begin = (X[rows], Y[rows]), time.perf_counter()
    scores: dict[str, CrossValidation] = {}
    densities: dict[str, Array] = {}
    with warnings.catch_warnings(), progress_bar.bar("candidates", len(found), 0, progress) as show:
        warnings.simplefilter("ignore", UserWarning)  # of a candidate: its score tells what comes of it
        for number, (name, estimator) in enumerate(found.items()):
            if number >= SURE and time.perf_counter() - begin > _COMPARING * budget:
                break
            if split.task in _CLASSES:
                estimator.classes_ = np.unique(Y)  # of all rows: a fold may miss one
            kept = averaging.KeptRows()
            try:
                score = cross_validate(
                    _builder(estimator),
                    data,
                    folds=min(_FOLDS, len(rows)),
                    seed=seed,
                    metrics=kept,
                    workers=1,
                    seconds=max(_COMPARING * budget / (2.0 * _FOLDS), 1.0),
                    progress=False,
                )
            except (ValueError, NotImplementedError, ArithmeticError):
                if not number:
                    raise
                continue
            if number and None in score.results:  # a mean over fewer folds would be that of others
                continue
            scores[name], densities[name] = score, kept.log_densities()
            show(number + 1, -scores[name].mean["nlpd"])
    return scores, densities


def _builder(estimator: GPEstimator) -> Build:
    return lambda part: estimator.model_of(*part)[0]


def _table(order: list[str], scores: dict[str, CrossValidation], weights: Mapping[str, float]) -> Any:
    import pandas

    rows = []
    for name in order:
        mean, error = scores[name].mean, scores[name].standard_error
        second = "error" if "error" in mean else "rmse"
        rows.append(
            {
                "candidate": name,
                "nlpd": mean["nlpd"],
                "standard error": error["nlpd"],
                second: mean[second],
                "seconds": scores[name].seconds.sum(),
                "weight": weights.get(name, 0.0) if weights else float(name == order[0]),
            }
        )
    return pandas.DataFrame(rows)


def _reasons(
    best: GPEstimator,
    split: datasets.Split,
    order: list[str],
    scores: dict[str, CrossValidation],
    number: int,
    places: str = "",
) -> str:
    """Return what was built, and what it was preferred to."""
    model, (N, D) = best.model_, split.train[0].shape
    likelihood = type(getattr(model.likelihood, "likelihood", model.likelihood)).__name__
    first = (
        f"The target {split.target!r} is {split.task}, with {N} rows and {D} inputs: {type(model).__name__} "
        f"with {likelihood}, and {_size(model)}."
    )
    mean, error = scores[order[0]].mean["nlpd"], scores[order[0]].standard_error["nlpd"]
    second = f"{order[0]} predicts best of {len(order)} candidates, NLPD {mean:.4g} ± {error:.2g}"
    if len(order) > 1:
        second += f", before {order[1]} with {scores[order[1]].mean['nlpd']:.4g}"
    if len(order) < number:
        second += f"; there was no time for, or no use in, {number - len(order)} more"
    second += places
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
