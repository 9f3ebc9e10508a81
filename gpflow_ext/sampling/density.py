"""The density of a free-form model, many values of its parameters at a time."""

from __future__ import annotations

import math
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingVariables

from gpflow_ext.numerics import grids, linalg, stacked
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling import latents
from gpflow_ext.sampling.latents import Projection, Separate
from gpflow_ext.sites import latent


class FreeForm(Protocol):
    """Protocol of the model of the density.

    Attributes
    ----------
    V
        Whitened inducing variables of the L latent functions, [M, L].
    q_mu, q_sqrt
        Mean and factor of a Gaussian approximation of V, [M, L] and [L, M, M].
    nat1, prec
        Its sites, ν and Λ, [N, L].
    """

    kernel: gpflow.kernels.Kernel
    likelihood: gpflow.likelihoods.Likelihood
    mean_function: gpflow.functions.MeanFunction
    inducing_variable: InducingVariables
    num_latent_gps: int
    data: Any
    V: gpflow.Parameter
    q_mu: gpflow.Parameter
    q_sqrt: gpflow.Parameter
    nat1: gpflow.Parameter
    prec: gpflow.Parameter

    @property
    def structure(self) -> grids.Structure | None:
        """The Kronecker structure between the inducing points and the data."""


class FreeFormDensity:
    """The log likelihood of a free-form model for stacks of v and θ, and what it is made of.

    With u = Lv, LLᵀ = K_uu, A = L⁻¹K_uf it is (Hensman et al. 2015, eq. 7 and 8)

        Σₙ E[log p(yₙ | fₙ)],    fₙ ~ N(μ(xₙ) + aₙᵀv, k(xₙ, xₙ) − ‖aₙ‖²)

    for each latent function. There are P outputs: these functions, P = L, or mixtures f = μ + Wg of L
    functions g with prior mean zero.

    Parameters
    ----------
    model
        The model, which is read again at each call.
    """

    def __init__(self, model: FreeForm) -> None:
        self.model = model

    @property
    def kernel(self) -> gpflow.kernels.Kernel:
        """The first kernel of one output; where the model has a structure, that of all latent functions."""
        return latent.kernels(self.model.kernel)[0]

    def gram(self, stack: Stack) -> tf.Tensor:
        """Return K_uu with GPflow's default jitter for each member, [C or 1, M, M] or [C or 1, L, M, M].

        On a grid the jitter is that of the factors, see `gpflow_ext.numerics.grids`.
        """
        if self.model.structure is not None:
            return self.model.structure.gram(self.kernel, stack)
        return latents.gram(self.model, stack)

    def project(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> grids.Dense | Separate:
        """Return A = L⁻¹K_uf for each member. O(C(M³ + NM²)), with the factors L at hand O(CNM²).

        As much again for each latent function that has a kernel or inducing variables of its own.
        """
        cross = latents.cross(self.model, stack, X)
        if chol is not None:
            A = linalg.triangular_solve(chol, cross)
        else:
            K = self.gram(stack)
            A = linalg.whiten(K, tf.linalg.cholesky(tf.stop_gradient(K)), cross)
        return grids.Dense(A) if latents.are_alike(self.model) else Separate(A)

    def projection(self, stack: Stack) -> Projection:
        """Return A = L⁻¹K_uf of the data; on grids by `grids.Structure.project`."""
        if self.model.structure is not None:
            return self.model.structure.project(self.kernel, stack)
        return self.project(stack, self.model.data[0])

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] for each member, [C]."""
        return self.projected(stack, self.projection(stack))

    def projected(self, stack: Stack, A: Projection) -> tf.Tensor:
        """Return the same given the projection, [C]."""
        return self.expected(stack, A, stack[self.model.V])

    def expected(self, stack: Stack, A: Projection, V: tf.Tensor) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] given the projection and v [C, M, L], [C]. O(CNML)."""
        X, Y = self.model.data
        likelihood = self.model.likelihood
        moments = self._moments(stack, X, A, V)
        terms = stacked.per_datum(
            likelihood.variational_expectations, likelihood, stack, X, *moments, Y, in_turn=True
        )
        return tf.reduce_sum(terms, axis=-1)

    def moments(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> MeanAndVariance:
        """Return mean and variance of f(X) given v and θ, each [C, N, P].

        O(CNM²), some rows at a time; by `grids.Structure.project` where the model has a structure and X is
        a grid as well.
        """
        structure, V = self.model.structure, stack[self.model.V]
        on_grid = None if structure is None else structure.at(X)
        if on_grid is not None:
            return self._moments(stack, X, on_grid.project(self.kernel, stack), V)
        chol = tf.linalg.cholesky(self.gram(stack)) if chol is None else chol
        pieces = stacked.pieces(X, (V.shape[0] or 1) * math.prod(chol.shape[1:-1]))
        parts = [self._moments(stack, x, self.project(stack, x, chol), V) for x in pieces]
        mean, var = (tf.concat(part, axis=1) for part in zip(*parts, strict=True))
        return mean, var

    def _moments(self, stack: Stack, X: tf.Tensor, A: Projection, V: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance of f (Hensman et al. 2015, eq. 8), each [C, N, P]."""
        mean, residual = self._latent_moments(stack, X, A, V)
        return self.outputs(stack, X, mean, tf.broadcast_to(residual, tf.shape(mean)))

    def _latent_moments(self, stack: Stack, X: tf.Tensor, A: Projection, V: tf.Tensor) -> MeanAndVariance:
        """Return μ + Aᵀv [C, N, L] and k_nn − ‖aₙ‖² [C or 1, N, 1 or L]."""
        return self.latent_mean(stack, X) + A.apply(V), latents.residuals(self.model, stack, X, A)

    def latent_mean(self, stack: Stack, X: tf.Tensor) -> tf.Tensor:
        """Return the prior mean of the latent functions, [C or 1, N, 1 or L]; zero where they are mixed."""
        own = stacked.mean(self.model.mean_function, stack, X)
        return own if self.mixing(stack) is None else tf.zeros_like(own[:, :, :1])

    def mixing(self, stack: Stack) -> tf.Tensor | None:
        """Return W of the outputs μ + Wg for each member, [C or 1, P, L], or ``None``."""
        return latents.mixing(self.model, stack)

    def outputs(self, stack: Stack, X: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance of the outputs [C, N, P], for those of the latent functions [C, N, L]."""
        W = self.mixing(stack)
        if W is None:
            return mean, var
        mixed = tf.matmul(mean, W, transpose_b=True)
        own = stacked.mean(self.model.mean_function, stack, X)
        return own + mixed, tf.matmul(var, tf.square(W), transpose_b=True)

    def covariance(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor) -> MeanAndVariance:
        """Return the mean of f and the covariances of the latent functions given v and θ.

        For X [batch..., N, D] they are [C, batch..., N, P] and [C, 1 or L, batch..., N, N]. O(C(NM² + N²M))
        each.
        """
        rows = Rows(X)
        projection = self.project(stack, rows.flat, chol)
        mean, _ = self._moments(stack, rows.flat, projection, stack[self.model.V])
        A = rows.columns(projection.A)
        A = A if isinstance(projection, Separate) else A[:, None]
        cov = latents.covariances(self.model, stack, X) - tf.matmul(A, A, transpose_a=True)
        count = tf.shape(mean)[:1]
        return rows.apart(mean, 1), tf.broadcast_to(cov, tf.concat([count, tf.shape(cov)[1:]], axis=0))

    def gaussian_moments(self, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance [N, P] of f at the data for q(v), [M, L] and [L, M, M]; fast on grids."""
        mean, var = self.gaussian_latents(q_mu, q_sqrt)
        return self.gaussian_outputs(mean, var)

    def gaussian_latents(self, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> MeanAndVariance:
        """Return the same of the latent functions, [N, L]."""
        now = Stack([])
        A = self.projection(now)
        mean, residual = self._latent_moments(now, self.model.data[0], A, q_mu[None])
        return mean[0], residual[0] + A.spread(q_sqrt)

    def gaussian_outputs(self, mean: tf.Tensor, var: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance [N, P] of f at the data for those of the latent functions, [N, L]."""
        found = self.outputs(Stack([]), self.model.data[0], mean[None], var[None])
        return found[0][0], found[1][0]
