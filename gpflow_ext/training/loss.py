"""A loss and its gradient in some variables: what optimisers of every kind compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from gpflow_ext.training.at_values import differentiated, evaluated

LossFunction: TypeAlias = Callable[..., tf.Tensor]
"""Maps a minibatch, or nothing, to the loss, []."""


class Loss(tf.Module):
    """Functions of variables and a minibatch without any state of their own.

    Parameters
    ----------
    loss
        The loss. Models of one structure share their graphs where it is a method of the model; a function
        that closes over variables is compiled for itself.
    variables
        In what to differentiate.
    """

    def __init__(self, loss: LossFunction, variables: Sequence[tf.Variable]) -> None:
        super().__init__()
        self._loss, self._variables = loss, list(variables)

    def value(self, *batch: Any) -> tf.Tensor:
        """Return the loss, []."""
        return self._loss(*batch)

    def value_and_gradient(self, *batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss and its gradient in each variable."""
        value, gradient = differentiated(lambda: self.value(*batch), self._variables)
        return value, list(gradient)

    def objective_and_gradient(self, values: tf.Tensor, *batch: Any) -> tf.Tensor:
        """Return minus the loss and its gradient where the variables have values, see `evaluated`."""

        def objective() -> tuple[tf.Tensor, list[tf.Tensor]]:
            value, gradient = self.value_and_gradient(*batch)
            return -value, [-part for part in gradient]

        return evaluated(objective, self._variables, values)


class Raised(Loss):
    """The loss of an objective that is raised, which stands in its place: minus the objective."""

    def value(self, *batch: Any) -> tf.Tensor:
        """Return minus the objective, []."""
        return -super().value(*batch)
