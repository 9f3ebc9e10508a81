"""The part of models whose predictions are made of those of other, trained models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow.base import InputData, MeanAndVariance, RegressionData
from gpflow.models import GPModel

from gpflow_ext.prediction import densities

PerOutput: TypeAlias = Callable[[tf.Tensor, tf.Tensor], MeanAndVariance]


class ComposedModel(GPModel):
    """A model that predicts by others and is not trained itself; its predictions are marginal."""

    @abstractmethod
    def parts(self) -> Sequence[GPModel]:
        """Return the models that it predicts by."""

    @abstractmethod
    def combined(self, each: Sequence[densities.Predictions]) -> densities.Predictions:
        """Return what is predicted where the parts predict ``each``, at the same inputs."""

    def some_outputs(self, each: Sequence[PerOutput | None]) -> PerOutput | None:
        """Return ``X, outputs [B] -> mean, variance`` of some outputs from those of the parts, if it can."""
        return None

    def predictions(self, X: tf.Tensor) -> densities.Predictions:
        """Return what is predicted at X [N, D]."""
        return self.combined([densities.predictions(part, X) for part in self.parts()])

    def maximum_log_likelihood_objective(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Raise: the models inside are trained, each by itself."""
        raise NotImplementedError(
            f"{type(self).__name__} is not trained: train the models inside, then put them together."
        )

    @inherit_check_shapes
    def predict_f(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Return mean and variance of f at Xnew [N, D], each [N, L]."""
        _refuse(full_cov, full_output_cov)
        return self.predictions(Xnew).f()

    @inherit_check_shapes
    def predict_y(
        self, Xnew: InputData, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        """Return mean and variance of y at Xnew [N, D], each [N, P]."""
        _refuse(full_cov, full_output_cov)
        return self.predictions(Xnew).mean_and_var()

    @inherit_check_shapes
    def predict_log_density(
        self, data: RegressionData, full_cov: bool = False, full_output_cov: bool = False
    ) -> tf.Tensor:
        """Return log p(yₙ | xₙ) for X [N, D] and Y [N, P], [N]."""
        _refuse(full_cov, full_output_cov)
        X, Y = data
        return self._log_density(X, tf.convert_to_tensor(Y))

    def _log_density(self, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | xₙ), [N]."""
        return self.predictions(X).log_density(Y)


def _refuse(full_cov: bool, full_output_cov: bool) -> None:
    if full_cov or full_output_cov:
        raise NotImplementedError("Predictions are marginal here: ask the models inside for covariances.")
