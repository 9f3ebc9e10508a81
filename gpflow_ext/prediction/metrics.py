"""Metrics of predictions: error, log density, calibration. Pure NumPy, except for ``evaluate``."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import gpflow
import numpy as np
import scipy  # loads its part for statistics where it is used
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from gpflow_ext.data.arguments import check_whole
from gpflow_ext.prediction.batches import Predicted
from gpflow_ext.prediction.held_out import Predictor, checked, checked_weights

Floats = NDArray[np.float64]
_ROUNDING = 1e-6  # by how much a probability computed in single precision may leave [0, 1]


def error_rate(probabilities: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return the share of rows whose most probable class is not the label; ties go to the lower class.

    Parameters
    ----------
    probabilities
        Class probabilities, shape [N, K].
    y
        Classes 0 .. K-1, shape [N] or [N, 1].
    weights
        As how many copies each row counts, [N]; once by default.

    Raises
    ------
    ValueError
        If there are no rows, shapes differ, a probability is not one, a label is out of range, or weights are
        not finite numbers from 0, not all 0.
    """
    p, labels = _classified(probabilities, y)
    return _average(p.argmax(axis=1) != labels, weights)


def negative_log_predictive_density(log_density: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return ``-mean_n log p(y_n | x_n)`` in nats, from the log densities of N points, shape [N].

    ``weights`` are those of ``error_rate``.

    Raises
    ------
    ValueError
        If there are no points, a log density is NaN, or weights are not as there.
    """
    values = np.asarray(log_density, np.float64)
    if values.ndim != 1 or not values.size:
        raise ValueError(f"log_density has shape {values.shape}; it must be [N] with N > 0.")
    if (wrong := np.isnan(values)).any():
        raise ValueError(f"log_density is NaN at row {int(np.argmax(wrong))}; check the predictions.")
    return -_average(values, weights)


def nlpd_from_probabilities(probabilities: ArrayLike, y: ArrayLike) -> float:
    """Return ``-mean_n log p(y_n | x_n)`` of class labels; infinite where a label had probability 0.

    Parameters and errors are those of ``error_rate``.
    """
    p, labels = _classified(probabilities, y)
    with np.errstate(divide="ignore"):
        return negative_log_predictive_density(np.log(np.maximum(p[np.arange(labels.size), labels], 0.0)))


def expected_calibration_error(
    probabilities: ArrayLike, y: ArrayLike, bins: int = 10, weights: ArrayLike | None = None
) -> float:
    """Return the mean gap between the confidence and the accuracy of the predicted class.

    ``sum_b (N_b / N) |accuracy_b - confidence_b|`` over equal-width bins of the largest probability of each
    row (Guo et al. 2017, eq. 3). A confidence on an edge, up to single precision, counts in the bin below it.

    Parameters
    ----------
    probabilities, y, weights
        As in ``error_rate``.
    bins
        Number of bins of [0, 1].

    Raises
    ------
    ValueError
        As ``error_rate``, and for fewer than one bin.
    """
    _from_one(bins=bins)
    p, labels = _classified(probabilities, y)
    confidence = p.max(axis=1)
    counted = _counts(weights, len(labels))
    gap = counted * ((p.argmax(axis=1) == labels) - confidence)
    member = np.clip(np.ceil((confidence - _ROUNDING) * bins).astype(int) - 1, 0, bins - 1)
    return float(np.abs(np.bincount(member, weights=gap, minlength=bins)).sum() / counted.sum())


def rmse(prediction: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return the root mean squared error over all entries of two arrays of one shape, [N] or [N, P].

    ``weights`` are those of ``error_rate``.

    Raises
    ------
    ValueError
        If the arrays are empty, differ in shape, or hold values that are not finite.
    """
    return float(np.sqrt(_average(np.square(_residual(prediction, y)), weights)))


def nmae(prediction: ArrayLike, y: ArrayLike, weights: ArrayLike | None = None) -> float:
    """Return the normalised mean absolute error, ``sum |prediction - y| / sum |y|``, over all entries.

    Some authors divide by the standard deviation of the targets instead; the two are not comparable.
    Parameters and errors are those of ``rmse``; targets that are all 0 are an error too.
    """
    error = _average(np.abs(_residual(prediction, y)), weights)
    size = _average(np.abs(np.asarray(y, np.float64)), weights)
    if size == 0.0:
        raise ValueError("y is 0 everywhere: the normalised error is undefined; use rmse.")
    return error / size


def evaluate(
    model: Predictor, data: tuple[ArrayLike, ArrayLike], *, batch_size: int = 1000
) -> dict[str, float]:
    """Return the test metrics of a model.

    "nlpd" is the mean of ``-log p(y_n | x_n)``, by `numerics.log_predictive`. Classifiers also have
    "error" and "ece", all other models "rmse" and "nmae" of the predictive mean. Counts with exposures, Y
    [N, 2], are compared with the predicted rate times the exposure, and targets of a ``SwitchedLikelihood``
    with the mean by the likelihood that their row numbers. With the weights of a ``Weighted``
    likelihood in the last column of Y, a row counts as its weight of copies. The density of a `GPRNTensor`
    without draws of a sampler is the Gaussian with its moments, as that of its exports is; targets that are
    NaN do not count, nor do rows without others. Several outputs of a likelihood of labels are no classes:
    their means are compared with the labels, so that "rmse" is the root of the Brier score of binary ones.

    Parameters
    ----------
    model
        Any GPflow model with ``predict_f`` and a ``likelihood``.
    data
        Inputs [N, D] and targets [N, P].
    batch_size
        Rows that are predicted at a time.

    Raises
    ------
    ValueError
        If there are no rows, the shapes or weights are wrong, or a target lies outside the support of the
        likelihood, such as a class label out of range or a count that is not whole; and for GPflow's
        ``Softmax``, whose densities take no floating targets.
    """
    return evaluated_rows(model, data, batch_size=batch_size)[0]


def evaluated_rows(
    model: Predictor,
    data: tuple[ArrayLike, ArrayLike],
    *,
    weights: ArrayLike | None = None,
    batch_size: int = 1000,
) -> tuple[dict[str, float], Floats]:
    """Return what ``evaluate`` does, and the log predictive density of each row as it is, [N].

    ``weights`` [N] are those of ``error_rate``, whatever the likelihood; by default those in Y, if any.
    """
    tested = _tested(model, data, batch_size)
    if weights is not None:
        tested = tested._replace(weights=checked_weights(weights, len(tested.Y)))
    return tested.counted().scores(), tested.densities


def intervals(
    model: Predictor,
    data: tuple[ArrayLike, ArrayLike],
    *,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    batch_size: int = 1000,
) -> dict[str, tuple[float, float]]:
    """Return confidence intervals of the metrics of ``evaluate``, since test rows are few.

    The interval of "error" is the exact one of a binomial proportion (Clopper & Pearson 1934), the others are
    percentiles of the bootstrap over test rows, as is that of "error" where rows have weights. There is none
    for "ece", which resampling biases upwards; that of "nmae" is over the resamples whose targets are not all
    0. They do not cover the variation between training sets.

    Parameters
    ----------
    model, data, batch_size
        As in ``evaluate``.
    level
        The coverage of an interval, between 0 and 1.
    resamples, seed
        Number of resamples and seed of the bootstrap.

    Returns
    -------
    The lower and the upper end of each interval, by the name of the metric.

    Raises
    ------
    ValueError
        As ``evaluate``, and for a level that is not between 0 and 1, or no resample.
    """
    if not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise ValueError(f"level={level!r} must lie between 0 and 1.")
    _from_one(resamples=resamples)
    tested = _tested(model, data, batch_size).counted()
    names, number = tested.scores().keys(), len(tested.Y)
    drawn = np.random.default_rng(seed).integers(number, size=(resamples, number))
    rates = [tested.rows(rows).scores() for rows in drawn]
    found = {
        name: _percentiles([rate[name] for rate in rates if name in rate], level)
        for name in names
        if name != "ece"
    }
    if tested.is_classifier and tested.weights is None:
        wrong = round(error_rate(tested.prediction, tested.Y) * number)
        exact = scipy.stats.binomtest(wrong, number).proportion_ci(level)
        found["error"] = float(exact.low), float(exact.high)
    return found


def _percentiles(values: list[float], level: float) -> tuple[float, float]:
    """Return the values between which a share of them lies, not interpolated: some may be infinite."""
    low = np.quantile(values, 0.5 - 0.5 * level, method="lower")
    high = np.quantile(values, 0.5 + 0.5 * level, method="higher")
    return float(low), float(high)


class Tested(NamedTuple):
    """Log densities [N], probabilities [N, K] or means [N, P], which of both, targets, weights [N]."""

    densities: Floats
    prediction: NDArray[Any]
    is_classifier: bool
    Y: NDArray[Any]
    weights: Floats | None

    def rows(self, which: NDArray[Any]) -> Tested:
        """Return some of the rows."""
        densities, prediction, is_classifier, Y, weights = self
        some = None if weights is None else weights[which]
        return Tested(densities[which], prediction[which], is_classifier, Y[which], some)

    def counted(self) -> Tested:
        """Return the rows of weights above 0; those without targets stay only if a density is NaN there."""
        there = np.isnan(self.densities) | ~np.isnan(self.Y).all(axis=1)
        return self.rows(there if self.weights is None else there & (self.weights > 0.0))

    def scores(self) -> dict[str, float]:
        """Return the metrics of `evaluate`."""
        _, prediction, is_classifier, Y, weights = self
        metrics = {"nlpd": negative_log_predictive_density(self.densities, weights)}
        if is_classifier:
            metrics["error"] = error_rate(prediction, Y, weights)
            metrics["ece"] = expected_calibration_error(prediction, Y, weights=weights)
            return metrics
        if (missing := np.isnan(Y)).any():
            weights = None if weights is None else np.broadcast_to(weights[:, None], Y.shape)[~missing]
            prediction, Y = prediction[~missing], Y[~missing]
        metrics["rmse"] = rmse(prediction, Y, weights)
        if np.any(Y):  # the normalised error is undefined for targets that are all 0
            metrics["nmae"] = nmae(prediction, Y, weights)
        return metrics


def _tested(model: Predictor, data: tuple[ArrayLike, ArrayLike], batch_size: int) -> Tested:
    _from_one(batch_size=batch_size)
    X, Y, weights = checked(model, data)
    predict = Predicted(model)
    found = predict.in_batches(predict.of.scored, X, Y, size=batch_size)
    densities, predictions, of_classes = zip(*map(_numbers, found), strict=True)
    prediction = np.concatenate(predictions)
    if getattr(model.likelihood, "exposure", False):  # Y holds counts and exposures
        prediction, Y = prediction * Y[:, 1:], Y[:, :1]
    if isinstance(model.likelihood, gpflow.likelihoods.SwitchedLikelihood):  # the last column numbers them
        each = prediction.reshape(len(Y), len(model.likelihood.likelihoods), -1)
        prediction, Y = each[np.arange(len(Y)), Y[:, -1].astype(int)], Y[:, :-1]
    return Tested(np.concatenate(densities), prediction, of_classes[0], Y, weights)


def _numbers(found: dict[str, tf.Tensor]) -> tuple[Floats, NDArray[Any], bool]:
    """Return log densities [B], class probabilities [B, K] or else means [B, P], and which of the two."""
    density = found["log_density"].numpy()
    if "mean" in found:
        return density, found["mean"].numpy(), False
    return density, found["probabilities"].numpy(), True


def _classified(probabilities: ArrayLike, y: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    """Return probabilities [N, K] and labels [N], checked."""
    p, labels = np.asarray(probabilities, np.float64), np.asarray(y)
    if p.ndim != 2 or not p.size:
        raise ValueError(f"probabilities has shape {p.shape}; it must be [N, K] with N > 0.")
    if labels.shape not in ((len(p),), (len(p), 1)):
        raise ValueError(
            f"y has shape {labels.shape}; for {len(p)} rows it must be [{len(p)}] or [{len(p)}, 1] "
            "(class numbers, not one-hot)."
        )
    if not np.all((p >= -_ROUNDING) & (p <= 1.0 + _ROUNDING)):
        raise ValueError("probabilities holds values outside [0, 1] or NaN; check the predictions.")
    labels = labels.reshape(-1)
    if (wrong := ~np.isin(labels, np.arange(p.shape[1]))).any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"y is {labels[row]} at row {row}; labels must be the class numbers 0 to {p.shape[1] - 1}."
        )
    return p, labels.astype(np.int64)


def _from_one(**values: Any) -> None:
    """Raise ``ValueError`` unless a value is a whole number, at least 1."""
    check_whole(**values)
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1.")


def _residual(prediction: ArrayLike, y: ArrayLike) -> Floats:
    guess, truth = np.asarray(prediction, np.float64), np.asarray(y, np.float64)
    if guess.shape != truth.shape or not truth.size:
        raise ValueError(
            f"prediction has shape {guess.shape} and y {truth.shape}; they must be equal and not empty."
        )
    for name, values in (("prediction", guess), ("y", truth)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} holds values that are not finite; remove these rows first.")
    return guess - truth


def _average(values: NDArray[Any], weights: ArrayLike | None) -> float:
    """Return the mean of values [N, ...] over rows; what is in those of weight 0 does not matter."""
    counts = _counts(weights, len(values))
    each = values.reshape(len(values), -1)[counts > 0.0].mean(axis=1)
    return float(np.average(each, weights=counts[counts > 0.0]))


def _counts(weights: ArrayLike | None, number: int) -> Floats:
    """Return as how many copies each row counts, [N]."""
    return np.ones(number) if weights is None else checked_weights(weights, number)
