"""Inputs with leading batch axes [batch..., N, D], as GPflow's predictions take them.

What follows from the covariances with the data is computed for all R = ∏ batch · N rows at once, so no axis
of the batch can be mistaken for another. Covariances between inputs are computed within each batch member.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import gpflow
import tensorflow as tf

from gpflow_ext.numerics.centred import covariance


def numbers(values: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    """Return whole numbers, and numbers of any precision, in a float type.

    Parameters
    ----------
    values
        An array or tensor.
    dtype
        The float type; by default GPflow's for arrays and whole numbers, and that of other tensors.

    Raises
    ------
    ValueError
        For anything but numbers.
    """
    default = dtype or gpflow.default_float()
    found = tf.convert_to_tensor(values, dtype_hint=default)
    if not (found.dtype.is_floating or found.dtype.is_integer or found.dtype.is_bool):
        raise ValueError(f"Inputs and targets must be numbers; got {found.dtype.name}: encode them first.")
    return found if found.dtype.is_floating and dtype is None else tf.cast(found, default)


class TakesNumbers:
    """Mixin of posteriors, to be the first base: new inputs may be integers, or of another precision."""

    kernel: gpflow.kernels.Kernel

    def fused_predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> Any:
        """See `gpflow.posteriors.AbstractPosterior`."""
        return super().fused_predict_f(self.inputs(Xnew), full_cov, full_output_cov)  # type: ignore[misc]

    def predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> Any:
        """See `gpflow.posteriors.AbstractPosterior`."""
        return super().predict_f(self.inputs(Xnew), full_cov, full_output_cov)  # type: ignore[misc]

    def inputs(self, Xnew: Any) -> tf.Tensor:
        """Return new inputs in the float type of the kernel; see `numbers`."""
        return numbers(Xnew, next((p.dtype for p in self.kernel.parameters if p.dtype.is_floating), None))


class Rows:
    """The rows of inputs [batch..., N, D], batch axes of any number and length; without any all is as it is.

    Parameters
    ----------
    X
        Inputs, or targets of the same rows.

    Attributes
    ----------
    flat
        All rows, [R, D].

    Raises
    ------
    ValueError
        For fewer than two axes, or an unknown number of them.
    """

    def __init__(self, X: Any) -> None:
        X = numbers(X)
        if (X.shape.rank or 0) < 2:
            raise ValueError(
                f"Inputs must be [batch..., N, D] with a known number of axes; their shape is {X.shape}: "
                "reshape one input to [1, D], and give a tf.function an open shape such as [None, None, D]."
            )
        *self._axes, width = sizes(X)
        self.flat = X if self.is_one else tf.reshape(X, [_product(self._axes), width])

    @property
    def is_one(self) -> bool:
        """Whether the inputs are [N, D], without batch axes."""
        return len(self._axes) == 1

    @property
    def count(self) -> Any:
        """The number of members of the batch, ∏ batch: a number where it is known, else a scalar tensor."""
        return _product(self._axes[:-1])

    @property
    def length(self) -> Any:
        """N, the rows of one member: a number where it is known, else a scalar tensor."""
        return self._axes[-1]

    @property
    def members(self) -> tf.Tensor:
        """The members of the batch along one axis, [∏ batch, N, D]."""
        return tf.reshape(self.flat, [self.count, self.length, sizes(self.flat)[1]])

    def apart(self, value: tf.Tensor, axis: int = 0) -> tf.Tensor:
        """Give the rows along an axis of length R back the axes of the inputs, [..., batch..., N, ...]."""
        if self.is_one:
            return value
        before, after = sizes(value)[:axis], sizes(value)[axis:][1:]
        return tf.reshape(value, [*before, *self._axes, *after])

    def of_members(self, value: tf.Tensor) -> tf.Tensor:
        """Give the `members` along the first axis back the axes of the batch, [batch..., ...]."""
        return tf.reshape(value, [*self._axes[:-1], *sizes(value)[1:]])

    def columns(self, value: tf.Tensor) -> tf.Tensor:
        """Return the columns of matrices [..., M, R] by members, [..., batch..., M, N]."""
        if self.is_one:
            return value
        value = self.apart(value, value.shape.rank - 1)
        return _moved(value, value.shape.rank - len(self._axes) - 1)


def gram(kernel: gpflow.kernels.Kernel, members: tf.Tensor) -> tf.Tensor:
    """Return the covariances within members [B, N, D], [B, N, N]; the kernel sees a single one unbatched."""
    return covariance(kernel, members[0])[None] if members.shape[0] == 1 else covariance(kernel, members)


def behind_batch(value: tf.Tensor) -> tf.Tensor:
    """Move the first axis, of outputs or samples: [P, batch..., N, Q] to [batch..., P, N, Q]."""
    return _moved(value, 0, 2)


def independent_outputs(cov: tf.Tensor, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    """Return (co)variances of independent outputs in the shape that GPflow's models return.

    Parameters
    ----------
    cov
        Variances [batch..., N, P], or with ``full_cov`` covariances [batch..., P, N, N].
    full_cov, full_output_cov
        With the second, covariances of outputs are [batch..., N, P, P], with both [batch..., N, P, N, P].
    """
    if not full_output_cov:
        return cov
    if not full_cov:
        return tf.linalg.diag(cov)
    return tf.einsum("...pnm,pq->...npmq", cov, tf.eye(tf.shape(cov)[-3], dtype=cov.dtype))


def sizes(value: tf.Tensor) -> list[Any]:
    """Return the lengths of all axes: numbers where they are known, else scalar tensors."""
    shape = tf.shape(value)
    return [shape[axis] if size is None else size for axis, size in enumerate(value.shape)]


def blocks(rows: Any, most: Any) -> tuple[Any, Any]:
    """Return how many blocks rows are taken in, and how many are in each: one at least, at most ``most``.

    Each argument is a number where it is known, else a scalar tensor, and so are the results.
    """
    known = isinstance(rows, int) and isinstance(most, int)
    largest, least = (max, min) if known else (tf.maximum, tf.minimum)
    size = largest(1, least(rows, most))
    return largest(1, -(-rows // size)), size


def _moved(value: tf.Tensor, axis: int, behind: int = 1) -> tf.Tensor:
    """Move an axis to where ``behind`` axes come after it."""
    order = [other for other in range(value.shape.rank) if other != axis]
    order.insert(len(order) - behind, axis)
    return value if order == sorted(order) else tf.transpose(value, order)


def _product(numbers: list[Any]) -> Any:
    return functools.reduce(operator.mul, numbers, 1)
