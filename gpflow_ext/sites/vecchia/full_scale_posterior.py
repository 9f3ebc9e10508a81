"""GPflow's cached posterior of a full-scale prior."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from gpflow.posteriors import PrecomputeCacheType, PrecomputedValue

from gpflow_ext.functions.given import Given
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import latent
from gpflow_ext.sites.vecchia import residual
from gpflow_ext.sites.vecchia.posterior import VecchiaPosterior, around, gram


class FullScalePosterior(VecchiaPosterior):
    """GPflow's cached posterior of a full-scale prior: v, and the residual process at the nearest data.

    With a and D of the residual process, w, H and C of `full_scale`, and φ at the new place:

        mean μ* + φᵀw + aᵀr̂_c        variance D + aᵀV_c a + (φ − H_cᵀa)ᵀC⁻¹(φ − H_cᵀa)

    V_c stands for (Ω + Λ)⁻¹ as in `VecchiaPosterior`.
    """

    _model: Any  # whose prior is a `FullScale`

    def _parts(self) -> tuple[tf.Tensor, ...]:
        """Return X, r̂, diag (Ω + Λ)⁻¹ and Λ, the scales; then Z, L, Φ, w [L, M], H and the factor of C."""
        prior, current = self._model.prior(), self._model.latent_sites
        factor = prior.factorise(current.prec)
        alpha, shift = factor.solve(current.nat1 - current.prec * prior.mean)
        weights = prior.weights(alpha)
        numbers = (shift - prior.smooth(weights), factor.rest.variance(), tf.nn.relu(current.prec))
        Z = tf.convert_to_tensor(self._model.structure.Z)
        smooth = (Z, residual.root(self.kernel, Z), prior.phi, weights[..., 0], factor.H, factor.chol)
        return self._model.data[0], *numbers, tf.convert_to_tensor(self._model.structure.scales), *smooth

    def _precompute(self) -> tuple[PrecomputedValue, ...]:
        parts = linalg.finite(self._parts(), self._model)
        fixed, rows = (False,) * 3, (False, True, False)
        axes = *((True, False),) * 4, (False,), (False,) * 2, fixed, rows, (False,) * 2, rows, fixed
        return tuple(map(PrecomputedValue, parts, axes))

    def _at(self, cache: tuple[tf.Tensor, ...], new: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """See `VecchiaPosterior`."""
        X, shift, V, prec, scales, Z, L, phi, weights, H, chol = cache
        near = self._nearest(X, scales, new)
        mine = residual.features(self.kernel, Z, L, new)  # [S, R, M]
        both = tf.concat([mine[:, :, None], tf.gather(phi, near, axis=1)], axis=2)
        K = gram(latent.kernels(self.kernel), X, new, near) - tf.matmul(both, both, transpose_b=True)
        found = around(near, K)
        left = mine - tf.reduce_sum(found.a[..., None] * tf.gather(H, near, axis=1), axis=2)  # [L, R, M]
        half = tf.linalg.triangular_solve(chol, tf.linalg.matrix_transpose(left))
        prior = tf.transpose(latent.variances(self.kernel, new)) - tf.reduce_sum(mine**2, axis=-1)
        mean, var = found.moments(prior, shift, V, prec)
        mean, var = mean + tf.linalg.matvec(mine, weights), var + tf.reduce_sum(half**2, axis=1)
        return tf.transpose(mean), tf.transpose(var)

    def functions(self) -> Given:
        """See `SamplesFunctions`.

        Raises
        ------
        NotImplementedError
            Always; Vecchia's prior without inducing points has functions.
        """
        raise NotImplementedError(
            "Full-scale priors draw no functions: use VecchiaOptions(inducing=0), or `inducing_variable`."
        )


def of_space(model: Any, precompute_cache: PrecomputeCacheType | str | None) -> VecchiaPosterior:
    """Return the posterior of a model with a Vecchia or a full-scale prior."""
    kind = VecchiaPosterior if model.structure.Z is None else FullScalePosterior
    return kind(model, precompute_cache)
