"""Functions that a graph holds once."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.once import once

traced: list[tuple[tuple[int | None, ...], float]] = []


@once
def power_sum(x: tf.Tensor, *, power: float = 1.0) -> tf.Tensor:
    traced.append((tuple(x.shape), power))
    return tf.reduce_sum(x**power)


def everywhere(x: tf.Tensor) -> tf.Tensor:
    """Call it beside a loop, in it, in a branch, for another shape and with another value."""
    here = power_sum(x, power=2.0)
    _, looped = tf.while_loop(
        lambda k, _: k < 3, lambda k, total: (k + 1, total + power_sum(x, power=2.0)), (0, 0.0)
    )
    branch = tf.cond(here > 0.0, lambda: power_sum(x, power=2.0), lambda: 0.0)
    return tf.stack([here, looped, branch, power_sum(x[1:], power=2.0), power_sum(x)])


def test_a_graph_has_a_function_once_for_each_shape_and_value() -> None:
    x = tf.constant([1.0, 2.0, 3.0])
    expected = [14.0, 42.0, 14.0, 13.0, 6.0]
    for jit in (False, True):
        traced.clear()
        compiled = tf.function(everywhere, autograph=False, jit_compile=jit)
        for _ in range(2):
            np.testing.assert_allclose(compiled(x), expected, rtol=1e-6)
        assert sorted(traced) == [((2,), 2.0), ((3,), 1.0), ((3,), 2.0)]
    np.testing.assert_allclose(everywhere(x), expected, rtol=1e-6)  # without a graph


def test_each_graph_has_its_own_and_it_is_differentiable() -> None:
    @tf.function(autograph=False)
    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = power_sum(x, power=3.0)
        return tape.gradient(value, x)

    for size in (2, 3):
        np.testing.assert_allclose(slope(tf.fill([size], 2.0)), np.full(size, 12.0), rtol=1e-6)
