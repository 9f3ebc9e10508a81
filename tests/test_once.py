"""Functions that a graph holds once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.once import once

traced: list[tuple[int | None, ...]] = []


@once
def squares(x: tf.Tensor) -> tf.Tensor:
    traced.append(tuple(x.shape))
    return tf.reduce_sum(x**2)


def everywhere(x: tf.Tensor) -> tf.Tensor:
    """Call it beside a loop, in it, in a branch, and for another shape."""
    here = squares(x)
    _, looped = tf.while_loop(lambda k, _: k < 3, lambda k, total: (k + 1, total + squares(x)), (0, 0.0))
    branch = tf.cond(here > 0.0, lambda: squares(x), lambda: 0.0)
    return tf.stack([here, looped, branch, squares(x[1:])])


def test_a_graph_has_a_function_once_for_each_shape() -> None:
    x, expected = tf.constant([1.0, 2.0, 3.0]), [14.0, 42.0, 14.0, 13.0]
    for jit in (False, True):
        traced.clear()
        compiled = tf.function(everywhere, autograph=False, jit_compile=jit)
        for _ in range(2):
            np.testing.assert_allclose(compiled(x), expected, rtol=1e-6)
        assert sorted(traced) == [(2,), (3,)]
    np.testing.assert_allclose(everywhere(x), expected, rtol=1e-6)  # without a graph


def test_each_graph_has_its_own_which_is_differentiable_and_ends_with_it() -> None:
    def slope(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = squares(x)
        return tape.gradient(value, x)

    graphs = []
    for size in (2, 3):
        compiled = tf.function(slope, autograph=False).get_concrete_function(tf.TensorSpec([size]))
        np.testing.assert_allclose(compiled(tf.fill([size], 2.0)), np.full(size, 4.0), rtol=1e-6)
        graphs.append(weakref.ref(compiled.graph))
    del compiled
    gc.collect()
    assert [graph() for graph in graphs] == [None, None]
