"""Validation of the arguments of the estimators, and their conversion for the models."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import _check_sample_weight, column_or_1d

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """Check arrays as scikit-learn 1.6 does."""
        return estimator._validate_data(*arrays, **options)


Array = npt.NDArray[Any]


def training_inputs(estimator: Any, X: Any) -> Array:
    """Return the inputs [N, D] of a training in GPflow's float type."""
    return validate_data(estimator, X, dtype=gpflow.default_float())


def training(estimator: Any, X: Any, y: Any, **options: Any) -> tuple[Array, Array]:
    """Return inputs [N, D] in GPflow's float type and targets as they are."""
    return validate_data(estimator, X, y, dtype=gpflow.default_float(), **options)


def inputs(estimator: Any, X: Any) -> Array:
    """Return inputs [N, D] of as many columns, of the same names, as those of the training."""
    return validate_data(estimator, X, dtype=gpflow.default_float(), reset=False)


def weights(sample_weight: Any, X: Array) -> Array | None:
    """Return weights [N] from 0, not all 0; ``None`` stays.

    Raises
    ------
    ValueError
        For other weights.
    """
    if sample_weight is None:
        return None
    return _check_sample_weight(sample_weight, X, dtype=X.dtype.type, ensure_non_negative=True)


def exposures(values: Any, X: Array) -> Array:
    """Return positive numbers [N], one for each row of X.

    Raises
    ------
    ValueError
        For another shape, and other numbers.
    """
    found = column_or_1d(np.asarray(values), dtype=X.dtype)
    if len(found) != len(X):
        raise ValueError(f"exposure must have {len(X)} numbers, one for each row of X; it has {len(found)}.")
    wrong = found[~((found > 0.0) & np.isfinite(found))]
    if wrong.size:
        raise ValueError(f"exposure must hold positive numbers; found {', '.join(map(str, wrong[:5]))}.")
    return found


def merged(X: Array, Y: Array, weight: Array | None) -> tuple[Array, Array, Array | None]:
    """Return rows that occur once, in order, and how often or with which weight they did.

    Rows of weight 0 are left out. If every row occurs once with weight 1, the data are returned unchanged,
    without weights. So a row of weight w and w copies of it are the same problem, to the last bit.
    """
    if weight is None:
        weight = np.ones(len(X), X.dtype)
    known = weight > 0.0
    X, Y, weight = X[known], Y[known], weight[known]
    both = np.concatenate([X, Y], axis=1)
    rows, member = np.unique(both, axis=0, return_inverse=True)
    if len(rows) == len(both) and (weight == 1.0).all():
        return X, Y, None
    total = np.bincount(member.reshape(-1), weights=weight, minlength=len(rows)).astype(X.dtype)
    return rows[:, : X.shape[1]], rows[:, X.shape[1] :], total
