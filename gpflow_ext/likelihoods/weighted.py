"""Weighted data: a likelihood raised to the power of a weight for each datum."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import MeanAndVariance, TensorType
from gpflow.likelihoods import Likelihood

from gpflow_ext.data.arguments import check_kind, check_whole
from gpflow_ext.data.checks import check_targets
from gpflow_ext.likelihoods.classes import class_probabilities
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.numerics.target_moments import target_moments


class Weighted(Likelihood):
    """Likelihood p(y | f)ʷ of data with weights w, the last column of Y.

    A datum of weight w counts as w copies of it, exactly so in variational inference and Laplace's method:
    log densities and their expectations are multiplied by w. Under Gaussian noise of variance σ² the
    posterior given the hyperparameters is that of noise σ²/w. The evidence for σ² is not: copies agree
    exactly, and σ² is learnt too low where weights state a precision. Predictions are those of the
    likelihood itself; targets may then lack the column of weights, which are taken as one. Expectation
    propagation would need a site for each copy, and refuses it.

    Parameters
    ----------
    likelihood
        The likelihood of one datum of weight one.
    num_targets
        Number of columns of Y other than the weights.
    """

    def __init__(self, likelihood: Likelihood, num_targets: int = 1) -> None:
        check_kind(Likelihood, likelihood=likelihood)
        check_whole(num_targets=num_targets)
        width = likelihood.observation_dim or num_targets
        latent = likelihood.latent_dim or width
        super().__init__(likelihood.input_dim, latent_dim=latent, observation_dim=likelihood.observation_dim)
        self.likelihood, self.num_targets = likelihood, width

    @property
    def mean_of_indicators(self) -> bool:
        """See `CategoricalLikelihood`."""
        return getattr(self.likelihood, "mean_of_indicators", False)

    @property
    def exposure(self) -> bool:
        """See `CountLikelihood`."""
        return getattr(self.likelihood, "exposure", False)

    @property
    def bound(self) -> str | None:
        """The bound of the likelihood's expectations, if any."""
        return getattr(self.likelihood, "bound", None)

    def check_targets(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless Y is [N, P + 1] with weights from 0, not all 0, and targets that fit.

        The models' constructors call it.
        """
        self.check_weights(Y)
        check_targets(self.likelihood, np.asarray(Y, dtype=float)[..., :-1])

    def check_weights(self, Y: npt.ArrayLike) -> None:
        """Raise ``ValueError`` unless Y is [N, P + 1] with weights from 0, not all 0."""
        values = np.asarray(Y, dtype=float)
        if values.shape[-1] != self.num_targets + 1:
            raise ValueError(
                f"Y must have {self.num_targets + 1} columns, the weight last; its shape is {values.shape}"
            )
        weights = values[..., -1]
        wrong = weights[~((weights >= 0.0) & np.isfinite(weights))]
        if wrong.size or not weights.any():
            raise ValueError(
                "weights, the last column of Y, must be finite, from 0, and not all 0; found "
                + (f"{wrong.flat[0]:g}" if wrong.size else "0 only")
            )

    def class_probabilities(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> tf.Tensor | None:
        """Return the class probabilities of the likelihood, ``None`` if it has none."""
        return class_probabilities(self.likelihood, X, Fmu, Fvar)

    def weights(self, Y: TensorType) -> tf.Tensor | float:
        """Return the weights [...] in Y, one where Y does not give them."""
        return 1.0 if Y.shape[-1] == self.num_targets else Y[..., -1]

    def _weigh(self, value: tf.Tensor, Y: TensorType) -> tf.Tensor:
        weights = self.weights(Y)
        return value if isinstance(weights, float) else tf.cast(weights, value.dtype) * value

    def _targets(self, Y: TensorType) -> Any:
        return Y[..., : self.num_targets]

    @inherit_check_shapes
    def _log_prob(self, X: TensorType, F: TensorType, Y: TensorType) -> tf.Tensor:
        return self._weigh(self.likelihood.log_prob(X, F, self._targets(Y)), Y)

    @inherit_check_shapes
    def _variational_expectations(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._weigh(self.likelihood.variational_expectations(X, Fmu, Fvar, self._targets(Y)), Y)

    @inherit_check_shapes
    def _predict_log_density(
        self, X: TensorType, Fmu: TensorType, Fvar: TensorType, Y: TensorType
    ) -> tf.Tensor:
        return self._weigh(log_predictive(self.likelihood, X, Fmu, Fvar, self._targets(Y)), Y)

    @inherit_check_shapes
    def _predict_mean_and_var(self, X: TensorType, Fmu: TensorType, Fvar: TensorType) -> MeanAndVariance:
        return target_moments(self.likelihood, X, Fmu, Fvar)

    @inherit_check_shapes
    def _conditional_mean(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self.likelihood.conditional_mean(X, F)

    @inherit_check_shapes
    def _conditional_variance(self, X: TensorType, F: TensorType) -> tf.Tensor:
        return self.likelihood.conditional_variance(X, F)
