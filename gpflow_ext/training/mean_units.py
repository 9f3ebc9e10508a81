"""Units of the coefficients of a mean function: by one, each moves it in proportion to the targets.

The mean of house prices is 20,000 where that of standardised targets is one. Beside logarithms, which go all
their way in a few unit steps, a search would leave it at zero: the gradient in it is small, as its unit is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.functions import Constant, Function, Linear, Polynomial

from gpflow_ext.data.checks import Array
from gpflow_ext.sites.units import is_unlinked, squares

_SHARE = 1.0 / 64.0  # of widely spread targets that a unit step is: the kernel grows to their scale meanwhile


def mean_units(model: Any, variables: Sequence[tf.Variable], data: Any) -> list[Array]:
    """Return the units of variables for `LogSpace`, each of a shape that broadcasts to that of its variable.

    They are powers of two, and one for all that is no coefficient of GPflow's mean functions. A slope moves
    the mean by the deviation of the targets over that of its term, a constant by the root of their mean
    square. Where the deviation is more than one they move by a share of that, 1/64 at least: a kernel whose
    variance begins at one would else come after the mean, and end as noise. Where a likelihood has a link
    both sizes are one.

    Parameters
    ----------
    model
        The model.
    variables
        What moves.
    data
        Inputs [N, D] and targets [N, P]; without them all units are one.
    """
    one, units = np.ones(()), {}
    mean = getattr(model, "mean_function", None)
    moved = {id(variable) for variable in variables}
    if not isinstance(mean, Function) or not any(id(own) in moved for own in mean.trainable_variables):
        return [one] * len(variables)
    if isinstance(data, tuple | list) and len(data) > 1:
        X, Y = (np.asarray(tf.convert_to_tensor(part), np.float64) for part in data[:2])
        sizes = _sizes(*squares(model, Y)) if is_unlinked(model) else (1.0, 1.0)
        parts = (part for part in (mean, *mean.submodules) if isinstance(part, Function))
        units = {
            id(coefficient.unconstrained_variable): _unit(term, *sizes)
            for part in parts
            for coefficient, term in _terms(part, X)
            if isinstance(coefficient, gpflow.Parameter)
        }
    return [units.get(id(variable), one) for variable in variables]


def _sizes(square: float, variance: float) -> tuple[float, float]:
    """Return by how much constants and slopes move the mean, for the mean square of targets and variance."""
    size, deviation = np.sqrt([square, variance])
    share = max(_SHARE, 1.0 / max(1.0, deviation))
    return share * size, share * deviation


def _terms(mean: Function, X: Array) -> Iterator[tuple[Any, Array]]:
    """Yield the coefficients of a mean function with what they are multiplied by, [N, ...]."""
    constant = np.ones(len(X))
    if isinstance(mean, Constant) and hasattr(mean, "c"):
        yield mean.c, constant
    elif isinstance(mean, Linear):
        yield mean.A, X[..., None]
        yield mean.b, constant
    elif isinstance(mean, Polynomial):
        yield mean.w, np.prod(X[:, None] ** mean.powers.numpy(), axis=-1)


def _unit(term: Array, constant: float, slope: float) -> Array:
    deviation, largest = term.std(axis=0), np.abs(term).max(axis=0, initial=0.0)
    varies = deviation > np.finfo(term.dtype).eps * largest
    size = np.where(varies, deviation, np.where(largest > 0.0, largest, 1.0))
    ratio = np.where(varies, slope, constant) / size
    return np.exp2(np.rint(np.log2(np.where(ratio > 0.0, ratio, 1.0))))
