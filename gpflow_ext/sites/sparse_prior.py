"""The prior of a sparse model as a `Projection`, and a copy of it that stays while the model moves on."""

from __future__ import annotations

from typing import Protocol

import gpflow
import tensorflow as tf
from gpflow.covariances import Kuf, Kuu
from gpflow.inducing_variables import InducingVariables

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Projection


class SparsePrior(Protocol):
    """What decides a projection."""

    kernel: gpflow.kernels.Kernel
    mean_function: gpflow.functions.MeanFunction
    inducing_variable: InducingVariables
    num_latent_gps: int


def gram(prior: SparsePrior) -> tf.Tensor:
    """Return K_uu with GPflow's default jitter, [M, M]."""
    return Kuu(prior.inducing_variable, prior.kernel, jitter=gpflow.default_jitter())


def mean(prior: SparsePrior, X: tf.Tensor) -> tf.Tensor:
    """Return the prior mean at X [N, D], as [N, L]."""
    found = tf.broadcast_to(prior.mean_function(X), [tf.shape(X)[0], prior.num_latent_gps])
    return tf.ensure_shape(found, [X.shape[0], prior.num_latent_gps])


def project(prior: SparsePrior, X: tf.Tensor, chol: tf.Tensor | None = None) -> Projection:
    """Return the prior at X [N, D]. O(M³ + NM²); with the Cholesky factor of K_uu at hand O(NM²).

    The gradient is the same with ``chol`` [M, M], but for that of ``Projection.chol``, which is then zero.
    """
    K, cross = gram(prior), Kuf(prior.inducing_variable, prior.kernel, X)  # [M, M], [M, N]
    if chol is None:
        chol = tf.linalg.cholesky(K)
        A = tf.linalg.triangular_solve(chol, cross)
    else:
        A = linalg.whiten(K, chol, cross)
    residual = prior.kernel(X, full_cov=False) - tf.reduce_sum(A**2, axis=0)
    return Projection(mean(prior, X), A[None], tf.nn.relu(residual)[:, None], chol[None])


class PriorCopy(tf.Module):
    """A prior as it was when `copy_from` was last called."""

    def __init__(self, live: SparsePrior) -> None:
        super().__init__()
        parts = (live.kernel, live.mean_function, live.inducing_variable)
        self.kernel, self.mean_function, self.inducing_variable = gpflow.utilities.deepcopy(parts)
        self.num_latent_gps = live.num_latent_gps

    def copy_from(self, live: SparsePrior) -> None:
        """Take over the parameters of the prior that this is a copy of."""
        for name in ("kernel", "mean_function", "inducing_variable"):
            for mine, theirs in zip(
                getattr(self, name).variables, getattr(live, name).variables, strict=True
            ):
                mine.assign(theirs)

    def project(self, X: tf.Tensor, chol: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean [N, L] and A [1, M, N] at X [N, D] for the factor of K_uu. O(NM²)."""
        cross = Kuf(self.inducing_variable, self.kernel, X)
        return mean(self, X), tf.linalg.triangular_solve(chol, cross)[None]
