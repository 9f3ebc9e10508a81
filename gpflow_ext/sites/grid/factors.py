"""Product kernels: the factor of each axis, and why a kernel is no product."""

from __future__ import annotations

from collections.abc import Sequence

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import Combination, Constant, Kernel, Product, SquaredExponential, White

from gpflow_ext.sites import latent
from gpflow_ext.sites.grid.prior import DTYPE


def misfit(kernel: Kernel, columns: int) -> str | None:
    """Say why a kernel of one output is no product of factors, each of one of the columns; else ``None``."""
    if any(isinstance(leaf, White) for leaf in latent.parts(kernel)):
        return (
            "White gives each datum a value of its own, which is no function of the cell: use a likelihood "
            "with that much spread, such as NegativeBinomialLog for counts"
        )
    for part in latent.parts(kernel, Product):
        read = _reads(part, columns)
        if len(read) > 1 and not isinstance(part, SquaredExponential):
            named = type(part).__name__
            if isinstance(part, Combination):
                return f"{named} of several columns is no product: put each column into a factor of its own"
            each = " * ".join(f"{named}(active_dims=[{d}])" for d in read)
            return f"{named} of the columns {read} is no product of one factor to a column: use {each}"
    return None


def gram(kernels: Sequence[Kernel], d: int, a: tf.Tensor, b: tf.Tensor, columns: int) -> tf.Tensor:
    """Return the factors of an axis between its points a [n] and b [m], [S, n, m], in double precision."""
    return tf.stack([_axis_gram(part, d, a, b, columns) for part in kernels])


def crosses(kernels: Sequence[Kernel], new: tf.Tensor, axes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the factors between places [R, D] and the points of each axis, [S, R, n_d]."""
    return [gram(kernels, d, new[:, d], axis, len(axes)) for d, axis in enumerate(axes)]


def _axis_gram(kernel: Kernel, d: int, a: tf.Tensor, b: tf.Tensor, columns: int) -> tf.Tensor:
    unit = tf.one_hot(d, columns, dtype=gpflow.default_float())
    rows, others = (tf.cast(each, unit.dtype)[:, None] * unit for each in (a, b))
    found = tf.ones([tf.shape(a)[0], tf.shape(b)[0]], DTYPE)
    for part in latent.parts(kernel, Product):
        read = _reads(part, columns)
        if d not in (read or [0]):
            continue
        value = part(rows, others)
        if len(read) > 1 and d != read[0]:
            value /= part.variance  # which belongs to the first of the columns
        found *= tf.cast(value, DTYPE)
    return found


def _reads(kernel: Kernel, columns: int) -> list[int]:
    """Return the columns that a kernel reads, none for a constant."""
    read: set[int] = set()
    for leaf in latent.parts(kernel):
        if not isinstance(leaf, Constant):
            read |= {int(d) for d in np.arange(columns)[leaf.active_dims]}
    return sorted(read)
