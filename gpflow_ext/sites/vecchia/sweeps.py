"""Systems with the triangular matrix B of a Vecchia approximation and with its transpose, by `levels`.

Vectors are columns [P, C] over slots, those of one latent function; empty slots hold zeros. A loop of
thousands of small steps is compiled with XLA, on any device: in a plain graph each would take as long as its
operations are started.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes


class StepsAt(NamedTuple):
    """`levels.Steps` as tensors."""

    first: tf.Tensor
    near: tf.Tensor
    entries: tf.Tensor


class ScheduleAt(NamedTuple):
    """`levels.Schedule` as tensors."""

    slots: tf.Tensor
    owner: tf.Tensor
    forth: StepsAt
    back: StepsAt

    def spread(self, values: tf.Tensor, empty: float = 0.0) -> tf.Tensor:
        """Return values of the data [N, C] in their slots, [P, C]."""
        padding = [[0, 1], [0, 0]]
        return tf.gather(
            tf.pad(values, padding, constant_values=tf.constant(empty, values.dtype)), self.owner
        )

    def gather(self, values: tf.Tensor) -> tf.Tensor:
        """Return what is in the slots of the data, [N, C], of values [P, C]."""
        return tf.gather(values, self.slots)


class Triangle(NamedTuple):
    """B of one latent function, with what its steps take of the coefficients."""

    schedule: ScheduleAt
    forth: tf.Tensor  # [T, W, w]
    back: tf.Tensor  # [T, W, w]

    def solve(self, b: tf.Tensor) -> tf.Tensor:
        """Return B⁻¹b for b [P, C]."""
        return _substituted(b, *self.schedule.forth[:2], self.forth)

    def solve_transposed(self, b: tf.Tensor) -> tf.Tensor:
        """Return B⁻ᵀb for b [P, C]."""
        return _substituted(b, *self.schedule.back[:2], self.back)


def triangle(schedule: ScheduleAt, a: tf.Tensor) -> Triangle:
    """Return B of the coefficients of neighbours [N, m]."""
    flat = tf.pad(tf.reshape(a, [-1]), [[0, 1]])
    return Triangle(schedule, *(tf.gather(flat, steps.entries) for steps in (schedule.forth, schedule.back)))


@functools.partial(tf.function, jit_compile=True, autograph=False)
def _substituted(x: tf.Tensor, first: tf.Tensor, near: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return x [P, C] after all steps, each of which adds to a block of rows what these depend on."""
    (count, width, _), columns = sizes(weights), sizes(x)[1]

    def step(k: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        seen = tf.reduce_sum(tf.gather(x, near[k]) * weights[k][..., None], axis=1)
        old = tf.slice(x, [first[k], 0], [width, columns])
        return k + 1, tf.tensor_scatter_nd_update(x, (first[k] + tf.range(width))[:, None], old + seen)

    return tf.while_loop(lambda k, _: k < count, step, (tf.constant(0), x))[1]
