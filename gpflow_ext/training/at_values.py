"""An objective at given values of its variables: one vector goes into a compiled function, and one comes out.

A search on the host evaluates hundreds of times. To write each variable, and to read the gradient in each,
would take it longer than the evaluation of a small model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.compiled.purity import OF_ARGUMENTS
from gpflow_ext.training.log_space import LogSpace, Vector, flat

AtVector: TypeAlias = Callable[[Vector], tuple[float, Vector]]
"""Maps a vector [P] to an objective and its gradient in that, [P]."""

Gradient: TypeAlias = tuple[tf.Tensor, Sequence[tf.Tensor]]
"""An objective and its gradient in each of some variables."""


class Objective:
    """An objective that one function evaluates where it is told to.

    Parameters
    ----------
    bound
        Maps values [P, 1] of all the variables to a function that maps such values to what `evaluated`
        returns. As a column they may be of any number where it is compiled for minibatches.
    variables
        The variables; they are left at the values.
    """

    def __init__(
        self, bound: Callable[[tf.Tensor], Callable[..., tf.Tensor]], variables: Sequence[tf.Variable]
    ) -> None:
        self._bound, self._variables = bound, list(variables)

    def present(self) -> tf.Tensor:
        """Return the values of all the variables now, [P, 1], in the widest of their dtypes."""
        parts = [np.ravel(part) for part in self._read()] or [np.zeros(0)]
        return tf.constant(np.concatenate(parts)[:, None])

    def of(self, some: Sequence[tf.Variable]) -> AtVector:
        """Return it as a function of the values of some variables; the others stay as they are now."""
        present, places = self.present(), self._places()
        call, values = self._bound(present), present.numpy()
        moved: Any = np.concatenate(
            [np.zeros(0, int), *(np.ravel(places[id(variable)]) for variable in some)]
        )
        if np.array_equal(moved, np.arange(len(values))):
            moved = slice(None)  # which copies nothing

        def at(given: Vector) -> tuple[float, Vector]:
            values[moved, 0] = given
            found = call(tf.constant(values)).numpy()
            return float(found[0]), found[1:][moved].astype(np.float64, copy=False)

        return at

    def __call__(self) -> tuple[float, list[tf.Tensor]]:
        """Return the objective and its gradient in each variable, where the variables are."""
        found, places = self._bound(self.present())().numpy(), self._places()
        gradient = [tf.constant(found[1 + places[id(v)]], v.dtype) for v in self._variables]
        return float(found[0]), gradient

    def _places(self) -> dict[int, npt.NDArray[np.int64]]:
        """Return where the numbers of each variable are in the vector of all, in its shape, by identity."""
        end, places = 0, {}
        for variable, value in zip(self._variables, self._read(), strict=True):
            places[id(variable)] = np.arange(end, end := end + value.size).reshape(value.shape)
        return places

    def _read(self) -> list[npt.NDArray[Any]]:
        return [variable.numpy() for variable in self._variables]


def in_coordinates(
    objective: Objective | Callable[[], tuple[float, Sequence[tf.Tensor]]], coordinates: LogSpace
) -> AtVector:
    """Return an objective as a function of coordinates; see `Objective.of`.

    It may also be a function that evaluates where the variables of the coordinates are, with a gradient in
    each of them.
    """
    values_and_slopes = coordinates.on_host()
    if isinstance(objective, Objective):
        at = objective.of(coordinates.variables)

        def told(x: Vector) -> tuple[float, Vector]:
            values, slope = values_and_slopes(x)
            value, gradient = at(values)
            return value, gradient * slope

        return told

    def there(x: Vector) -> tuple[float, Vector]:
        values, slope = values_and_slopes(x)
        coordinates.assign_values(values)
        value, parts = objective()
        return value, flat(parts) * slope

    return there


def evaluated(
    evaluate: Callable[[], Gradient], variables: Sequence[tf.Variable], values: tf.Tensor
) -> tf.Tensor:
    """Return an objective and its gradient where variables have values [P, 1], [1 + P], by tensors alone."""
    with tf.name_scope(OF_ARGUMENTS):
        _assign(variables, values[:, 0])
    value, gradient = evaluate()
    return tf.concat([tf.cast(tf.reshape(part, [-1]), values.dtype) for part in (value, *gradient)], axis=0)


def differentiated(objective: Callable[[], tf.Tensor], variables: Sequence[tf.Variable]) -> Gradient:
    """Return an objective and its gradient in each of some variables, by tensors alone."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        value = objective()
    return value, tape.gradient(value, variables, unconnected_gradients="zero")


def _assign(variables: Sequence[tf.Variable], values: tf.Tensor) -> None:
    """Give variables values [P]; the shapes of some may be open."""
    known = [variable.shape.is_fully_defined() for variable in variables]
    shapes = [tuple(v.shape) if fixed else tf.shape(v) for v, fixed in zip(variables, known, strict=True)]
    sizes = [math.prod(s) if fixed else tf.reduce_prod(s) for s, fixed in zip(shapes, known, strict=True)]
    parts = tf.split(values, sizes) if len(sizes) > 1 else [values] * len(sizes)
    for variable, part, shape in zip(variables, parts, shapes, strict=True):
        variable.assign(tf.cast(tf.reshape(part, shape), variable.dtype), read_value=False)
