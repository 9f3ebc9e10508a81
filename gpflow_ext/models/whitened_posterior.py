"""GPflow's cached posterior for whitened q(v) with triangular factors."""

from __future__ import annotations

from typing import Any, Protocol

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import posteriors
from gpflow.base import MeanAndVariance
from gpflow.conditionals.util import expand_independent_outputs
from gpflow.covariances import Kuf
from gpflow.inducing_variables import InducingPoints
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext import triangular
from gpflow_ext.models import projection


class WhitenedModel(Protocol):
    """What the posterior reads from its model."""

    kernel: gpflow.kernels.Kernel
    mean_function: gpflow.functions.MeanFunction
    inducing_variable: InducingPoints
    num_latent_gps: int
    q_mu: gpflow.Parameter
    q_sqrt: gpflow.Parameter


class WhitenedPosterior(posteriors.AbstractPosterior):
    """Predictions of u = Lv, q(v_k) = N(m_k, F_kF_kᵀ), from the cache (L, m, F).

        mean μ* + Aᵀm_k,    covariance K_** − AᵀA + (F_kᵀA)ᵀF_kᵀA,    A = L⁻¹K_u*

    GPflow's own cache K_uu⁻¹ − K_uu⁻¹S_kK_uu⁻¹ costs twice the operations and the square of the condition
    number. ``update_cache`` reads the model again, so the object follows a model that is trained further.
    """

    def __init__(self, model: WhitenedModel, precompute_cache: PrecomputeCacheType | str | None) -> None:
        super().__init__(model.kernel, model.inducing_variable, mean_function=model.mean_function)
        self._model = model
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    def _parts(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        chol = tf.linalg.cholesky(projection.gram(self._model))
        return chol, tf.convert_to_tensor(self._model.q_mu), tf.convert_to_tensor(self._model.q_sqrt)

    def _precompute(self) -> tuple[posteriors.PrecomputedValue, ...]:
        return tuple(posteriors.PrecomputedValue(part, (False,) * part.shape.rank) for part in self._parts())

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._conditional_with_precompute(self._parts(), Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        chol, q_mu, q_sqrt = cache  # [M, M], [M, K], [K, M, M]
        A = tf.linalg.triangular_solve(chol, Kuf(self.X_data, self.kernel, Xnew))  # [M, N]
        K = self.kernel(Xnew, full_cov=full_cov)
        if full_cov:
            seen = tf.matmul(q_sqrt, A, transpose_a=True)  # [K, M, N]
            cov = K - tf.matmul(A, A, transpose_a=True) + tf.matmul(seen, seen, transpose_a=True)
        else:
            prior = tf.nn.relu(K - tf.reduce_sum(A**2, axis=0))[:, None]
            cov = prior + triangular.squared_norms(q_sqrt, A)  # [N, K]
        return tf.matmul(A, q_mu, transpose_a=True), expand_independent_outputs(
            cov, full_cov, full_output_cov
        )
