"""The base of estimators of real numbers: means, standard deviations, log densities."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
from gpflow.likelihoods import Likelihood
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from gpflow_ext.data.datasets import Scaler
from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array, GPEstimator
from gpflow_ext.likelihoods import Standardised

NOISE = 0.1  # variance of the noise where training starts, as a share of the targets'
_LEAST = 1e-5  # and its lower bound: below it K is too close to singular for predictions of its variance


class RealEstimator(RegressorMixin, GPEstimator):
    """Base of the estimators of real numbers, in one column or several."""

    def _predict(self, X: Any, return_std: bool) -> Any:
        mean, variance = (self._shaped(part) for part in self._moments(X))
        return (mean, np.sqrt(variance)) if return_std else mean

    def _score_samples(self, X: Any, y: Any) -> Array:
        check_is_fitted(self)
        inputs = checked.inputs(self, X)
        targets = self.predict(X) if y is None else np.asarray(y, inputs.dtype)
        targets = targets.reshape(len(targets), -1)
        if len(targets) != len(inputs):
            raise ValueError(f"y must have {len(inputs)} rows, as X has; it has {len(targets)}.")
        return self._log_densities(X, targets)

    def _shaped(self, values: Array) -> Array:
        """Return predictions [N, P] in the shape of the targets."""
        return values[:, 0]

    def _task(self) -> str:
        return "regression"


def standardised(likelihood: Likelihood, Y: Array, weight: Array | None) -> Standardised:
    """Return a likelihood of targets [N, P] with their mean and standard deviation."""
    scaler = Scaler.fit(Y, weight)
    return Standardised(likelihood, scaler.mean.astype(Y.dtype), scaler.scale.astype(Y.dtype))


def gaussian(num_targets: int) -> gpflow.likelihoods.Gaussian:
    """Return Gaussian noise of P targets, each with a variance of its own."""
    variance = np.full(num_targets, NOISE) if num_targets > 1 else NOISE
    return gpflow.likelihoods.Gaussian(variance, variance_lower_bound=_LEAST)
