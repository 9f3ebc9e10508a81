"""Functions that are evaluated for each member of a mixture of networks; they hold no tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import tensorflow as tf

from gpflow_ext.gprn import conditional
from gpflow_ext.gprn.conditional import View
from gpflow_ext.numerics import philox


class Noisy(Protocol):
    """Protocol of the model that the questions read."""

    def noise(self) -> tf.Tensor:
        """Return σ² [], or that of each output [D]."""


class Question(Protocol):
    """A function of a member of the mixture."""

    results: int  # how many tensors it returns

    def __call__(self, model: Noisy, view: View, member: tf.Tensor, *tensors: tf.Tensor) -> Any:
        """Return its tensors for the member of this number, []; ``tensors`` begin with a block of outputs."""


class Moments:
    """The mean and the (co)variance.

    Parameters
    ----------
    function
        One of ``conditional.moments``, ``joint_moments`` and ``output_moments``.
    """

    results = 2

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, model: Noisy, view: View, member: tf.Tensor, *block: tf.Tensor) -> Any:
        """See `Question`."""
        return self._function(view, *block)


class LogDensity:
    """The log density of targets, an average over draws of the nodes.

    Parameters
    ----------
    draws
        Their number.
    count, length
        Members of the batch of inputs, which share random numbers, and rows of each.
    """

    results = 1

    def __init__(self, draws: int, count: Any, length: Any) -> None:
        self._draws, self._count, self._length = draws, count, length

    def __call__(self, model: Noisy, view: View, member: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        """See `Question`; the tensors are a block of outputs, its targets [X, B], and a seed [2]."""
        payload, trait, targets, seed = tensors
        noise = conditional.normal(folded(seed, member), self._draws, view.mean[: self._length])
        noise = tf.tile(noise, [1, self._count, 1])
        variance = model.noise()
        if variance.shape.rank == 1:  # each output is its own pattern
            variance = tf.gather(variance, trait)
        return conditional.log_density(view, payload, trait, targets, variance, noise)


class Draw:
    """Joint draws of W(x)f(x), for views of pairs.

    Parameters
    ----------
    draws
        From each member.
    """

    results = 1

    def __init__(self, draws: int) -> None:
        self._draws = draws

    def __call__(self, model: Noisy, view: View, member: tf.Tensor, *tensors: tf.Tensor) -> tf.Tensor:
        """See `Question`; the tensors are a block of outputs, its number [], and a seed [2]."""
        payload, trait, number, seed = tensors
        nodes = conditional.draw_nodes(view, folded(seed, member), self._draws)
        return conditional.draw(view, payload, trait, nodes, folded(seed, member, number + 1))


def folded(seed: tf.Tensor, *numbers: tf.Tensor) -> tf.Tensor:
    """Return the seed [2] of one of many streams of random numbers."""
    for number in numbers:
        seed = philox.fold_in(seed, number)
    return seed
