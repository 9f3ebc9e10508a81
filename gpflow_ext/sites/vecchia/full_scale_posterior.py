"""GPflow's cached posterior of a full-scale prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType, PrecomputedValue

from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched
from gpflow_ext.sites import latent
from gpflow_ext.sites.vecchia import coefficients, residual
from gpflow_ext.sites.vecchia.iterative_posterior import IterativePosterior
from gpflow_ext.sites.vecchia.posterior import Around, VecchiaPosterior, around, gram


class FullScalePosterior(VecchiaPosterior):
    """GPflow's cached posterior of a full-scale prior: v, and the residual process at the nearest data.

    With a and D of the residual process, w, H and C of `full_scale`, and φ at the new place:

        mean μ* + φᵀw + aᵀr̂_c        variance D + aᵀV_c a + (φ − H_cᵀa)ᵀC⁻¹(φ − H_cᵀa)

    V_c stands for (Ω + Λ)⁻¹ as in `VecchiaPosterior`.
    """

    _model: Any  # whose prior is a `FullScale`

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return X, r̂, diag (Ω + Λ)⁻¹ and Λ, 1 / scales; then Z, L, Φ, w [L, M], H and the factor of C."""
        prior, current = self._model.prior(), self._model.latent_sites
        factor = prior.factorise(current.prec)
        alpha, shift = factor.solve(current.nat1 - current.prec * prior.mean)
        weights = prior.weights(alpha)
        numbers = (shift - prior.smooth(weights), factor.rest.variance(), tf.nn.relu(current.prec))
        Z = tf.convert_to_tensor(self._model.structure.Z)
        smooth = (Z, residual.root(self.kernel, Z), prior.phi, weights[..., 0], factor.H, factor.chol)
        return self._model.data[0], *numbers, tf.convert_to_tensor(self._model.structure.rates), *smooth

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = self._finite_parts()
        fixed, rows = (False,) * 3, (False, True, False)
        axes = *((True, False),) * 4, (False,), (False,) * 2, fixed, rows, (False,) * 2, rows, fixed
        return tuple(map(PrecomputedValue, parts, axes))

    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `VecchiaPosterior`."""
        X, shift, V, prec, rates, Z, L, phi, weights, H, chol = cache
        near = self._nearest(X, rates, new)
        mine, found = _seen(latent.kernels(self.kernel), (X, Z), L, phi, new, near)
        left = mine - tf.reduce_sum(found.a[..., None] * tf.gather(H, near, axis=1), axis=2)  # [L, R, M]
        half = tf.linalg.triangular_solve(chol, tf.linalg.matrix_transpose(left))
        prior = tf.transpose(latent.variances(self.kernel, new)) - tf.reduce_sum(mine**2, axis=-1)
        mean, var = found.moments(prior, shift, V, prec)
        mean, var = mean + tf.linalg.matvec(mine, weights), var + tf.reduce_sum(half**2, axis=1)
        return tf.transpose(mean), tf.transpose(var)

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        f(x) = f̃(x) + φᵀ(v_s − ṽ) + aᵀ(r_s − r̃)_c for a draw v_s, r_s of the posterior, and the same of the
        prior draw f̃, which has the jitter at Z and at the data: ṽ = L⁻¹f̃(Z) and r̃ = f̃(X) − Φṽ.
        """
        X, prior, current = self._model.data[0], self._model.prior(), self._model.latent_sites
        factor, pull = prior.factorise(current.prec), current.nat1 - current.prec * prior.mean
        structure = self._model.structure
        Z, rates = map(tf.convert_to_tensor, (structure.Z, structure.rates))
        L, N = residual.root(self.kernel, Z), structure.num_data

        def condition(values: tf.Tensor, numbers: Numbers) -> tuple[tf.Tensor, ...]:
            at_data, at_Z = values[:, :N], values[:, N:]
            latents, _, S = batched.sizes(values)
            root = tf.broadcast_to(L, [latents, *batched.sizes(L)[1:]])
            smooth = tf.linalg.triangular_solve(root, at_Z)  # ṽ, [L, M, S]
            rest = at_data - tf.matmul(prior.phi, smooth)
            v, r = factor.draw(pull, S, numbers.normal)
            return v - smooth, r - tf.transpose(rest, [1, 0, 2]), L, prior.phi

        def correction(
            kernels: Sequence[gpflow.kernels.Kernel],
            points: Sequence[tf.Tensor],
            held: tuple[tf.Tensor, ...],
            new: tf.Tensor,
        ) -> tf.Tensor:
            of_v, of_r, L, phi = held
            data, Z = points[0][:N], points[0][N:]
            near = self._nearest(data, rates, new)
            mine, found = _seen(kernels, (data, Z), L, phi, new, near)
            latents = batched.sizes(of_v)[0]
            mine, a = (tf.broadcast_to(p, [latents, *batched.sizes(p)[1:]]) for p in (mine, found.a))
            moved = tf.einsum("lrk,rkls->rls", a, tf.gather(of_r, near))
            return tf.einsum("lrm,lms->rls", mine, of_v) + moved

        own = domain(type(self._model).__name__, latent.kernels(self.kernel), (tf.concat([X, Z], axis=0),))
        functions = latent.num_functions(self._model)
        return Given(own, self._model.mean_function, functions, condition, correction)


def _seen(
    kernels: Sequence[gpflow.kernels.Kernel],
    inputs: tuple[tf.Tensor, tf.Tensor],
    L: tf.Tensor,
    phi: tf.Tensor,
    new: tf.Tensor,
    near: tf.Tensor,
) -> tuple[tf.Tensor, Around]:
    """Return Φ at new places [R, D], [S, R, M], and how their residuals depend on those of neighbours [R, k].

    ``inputs`` are X and Z; Φ at the data is [S, N, M].
    """
    X, Z = inputs
    mine = residual.features(kernels, Z, L, new)
    both = tf.concat([tf.gather(phi, near, axis=1), mine[:, :, None]], axis=2)
    K = gram(kernels, X, new, near)
    jitter = coefficients.jitter(K, X.dtype)
    return mine, around(near, K - tf.matmul(both, both, transpose_b=True), jitter)


def of_space(model: Any, precompute_cache: PrecomputeCacheType | str | None) -> VecchiaPosterior:
    """Return the posterior of a model with a Vecchia or a full-scale prior."""
    if model.estimates_variances:
        return IterativePosterior(model, precompute_cache)
    kind = VecchiaPosterior if model.structure.Z is None else FullScalePosterior
    return kind(model, precompute_cache)
