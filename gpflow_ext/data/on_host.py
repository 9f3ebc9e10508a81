"""Values of parameters and columns of inputs in NumPy, for what looks at a few numbers.

GPflow's own take a millisecond each, of TensorFlow's and its bijectors' bookkeeping: several of them take as
long as the fit of a small model.
"""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.kernels import Kernel
from tensorflow_probability import bijectors

Array = npt.NDArray[Any]


def value(parameter: Any) -> Array:
    """Return the value of a parameter, or of what a frozen model has in its place, to rounding."""
    if not isinstance(parameter, gpflow.Parameter):
        return np.asarray(parameter)
    return value_at(parameter, parameter.unconstrained_variable.numpy())


def value_at(parameter: gpflow.Parameter, raw: Array) -> Array:
    """Return what the value of a parameter is where its variable has a value, to rounding."""
    transform: Any = parameter.transform
    if isinstance(transform, bijectors.Identity):
        return raw
    if not is_softplus(transform):
        return np.asarray(transform.forward(tf.constant(raw)))
    return np.logaddexp(0.0, raw, dtype=raw.dtype) + raw.dtype.type(lower_bound(transform) or 0.0)


def columns(kernel: Kernel, X: Array) -> Array:
    """Return the columns of inputs X [N, D] that a kernel reads, [N, D']."""
    if type(kernel).slice is not Kernel.slice:
        return np.asarray(kernel.slice(X, None)[0])
    dims = kernel.active_dims
    return X if dims is None else np.ascontiguousarray(X[..., dims])


def lower_bound(transform: bijectors.Bijector | None) -> float | None:
    """Return what the last part of a transform adds: GPflow's positive parameters have such a bound."""
    shift = transform.bijectors[0] if isinstance(transform, bijectors.Chain) else None
    return float(shift.shift) if isinstance(shift, bijectors.Shift) else None


def is_softplus(transform: bijectors.Bijector | None) -> bool:
    """Tell whether a transform is the softplus, or the softplus above a lower bound."""
    if isinstance(transform, bijectors.Chain) and len(transform.bijectors) == 2:
        shift, transform = transform.bijectors
        if not isinstance(shift, bijectors.Shift):
            return False
    return isinstance(transform, bijectors.Softplus) and transform.hinge_softness is None
