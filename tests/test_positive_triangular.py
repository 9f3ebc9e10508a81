"""The bijector of factors is the function that TensorFlow Probability composes of several."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from tensorflow_probability import bijectors

from gpflow_ext.numerics.positive_triangular import PositiveTriangular

VECTORS = np.random.default_rng(0).normal(size=(3, 10))


@pytest.mark.parametrize("least", [1e-6, 0.5])
def test_the_function_its_inverse_and_its_jacobian_are_those_of_the_composed_one(least: float) -> None:
    own, composed = PositiveTriangular(least), bijectors.FillScaleTriL(diag_shift=np.array(least))
    matrices = composed.forward(VECTORS)
    np.testing.assert_allclose(own.forward(VECTORS), matrices, rtol=0, atol=1e-15)
    np.testing.assert_allclose(own.inverse(tf.identity(matrices)), VECTORS, rtol=0, atol=1e-13)
    for ours, theirs in (
        (own.forward_log_det_jacobian(VECTORS), composed.forward_log_det_jacobian(VECTORS)),
        (own.inverse_log_det_jacobian(matrices), composed.inverse_log_det_jacobian(matrices)),
    ):
        assert ours.shape == [3]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("shape", [[10], [3, 10], [None, 10]])
def test_shapes_are_known_without_values(shape: list[int | None]) -> None:
    own = PositiveTriangular()
    matrices = own.forward_event_shape(tf.TensorShape(shape[-1:]))
    assert matrices == [4, 4]
    assert own.inverse_event_shape(matrices) == [10]
    np.testing.assert_array_equal(own.forward_event_shape_tensor([10]), [4, 4])
    np.testing.assert_array_equal(own.inverse_event_shape_tensor([4, 4]), [10])


def test_a_parameter_takes_its_values_in_either_precision() -> None:
    for dtype, digits in ((tf.float64, 1e-15), (tf.float32, 1e-7)):
        factor = gpflow.Parameter(0.1 * tf.eye(4, dtype=dtype), transform=PositiveTriangular(), dtype=dtype)
        assert factor.unconstrained_variable.shape == [10]
        np.testing.assert_allclose(factor.numpy(), 0.1 * np.eye(4), rtol=0, atol=digits)
