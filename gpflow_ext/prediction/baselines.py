"""What a model should beat: predictions that ignore the inputs, and those of a linear model."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its part for statistics where it is used

from gpflow_ext.data.datasets import Split
from gpflow_ext.data.datasets.targets import CLASSIFICATION
from gpflow_ext.prediction.metrics import Tested

Array = npt.NDArray[Any]
_MOST_OUTPUTS = 100  # each of which has a model of its own


def scores(split: Split, most_rows: int | None = None) -> dict[str, dict[str, float]]:
    """Return the scores of the test rows of two baselines, "no inputs" and "linear model".

    The scores have the names and the meaning that they have in `metrics.evaluate`. The linear model is a
    logistic regression of classes, a Poisson regression of counts with their exposures, and else a Bayesian
    ridge regression of each target, all as scikit-learn has them; without inputs it is the constant alone.

    Parameters
    ----------
    split
        The data, with test rows. There are no baselines of more than a hundred targets.
    most_rows
        How many training rows are used, drawn at random; by default all.
    """
    (X, Y), (X_test, Y_test) = split
    if Y.shape[1] > _MOST_OUTPUTS:
        return {}
    rows: Any = slice(None)
    if most_rows is not None and len(X) > most_rows:
        rows = np.random.default_rng(0).permutation(len(X))[:most_rows]
    beside = [_columns(split, part) for part in (0, 1)]
    train = [None if each is None else each[rows] for each in (Y, *beside[0])]
    test = [Y_test, *beside[1]]
    found = {}
    for name, inputs, inputs_test in (
        ("no inputs", np.zeros((len(X), 1)), np.zeros((len(X_test), 1))),
        ("linear model", X, X_test),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[name] = _tested(split, (inputs[rows], *train), (inputs_test, *test)).scores()
    return found


def class_probabilities(
    X: Array, labels: Array, X_test: Array, num_classes: int, weights: Array | None = None
) -> Array:
    """Return the probabilities [T, K] of a logistic regression; a class without a training row has none."""
    from sklearn.linear_model import LogisticRegression

    seen = np.unique(labels).astype(int)
    probabilities = np.zeros((len(X_test), num_classes))
    if len(seen) == 1:
        probabilities[:, seen] = 1.0
    else:
        model = LogisticRegression(max_iter=1000).fit(X, labels, sample_weight=weights)
        probabilities[:, seen] = model.predict_proba(X_test)
    return probabilities


def moments(X: Array, Y: Array, X_test: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Return means and variances [T, P] of a Bayesian ridge regression of each target, where it is known."""
    from sklearn.linear_model import BayesianRidge

    def of_one(y: Array) -> tuple[Array, Array]:
        known = ~np.isnan(y)
        counted = None if weights is None else weights[known]
        model = BayesianRidge().fit(X[known], y[known], sample_weight=counted)
        mean, deviation = model.predict(X_test, return_std=True)
        return mean, np.square(deviation)

    mean, variance = zip(*map(of_one, Y.T), strict=True)
    return np.stack(mean, axis=1), np.stack(variance, axis=1)


def rates(X: Array, counts: Array, exposure: Array, X_test: Array, weights: Array | None = None) -> Array:
    """Return the rates [T] of a Poisson regression of counts at exposures [N].

    Rates y/e that are weighted by e have the likelihood of counts y ~ Poisson(e·rate).
    """
    from sklearn.linear_model import PoissonRegressor

    if not counts.any():
        return np.zeros(len(X_test))
    counted = exposure if weights is None else exposure * weights
    model = PoissonRegressor(alpha=1e-3, max_iter=1000).fit(X, counts / exposure, sample_weight=counted)
    return np.asarray(model.predict(X_test))


def _columns(split: Split, part: int) -> tuple[Array | None, Array | None]:
    """Return the exposures and the weights [N] of a part, where the data have them."""
    exposure, weights = (
        None if each is None else each[part][:, 0] for each in (split.exposure, split.weights)
    )
    return exposure, weights


def _tested(split: Split, train: tuple[Any, ...], test: tuple[Any, ...]) -> Tested:
    X, Y, exposure, weights = train
    X_test, Y_test, exposure_test, weights_test = test
    if split.task in CLASSIFICATION:
        classes = 1 + int(max(Y[:, 0].max(), Y_test[:, 0].max()))
        probabilities = class_probabilities(X, Y[:, 0], X_test, classes, weights)
        chosen = probabilities[np.arange(len(X_test)), Y_test[:, 0].astype(int)]
        with np.errstate(divide="ignore"):
            return Tested(np.log(chosen), probabilities, True, Y_test[:, :1], weights_test)
    if split.task == "count":
        at, at_test = (
            np.ones(len(each)) if e is None else e for each, e in ((X, exposure), (X_test, exposure_test))
        )
        mean = at_test * rates(X, Y[:, 0], at, X_test, weights)
        density = scipy.stats.poisson.logpmf(Y_test[:, 0], mean)
        return Tested(density, mean[:, None], False, Y_test[:, :1], weights_test)
    means, variances = moments(X, Y, X_test, weights)
    deviations = np.sqrt(np.maximum(variances, np.finfo(float).tiny))
    densities = scipy.stats.norm.logpdf(Y_test, means, deviations).sum(axis=1)
    return Tested(densities, means, False, Y_test, weights_test)
