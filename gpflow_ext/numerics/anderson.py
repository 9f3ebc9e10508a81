"""Anderson mixing: a fixed-point iteration that learns from its last steps (Anderson 1965; Walker & Ni 2011).

For x ← x + r(x) with the last points and residuals xᵢ, rᵢ the next point is

    x + βr − Σᵢ cᵢ (x − xᵢ + β(r − rᵢ)),        c = argmin ‖r − Σᵢ cᵢ (r − rᵢ)‖

which is a secant method on r = 0: modes that a plain step of length β hardly moves are taken at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

_RIDGE = 10.0  # times the rounding of a number, relative to the longest difference of residuals, squared


class Memory(NamedTuple):
    """The last points and their residuals, the newest first."""

    points: tf.Tensor  # [m, P]
    residuals: tf.Tensor  # [m, P]
    count: tf.Tensor  # how many there are, []


def empty(like: tf.Tensor, size: int) -> Memory:
    """Return an empty memory for up to ``size`` points like one, of P elements."""
    none = tf.zeros([size, tf.size(like)], like.dtype)
    return Memory(none, none, tf.constant(0))


def remember(memory: Memory, x: tf.Tensor, r: tf.Tensor) -> Memory:
    """Return the memory with one more point x [P], residual r [P], and without the oldest."""
    points = tf.concat([x[None], memory.points[:-1]], axis=0)
    residuals = tf.concat([r[None], memory.residuals[:-1]], axis=0)
    return Memory(points, residuals, tf.minimum(memory.count + 1, tf.shape(points)[0]))


def mixed(memory: Memory, x: tf.Tensor, r: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
    """Return the point [P] after x with the residual r; by a plain step where the memory is empty. O(m²P)."""
    known = tf.cast(tf.range(tf.shape(memory.points)[0]) < memory.count, x.dtype)[:, None]
    dx, dr = known * (x - memory.points), known * (r - memory.residuals)
    gram = tf.matmul(dr, dr, transpose_b=True)
    largest = tf.reduce_max(tf.linalg.diag_part(gram))
    least = _RIDGE * float(np.finfo(x.dtype.as_numpy_dtype).eps) * largest
    alone = tf.cast(tf.equal(largest, 0.0), x.dtype)  # no memory, or one of x alone
    gram += tf.linalg.diag(least + alone + (1.0 - known[:, 0]))
    weights = tf.linalg.solve(gram, tf.linalg.matvec(dr, r)[:, None])  # [m, 1]
    return x + length * r - tf.reduce_sum(weights * (dx + length * dr), axis=0)
