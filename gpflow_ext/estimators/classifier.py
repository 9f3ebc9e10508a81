"""Gaussian-process classification behind scikit-learn's interface; ``pip install "gpflow-ext[data]"``."""

from __future__ import annotations

import warnings
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from gpflow_ext.data import inducing
from gpflow_ext.fitting import fit
from gpflow_ext.prediction.batches import Predicted
from gpflow_ext.svgp.model import SVGPRobustMax
from gpflow_ext.training.ends import FitWarning
from gpflow_ext.training.loop import Status

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # before scikit-learn 1.6

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """Check arrays as scikit-learn 1.6 does."""
        return estimator._validate_data(*arrays, **options)


_BATCH = 1000  # rows predicted at a time


class GPClassifier(ClassifierMixin, BaseEstimator):
    """Gaussian-process classifier of two or more classes: `SVGPRobustMax` on k-means inducing points.

    Computes in GPflow's default float type. Training costs O(KM²B + M³) a step, a prediction O(KM²) a row.

    Parameters
    ----------
    kernel
        A GPflow kernel, which is copied. By default a squared exponential with the square root of the
        number of inputs as length scale, plus white noise of variance 1e-3.
    num_inducing
        M, the number of inducing points; at most the number of distinct rows is used.
    epsilon
        Share of wrong labels, in (0, 1 − 1/K), from which its training starts.
    learn_epsilon
        Train it.
    steps
        Training steps.
    minibatch_size
        B, at most the number of rows is used; all rows in each step by default.
    standardise
        Give each input mean zero and variance one first.
    random_state
        Seed of the inducing points and minibatches: ``None``, an integer or a ``RandomState``.

    Attributes
    ----------
    classes_
        The K labels in order.
    n_features_in_
        Number of inputs D.
    scaler_
        The fitted ``StandardScaler``, or ``None``.
    model_
        The trained `SVGPRobustMax`; its inputs are those that ``scaler_`` returns.
    result_
        The `FitResult` of the training.
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel | None = None,
        *,
        num_inducing: int = 100,
        epsilon: float = 1e-3,
        learn_epsilon: bool = True,
        steps: int = 200,
        minibatch_size: int | None = None,
        standardise: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.kernel = kernel
        self.num_inducing = num_inducing
        self.epsilon = epsilon
        self.learn_epsilon = learn_epsilon
        self.steps = steps
        self.minibatch_size = minibatch_size
        self.standardise = standardise
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike) -> GPClassifier:
        """Train on inputs [N, D] and labels [N] of any kind; return the classifier.

        Raises
        ------
        ValueError
            For data that are not such arrays, fewer than two classes, or parameters out of range.
        """
        inputs, labels = validate_data(self, X, y, dtype=gpflow.default_float())
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"GPClassifier needs at least two classes; y holds one class, {self.classes_[0]!r}."
            )
        self.scaler_ = StandardScaler().fit(inputs) if self.standardise else None
        inputs = self._scaled(inputs)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        number = min(self.num_inducing, len(inducing.distinct(inputs)))
        self.model_ = SVGPRobustMax(
            self._kernel(),
            len(self.classes_),
            inducing.kmeans(inputs, number, seed=seed),
            num_data=len(inputs),
            epsilon=self.epsilon,
            learn_epsilon=self.learn_epsilon,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # scikit-learn's own takes its place
            self.result_ = fit(
                self.model_,
                (inputs, numbers.reshape(-1, 1)),
                steps=self.steps,
                minibatch_size=None if self.minibatch_size is None else min(self.minibatch_size, len(inputs)),
                seed=seed,
                progress=False,
            )
        if self.result_.status is Status.NON_FINITE:
            warnings.warn(str(self.result_), ConvergenceWarning, stacklevel=2)
        return self

    def predict_proba(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the probability of each of ``classes_`` at inputs [N, D], as [N, K]."""
        check_is_fitted(self)
        inputs = self._scaled(validate_data(self, X, dtype=gpflow.default_float(), reset=False))
        predict = Predicted(self.model_)
        batches = (inputs[begin : begin + _BATCH] for begin in range(0, len(inputs), _BATCH))
        return np.concatenate(
            [predict(predict.of.probabilities, tf.constant(batch)).numpy() for batch in batches]
        )

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return the most probable label at inputs [N, D], as [N]; ties go to the first of ``classes_``."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def _scaled(self, inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return inputs if self.scaler_ is None else self.scaler_.transform(inputs)

    def _kernel(self) -> gpflow.kernels.Kernel:
        if self.kernel is not None:
            return gpflow.utilities.deepcopy(self.kernel)
        smooth = gpflow.kernels.SquaredExponential(lengthscales=float(np.sqrt(self.n_features_in_)))
        return smooth + gpflow.kernels.White(1e-3)
