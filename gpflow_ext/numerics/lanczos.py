"""Logarithms of positive definite operators by Lanczos' method, and their derivatives.

With A ≈ VTVᵀ, Ve₁ ∝ z and T = UτUᵀ (Ubaru, Chen & Saad 2017)

    zᵀ log(A) z = ‖z‖² e₁ᵀ log(T) e₁        d zᵀ log(A) z = Σ_k y_kᵀ dA y_k,  y = ‖z‖ V c

where ccᵀ is Θ = U(ggᵀ ∘ log[τᵢ, τⱼ])Uᵀ, of which the largest eigenvectors suffice, with g = Uᵀe₁ and the
divided differences of the logarithm. Derived in docs/derivations.md, section 13.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

RANK = 8  # vectors by which the derivative of a logarithm is represented; the rest is below 1e-6 of it
_ROUNDING = 1e3  # units in the last place of the largest eigenvalue that one above zero may be below it


class Tridiagonal(NamedTuple):
    """What Lanczos' method makes of an operator and some vectors; m is the most steps."""

    vectors: tf.TensorArray  # the columns of V, each of the shape of z, as many as steps were taken
    count: tf.Tensor  # steps, []
    T: tf.Tensor  # the identity beyond them, [..., m, m], where ... is the shape of z without its axis


def tridiagonal(
    operator: Callable[[tf.Tensor], tf.Tensor],
    z: tf.Tensor,
    tolerance: tf.Tensor,
    axis: int,
    most: int,
    kept: tf.DType | None = None,
) -> Tridiagonal:
    """Return V and T. It ends where conjugate gradients for Ax = z would have the residual tolerance·‖z‖.

    Parameters
    ----------
    operator
        A, applied to all vectors.
    z
        Vectors along ``axis``.
    tolerance
        Of the residual, relative.
    most
        The most steps.
    kept
        The precision in which V is kept; by default that of z.
    """
    number, kept = z.dtype, kept or z.dtype
    least = 50.0 * np.finfo(number.as_numpy_dtype).eps

    def dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(a * b, axis=axis, keepdims=True)

    norm = tf.sqrt(dot(z, z))
    zero, one = tf.zeros_like(norm), tf.ones_like(norm)
    vectors = tf.TensorArray(kept, most, element_shape=z.shape)
    diagonal, beside = (tf.TensorArray(number, most, element_shape=norm.shape) for _ in range(2))

    def going(k: tf.Tensor, *loop: tf.Tensor) -> tf.Tensor:
        return (k < most) & tf.reduce_any(loop[4] > tolerance)

    def iterate(k: tf.Tensor, *loop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        before, v, beta, pivot, error, vectors, diagonal, beside = loop
        r = operator(v) - beta * before
        alpha = dot(v, r)
        r -= alpha * v
        pivot = alpha - tf.math.divide_no_nan(beta**2, pivot)
        new = tf.sqrt(dot(r, r))
        new = tf.where(new > least * alpha, new, zero)  # an invariant subspace
        error *= tf.math.divide_no_nan(new, pivot)
        written = (
            vectors.write(k, tf.cast(v, kept)),
            diagonal.write(k, tf.where(alpha == 0.0, one, alpha)),  # a vector of zeros
            beside.write(k, new),
        )
        return k + 1, v, tf.math.divide_no_nan(r, new), new, pivot, error, *written

    first = tf.math.divide_no_nan(z, norm)
    begin = (tf.constant(0), tf.zeros_like(z), first, zero, one, one, vectors, diagonal, beside)
    count, *_, vectors, diagonal, beside = tf.while_loop(going, iterate, begin)
    main, off = (_last(tf.squeeze(part.stack(), axis % len(z.shape) + 1)) for part in (diagonal, beside))
    place = tf.range(most)
    main = tf.where(place < count, main, tf.ones([], number))
    off = tf.where(place < count - 1, off, tf.zeros([], number))
    shifted = tf.linalg.diag(off[..., :-1], k=1, num_rows=most, num_cols=most)
    return Tridiagonal(vectors, count, tf.linalg.diag(main) + shifted + tf.linalg.matrix_transpose(shifted))


def _last(values: tf.Tensor) -> tf.Tensor:
    """Return values with their first axis behind the others."""
    return tf.transpose(values, [*range(1, len(values.shape)), 0])


def logarithm(T: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return e₁ᵀ log(T) e₁, [...], and c, [..., m, `RANK` at most], for T [..., m, m].

    Both are NaN where T is not finite, or has an eigenvalue below zero by more than rounding.
    """
    finite = tf.reduce_all(tf.math.is_finite(T), axis=[-2, -1], keepdims=True)
    values, U = tf.linalg.eigh(tf.where(finite, T, tf.eye(int(T.shape[-1]), dtype=T.dtype)))
    rounding = _ROUNDING * np.finfo(T.dtype.as_numpy_dtype).eps * values[..., -1:]
    defined = finite[..., 0] & (values[..., :1] >= -rounding)  # [..., 1]
    defined = tf.where(defined, tf.ones_like(rounding), tf.constant(np.nan, T.dtype))
    values = tf.maximum(values, tf.constant(1e-12, T.dtype))
    g = U[..., 0, :]
    scaled = U * g[..., None, :]
    theta = tf.matmul(tf.matmul(scaled, divided(values)), scaled, transpose_b=True)
    weights, c = tf.linalg.eigh(theta)
    rank = min(RANK, int(T.shape[-1]))
    c = c[..., -rank:] * tf.sqrt(tf.nn.relu(weights[..., None, -rank:]))
    return tf.reduce_sum(g**2 * tf.math.log(values), axis=-1) * defined[..., 0], c * defined[..., None]


def divided(values: tf.Tensor) -> tf.Tensor:
    """Return (log a − log b)/(a − b) for all pairs of values [..., m] > 0, [..., m, m]; 1/a where a = b."""
    a, b = values[..., :, None], values[..., None, :]
    x = (a - b) / (a + b)
    small = tf.abs(x) < 1e-3
    safe = tf.where(small, tf.constant(0.5, x.dtype), x)
    slope = tf.where(small, 1.0 + x**2 / 3.0 + x**4 / 5.0, tf.math.atanh(safe) / safe)
    return 2.0 * slope / (a + b)
