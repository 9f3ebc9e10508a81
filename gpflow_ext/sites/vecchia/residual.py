"""The residual process that inducing points leave: features of the projection, and neighbours by correlation.

Φ = K_fu L⁻ᵀ, LLᵀ = K_uu        residual covariance k(x, x') − φ(x)ᵀφ(x')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.numerics.centred import covariance
from gpflow_ext.sites import latent

Array = npt.NDArray[Any]
_BLOCK = 512  # data whose candidates are compared at once


def root(kernel: gpflow.kernels.Kernel, Z: tf.Tensor) -> tf.Tensor:
    """Return the Cholesky factor L of K_uu with GPflow's default jitter, [S, M, M]."""
    return tf.linalg.cholesky(linalg.jittered(latent.gram(kernel, Z)))


def features(kernels: Sequence[gpflow.kernels.Kernel], Z: tf.Tensor, L: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Return Φ at X [N, D], [S, N, M]. O(NM²)."""
    half = tf.linalg.triangular_solve(L, tf.stack([covariance(part, Z, X) for part in kernels]))
    return tf.linalg.matrix_transpose(half)


def closest(kernel: gpflow.kernels.Kernel, Z: Array, X: Array, near: Array, most: int) -> Array:
    """Return those of some candidates whose residual correlation with a datum is largest, [N, most].

    Parameters
    ----------
    kernel
        The kernel; of several, the mean of the squared correlations counts.
    Z
        Inducing points, [M, D].
    X
        Inputs, [N, D].
    near
        Candidates for each datum, −1 where they are fewer, [N, C].
    most
        The number that is returned; −1 where they are fewer.
    """
    found = np.full((len(X), most), -1)
    if not near.size:
        return found
    points = tf.constant(Z)
    phi = features(latent.kernels(kernel), points, root(kernel, points), tf.constant(X)).numpy()  # [S, N, M]
    own = latent.variances(kernel, tf.constant(X)).numpy().T - (phi**2).sum(axis=-1)
    own = np.maximum(own, gpflow.default_jitter())  # [S, N]
    for start in range(0, len(X), _BLOCK):
        rows = slice(start, start + _BLOCK)
        others = np.maximum(near[rows], 0)
        # Stationary kernels see differences alone: k(x, x') = k(x' − x, 0).
        apart = (X[others] - X[rows, None]).reshape(-1, X.shape[1])
        cross: Array = latent.cross(kernel, tf.constant(apart), tf.zeros_like(apart[:1])).numpy()
        cross = cross.reshape(len(cross), *others.shape) - np.einsum(
            "snm,sncm->snc", phi[:, rows], phi[:, others]
        )
        squares = (cross**2 / (own[:, rows, None] * own[:, others])).mean(axis=0)
        by_size = np.argsort(np.where(near[rows] < 0, np.inf, -squares), axis=1, kind="stable")[:, :most]
        found[rows, : by_size.shape[1]] = np.take_along_axis(near[rows], by_size, axis=1)
    return found
