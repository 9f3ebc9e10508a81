"""The conditionals of a Vecchia approximation: of each datum given its neighbours, and of new places."""

from __future__ import annotations

from collections.abc import Sequence

import gpflow
import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites import latent
from gpflow_ext.sites.vecchia import residual
from gpflow_ext.sites.vecchia.full_scale import FullScale
from gpflow_ext.sites.vecchia.prior import DTYPE, Vecchia, assemble
from gpflow_ext.sites.vecchia.structure import Structure


def at(model: latent.Functions, structure: Structure, X: tf.Tensor) -> Vecchia | FullScale:
    """Return the prior at the data X [N, D], with GPflow's default jitter on K. O(Nm³), or O(N(m³ + M²))."""
    tree, Z = structure.tree(), structure.Z
    kernels, phi = latent.kernels(model.kernel), None
    if Z is not None:
        phi = residual.features(kernels, Z, residual.root(model.kernel, Z), X)
    a, D = coefficients(kernels, X, tree.cliques, phi)
    omega = assemble(tree, a, D, structure.num_entries)
    own = latent.variances(model.kernel, X)
    found = Vecchia(latent.mean(model, X), a, D, omega, own, tree)
    return found if phi is None else FullScale(found, phi)


def coefficients(
    kernels: Sequence[gpflow.kernels.Kernel], X: tf.Tensor, cliques: tf.Tensor, phi: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return aₙ = K_c⁻¹k_n, [N, m, S], and Dₙ = k_nn − aₙᵀk_n, [N, S], of each clique [N, m + 1] of X.

    With Φ [S, N, M] they are those of the residual process.
    """
    N = sizes(X)[0]
    there, members = tf.cast(cliques < N, DTYPE), tf.minimum(cliques, N - 1)
    K = gram(kernels, tf.gather(X, members), there)
    if phi is not None:
        near = tf.gather(phi, members, axis=1) * there[..., None]
        K -= tf.matmul(near, near, transpose_b=True)
    eye = tf.eye(sizes(cliques)[1], dtype=DTYPE)
    # The neighbours first: the last row of the factor is R⁻¹k and √D.
    R = tf.linalg.cholesky(tf.reverse(K + gpflow.default_jitter() * eye, [-2, -1]))
    a = tf.linalg.triangular_solve(R[..., :-1, :-1], R[..., -1, :-1, None], adjoint=True)[..., 0]
    return tf.transpose(tf.reverse(a, [-1]), [1, 2, 0]), tf.transpose(R[..., -1, -1] ** 2)


def gram(kernels: Sequence[gpflow.kernels.Kernel], X: tf.Tensor, there: tf.Tensor) -> tf.Tensor:
    """Return the covariances within sets of places X [N, k, D], [S, N, k, k], in double precision.

    Where ``there`` [N, k] is zero there is no place: covariance zero, variance one. Only differences of
    inputs count, so that those from the first are taken, which loses no digits.
    """
    K = tf.cast(tf.stack([kernel(X - X[:, :1]) for kernel in kernels]), DTYPE)
    both = there[:, :, None] * there[:, None, :]
    return K * both + tf.linalg.diag(1.0 - there)
