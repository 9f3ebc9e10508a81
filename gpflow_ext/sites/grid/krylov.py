"""Conjugate gradients, and logarithms by Lanczos' method, of positive definite operators on fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics import conjugate_gradients

Operator: TypeAlias = Callable[[tf.Tensor], tf.Tensor]
"""Map fields [L, B, G] to as many."""

STEPS = 64  # of Lanczos' method at most, which are also the most vectors of a basis
RANK = 8  # vectors by which the derivative of a logarithm is represented; the rest is below 1e-6 of it
ITERATIONS = 400  # of conjugate gradients at most


def _dot(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(a * b, axis=-1, keepdims=True)


def solve(operator: Operator, b: tf.Tensor, tolerance: tf.Tensor) -> tf.Tensor:
    """Return x with ‖Ax − b‖ ≤ tolerance·‖b‖ for each field of b [L, B, G], by conjugate gradients."""
    return conjugate_gradients.solve(operator, b, tolerance, -1, ITERATIONS, tf.identity)[0]


class Logarithm(NamedTuple):
    """What zᵀ log(A) z of some z is, and how it changes: d zᵀ log(A) z = Σ_k y_kᵀ dA y_k."""

    value: tf.Tensor  # [L, B]
    modes: tf.Tensor  # y, [L, B·RANK, G]
    images: tf.Tensor  # (A − I)y, [L, B·RANK, G]


def logarithm(operator: Operator, z: tf.Tensor, tolerance: tf.Tensor) -> Logarithm:
    """Return the logarithm of A for fields z [L, B, G], by Lanczos' method (Ubaru, Chen & Saad 2017).

    With A ≈ VTVᵀ, Ve₁ ∝ z and T = UτUᵀ the derivative is VΘVᵀ, Θ = U(ggᵀ ∘ log[τᵢ, τⱼ])Uᵀ with g = Uᵀe₁ and
    the divided differences of the logarithm, which Θ's largest eigenvectors represent. It ends
    where conjugate gradients for Ax = z would have the residual ``tolerance``·‖z‖.
    """
    basis, T = _lanczos(operator, z, tolerance)
    L, B, G = z.shape
    squared = _dot(z, z)[..., 0]
    values, U = tf.linalg.eigh(T)
    values = tf.maximum(values, tf.constant(1e-12, z.dtype))
    g = U[..., 0, :]
    value = squared * tf.reduce_sum(g**2 * tf.math.log(values), axis=-1)
    scaled = U * g[..., None, :]
    theta = tf.matmul(tf.matmul(scaled, _divided(values)), scaled, transpose_b=True)
    rank = min(RANK, int(T.shape[-1]))
    weights, c = tf.linalg.eigh(theta)
    c = c[..., -rank:] * tf.sqrt(tf.nn.relu(weights[..., None, -rank:]) * squared[..., None, None])
    both = tf.concat([c, tf.matmul(T, c) - c], axis=-1)  # [L, B, m, 2·rank]
    fields = tf.matmul(both, tf.transpose(basis, [1, 2, 0, 3]), transpose_a=True)  # [L, B, 2·rank, G]
    modes, images = (tf.reshape(part, [L, B * rank, G]) for part in tf.split(fields, 2, axis=2))
    return Logarithm(value, modes, images)


def _divided(values: tf.Tensor) -> tf.Tensor:
    """Return (log a − log b)/(a − b) for all pairs of values [..., m] > 0, [..., m, m]; 1/a where a = b."""
    a, b = values[..., :, None], values[..., None, :]
    x = (a - b) / (a + b)
    small = tf.abs(x) < 1e-3
    safe = tf.where(small, tf.constant(0.5, x.dtype), x)
    slope = tf.where(small, 1.0 + x**2 / 3.0 + x**4 / 5.0, tf.math.atanh(safe) / safe)
    return 2.0 * slope / (a + b)


def _lanczos(operator: Operator, z: tf.Tensor, tolerance: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return V [m, L, B, G], zero where it has ended, and T [L, B, m, m], the identity there."""
    L, B, G = z.shape
    most, number = min(STEPS, int(G)), z.dtype
    least = 50.0 * np.finfo(number.as_numpy_dtype).eps
    vectors = tf.TensorArray(number, most, element_shape=[L, B, G])
    diagonal, beside = (tf.TensorArray(number, most, element_shape=[L, B, 1]) for _ in range(2))
    norm = tf.sqrt(_dot(z, z))
    v = tf.math.divide_no_nan(z, norm)
    zero, one = tf.zeros_like(norm), tf.ones_like(norm)

    def going(k: tf.Tensor, *loop: tf.Tensor) -> tf.Tensor:
        return (k < most) & tf.reduce_any(loop[4] > tolerance)

    def iterate(k: tf.Tensor, *loop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        before, v, beta, pivot, error, vectors, diagonal, beside = loop
        r = operator(v) - beta * before
        alpha = _dot(v, r)
        r -= alpha * v
        pivot = alpha - tf.math.divide_no_nan(beta**2, pivot)
        new = tf.sqrt(_dot(r, r))
        new = tf.where(new > least * alpha, new, zero)  # an invariant subspace
        error *= tf.math.divide_no_nan(new, pivot)
        written = (
            vectors.write(k, v),
            diagonal.write(k, tf.where(alpha > 0.0, alpha, one)),
            beside.write(k, new),
        )
        return k + 1, v, tf.math.divide_no_nan(r, new), new, pivot, error, *written

    begin = (tf.constant(0), tf.zeros_like(z), v, zero, one, one, vectors, diagonal, beside)
    count, *_, vectors, diagonal, beside = tf.while_loop(going, iterate, begin)
    there = tf.reshape(tf.range(most) < count, [-1, 1, 1])
    main = tf.where(there, diagonal.stack()[..., 0], tf.ones([], number))
    off = tf.where(
        there & (tf.reshape(tf.range(most), [-1, 1, 1]) < count - 1),
        beside.stack()[..., 0],
        tf.zeros([], number),
    )
    main, off = (tf.transpose(part, [1, 2, 0]) for part in (main, off))
    shifted = tf.linalg.diag(off[..., :-1], k=1, num_rows=most, num_cols=most)
    return vectors.stack(), tf.linalg.diag(main) + shifted + tf.linalg.matrix_transpose(shifted)
