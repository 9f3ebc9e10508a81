"""The residual process that inducing points leave: features of the projection, and neighbours by correlation.

Φ = K_fu L⁻ᵀ, LLᵀ = K_uu        residual covariance k(x, x') − φ(x)ᵀφ(x')
"""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.sites import latent

Array = npt.NDArray[Any]
_BLOCK = 512  # data whose candidates are compared at once


def root(kernel: gpflow.kernels.Kernel, Z: tf.Tensor) -> tf.Tensor:
    """Return the Cholesky factor L of K_uu with GPflow's default jitter, [S, M, M]."""
    K = latent.gram(kernel, Z)
    return tf.linalg.cholesky(tf.linalg.set_diag(K, tf.linalg.diag_part(K) + gpflow.default_jitter()))


def features(kernel: gpflow.kernels.Kernel, Z: tf.Tensor, L: tf.Tensor, X: tf.Tensor) -> tf.Tensor:
    """Return Φ at X [N, D], [S, N, M]. O(NM²)."""
    half = tf.linalg.triangular_solve(L, latent.cross(kernel, Z, X))
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
    L = root(kernel, tf.constant(Z))
    found = np.full((len(X), most), -1)
    for start in range(0, len(X), _BLOCK):
        rows = slice(start, start + _BLOCK)
        candidates = near[rows]
        squares = _squared_correlations(kernel, Z, L, X[rows], X[np.maximum(candidates, 0)])
        by_size = np.argsort(np.where(candidates < 0, np.inf, -squares), axis=1, kind="stable")[:, :most]
        found[rows, : by_size.shape[1]] = np.take_along_axis(candidates, by_size, axis=1)
    return found


def _squared_correlations(
    kernel: gpflow.kernels.Kernel, Z: Array, L: tf.Tensor, X: Array, others: Array
) -> Array:
    """Return those of data [B, D] with their candidates [B, C, D], [B, C]."""
    B, C, D = others.shape
    places = tf.constant(np.concatenate([X[:, None], others], axis=1))  # [B, C + 1, D]
    phi = features(kernel, tf.constant(Z), L, tf.reshape(places, [-1, D]))
    phi = tf.reshape(phi, [phi.shape[0], B, C + 1, -1])
    K = latent.gram(kernel, places)  # [S, B, C + 1, C + 1]
    own = tf.linalg.diag_part(K) - tf.reduce_sum(phi**2, axis=-1)
    cross = K[..., 0, 1:] - tf.reduce_sum(phi[:, :, :1] * phi[:, :, 1:], axis=-1)
    least = gpflow.default_jitter()
    scale = tf.maximum(own[..., :1], least) * tf.maximum(own[..., 1:], least)
    return tf.reduce_mean(cross**2 / scale, axis=0).numpy()
