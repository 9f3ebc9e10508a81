"""Inducing points whose K_uu has a jitter in the units of the kernel."""

from __future__ import annotations

import tensorflow as tf
from gpflow.covariances import Kuu
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import Kernel, MultioutputKernel


class ScaledInducingPoints(InducingPoints):
    """Inducing points of targets in any units: the jitter of K_uu is a share of its diagonal.

    GPflow adds its jitter, 1e-6, to whatever K_uu there is. Where the variance of the kernel is that of house
    prices, rounding is larger and the Cholesky factor is NaN; where it is that of micrometres in metres, the
    jitter is larger than K_uu and nothing can be learnt.
    """


@Kuu.register(ScaledInducingPoints, Kernel)
def _gram(points: ScaledInducingPoints, kernel: Kernel, *, jitter: float = 0.0) -> tf.Tensor:
    """Return K_uu with a jitter relative to its diagonal, [M, M]."""
    K = kernel(points.Z)
    return tf.linalg.set_diag(K, tf.linalg.diag_part(K) * (1.0 + tf.cast(jitter, K.dtype)))


@Kuu.register(ScaledInducingPoints, MultioutputKernel)
def _gram_of_outputs(
    points: ScaledInducingPoints, kernel: MultioutputKernel, *, jitter: float = 0.0
) -> tf.Tensor:
    """Return K_uu of several outputs as GPflow has it."""
    return Kuu(InducingPoints(points.Z), kernel, jitter=jitter)
