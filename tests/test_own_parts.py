"""Kernels, likelihoods and mean functions of a user's own that do not return what they must."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from check_shapes.exceptions import ShapeMismatchError

from gpflow_ext.likelihoods import BernoulliLogit, Standardised
from gpflow_ext.models import VGPKMM, SGPMCFreeForm

X, Y = DATA = problems.binary(12)


class Cauchy(gpflow.likelihoods.ScalarLikelihood):
    """A density whose shape is set by `shaped`."""

    shaped = staticmethod(lambda value: value)

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        return self.shaped(-tf.math.log1p(tf.square(Y - F)) - np.log(np.pi))

    def _conditional_mean(self, X: Any, F: Any) -> tf.Tensor:
        return F

    def _conditional_variance(self, X: Any, F: Any) -> tf.Tensor:
        return tf.ones_like(F)


class Joint(gpflow.likelihoods.QuadratureLikelihood):
    """A density of two latent functions, [N, 1] in place of [N]."""

    def __init__(self) -> None:
        super().__init__(input_dim=None, latent_dim=2, observation_dim=1)

    def _log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        return -tf.square(Y - F[:, :1]) - tf.square(F[:, 1:])

    _conditional_mean = _conditional_variance = Cauchy._conditional_mean


class Exponential(gpflow.kernels.Kernel):
    """exp(−|x − x'|), whose parts can be replaced."""

    def K(self, X: Any, X2: Any = None) -> tf.Tensor:
        X2 = X if X2 is None else X2
        return tf.exp(-tf.reduce_sum(tf.abs(X[:, None] - X2), axis=-1))

    def K_diag(self, X: Any) -> tf.Tensor:
        return tf.ones([tf.shape(X)[0]], X.dtype)


class Slope(gpflow.functions.MeanFunction):
    """A mean of the first input."""

    def __call__(self, X: Any) -> tf.Tensor:
        return X[:, 0]


def _changed(kind: type, **methods: Any) -> Any:
    return type(kind.__name__, (kind,), methods)()


def _model(kernel: Any = None, likelihood: Any = None, mean_function: Any = None, **options: Any) -> Any:
    model = SGPMCFreeForm if options else VGPKMM
    return model(DATA, kernel or Exponential(), likelihood or BernoulliLogit(), mean_function, **options)


@pytest.mark.parametrize(
    ("shaped", "found"),
    [
        (lambda value: value[:, 0], r"\[3\]"),
        (tf.reduce_sum, r"\[\]"),
        (lambda value: value - tf.transpose(value), r"\[3, 3\]"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"inducing_variable": X[:4]}])
def test_a_density_of_another_shape_is_refused(shaped: Any, found: str, options: dict[str, Any]) -> None:
    likelihood = _changed(Cauchy, shaped=staticmethod(shaped))
    with pytest.raises(ValueError, match=rf"Cauchy._scalar_log_prob must .* \[3, 1\] .* it returns {found}"):
        _model(likelihood=likelihood, **options)


def test_a_density_within_a_likelihood_of_the_package_is_called_too() -> None:
    inner = _changed(Cauchy, shaped=staticmethod(lambda value: value[:, 0]))
    with pytest.raises(ShapeMismatchError, match=r"_log_prob"):
        _model(likelihood=Standardised(inner, 0.0, 2.0))


def test_a_joint_density_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Joint._log_prob must return the shape \[4\] .* returns \[4, 1\]"):
        _model(likelihood=Joint())


def test_variances_that_are_not_the_diagonal_of_a_kernel_are_refused() -> None:
    own = _changed(Exponential, K_diag=lambda self, X: 2.0 * tf.ones_like(X[:, 0]))
    for kernel in (own, gpflow.kernels.Constant() + own, gpflow.kernels.SharedIndependent(own, 1)):
        with pytest.raises(ValueError, match=r"Exponential.K_diag must .* differ by up to 1\."):
            _model(kernel)


def test_a_mean_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Slope must return the shape \[3, 1\] .* it returns \[3\]"):
        _model(mean_function=Slope())


def test_parts_of_the_right_shapes_are_taken() -> None:
    mean = type("Slope", (Slope,), {"__call__": lambda self, X: X[:, :1]})()
    model = _model(Exponential() + Exponential(), Cauchy(), mean)
    assert np.isfinite(model.elbo())
