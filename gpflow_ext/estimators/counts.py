"""Gaussian-process regression of counts with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Literal, get_args

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.functions import Constant
from gpflow.kernels import Kernel
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array
from gpflow_ext.estimators.real import RealEstimator
from gpflow_ext.likelihoods import CountLikelihood, NegativeBinomialLog, PoissonLog
from gpflow_ext.numerics.exposures import at_exposures

Scatter = Literal["poisson", "negative_binomial"]


class GPCountRegressor(RealEstimator):
    """Gaussian-process regression of counts, with exposures.

    `VGPKMM` with `NegativeBinomialLog` or `PoissonLog`: the logarithm of the rate is a Gaussian process.
    Targets that are not whole numbers are accepted by the same formula, as in scikit-learn's
    ``PoissonRegressor``.

    Parameters
    ----------
    kernel
        Kernel of the logarithm of the rate; see `estimators.base.GPEstimator`.
    scatter
        ``"negative_binomial"``, with variance μ + α μ² for a learnt α, close to Poisson's if α is small, or
        ``"poisson"``.
    num_inducing, minibatch_size, steps, standardise, random_state
        See `estimators.base.GPEstimator`.

    Attributes
    ----------
    n_features_in_, scaler_, model_, result_
        Number of inputs D; the fitted ``StandardScaler``, or ``None``; the trained model, whose inputs are
        those that ``scaler_`` returns; the `FitResult` of the training.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        scatter: Scatter = "negative_binomial",
        num_inducing: int | None = None,
        minibatch_size: int | None = None,
        steps: int | None = None,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        super().__init__(
            kernel,
            num_inducing=num_inducing,
            minibatch_size=minibatch_size,
            steps=steps,
            standardise=standardise,
            random_state=random_state,
        )
        self.scatter = scatter

    def __sklearn_tags__(self) -> Any:
        """Tell that targets are not negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def fit(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        exposure: npt.ArrayLike | None = None,
    ) -> GPCountRegressor:
        """Train on inputs [N, D], counts [N], weights [N] and exposures [N]; return the estimator.

        A row of weight w counts as w copies of it. The mean of a count is its exposure (time, area,
        population at risk), one by default, times the rate.

        Raises
        ------
        ValueError
            For data that are not such arrays, counts below 0, exposures that are not above 0, or parameters
            out of range.
        """
        if self.scatter not in get_args(Scatter):
            raise ValueError(f"scatter must be one of {', '.join(get_args(Scatter))}; got {self.scatter!r}")
        inputs, counts = checked.training(self, X, y, y_numeric=True)
        if (counts < 0).any():
            raise ValueError(f"y must hold counts from 0; found {counts.min():g}.")
        weight = checked.weights(sample_weight, inputs)
        Y = np.asarray(counts, inputs.dtype).reshape(-1, 1)
        if exposure is not None:
            Y = np.column_stack([Y, checked.exposures(exposure, inputs)])
        return self._train(inputs, Y, weight)

    def _likelihood(self, Y: Array, weight: Array | None) -> CountLikelihood:
        kind = PoissonLog if self.scatter == "poisson" else NegativeBinomialLog
        self.has_exposure_ = Y.shape[1] == 2
        return kind(exposure=self.has_exposure_, fractions=True)

    def _mean_function(self, Y: Array, weight: Array | None) -> gpflow.functions.MeanFunction:
        """Return the logarithm of the mean rate, with half a count more in a row of mean weight."""
        exposures = Y[:, 1] if self.has_exposure_ else np.ones(len(Y))
        weight = np.ones(len(Y)) if weight is None else weight
        rate = (weight @ Y[:, 0] + 0.5 * weight.mean()) / (weight @ exposures)
        return Constant(np.array([np.log(rate)]))

    def predict(self, X: npt.ArrayLike, return_std: bool = False, exposure: Any = None) -> Any:
        """Return the expected count at inputs [N, D], [N]; with ``return_std`` also its deviation, [N].

        The deviation is the standard deviation of a new count. ``exposure`` [N] is one by default. With
        E[λ] = m and Var[y] = v at exposure one, the count at exposure e has the mean e m and the variance
        e m + e² (v − m).
        """
        if exposure is None:
            return self._predict(X, return_std)
        check_is_fitted(self)
        exposures = checked.exposures(exposure, checked.inputs(self, X))
        mean, deviation = self._predict(X, True)
        expected, variance = at_exposures(mean, np.square(deviation), exposures)
        return (expected, np.sqrt(variance)) if return_std else expected

    def score(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None = None,
        exposure: npt.ArrayLike | None = None,
    ) -> float:
        """Return R² of counts y [N], expected at inputs [N, D] and exposures [N], one by default."""
        return float(r2_score(y, self.predict(X, exposure=exposure), sample_weight=sample_weight))

    def score_samples(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None, exposure: Any = None) -> Array:
        """Return the log predictive probability of counts y [N] at inputs [N, D] and exposures [N], as [N].

        Without counts it is that of the expected ones.
        """
        if not getattr(self, "has_exposure_", False):
            if exposure is not None:
                raise ValueError("exposure was not given to fit: fit with the exposures of the training data")
            return self._score_samples(X, y)
        rows = checked.inputs(self, X)
        exposures = np.ones(len(rows)) if exposure is None else checked.exposures(exposure, rows)
        counts = self.predict(X, exposure=exposures) if y is None else y
        return self._score_samples(X, np.column_stack([np.asarray(counts), exposures]))

    def _task(self) -> str:
        return "count"
