"""Random frequencies of stationary kernels: draws from their spectral densities, Rahimi & Recht (2007).

By Bochner's theorem k(x, x') = σ² E[cos ωᵀ(x − x')] over the spectral density of the kernel, in GPflow's
parameters below. Where kernels are multiplied their frequencies add.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import gpflow
import tensorflow as tf
from gpflow.kernels import Kernel

from gpflow_ext.functions.randomness import Numbers

Draw: TypeAlias = Callable[[Any, Numbers, int, int], tf.Tensor]
"""Map a kernel, random numbers, a number F and the number d of active dimensions to frequencies [F, d]."""

FREQUENCIES: dict[type[Kernel], Draw] = {}


def register(kind: type[Kernel]) -> Callable[[Draw], Draw]:
    """Register how the frequencies of a class of kernels are drawn; a subclass needs a line of its own."""

    def keep(draw: Draw) -> Draw:
        FREQUENCIES[kind] = draw
        return draw

    return keep


@register(gpflow.kernels.SquaredExponential)
def _squared_exponential(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return numbers.normal([count, dims]) / kernel.lengthscales


def _student(kernel: Any, numbers: Numbers, count: int, dims: int, degrees: int) -> tf.Tensor:
    """Return multivariate t variates: one χ² for all dimensions of a frequency."""
    normal = numbers.normal([count, dims])
    chi2 = tf.reduce_sum(tf.square(numbers.normal([count, degrees])), axis=1, keepdims=True)
    return normal / tf.sqrt(chi2 / degrees) / kernel.lengthscales


@register(gpflow.kernels.Matern12)
def _matern12(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return _student(kernel, numbers, count, dims, 1)


@register(gpflow.kernels.Matern32)
def _matern32(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return _student(kernel, numbers, count, dims, 3)


@register(gpflow.kernels.Matern52)
def _matern52(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return _student(kernel, numbers, count, dims, 5)


@register(gpflow.kernels.Exponential)
def _exponential(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return 0.5 * _student(kernel, numbers, count, dims, 1)  # GPflow's is exp(−r/2)


@register(gpflow.kernels.RationalQuadratic)
def _rational_quadratic(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    normal = numbers.normal([count, dims])
    alpha = tf.convert_to_tensor(kernel.alpha)
    return normal * tf.sqrt(numbers.gamma([count, 1], alpha) / alpha) / kernel.lengthscales


@register(gpflow.kernels.Cosine)
def _cosine(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    return tf.ones([count, dims], numbers.dtype) * (2.0 * math.pi) / kernel.lengthscales


@register(gpflow.kernels.Periodic)
def _periodic(kernel: Any, numbers: Numbers, count: int, dims: int) -> tf.Tensor:
    """Return 2π/γ times differences of Poisson counts.

    exp(−½ sin²(πr/γ)/ℓ²) = exp(z cos(2πr/γ) − z), z = 1/(4ℓ²): the characteristic function of a Skellam
    variate.
    """
    if type(kernel.base_kernel) is not gpflow.kernels.SquaredExponential:
        raise NotImplementedError(
            f"Periodic has random features with SquaredExponential as its base kernel; this one has "
            f"{type(kernel.base_kernel).__name__}: draw at given inputs, by predict_f_samples(X)."
        )
    lengthscales = tf.convert_to_tensor(kernel.base_kernel.lengthscales)
    half = tf.ones([count, dims], numbers.dtype) / (8.0 * tf.square(lengthscales))
    waves = numbers.poisson([count, dims], half) - numbers.poisson([count, dims], half)
    return (2.0 * math.pi) * waves / kernel.period


def variance(kernel: Any) -> tf.Tensor:
    """Return σ² of a stationary kernel, []."""
    base = kernel.base_kernel if isinstance(kernel, gpflow.kernels.Periodic) else kernel
    return tf.reshape(tf.convert_to_tensor(base.variance), [])
