"""Covariances from inputs that are centred first, which keeps the digits of their distances.

GPflow computes |x − x'|² as x² + x'² − 2xx'. Of inputs s standard deviations from zero this loses a share
ε s² of the squares: in single precision all of them from s = 3,000. A stationary kernel depends on x − x'
alone, so any point may be subtracted from both.
"""

from __future__ import annotations

import functools
import operator

import tensorflow as tf
from gpflow.kernels import Constant, IsotropicStationary, Kernel, Product, Sum, White
from gpflow.utilities.ops import square_distance

_WIDE = 32  # inputs, from which products of them take longer than what is computed of their distances


def keeps_digits(kernel: Kernel) -> bool:
    """Tell whether `covariance` centres the inputs of a kernel: a stationary one, of GPflow's own."""
    if type(kernel) in (Sum, Product):
        return all(map(keeps_digits, kernel.kernels))
    if isinstance(kernel, IsotropicStationary):
        return type(kernel).__module__ == IsotropicStationary.__module__
    return type(kernel) in (White, Constant)


def covariance(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
    """Return k(X, X2) or k(X, X) of inputs [..., N, D], as the kernel itself does.

    The mean of all finite entries of X in a column is subtracted from both.

    Raises
    ------
    ValueError
        For inputs with different numbers of columns, of which one would be broadcast.
    """
    if not keeps_digits(kernel):
        return kernel(X, X2)
    X = tf.convert_to_tensor(X)
    if X2 is not None:
        check_width(X2, X)
    known = tf.where(X - X == 0.0, X, tf.zeros_like(X))
    mean = tf.stop_gradient(tf.reduce_mean(known, axis=list(range(X.shape.rank - 1))))  # [D]
    between = kernel if (X.shape[-1] or 0) < _WIDE else functools.partial(_of_wide, kernel)
    return between(X - mean, None if X2 is None else X2 - mean)


def _of_wide(kernel: Kernel, X: tf.Tensor, X2: tf.Tensor | None) -> tf.Tensor:
    """Return k(X, X2), of which the gradient in a single length scale takes no product of inputs.

    It is that of |(x − x')/s|² (s/ℓ)² with s = ℓ held fixed. GPflow's own is that of x/ℓ and x'/ℓ.
    """
    if type(kernel) in (Sum, Product):
        parts = [_of_wide(part, X, X2) for part in kernel.kernels]
        return functools.reduce(operator.add if type(kernel) is Sum else operator.mul, parts)
    if not isinstance(kernel, IsotropicStationary) or kernel.ard:
        return kernel(X, X2)
    rows, others = kernel.slice(X, X2)
    held = tf.stop_gradient(tf.convert_to_tensor(kernel.lengthscales))
    distances = square_distance(rows / held, None if others is None else others / held)
    return kernel.K_r2(distances * tf.square(held / kernel.lengthscales))


def check_width(new: tf.Tensor, known: tf.Tensor) -> None:
    """Raise ``ValueError`` for new inputs [..., D] of another number of columns than known ones."""
    if not known.shape[-1:].is_compatible_with(new.shape[-1:]):
        raise ValueError(
            f"Inputs have {new.shape[-1]} columns, where those of the model have {known.shape[-1]}."
        )
