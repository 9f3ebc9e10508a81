"""The density of a free-form model, many values of its parameters at a time."""

from __future__ import annotations

from typing import Any, Protocol

import gpflow
import tensorflow as tf
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingPoints

from gpflow_ext.numerics import grids, linalg, stacked
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.numerics.stacked import Stack


class FreeForm(Protocol):
    """What the density reads from its model.

    Attributes
    ----------
    V
        Whitened inducing variables, [M, P].
    q_mu, q_sqrt
        Mean and factor of a Gaussian approximation of V, [M, P] and [P, M, M].
    nat1, prec
        Its sites, ν and Λ, [N, P].
    """

    kernel: gpflow.kernels.Kernel
    likelihood: gpflow.likelihoods.Likelihood
    mean_function: gpflow.functions.MeanFunction
    inducing_variable: InducingPoints
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

    Parameters
    ----------
    model
        The model, which is read anew at each call.
    """

    def __init__(self, model: FreeForm) -> None:
        self.model = model

    def gram(self, stack: Stack) -> tf.Tensor:
        """Return K_uu with GPflow's default jitter for each member, [C or 1, M, M].

        On a grid the jitter is that of the factors, see `gpflow_ext.numerics.grids`.
        """
        if self.model.structure is not None:
            return self.model.structure.gram(self.model.kernel, stack)
        K = stacked.gram(self.model.kernel, stack, self._points())
        return tf.linalg.set_diag(K, tf.linalg.diag_part(K) + gpflow.default_jitter())

    def project(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor | None = None) -> grids.Dense:
        """Return A = L⁻¹K_uf for each member. O(C(M³ + NM²)), with the factors L at hand O(CNM²)."""
        cross = stacked.gram(self.model.kernel, stack, self._points(), X)
        if chol is not None:
            return grids.Dense(linalg.triangular_solve(chol, cross))
        K = self.gram(stack)
        return grids.Dense(linalg.whiten(K, tf.linalg.cholesky(tf.stop_gradient(K)), cross))

    def projection(self, stack: Stack) -> grids.Dense | grids.Kronecker:
        """Return A = L⁻¹K_uf of the data; on grids by `grids.Structure.project`."""
        if self.model.structure is not None:
            return self.model.structure.project(self.model.kernel, stack)
        return self.project(stack, self.model.data[0])

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] for each member, [C]."""
        return self.projected(stack, self.projection(stack))

    def projected(self, stack: Stack, A: grids.Dense | grids.Kronecker) -> tf.Tensor:
        """Return the same given the projection, [C]."""
        return self.expected(stack, A, stack[self.model.V])

    def expected(self, stack: Stack, A: grids.Dense | grids.Kronecker, V: tf.Tensor) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] given the projection and v [C, M, P], [C]. O(CNMP)."""
        X, Y = self.model.data
        likelihood = self.model.likelihood
        terms = stacked.per_datum(
            likelihood.variational_expectations, likelihood, stack, X, *self._moments(stack, X, A, V), Y
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
            return self._moments(stack, X, on_grid.project(self.model.kernel, stack), V)
        C, M = V.shape[:2]
        chol = tf.linalg.cholesky(self.gram(stack)) if chol is None else chol
        pieces = stacked.pieces(X, (C or 1) * M)
        parts = [self._moments(stack, x, self.project(stack, x, chol), V) for x in pieces]
        mean, var = (tf.concat(part, axis=1) for part in zip(*parts, strict=True))
        return mean, var

    def _moments(
        self, stack: Stack, X: tf.Tensor, A: grids.Dense | grids.Kronecker, V: tf.Tensor
    ) -> MeanAndVariance:
        """Return μ + Aᵀv and k_nn − ‖aₙ‖² (Hensman et al. 2015, eq. 8), each [C, N, P]."""
        mean = stacked.mean(self.model.mean_function, stack, X) + A.apply(V)
        residual = stacked.variances(self.model.kernel, stack, X) - A.explained()
        return mean, tf.broadcast_to(tf.nn.relu(residual)[:, :, None], tf.shape(mean))

    def covariance(self, stack: Stack, X: tf.Tensor, chol: tf.Tensor) -> MeanAndVariance:
        """Return mean and covariance of f(X) given v and θ, for X [batch..., N, D]. O(C(NM² + N²M)) each.

        They are [C, batch..., N, P] and [C, batch..., N, N].
        """
        rows = Rows(X)
        projection = self.project(stack, rows.flat, chol)
        mean, _ = self._moments(stack, rows.flat, projection, stack[self.model.V])
        A = rows.columns(projection.A)
        cov = stacked.gram(self.model.kernel, stack, X) - tf.matmul(A, A, transpose_a=True)
        count = tf.shape(mean)[:1]
        return rows.apart(mean, 1), tf.broadcast_to(cov, tf.concat([count, tf.shape(cov)[1:]], axis=0))

    def gaussian_moments(self, q_mu: tf.Tensor, q_sqrt: tf.Tensor) -> MeanAndVariance:
        """Return mean and variance [N, P] of f at the data for q(v), [M, P] and [P, M, M]; fast on grids."""
        now = Stack([])
        A = self.projection(now)
        mean, residual = self._moments(now, self.model.data[0], A, q_mu[None])
        return mean[0], residual[0] + A.spread(q_sqrt)

    def _points(self) -> tf.Tensor:
        return tf.convert_to_tensor(self.model.inducing_variable.Z)
