"""L-BFGS on objectives that are not finite everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.training import lbfgs


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_the_search_comes_back_from_where_the_objective_is_not_finite(beyond: float) -> None:
    """log(1 − x) + 5x from -3: the first line search tries 2, and the maximum is at 0.8."""
    x, seen = tf.Variable(-3.0, dtype=tf.float64), []

    def objective() -> tuple[float, list[tf.Tensor]]:
        at = float(x)
        seen.append(at)
        if at >= 1.0:
            return beyond, [tf.constant(np.nan, tf.float64)]
        return np.log(1.0 - at) + 5.0 * at, [tf.constant(5.0 - 1.0 / (1.0 - at), tf.float64)]

    assert lbfgs.climb([x], objective, 100)
    assert max(seen) > 1.0
    assert abs(float(x) - 0.8) < 1e-5


def test_a_start_that_is_not_finite_is_left_as_it_was() -> None:
    x = tf.Variable([2.0, 3.0], dtype=tf.float64)
    assert not lbfgs.climb([x], lambda: (np.nan, [tf.constant([1.0, np.nan], tf.float64)]), 10)
    np.testing.assert_array_equal(x, [2.0, 3.0])
