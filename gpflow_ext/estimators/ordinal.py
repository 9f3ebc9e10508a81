"""Gaussian-process regression of ordered levels with scikit-learn's interface."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special

from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array
from gpflow_ext.estimators.classes import ClassEstimator
from gpflow_ext.likelihoods import CumulativeLogit


class GPOrdinal(ClassEstimator):
    """Gaussian-process classifier of ordered levels, such as grades: `VGPKMM` with `CumulativeLogit`.

    It has one latent function, and learns the thresholds. Levels are ordered as NumPy sorts them, numbers by
    size and words by the alphabet, which a warning tells; a level that does not occur in the training data is
    not known.

    Parameters
    ----------
    kernel, num_inducing, minibatch_size, steps, standardise, random_state
        See `estimators.base.GPEstimator`.

    Attributes
    ----------
    classes_
        The K levels in order.
    n_features_in_, scaler_, model_, result_
        Number of inputs D; the fitted ``StandardScaler``, or ``None``; the trained model, whose inputs are
        those that ``scaler_`` returns; the `FitResult` of the training.
    """

    def fit(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None
    ) -> GPOrdinal:
        """Train on inputs [N, D], levels [N] and weights [N]; return the estimator.

        A row of weight w counts as w copies of it.

        Raises
        ------
        ValueError
            For data that are not such arrays, fewer than two levels, or parameters out of range; and for
            ordered categories of pandas whose order is another.
        """
        _check_order(y)
        inputs, numbers = self._encoded(X, y)
        return self._train(inputs, numbers, checked.weights(sample_weight, inputs))

    def _likelihood(self, Y: Array, weight: Array | None) -> CumulativeLogit:
        """Return the likelihood with thresholds at the frequencies of the levels."""
        counts = np.bincount(Y[:, 0].astype(int), weights=weight, minlength=len(self.classes_))
        shares = np.cumsum(counts + 0.5)[:-1] / np.sum(counts + 0.5)
        return CumulativeLogit(len(counts), thresholds=scipy.special.logit(shares))

    def predict_level(self, X: npt.ArrayLike) -> Array:
        """Return the expected number of the level at inputs [N, D], counted from 0, [N]."""
        return self.predict_proba(X) @ np.arange(len(self.classes_))

    def _task(self) -> str:
        return "ordinal"


def _check_order(y: Any) -> None:
    """Raise ``ValueError`` for ordered categories of pandas that NumPy would sort in another order.

    Warn of words, whose order is seldom that of the alphabet.
    """
    dtype: Any = getattr(y, "dtype", None)
    if not getattr(dtype, "ordered", False):
        words = {each for each in np.ravel(np.asarray(y)).tolist() if isinstance(each, str)}
        if len(words) > 2 and any(len(word) > 1 for word in words):
            order = " < ".join(sorted(words))
            warnings.warn(f"y holds words in the order {order}: give numbers if it is another", stacklevel=3)
        return
    used = [level for level in dtype.categories if (np.asarray(y) == level).any()]
    if used != sorted(used):
        order = " < ".join(map(str, used))
        raise ValueError(
            f"y has the order {order}, and GPOrdinal sorts levels as NumPy does: give their numbers, such as "
            "y.cat.codes"
        )
