"""A loss and its gradient in some variables: what optimisers of every kind compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

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
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            value = self.value(*batch)
        return value, tape.gradient(value, self._variables, unconnected_gradients="zero")

    def objective_and_gradient(self, *batch: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return minus the loss and its gradient in each variable."""
        value, gradient = self.value_and_gradient(*batch)
        return -value, [-part for part in gradient]


class Raised(Loss):
    """The loss of an objective that is raised, which stands in its place: minus the objective."""

    def value(self, *batch: Any) -> tf.Tensor:
        """Return minus the objective, []."""
        return -super().value(*batch)
