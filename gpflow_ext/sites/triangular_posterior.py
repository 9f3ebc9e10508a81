"""GPflow's cached posterior for whitened q(v) with triangular factors of its covariance or its precision."""

from __future__ import annotations

import abc
from typing import Any, Protocol

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import posteriors
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingVariables
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched, linalg, triangular
from gpflow_ext.numerics.batched import Rows, TakesNumbers
from gpflow_ext.sites import Whitened, latent, products, sparse_prior


class Model(Protocol):
    """Protocol of the model of a posterior."""

    kernel: gpflow.kernels.Kernel
    mean_function: gpflow.functions.MeanFunction
    inducing_variable: Any
    num_latent_gps: int


class Variational(Model, Protocol):
    """A model with the parameters of q(v)."""

    q_mu: gpflow.Parameter
    q_sqrt: gpflow.Parameter


class SiteConditioned(Model, Protocol):
    """A model whose q(v) follows from Gaussian sites."""

    def condition(self) -> tuple[tf.Tensor, Whitened]:
        """Return the Cholesky factor L [1 or K, M, M] of K_uu, and q(v)."""


class TriangularPosterior(SamplesFunctions, TakesNumbers, posteriors.AbstractPosterior, abc.ABC):
    """Predictions of u = Lv, q(v_k) = N(m_k, S_k), from the cache (L, m, a triangular factor of each S_k).

        mean μ* + Aᵀm_k,    covariance K_** − AᵀA + AᵀS_kA,    A = L⁻¹K_u*

    GPflow's own cache K_uu⁻¹ − K_uu⁻¹S_kK_uu⁻¹ has the square of the condition number; here the variance is
    a sum of terms that are not negative, however badly K_uu is conditioned. ``update_cache`` reads the model
    again, so the object follows a model that is trained further.
    """

    X_data: InducingVariables
    repeats_cache = True  # see `sites.posterior.SitePosterior`

    def __init__(self, model: Model, precompute_cache: PrecomputeCacheType | str | None) -> None:
        super().__init__(model.kernel, model.inducing_variable, mean_function=model.mean_function)
        self._model: Any = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    @abc.abstractmethod
    def _parts(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return L [1 or K, M, M], m [M, K] and the factors [1 or K, M, M]."""

    @abc.abstractmethod
    def _seen(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        """Return columns whose products are the covariances AᵀS_kA, [1 or K, M, N], for A [1 or K, M, N]."""

    @abc.abstractmethod
    def _variances(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        """Return diag(AᵀS_kA), [N, 1 or K]."""

    @abc.abstractmethod
    def _spread(self, factor: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        """Return columns with the covariances S_k for standard normal ones, [K, M, S]."""

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        α = L⁻ᵀ(v − L⁻¹f̃) for v ~ q(v) and the prior draw f̃ at the inducing points.
        """
        chol, q_mu, factor = self.cache or self._parts()
        model = self._model

        def condition(prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            L, M, S = batched.sizes(prior)
            flat = tf.reshape(prior, [tf.shape(q_mu)[1], -1, S])  # in a line, where outputs are mixed
            v = tf.transpose(q_mu)[..., None] + self._spread(factor, numbers.normal(tf.shape(flat)))
            alpha = tf.linalg.triangular_solve(chol, v - tf.linalg.triangular_solve(chol, flat), adjoint=True)
            return tf.reshape(alpha, [L, M, S])

        points = latent.sets(model.inducing_variable)
        return Given(
            domain=domain(type(model).__name__, latent.kernels(model.kernel), points),
            mean_function=model.mean_function,
            num_latent=latent.num_functions(model),
            condition=condition,
            mixing=latent.mixing(model.kernel),
        )

    def _precompute(self) -> tuple[posteriors.PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        return tuple(posteriors.PrecomputedValue(part, (False,) * part.shape.rank) for part in parts)

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        parts = linalg.finite(self._parts(), self._model)
        return self._conditional_with_precompute(parts, Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        chol, q_mu, factor = cache  # [1 or K, M, M], [M, K], [1 or K, M, M]
        rows = Rows(Xnew)
        A = tf.linalg.triangular_solve(chol, sparse_prior.cross(self._model, rows.flat))  # [1 or K, M, R]
        mean = products.matvec(A, q_mu, transpose=True)
        if full_cov:
            seen, own = rows.columns(self._seen(factor, A)), rows.columns(A)
            cov = latent.gram(self.kernel, Xnew) - tf.matmul(own, own, transpose_a=True)
            cov += tf.matmul(seen, seen, transpose_a=True)  # [1 or K, batch..., N, N]
            every = tf.concat([tf.shape(q_mu)[1:], tf.shape(cov)[1:]], axis=0)
            cov = batched.behind_batch(tf.broadcast_to(cov, every))
        else:
            explained = tf.transpose(tf.reduce_sum(A**2, axis=-2))
            prior = tf.nn.relu(latent.variances(self.kernel, rows.flat) - explained)
            cov = rows.apart(tf.broadcast_to(prior + self._variances(factor, A), tf.shape(mean)))
        mean = rows.apart(mean)
        return mean, batched.independent_outputs(cov, full_cov, full_output_cov)


class WhitenedPosterior(TriangularPosterior):
    """Posterior with factors F_k of S_k = F_kF_kᵀ, as variational models train; half GPflow's operations."""

    _model: Variational

    def _parts(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        chol = tf.linalg.cholesky(sparse_prior.gram(self._model))
        return chol, tf.convert_to_tensor(self._model.q_mu), tf.convert_to_tensor(self._model.q_sqrt)

    def _seen(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        return tf.matmul(factor, A, transpose_a=True)

    def _variances(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        return triangular.squared_norms(factor, A)

    def _spread(self, factor: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return tf.matmul(factor, noise)


class SparseSitePosterior(TriangularPosterior):
    """Posterior with factors R_k of S_k⁻¹ = R_kR_kᵀ, as Gaussian sites give."""

    _model: SiteConditioned

    def _parts(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        chol, q = self._model.condition()
        return chol, q.mean, q.chol

    def _seen(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        columns = tf.broadcast_to(A, tf.concat([tf.shape(factor)[:1], tf.shape(A)[1:]], axis=0))
        return tf.linalg.triangular_solve(factor, columns)

    def _variances(self, factor: tf.Tensor, A: tf.Tensor) -> tf.Tensor:
        return tf.transpose(tf.reduce_sum(self._seen(factor, A) ** 2, axis=1))

    def _spread(self, factor: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
        return tf.linalg.triangular_solve(factor, noise, adjoint=True)
