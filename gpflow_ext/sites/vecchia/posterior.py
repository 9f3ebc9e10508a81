"""GPflow's cached posterior of a Vecchia model: a new place is conditioned on the data nearest to it."""

from __future__ import annotations

from typing import Protocol

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputedValue

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import latent
from gpflow_ext.sites.marginal_posterior import MarginalPosterior
from gpflow_ext.sites.posterior import SiteConditioned
from gpflow_ext.sites.vecchia import conditionals
from gpflow_ext.sites.vecchia.prior import DTYPE, Vecchia
from gpflow_ext.sites.vecchia.structure import Structure


class HasNeighbours(SiteConditioned[Vecchia], Protocol):
    """Protocol of the model of the posterior."""

    structure: Structure


class VecchiaPosterior(MarginalPosterior):
    """GPflow's cached posterior, its cache the inputs with mean, variance and precision at each.

    With c the neighbours of a new place, a = K_c⁻¹k and D = k** − aᵀk:

        mean μ* + aᵀ(m − μ)_c        variance D + aᵀV_c a

    Means and variances at the data are exact. The correlations in V_c are those of (K_c⁻¹ + Λ_c)⁻¹, which
    ignores what data beyond c say of them. O(ND + k³) for a place with its k neighbours. ``update_cache``
    reads the model again.
    """

    prior_name, one_input = "vecchia", "place"
    _model: HasNeighbours

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return X [N, D], then m − μ, V and Λ at each datum, [N, L], in double precision, and the scales."""
        prior, current = self._model.prior(), self._model.latent_sites
        factor = prior.factorise(current.prec)
        shift = factor.solve(current.nat1 - current.prec * prior.mean).shift
        numbers = (shift, factor.variance(), tf.nn.relu(current.prec))
        scales = tf.convert_to_tensor(self._model.structure.scales)
        return self._model.data[0], *(tf.cast(part, DTYPE) for part in numbers), scales

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        axes = *((True, False),) * 4, (False,)
        return tuple(map(PrecomputedValue, parts, axes))

    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at places [R, D], [R, L]."""
        X, shift, V, prec, scales = cache
        most = min(self._model.structure.num_neighbours + 1, self._model.structure.num_data)
        near = nearest(X / tf.cast(scales, X.dtype), new / tf.cast(scales, X.dtype), most)
        places = tf.concat([new[:, None], tf.gather(X, near)], axis=1)
        there = tf.ones(tf.shape(places)[:2], DTYPE)
        K = conditionals.gram(self.kernel, places, there)  # [S, R, k + 1, k + 1]
        k, K = K[..., 1:, :1], K[..., 1:, 1:]
        prior = tf.cast(latent.variances(self.kernel, new), DTYPE)  # [R, S]
        K += gpflow.default_jitter() * tf.eye(most, dtype=DTYPE)
        R = tf.linalg.cholesky(K)
        half = tf.linalg.triangular_solve(R, k)
        a = tf.linalg.triangular_solve(R, half, adjoint=True)  # [S, R, k, 1]
        own = tf.nn.relu(prior - tf.transpose(tf.reduce_sum(half**2, axis=[-2, -1])))
        shift, V, prec = (tf.transpose(tf.gather(part, near), [2, 0, 1]) for part in (shift, V, prec))
        local = _conditioned(K, prec)  # [L, R, k, k]
        scaled = a[..., 0] * tf.sqrt(V / tf.linalg.diag_part(local))
        seen = tf.reduce_sum(scaled * tf.linalg.matvec(local, scaled), axis=-1)
        return tf.transpose(tf.reduce_sum(a[..., 0] * shift, axis=-1)), own + tf.transpose(seen)


def nearest(X: tf.Tensor, new: tf.Tensor, most: int) -> tf.Tensor:
    """Return the numbers of the nearest of X [N, D] for places [R, D], nearest first, [R, most]. O(RND)."""
    centre = tf.reduce_mean(X, axis=0)
    X, new = X - centre, new - centre
    squares = tf.reduce_sum(X**2, axis=1)

    def of_one(place: tf.Tensor) -> tf.Tensor:
        return tf.math.top_k(2.0 * tf.linalg.matvec(X, place) - squares, most).indices

    return tf.map_fn(of_one, new, fn_output_signature=tf.TensorSpec([most], tf.int32))


def _conditioned(K: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return (K⁻¹ + Λ)⁻¹ for K [S, R, k, k] and precisions [L, R, k], [L, R, k, k]."""
    root = tf.sqrt(prec)
    B = root[..., :, None] * K * root[..., None, :]
    R = tf.linalg.cholesky(tf.linalg.set_diag(B, tf.linalg.diag_part(B) + 1.0))
    T = tf.linalg.triangular_solve(R, root[..., :, None] * K)
    return K - tf.matmul(T, T, transpose_a=True)
