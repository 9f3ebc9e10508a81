"""The prior of a sparse model as a projection, and a copy of it that stays fixed while the model changes."""

from __future__ import annotations

from typing import Protocol

import gpflow
import tensorflow as tf
from gpflow.inducing_variables import InducingVariables

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Coupled, Message, Projection, coupled, latent


class SparsePrior(latent.Functions, Protocol):
    """Protocol of what determines a projection."""

    inducing_variable: InducingVariables


def gram(prior: SparsePrior) -> tf.Tensor:
    """Return K_uu with GPflow's default jitter, [1 or L, M, M], or [1, T, T] where outputs are mixed."""
    blocks = latent.inducing_gram(prior.inducing_variable, prior.kernel)
    return blocks if latent.mixing(prior.kernel) is None else coupled.block_diagonal(blocks)


def cross(prior: SparsePrior, X: tf.Tensor) -> tf.Tensor:
    """Return K_uf at X [N, D], [1 or L, M, N], or [1, T, NP] where outputs are mixed."""
    own, W = latent.inducing_cross(prior.inducing_variable, prior.kernel, X), latent.mixing(prior.kernel)
    return own if W is None else coupled.mixed_columns(W, own)


def no_message(prior: SparsePrior, gram: tf.Tensor) -> Message:
    """Return the message of no sites to the inducing variables, zeros."""
    M, count = gram.shape[-1], prior.num_latent_gps if latent.mixing(prior.kernel) is None else 1
    return Message(tf.zeros([count, M, M], gram.dtype), tf.zeros([M, count], gram.dtype))


def project(prior: SparsePrior, X: tf.Tensor, chol: tf.Tensor | None = None) -> Projection | Coupled:
    """Return the prior at X [N, D]. O(M³ + NM²); with the Cholesky factor of K_uu at hand O(NM²).

    The gradient is the same with ``chol`` [1 or L, M, M], apart from that of ``Projection.chol``, which is
    then zero.
    """
    if latent.mixing(prior.kernel) is None:
        return project_independent(prior, X, chol)
    mean = latent.mean(prior, X)
    flat = _projection(prior, X, chol, tf.reshape(mean, [-1, 1]))
    return Coupled(mean, flat)


def project_independent(prior: SparsePrior, X: tf.Tensor, chol: tf.Tensor | None = None) -> Projection:
    """Return `project` where no outputs are mixed."""
    return _projection(prior, X, chol, latent.mean(prior, X))


def _projection(prior: SparsePrior, X: tf.Tensor, chol: tf.Tensor | None, mean: tf.Tensor) -> Projection:
    K, seen, own = gram(prior), cross(prior, X), latent.variances(prior.kernel, X)
    if chol is None:
        chol = tf.linalg.cholesky(K)
        A = tf.linalg.triangular_solve(chol, seen)
    else:
        A = linalg.whiten(K, chol, seen)
    own = own if latent.mixing(prior.kernel) is None else tf.reshape(own, [-1, 1])
    return Projection(mean, A, tf.nn.relu(own - tf.transpose(tf.reduce_sum(A**2, axis=-2))), chol)


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
        """Return the mean [N, L] and A [1 or L, M, N] at X [N, D] for the factor of K_uu. O(NM²)."""
        return latent.mean(self, X), tf.linalg.triangular_solve(chol, cross(self, X))
