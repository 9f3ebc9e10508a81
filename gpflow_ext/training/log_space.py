"""Coordinates for optimisers: the logarithms of positive parameters, all others as GPflow moves them.

GPflow's softplus is close to the identity for large values: a variance that ends at 5,000 takes thousands of
unit steps. In log space all scales are equally easy to reach. The transform's own lower bound is kept: the
coordinate is the logarithm of the part above the bound.

Inducing inputs move in units of their own spread: the objective does not change if inputs and length scales
are multiplied by 1,000, and nor should the way to its optimum. A unit is a power of two, so that values and
coordinates are the same to the last digit, and one for inputs that are standardised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
import tensorflow.experimental.numpy as tnp
from gpflow.inducing_variables import InducingPoints

from gpflow_ext.data.on_host import is_softplus
from gpflow_ext.data.parts import parts

Vector: TypeAlias = npt.NDArray[np.float64]
TAIL = 30.0  # below minus this the softplus is the exponential to the last digit


class LogSpace:
    """The variables of a model as one vector in which its positive parameters are logarithms.

    Parameters
    ----------
    variables
        The variables, each element one coordinate.
    parameters
        The parameters that they belong to; a variable of none of them is taken as it is.
    inputs
        Those of the variables that are inducing inputs [M, D]; see `inducing_inputs`.
    units
        By how much each variable moves in a unit step, a number or an array that broadcasts to its shape: the
        logarithms of a positive one, and inducing inputs in terms of their spread. One by default.

    Attributes
    ----------
    variables
        The variables.
    units
        By how much each coordinate moves its number, [P]. A run that goes on in another process needs the
        same.
    """

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        parameters: Sequence[gpflow.Parameter] = (),
        inputs: Sequence[tf.Variable] = (),
        units: Sequence[npt.ArrayLike] | None = None,
    ) -> None:
        self.variables = list(variables)
        self._shapes = [present_shape(variable) for variable in self.variables]
        self._dtypes = [variable.dtype.as_numpy_dtype for variable in self.variables]
        self._replicated = [isinstance(v, tf.distribute.DistributedValues) for v in self.variables]
        logs = {id(p.unconstrained_variable) for p in parameters if is_softplus(p.transform)}
        sizes = [math.prod(shape) for shape in self._shapes]
        self.is_log = np.repeat([id(v) in logs for v in self.variables], sizes)
        self._ends = np.cumsum(sizes)
        points = {id(variable) for variable in inputs}
        shaped = zip(self.variables, self._shapes, strict=True)
        each = (spread(v) if id(v) in points else np.ones(shape) for v, shape in shaped)
        steps = np.concatenate([np.zeros(0), *map(np.ravel, each)])
        if units is not None:
            given = zip(units, self._shapes, strict=True)
            wide = (np.ravel(np.broadcast_to(unit, shape)) for unit, shape in given)
            steps = steps * np.concatenate([np.zeros(0), *wide])
        # In the checkpoint of a run: where inducing inputs have moved, their spread is another.
        self.units = tf.Variable(steps, trainable=False)

    def vector(self) -> Vector:
        """Return the current values, [P]."""
        values = [np.ravel(variable.numpy()) for variable in self.variables]
        return self.at(np.concatenate([np.zeros(0), *values]).astype(np.float64))

    def at(self, raw: Vector) -> Vector:
        """Return the coordinates where the variables have the values raw [..., P], infinite ones included."""
        logs = np.where(raw < -TAIL, raw, np.log(np.logaddexp(0.0, np.maximum(raw, -TAIL))))
        return np.where(self.is_log, logs, raw) / self.units.numpy()

    def assign(self, x: Vector) -> None:
        """Give the variables the values at x [P]."""
        self.assign_values(self.on_host()(x)[0])

    def assign_values(self, raw: Vector) -> None:
        """Give the variables values [P]."""
        parts = np.split(raw, self._ends[:-1])
        known = zip(self.variables, parts, self._shapes, self._dtypes, self._replicated, strict=True)
        for variable, part, shape, dtype, replicated in known:
            value = part.reshape(shape).astype(dtype)
            if replicated:
                variable.assign(value)
            else:  # as above, at a quarter of its cost
                tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)

    def gradient(self, x: Vector, by_variable: Sequence[tf.Tensor]) -> Vector:
        """Return the gradient at x [P] from that in the variables."""
        return flat(by_variable) * self.on_host()(x)[1]

    def on_host(self) -> Callable[[Vector], tuple[Vector, Vector]]:
        """Return the function from x [P] to the values of the variables, [P], and their slopes, [P].

        The units are those of now.
        """
        units, logs = self.units.numpy(), np.flatnonzero(self.is_log)

        def values_and_slopes(x: Vector) -> tuple[Vector, Vector]:
            raw, slope = x * units, units.copy()
            if not logs.size:
                return raw, slope
            moved = raw[logs]
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                raw[logs], slopes = _value_and_slope(moved, True, np)
                slope[logs] *= slopes
            return raw, slope

        return values_and_slopes

    def assign_in_graph(self, x: tf.Tensor) -> None:
        """Do the same as `assign` by tensors alone."""
        raw, _ = _value_and_slope(x * self._present_units(), self.is_log, tnp)
        parts = tf.split(raw, np.diff(self._ends, prepend=0))
        for variable, part, shape in zip(self.variables, parts, self._shapes, strict=True):
            variable.assign(tf.cast(tf.reshape(part, shape), variable.dtype))

    def gradient_in_graph(self, x: tf.Tensor, by_variable: Sequence[tf.Tensor]) -> tf.Tensor:
        """Do the same as `gradient` by tensors alone."""
        raw = tf.concat([tf.cast(tf.reshape(part, [-1]), x.dtype) for part in by_variable], axis=0)
        units = self._present_units()
        return raw * (units * _value_and_slope(x * units, self.is_log, tnp)[1])

    def _present_units(self) -> tf.Tensor:
        return tnp.asarray(tf.convert_to_tensor(self.units))


def flat(parts: Sequence[tf.Tensor]) -> Vector:
    """Return the numbers of eager tensors one after the other, [P]."""
    raw = np.concatenate([np.zeros(0), *(np.ravel(part.numpy()) for part in parts)])
    return raw.astype(np.float64, copy=False)


def _value_and_slope(moved: Any, is_log: Any, module: Any) -> tuple[Any, Any]:
    """Return values of variables at coordinates times their units, and the derivatives of these.

    By functions of NumPy or TensorFlow.
    """
    y = module.exp(module.maximum(moved, -TAIL))
    share = -module.expm1(-y)
    inside = is_log & (moved >= -TAIL)
    return module.where(inside, y + module.log(share), moved), module.where(inside, y / share, 1.0)


def present_shape(variable: tf.Variable) -> tuple[int, ...]:
    """Return the shape of a variable, of its values where it is open, as that of a ``VGP`` may be."""
    known = variable.shape.is_fully_defined()
    return tuple(variable.shape if known else variable.read_value().shape)


def inducing_inputs(owner: tf.Module) -> list[tf.Variable]:
    """Return the variables of the inducing points of a model, or of a solver that holds one."""
    inputs = [part.Z for part in parts(owner, InducingPoints)]
    return [part.unconstrained_variable for part in inputs if isinstance(part, gpflow.Parameter)]


def spread(variable: tf.Variable) -> Vector:
    """Return the powers of two next to the deviations of the columns of inputs [M, D], at each number."""
    inputs = variable.numpy().astype(np.float64)
    deviation = inputs.std(axis=0)
    varies = deviation > np.finfo(variable.dtype.as_numpy_dtype).eps * np.abs(inputs).max(axis=0, initial=0.0)
    units = np.exp2(np.rint(np.log2(np.where(varies, deviation, 1.0))))
    return np.broadcast_to(units, inputs.shape)
