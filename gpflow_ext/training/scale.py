"""Check whether the kernels of a model suit the scale of its inputs, which the objective does not show."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import (
    Exponential,
    IsotropicStationary,
    Kernel,
    Matern12,
    Matern32,
    Matern52,
    MultioutputKernel,
    SquaredExponential,
)
from gpflow.models import BayesianModel
from scipy.spatial.distance import cdist

from gpflow_ext.data import on_host
from gpflow_ext.data.checks import Array, are_inputs
from gpflow_ext.data.parts import parts
from gpflow_ext.numerics.centred import covariance, keeps_digits
from gpflow_ext.sites import latent, markov_prior

_LOOKED_AT = 200  # rows
_IMAGES_LOOKED_AT = 10  # of a convolutional kernel, whose covariances are sums over all pairs of patches
_PRIOR = "it relates no input to another one, so that the model predicts its prior"
_FLAT = "it does not tell the inputs apart, so that all predictions are the same"
_LOST = 1e-3  # of a squared distance, relative to the variance of a column: what rounding may take
_APART = 1e6  # of the distance to a near value: the squares of these are rounding even in double precision
_NEAR = 40  # a value is near the one after it by this share of the rows, in order
_UNRELATED = 1e-3  # correlation below which two inputs tell next to nothing of each other
_FALLING = (Exponential, Matern12, Matern32, Matern52, SquaredExponential)  # as inputs move apart
_RELATED = 3.7  # length scales: so near to each other inputs have correlations above `_UNRELATED`
_FEW = 20  # rows whose distances are looked at first


def scale_failure(model: BayesianModel, data: Any = None) -> str | None:
    """Say why a model predicts its prior, or one value everywhere; return ``None`` where it does neither.

    The first happens where its kernels relate no training input to another one, or to an inducing point; the
    second where they do not tell them apart beyond the jitter; of the nodes and weights of a network, where
    neither does. Inputs so far from zero, or from each other, that squared distances are rounding are named
    too. Only some rows are examined. A state-space prior that cuts off a periodic kernel is named first.

    Parameters
    ----------
    model
        The model.
    data
        The data that it was trained on, where it does not hold them: (X [N, D], Y), or a dataset, which is
        not examined.
    """
    held = data if data is not None else getattr(model, "data", None)
    if not isinstance(held, tuple | list):
        return None
    rows: Array = np.asarray(held[0], gpflow.default_float())
    most = _most_rows(model)
    X = _some_rows(rows, most)
    points = getattr(model, "inducing_variable", None)
    Z = X if points is None or not are_inputs(points) else _some_rows(on_host.value(points.Z), most)
    near = ("markov", "grid")  # whose inputs may span many length scales
    name = getattr(model, "prior_name", None)
    if name == "markov" and (truncated := markov_prior.truncation(model.kernel)) is not None:
        return truncated
    if name in near and len(rows) > 1:
        ordered = rows[np.lexsort(rows.T[::-1])]
        X, Z = _some_rows(ordered[:-1], most), _some_rows(ordered[1:], most)
    elif (lost := _lost_digits(X, 1 if _centres(model) else 2)) is not None:
        return lost
    if name is None and (apart := _lost_between_places(model, X)) is not None:
        return apart
    found: dict[str, str | None] = {}
    for name in ("kernel", "weight_kernel"):
        kernel = getattr(model, name, None)
        if isinstance(kernel, latent.KERNELS):
            found[name] = _shared_failure(kernel, X, Z)
        elif isinstance(kernel, Kernel) and not isinstance(kernel, MultioutputKernel):
            found[name] = _failure(kernel, X, Z)
    flat = all(failure == _FLAT for failure in found.values())
    for name, failure in found.items():
        if failure == _PRIOR or (failure == _FLAT and flat):
            fix = "start from length scales of that order"
            aware = f"{fix}, unless they tell nothing of the targets"
            fix = aware if _are_standardised(X) else f"standardise them, or {fix}"
            return f"{name}: {failure}. They spread over {np.ptp(X, axis=0).max():.2g}: {fix}."
    return None


def _are_standardised(X: Array) -> bool:
    """Tell whether some rows look like those of inputs with mean zero and variance one."""
    varies = np.ptp(X, axis=0) > 0.0
    mean, deviation = X.mean(axis=0)[varies], X.std(axis=0)[varies]
    return bool((np.abs(mean) < 0.5).all() and (np.abs(deviation - 1.0) < 0.5).all())


def _centres(model: BayesianModel) -> bool:
    """Tell whether distances are computed from centred inputs."""
    if not getattr(model, "centres_inputs", False):
        return False
    points = isinstance(getattr(model, "inducing_variable", None), InducingPoints | None)
    seen = [getattr(model, name, None) for name in ("kernel", "weight_kernel")]
    kernels = [part for kernel in seen if kernel is not None for part in latent.kernels(kernel)]
    return points and all(map(keeps_digits, kernels))


def _lost_digits(X: Array, power: int) -> str | None:
    """Name a column whose squared distances are wrong by more than `_LOST`.

    Of values s deviations from zero their own rounding takes ε s, that of the squares in x² + z² − 2xz ε s².
    """
    varies = np.ptp(X, axis=0) > 0.0  # the deviation of what does not may be rounding
    deviation = X.std(axis=0, dtype=np.float64)
    far = np.divide(np.abs(X).max(axis=0), deviation, out=np.zeros_like(deviation), where=varies)
    column = int(np.argmax(far))
    if np.finfo(X.dtype).eps * far[column] ** power <= _LOST:
        return None
    return (
        f"X: column {column} (counted from 0) is {far[column]:.3g} of its standard deviations from zero, "
        f"where distances lose their digits in {X.dtype.name}: subtract its mean before it is converted."
    )


def _lost_between_places(model: BayesianModel, X: Array) -> str | None:
    """Name a column of values so far apart that squared distances between near ones are rounding.

    As times of two bursts: the variance of all of them, which `_lost_digits` compares with, does not show it.
    """
    stationary = bool(parts(model, IsotropicStationary))
    if len(X) < 2 or not stationary:
        return None
    ordered, step = np.sort(X, axis=0), max(1, len(X) // _NEAR)
    near = np.median(ordered[step:] - ordered[:-step], axis=0)
    spread = np.ptp(X, axis=0)
    apart = np.divide(spread, near, out=np.zeros_like(spread), where=near > 0.0)
    column = int(np.argmax(apart))
    if apart[column] <= _APART:
        return None
    return (
        f"X: column {column} (counted from 0) spreads over {spread[column]:.2g}, while near values differ by "
        f"{near[column]:.2g}: distances between these lose their digits. Bring distant rows nearer to each "
        'other, or model a function of time by prior="markov".'
    )


def _suits(kernel: Kernel, X: Array, Z: Array) -> bool:
    """Tell whether a kernel relates some inputs X [N, D] to some of Z [M, D], and tells them apart.

    By distances alone, without a covariance; it errs towards no. At a distance of r length scales the
    correlations of `_FALLING` are at least exp(−r²/2) for r ≤ 3.7, and at most 1 − r²/4 for r² ≤ 2.
    """
    if type(kernel) not in _FALLING:
        return False
    lengths = on_host.value(kernel.lengthscales)
    some, others = (on_host.columns(kernel, rows) / lengths for rows in (_some_rows(X, _FEW), Z))
    squares = cdist(some, others, "sqeuclidean")
    return bool(((squares >= 4.0 * gpflow.default_jitter()) & (squares <= _RELATED**2)).any())


def _failure(kernel: Kernel, X: Array, Z: Array) -> str | None:
    if _suits(kernel, X, Z):
        return None
    _, number = np.unique(np.concatenate([X, Z]), axis=0, return_inverse=True)
    number = number.ravel()
    distinct = number[: len(X), None] != number[None, len(X) :]
    if not distinct.any():
        return None
    rows = X if Z is X else np.concatenate([X, Z])
    covariances = covariance(kernel, tf.constant(rows, gpflow.default_float())).numpy()
    variances = covariances.diagonal()
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = np.sqrt(np.outer(variances[: len(X)], variances[-len(Z) :]))
        correlations = covariances[: len(X), -len(Z) :] / scales
    correlations = np.abs(correlations[distinct])
    if correlations.max() < _UNRELATED:
        return _PRIOR
    if 1.0 - correlations.min() < gpflow.default_jitter() / max(variances[: len(X)].max(), 1.0):
        return _FLAT
    return None


def _shared_failure(kernel: Kernel, X: Array, Z: Array) -> str | None:
    """Return the failure that the kernels of all outputs or nodes have in common."""
    failures = {_failure(part, X, Z) for part in latent.kernels(kernel)}
    return failures.pop() if len(failures) == 1 else None


def _most_rows(model: BayesianModel) -> int:
    """Return how many rows are examined."""
    kernel = getattr(model, "kernel", None)
    convolves = isinstance(kernel, gpflow.kernels.Convolutional) or (
        isinstance(kernel, Kernel) and parts(kernel, gpflow.kernels.Convolutional)
    )
    return _IMAGES_LOOKED_AT if convolves else _LOOKED_AT


def _some_rows(rows: Array, most: int) -> Array:
    return rows[np.linspace(0, len(rows) - 1, min(most, len(rows))).astype(int)]
