"""Gaussian-process regression with scikit-learn's interface."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from gpflow.kernels import Kernel
from gpflow.likelihoods import Likelihood

from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array
from gpflow_ext.estimators.ladder import Inference
from gpflow_ext.estimators.real import NOISE, RealEstimator, gaussian, standardised
from gpflow_ext.likelihoods import StudentT

Noise = Literal["gaussian", "student_t"]
_DEGREES = 4.0  # of freedom: outliers cost their logarithm, and the variance is finite


class GPRegressor(RealEstimator):
    """Gaussian-process regression of one target, exact for Gaussian noise up to about 1,500 rows.

    Parameters
    ----------
    kernel
        See `estimators.base.GPEstimator`; in units of the targets' standard deviation.
    noise
        ``"gaussian"``, or ``"student_t"`` with 4 degrees of freedom, which is robust to outliers: dense up to
        about 700 rows.
    num_inducing, minibatch_size, steps, standardise, random_state
        See `estimators.base.GPEstimator`.

    Attributes
    ----------
    n_features_in_, scaler_, model_, result_
        Number of inputs D; the fitted ``StandardScaler``, or ``None``; the trained model, whose inputs are
        those that ``scaler_`` returns, its targets in their own units; the `FitResult` of the training.
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        noise: Noise = "gaussian",
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
        self.noise = noise

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> GPRegressor:
        """Train on inputs [N, D], targets [N] and weights [N]; return the estimator.

        A row of weight w counts as w copies of it: given the hyperparameters its noise has variance σ²/w.

        Raises
        ------
        ValueError
            For data that are not such arrays, or parameters out of range.
        """
        if self.noise not in get_args(Noise):
            raise ValueError(f"noise must be one of {', '.join(get_args(Noise))}; got {self.noise!r}")
        inputs, targets = checked.training(self, X, y, y_numeric=True)
        weight = checked.weights(sample_weight, inputs)
        Y = np.asarray(targets, inputs.dtype).reshape(-1, 1)
        return self._train(inputs, Y, weight)

    @property
    def _inference(self) -> Inference:
        return "sites" if self.noise == "gaussian" else "signed"

    def _likelihood(self, Y: Array, weight: Array | None) -> Likelihood:
        if self.noise == "gaussian":
            return standardised(gaussian(1), Y, weight)
        return standardised(StudentT(np.sqrt(0.5 * NOISE), _DEGREES), Y, weight)

    def predict(self, X: npt.ArrayLike, return_std: bool = False) -> Any:
        """Return the mean of y at inputs [N, D], [N], and with ``return_std`` its standard deviation, [N].

        The deviation is that of a new observation, noise included.
        """
        return self._predict(X, return_std)

    def score_samples(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Array:
        """Return the log predictive density of targets y [N] at inputs [N, D], in nats per unit of y, as [N].

        Without targets it is that of the predicted mean: the larger, the more certain the prediction.
        """
        return self._score_samples(X, y)
