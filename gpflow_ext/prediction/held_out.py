"""The rows that a model is tested on, checked: inputs, targets and how often each row counts."""

from __future__ import annotations

from typing import Any, Protocol

import gpflow
import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, NDArray

from gpflow_ext.data.checks import check_targets
from gpflow_ext.features.kernel import check_inputs
from gpflow_ext.likelihoods import Weighted

Floats = NDArray[np.float64]


class Predictor(Protocol):
    """A GPflow model, as far as ``evaluate`` needs one."""

    likelihood: gpflow.likelihoods.Likelihood

    def predict_f(self, Xnew: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance [N, L] of the latent functions at the inputs [N, D]."""


def checked(
    model: Predictor, data: tuple[ArrayLike, ArrayLike]
) -> tuple[NDArray[Any], NDArray[Any], Floats | None]:
    """Return inputs [N, D], targets [N, P] and the weights [N] of rows, if they have any.

    Raises
    ------
    ValueError
        If ``model`` has no likelihood, ``data`` is not a pair, there are no rows, the shapes or weights are
        wrong, or a target that counts lies outside the support of the likelihood.
    """
    if not isinstance(getattr(model, "likelihood", None), gpflow.likelihoods.Likelihood):
        raise ValueError(f"model must be a GPflow model with a likelihood; got a {type(model).__name__}.")
    X, Y = _matrices(data)
    check_inputs(model, X)
    Y, weights = without_weights(model, Y)
    likelihood = model.likelihood
    counted = Y if weights is None else Y[weights > 0.0]
    check_targets(likelihood.likelihood if isinstance(likelihood, Weighted) else likelihood, counted)
    return X, Y, weights


def without_weights(model: Predictor, Y: NDArray[Any]) -> tuple[NDArray[Any], Floats | None]:
    """Return targets [N, P] and the weights [N] that a `Weighted` likelihood has in a column after them."""
    likelihood = model.likelihood
    if not isinstance(likelihood, Weighted) or Y.shape[1] == likelihood.num_targets:
        return Y, None
    likelihood.check_weights(Y)
    return Y[:, :-1], Y[:, -1].astype(np.float64)


def checked_weights(weights: ArrayLike, number: int) -> Floats:
    """Return the weights of so many rows, [N].

    Raises
    ------
    ValueError
        For another shape, and other numbers than finite ones from 0, not all 0.
    """
    found = np.asarray(weights, np.float64)
    if found.shape != (number,) or not (np.isfinite(found) & (found >= 0.0)).all() or not found.any():
        raise ValueError(f"weights must be [{number}], one for each row, finite, from 0, and not all 0.")
    return found


def _matrices(data: tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError("data must be a pair (X, Y) of inputs [N, D] and targets [N, P], as split.test is.")
    dtype: type[np.floating[Any]] = gpflow.default_float()
    inputs, targets = (np.asarray(part, dtype) for part in data)
    if inputs.ndim != 2 or targets.ndim != 2 or len(inputs) != len(targets):
        shapes = f"X of shape {inputs.shape} and Y of shape {targets.shape}"
        raise ValueError(f"data has {shapes}; they must be [N, D] and [N, P].")
    if not len(inputs):
        raise ValueError("data is empty; give at least one row (was test_fraction=0?).")
    return inputs, targets
