"""The base of classifiers: labels, probabilities, log densities."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from gpflow_ext.estimators import checked
from gpflow_ext.estimators.base import Array, GPEstimator


class ClassEstimator(ClassifierMixin, GPEstimator):
    """Base of the estimators of classes, whose likelihood has ``class_probabilities``."""

    def _encoded(self, X: Any, y: Any) -> tuple[Array, Array]:
        """Return inputs [N, D] and class numbers [N, 1], and set ``classes_``."""
        inputs, labels = checked.training(self, X, y)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least two classes; y holds one class, {self.classes_[0]!r}."
            )
        return inputs, numbers.reshape(-1, 1).astype(inputs.dtype)

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return the probability of each of ``classes_`` at inputs [N, D], as [N, K]."""
        return np.concatenate([part.numpy() for part in self._predicted(X, "probabilities")])

    def predict_log_proba(self, X: npt.ArrayLike) -> Array:
        """Return the logarithms of ``predict_proba``, [N, K], finite where probabilities underflow."""
        p = self.predict_proba(X)
        underflow = p < np.finfo(p.dtype).tiny
        found = np.log(np.where(underflow, 1.0, p))
        for number in np.flatnonzero(underflow.any(axis=0)):
            exact = self._log_densities(X, np.full((len(p), 1), number, p.dtype))
            found[:, number] = np.where(underflow[:, number], exact, found[:, number])
        return found

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return the most probable label at inputs [N, D], as [N]; ties go to the first of ``classes_``."""
        numbers = self.predict_proba(X).argmax(axis=1)
        return self.classes_[numbers]

    def score_samples(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Array:
        """Return the log probability of the labels y [N] at inputs [N, D], as [N].

        Minus its mean is the negative log predictive density, the log loss. Without labels it is that of the
        most probable ones: how sure the predictions are.

        Raises
        ------
        ValueError
            For another number of labels, or one that is not of ``classes_``.
        """
        check_is_fitted(self)
        if y is None:
            return self.predict_log_proba(X).max(axis=1)
        inputs, labels = checked.inputs(self, X), np.asarray(y).reshape(-1)
        if len(labels) != len(inputs):
            raise ValueError(
                f"y must have {len(inputs)} labels, one for each row of X; it has {len(labels)}."
            )
        known = np.isin(labels, self.classes_)
        if not known.all():
            raise ValueError(f"y holds {labels[~known][0]!r}, which is none of the classes {self.classes_}.")
        numbers = np.searchsorted(self.classes_, labels)
        return self._log_densities(X, numbers.reshape(-1, 1).astype(inputs.dtype))

    def _task(self) -> str:
        return "binary" if len(self.classes_) == 2 else "multiclass"
