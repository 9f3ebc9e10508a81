"""Averages of trained models, whose predictive density is a weighted mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.base import Parameter
from gpflow.models import GPModel

from gpflow_ext.prediction import densities
from gpflow_ext.prediction.composed import ComposedModel

_STEPS = 1000  # of expectation maximisation
_SETTLED = 1e-9  # change of a weight


class ModelAverage(ComposedModel):
    """The mixture p(y | x) = Σ_k w_k p_k(y | x) of the predictions of K trained models.

    Its kernel, likelihood and mean function are those of the first model. All models must have been trained
    on targets of the same form. Moments of f are those of the mixture too. It is not trained itself.

    Parameters
    ----------
    members
        The models.
    weights
        Not negative; they are scaled to sum to one.

    Raises
    ------
    ValueError
        For other weights, or another number of them.
    """

    def __init__(self, members: Sequence[GPModel], weights: npt.ArrayLike) -> None:
        shares: npt.NDArray[Any] = np.asarray(weights, gpflow.default_float())
        if not members or shares.shape != (len(members),):
            raise ValueError(
                f"weights must be one for each of {len(members)} models; its shape is {shares.shape}"
            )
        if not (np.isfinite(shares).all() and (shares >= 0.0).all() and shares.sum() > 0.0):
            raise ValueError(f"weights must not be negative, nor all 0; got {shares}")
        first = members[0]
        super().__init__(first.kernel, first.likelihood, first.mean_function, first.num_latent_gps)
        self.members = list(members)
        self.weights = Parameter(shares / shares.sum(), trainable=False)

    def parts(self) -> Sequence[GPModel]:
        """See `ComposedModel`."""
        return self.members

    def combined(self, each: Sequence[densities.Predictions]) -> densities.WeightedPredictions:
        """See `ComposedModel`."""
        return densities.WeightedPredictions(each, tf.convert_to_tensor(self.weights))


def stacking_weights(
    log_densities: npt.ArrayLike, rows: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """Return the weights of K models whose mixture has the largest mean log density on held-out rows, [K].

    Stacking of predictive distributions (Yao, Vehtari, Simpson & Gelman 2018, eq. 4), which is concave; by
    expectation maximisation, which keeps the weights in the simplex.

    Parameters
    ----------
    log_densities
        log p_k(yₙ | xₙ) of rows that model k was not trained on, [N, K]. A row that no model thinks possible
        (-inf for all) tells nothing of the weights; they are equal where no other row is left.
    rows
        As how many copies each row counts, [N], positive; once by default.

    Raises
    ------
    ValueError
        For another shape, NaN and infinite densities.
    """
    values = np.asarray(log_densities, np.float64)
    if values.ndim != 2 or not values.shape[1] or not (values < np.inf).all():
        raise ValueError(
            "log_densities must be [N, K], a column for each model, of numbers or -inf; check the "
            f"predictions. The shape is {values.shape}, with {(~(values < np.inf)).sum()} of NaN or inf."
        )
    known = np.isfinite(values).any(axis=1)
    values, counts = values[known], np.ones(len(values))[known] if rows is None else rows[known]
    relative = np.exp(values - values.max(axis=1, keepdims=True))
    weights = np.full(values.shape[1], 1.0 / values.shape[1])
    if not len(values):
        return weights
    for _ in range(_STEPS):
        shares = relative * weights
        new = np.average(shares / shares.sum(axis=1, keepdims=True), axis=0, weights=counts)
        done = np.abs(new - weights).max() < _SETTLED
        weights = new
        if done:
            break
    return weights
