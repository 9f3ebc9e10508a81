"""Functions of some rows equal those of all where they were chosen, a block at a time."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.numerics import some_rows

N = 11


@pytest.mark.parametrize("chosen", [[], [0], [10], [1, 4, 5, 6, 9], list(range(N))])
def test_at_rows(chosen: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(some_rows, "_BLOCK", 4)
    x = tf.constant(np.random.default_rng(0).normal(size=(N, 3)))
    mask = tf.constant(np.isin(np.arange(N), chosen))
    sizes = []

    def function(x, y):
        sizes.append(x.shape[0])
        return tf.reduce_sum(x, axis=-1), x[:, :, None] * y[:, None]

    @tf.function(autograph=False)
    def found(x, mask):
        return some_rows.at_rows(function, mask, (x, 2.0 * x), ([], [3, 3]))

    for ours, expected in zip(found(x, mask), function(x, 2.0 * x), strict=True):
        rows = tf.reshape(mask, [N] + [1] * (expected.shape.rank - 1))
        np.testing.assert_array_equal(ours, tf.where(rows, expected, 0.0))
    sizes.clear()  # eagerly, where those of blocks are to be seen
    some_rows.at_rows(function, mask, (x, 2.0 * x), ([], [3, 3]))
    assert sum(sizes) == len(chosen)
    assert max(sizes, default=0) <= 4
