"""GPflow's cached posterior of a Vecchia model: a new place is conditioned on the data nearest to it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputedValue

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.mapped import one_by_one
from gpflow_ext.sites import latent
from gpflow_ext.sites.marginal_posterior import MarginalPosterior
from gpflow_ext.sites.posterior import SiteConditioned
from gpflow_ext.sites.vecchia import coefficients
from gpflow_ext.sites.vecchia.prior import Vecchia
from gpflow_ext.sites.vecchia.rows import DTYPE
from gpflow_ext.sites.vecchia.structure import Structure

DISTANCES = 2**20  # that are held at once, 8 MiB


class Around(NamedTuple):
    """The k neighbours of new places, and the coefficients by which these depend on them."""

    near: tf.Tensor  # [R, k]
    K: tf.Tensor  # K_c, [S, R, k, k]
    a: tf.Tensor  # K_c⁻¹k, [S, R, k]
    explained: tf.Tensor  # aᵀk, [S, R]

    def moments(
        self, prior: tf.Tensor, shift: tf.Tensor, V: tf.Tensor, prec: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance [L, R] from prior variances [S, R] and what is known of data, [N, L]."""
        shift, V, prec = (tf.transpose(tf.gather(part, self.near), [2, 0, 1]) for part in (shift, V, prec))
        local = conditioned(self.K, prec)  # [L, R, k, k]
        scaled = self.a * tf.sqrt(V / tf.linalg.diag_part(local))
        seen = tf.reduce_sum(scaled * tf.linalg.matvec(local, scaled), axis=-1)
        own = tf.nn.relu(prior - self.explained)
        return tf.reduce_sum(self.a * shift, axis=-1), own + seen


def around(near: tf.Tensor, K: tf.Tensor, jitter: tf.Tensor) -> Around:
    """Return how places depend on their neighbours, from the covariances of `gram` and their jitter."""
    k, K = K[..., :-1, -1:], K[..., :-1, :-1]
    K += jitter * tf.eye(tf.shape(K)[-1], dtype=DTYPE)
    R = tf.linalg.cholesky(K)
    half = tf.linalg.triangular_solve(R, k)
    a = tf.linalg.triangular_solve(R, half, adjoint=True)[..., 0]
    return Around(near, K, a, tf.reduce_sum(half**2, axis=[-2, -1]))


def gram(
    kernels: Sequence[gpflow.kernels.Kernel], X: tf.Tensor, new: tf.Tensor, near: tf.Tensor
) -> tf.Tensor:
    """Return the covariances within new places and what they are conditioned on, [S, R, k + 1, k + 1].

    The new place is the last, so that distances among its neighbours keep their digits however far it is.
    """
    places = tf.concat([tf.gather(X, near), new[:, None]], axis=1)
    return coefficients.gram(kernels, places, tf.ones(tf.shape(places)[:2], DTYPE))


class HasNeighbours(SiteConditioned[Vecchia], Protocol):
    """Protocol of the model of the posterior."""

    structure: Structure


class VecchiaPosterior(SamplesFunctions, MarginalPosterior):
    """GPflow's cached posterior, its cache the inputs with mean, variance and precision at each.

    With c the neighbours of a new place, a = K_c⁻¹k and D = k** − aᵀk:

        mean μ* + aᵀ(m − μ)_c        variance D + aᵀV_c a

    Means and variances at the data are exact. The correlations in V_c are those of (K_c⁻¹ + Λ_c)⁻¹, which
    ignores what data beyond c say of them, and so precisions below zero too. O(ND + k³) for a place with its
    k neighbours. ``update_cache`` reads the model again.
    """

    prior_name, one_input = "vecchia", "place"
    _model: HasNeighbours

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return X [N, D], then m − μ, V and Λ at each datum, [N, L], in double precision, and 1 / scales."""
        prior, current = self._model.prior(), self._model.latent_sites
        system = prior.system(current.prec)
        shift = system.solve(current.nat1 - current.prec * prior.mean).shift
        numbers = (shift, self._variance(system), tf.nn.relu(current.prec))
        rates = tf.convert_to_tensor(self._model.structure.rates)
        return self._model.data[0], *(tf.cast(part, DTYPE) for part in numbers), rates

    def _variance(self, system: Any) -> tf.Tensor:
        """Return the variances at the data, [N, L]."""
        return system.variance()

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = self._finite_parts()
        axes = *((True, False),) * 4, (False,)
        return tuple(map(PrecomputedValue, parts, axes))

    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return mean and variance, less the mean function, at places [R, D], [R, L]."""
        X, shift, V, prec, rates = cache
        found = self._around(latent.kernels(self.kernel), X, rates, new)
        prior = tf.cast(latent.variances(self.kernel, new), DTYPE)  # [R, S]
        mean, var = found.moments(tf.transpose(prior), shift, V, prec)
        return tf.transpose(mean), tf.transpose(var)

    def _around(
        self, kernels: Sequence[gpflow.kernels.Kernel], X: tf.Tensor, rates: tf.Tensor, new: tf.Tensor
    ) -> Around:
        """Return the neighbours among X [N, D] of places [R, D], and how these depend on them."""
        near = self._nearest(X, rates, new)
        K = gram(kernels, X, new, near)
        return around(near, K, coefficients.jitter(K, X.dtype))

    def _nearest(self, X: tf.Tensor, rates: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
        """Return the numbers of the data that new places [R, D] are conditioned on, [R, k]."""
        rates = tf.cast(rates, X.dtype)
        return nearest(X * rates, new * rates, self._model.structure.num_neighbours)

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        f(x) = f̃(x) + aᵀ(f_s − f̃)_c for the prior draw f̃, which at the data has the jitter too, and a draw
        f_s of the posterior there: mean and variance are those of a place given its neighbours, whose
        covariances are exact here.
        """
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        system, pull = prior.system(current.prec), current.nat1 - current.prec * prior.mean
        rates = tf.convert_to_tensor(self._model.structure.rates)

        def condition(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
            normal = functools.partial(numbers.normal, dtype=DTYPE)
            drawn = system.draw(pull, batched.sizes(values)[-1], normal)  # [N, L, S]
            return drawn - tf.cast(tf.transpose(values, [1, 0, 2]), DTYPE)

        def correction(
            kernels: Sequence[gpflow.kernels.Kernel],
            points: Sequence[tf.Tensor],
            apart: tf.Tensor,
            new: tf.Tensor,
        ) -> tf.Tensor:
            found = self._around(kernels, points[0], rates, new)
            a = tf.broadcast_to(found.a, [apart.shape[1], *batched.sizes(found.a)[1:]])
            return tf.einsum("lrk,rkls->rls", a, tf.gather(apart, found.near))

        own = domain(type(self._model).__name__, latent.kernels(self.kernel), (X,))
        return Given(
            own,
            self._model.mean_function,
            latent.num_functions(self._model),
            condition,
            correction,
        )


def nearest(X: tf.Tensor, new: tf.Tensor, most: int) -> tf.Tensor:
    """Return the numbers of the nearest of X [N, D] for places [R, D], nearest first, [R, most]. O(RND).

    Places are taken in blocks, whose distances to all data are held at once.
    """
    centre = tf.reduce_mean(X, axis=0)
    X, new = X - centre, new - centre
    squares, (R, D) = tf.reduce_sum(X**2, axis=1), batched.sizes(new)
    number, size = batched.blocks(R, DISTANCES // batched.sizes(X)[0])

    def of_block(places: tf.Tensor) -> tf.Tensor:
        return tf.math.top_k(2.0 * tf.matmul(places, X, transpose_b=True) - squares, most).indices

    blocks = tf.reshape(tf.pad(new, [[0, number * size - R], [0, 0]]), [number, size, D])
    like = tf.TensorSpec([size if isinstance(size, int) else None, most], tf.int32)
    found = one_by_one(of_block, blocks, fn_output_signature=like)
    return tf.reshape(found, [number * size, most])[:R]


def conditioned(K: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return (K⁻¹ + Λ)⁻¹ for K [S, R, k, k] and precisions [L, R, k], [L, R, k, k]."""
    root = tf.sqrt(prec)
    B = root[..., :, None] * K * root[..., None, :]
    R = tf.linalg.cholesky(tf.linalg.set_diag(B, tf.linalg.diag_part(B) + 1.0))
    T = tf.linalg.triangular_solve(R, root[..., :, None] * K)
    return K - tf.matmul(T, T, transpose_a=True)
