"""What `auto` tells of its choice: a table of the candidates, and the reasons in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpflow_ext.data import datasets
from gpflow_ext.estimators import averaging
from gpflow_ext.estimators.base import GPEstimator
from gpflow_ext.estimators.halving import Comparison
from gpflow_ext.estimators.kernels import LINEAR
from gpflow_ext.estimators.refit import Refit
from gpflow_ext.estimators.rungs import Score
from gpflow_ext.numerics.target_moments import innermost
from gpflow_ext.training.loop import Status

_CLEARLY = 1.5  # times the budget, from which on it is said to be overrun


def table(
    ranked: Mapping[str, Score], scores: Mapping[str, Sequence[Score]], weights: Mapping[str, float]
) -> Any:
    """Return a data frame of the candidates, the best one first."""
    import pandas

    rows = [
        {
            "candidate": name,
            "rows": last.rows,
            "nlpd": last.nlpd,
            "standard error": last.standard_error,
            last.second[0]: last.second[1],
            "seconds": sum(each.seconds for each in scores[name]),
            "weight": weights.get(name, 0.0),
        }
        for name, last in ranked.items()
    ]
    return pandas.DataFrame(rows)


def sentences(
    estimator: GPEstimator,
    split: datasets.Split,
    comparison: Comparison,
    ranked: Mapping[str, Score],
    weights: Mapping[str, float],
    trained: Refit,
) -> str:
    """Return what was built, what it was preferred to, and what the user should know of it."""
    found = [_built(trained.models[0], split), _preferred(estimator, ranked, len(comparison.found), trained)]
    if all(name == LINEAR or score.cut for name, score in ranked.items()):
        found.append("The budget cut short the training of each candidate but the linear one.")
    rows = max(score.rows for score in ranked.values())
    if 2 * rows < len(split.train[0]):
        found.append(f"There was no time to compare candidates on more than {rows:,} rows.")
    for name, nlpd in trained.worse.items():
        last = ranked[name]
        found.append(
            f"Trained on all rows {name} predicted the held-out ones worse, NLPD {nlpd:.4g} after "
            f"{last.nlpd:.4g}: what was trained on {last.rows:,} rows is kept."
        )
    if trained.untimely:
        found.append(f"There was no time to train {' and '.join(trained.untimely)} on all rows too.")
    if len(weights) > 1:
        found.append(f"Predictions are averaged: {averaging.shares(weights)}.")
    return " ".join(found)


def overrun(spent: float, budget: float) -> str:
    """Return a sentence if the seconds spent are clearly more than the budget, with a space before it."""
    if spent <= _CLEARLY * budget:
        return ""
    return (
        f" It took {spent:.3g} seconds in place of the {budget:.3g} of the budget: two candidates are tried "
        "and the best is trained in any case, and no first step is cut short."
    )


def _built(model: Any, split: datasets.Split) -> str:
    N, D = split.train[0].shape
    likelihood = type(innermost(model.likelihood)).__name__
    return (
        f"The target {split.target!r} is {_held(split)}, with {N} rows and {D} inputs: "
        f"{type(model).__name__} with {likelihood}, and {size(model)}."
    )


def _held(split: datasets.Split) -> str:
    """Return what the target holds."""
    classes = len(split.labels or np.unique(split.train[1]))
    return {
        "binary": "two classes",
        "multiclass": f"{classes} classes",
        "ordinal": f"{classes} ordered levels",
        "count": "a count",
    }.get(split.task, "a real number" if split.train[1].shape[1] == 1 else "several real numbers")


def _preferred(estimator: GPEstimator, ranked: Mapping[str, Score], number: int, trained: Refit) -> str:
    (name, score), *others = ranked.items()
    found = (
        f"{name} predicts best of {len(ranked)} candidates, NLPD {score.nlpd:.4g} ± "
        f"{score.standard_error:.2g} of {len(score.log_densities):,} held-out rows from {score.rows:,} others"
    )
    if others:
        found += f", before {others[0][0]} with {others[0][1].nlpd:.4g}"
    if len(ranked) < number:
        found += f"; there was no time for, or no use in, {number - len(ranked)} more"
    if estimator.result_.status is Status.OUT_OF_TIME and name not in trained.worse:
        found += "; the budget ended its training before it had settled"
    return f"{found}."


def size(model: Any) -> str:
    """Return what a model is built of."""
    prior, points = getattr(model, "prior_name", None), getattr(model, "inducing_variable", None)
    if prior == "vecchia":
        return f"each value depends on its {model.prior_options.neighbours} nearest neighbours"
    if prior is not None:
        return f"its prior is that of {'a state space' if prior == 'markov' else 'the cells of a grid'}"
    if points is None:
        return "every row is a point of it"
    return f"it has {int(points.num_inducing)} inducing points"
