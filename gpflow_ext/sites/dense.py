"""The dense prior f ~ N(μ, Σ) at the data, and its factor for given sites."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import products
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser
from gpflow_ext.sites.projection import Projection


class Dense(NamedTuple):
    """The prior f ~ N(mean, cov): mean [N, L], cov [1, N, N] or [L, N, N]."""

    mean: tf.Tensor
    cov: tf.Tensor

    @property
    def hands_on(self) -> bool:
        """Whether a factor is made of tensors alone, which a loop can hand on."""
        return True

    @property
    def forms_covariance(self) -> bool:
        """Whether a factor forms the covariance of all rows, `DenseFactor.covariance`."""
        return True

    @property
    def solves_nearby(self) -> bool:
        """Whether a factor is to serve for other precisions near its own; see `conjugate.near`."""
        return linalg.expected(self.cov.shape[-1]) > linalg.LEAF

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L]. O(N²)."""
        return products.matvec(self.cov, alpha)

    def variance(self) -> tf.Tensor:
        """Return diag Σ, [N, 1 or L]."""
        return tf.transpose(tf.linalg.diag_part(self.cov))

    def factorise(self, prec: tf.Tensor) -> DenseFactor:
        """Factorise B = I + Λ^½ΣΛ^½ for prec ≥ 0, [N, L]. O(N³/3)."""
        root = tf.transpose(tf.sqrt(prec))  # [L, N]
        B = root[:, :, None] * self.cov * root[:, None, :]
        seen = tf.linalg.diag_part(B)  # ΛΣₙₙ
        chol, finite = linalg.cholesky(tf.linalg.set_diag(B, seen + 1.0))
        unscaled = tf.cast(seen >= 1.0, root.dtype) * tf.math.reciprocal_no_nan(root)
        return DenseFactor(self.cov, root, unscaled, chol, finite)

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites). O(N³).

        Its gradient is in closed form, ½(ααᵀ − Λ^½B⁻¹Λ^½) for Σ and α for μ, in N³ multiplications where
        the derivative of the factorisation takes 7/2 N³ (docs/derivations.md, section 3).
        """

        @tf.custom_gradient
        def value(mean: tf.Tensor, cov: tf.Tensor) -> Any:
            prior = Dense(mean, cov)
            known = prior.factorise(sites.prec) if factor is None else factor
            alpha, shift = known.solve(sites.nat1 - sites.prec * mean)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                outer = tf.transpose(alpha)[:, :, None] * tf.transpose(alpha)[:, None, :]
                by_cov = 0.5 * upstream * (outer - known.reduction())  # [L, N, N]
                shared = cov.shape[0] == 1
                return upstream * alpha, tf.reduce_sum(by_cov, axis=0, keepdims=True) if shared else by_cov

            return log_normaliser(prior, sites, known, shift), gradient

        return value(self.mean, self.cov)

    def whiten(self, chol: tf.Tensor | None = None) -> Projection:
        """Return the same prior as f = μ + Lv with LLᵀ = Σ, for GPflow's whitened parameters. O(N³/3).

        Σ has the jitter that its factor needs. With L at hand the gradient is in closed form; see
        `linalg.whiten`.
        """
        cov = linalg.above_rounding(self.cov)
        if chol is not None:
            return Projection(self.mean, linalg.whiten(cov, chol, cov), self.residual, chol)
        chol, _ = linalg.cholesky(cov)
        return Projection(self.mean, tf.linalg.matrix_transpose(chol), self.residual, chol)


class DenseFactor(NamedTuple):
    """Cholesky factor of B = I + Λ^½ΣΛ^½ and what is computed from it."""

    cov: tf.Tensor  # [1 or L, N, N]
    root: tf.Tensor  # Λ^½, [L, N]
    unscaled: tf.Tensor  # Λ^-½ where ΛΣₙₙ is at least one, else zero, [L, N]
    chol: tf.Tensor  # [L, N, N]
    finite: tf.Tensor  # []

    def variance(self) -> tf.Tensor:
        """Return diag[(Σ⁻¹ + Λ)⁻¹] = diag Σ − colsum (B^-½ Λ^½ Σ)², [N, L]. O(N³)."""
        reduction = tf.reduce_sum(self._half() ** 2, axis=-2)
        return tf.transpose(tf.linalg.diag_part(self.cov) - reduction)

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L]. O(N²).

        For b = Λ^½c + d it is d + Λ^½B⁻¹(c − Λ^½Σd), with d = 0 up to rounding where sites are precise. There
        b − Λ^½B⁻¹Λ^½Σb would cancel: in single precision nothing of α would be left.
        """
        root, c = tf.transpose(self.root), tf.transpose(self.unscaled) * b
        d = b - root * c
        alpha = d + root * products.cholesky_solve(self.chol, c - root * products.matvec(self.cov, d))
        return Pair(alpha, products.matvec(self.cov, alpha))

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|B|, summed over the latent functions, []."""
        return linalg.half_log_det(self.chol)

    def covariance(self) -> tf.Tensor:
        """Return V = (Σ⁻¹ + Λ)⁻¹ = Σ − TᵀT, [L, N, N]. O(N³)."""
        T = self._half()
        return self.cov - tf.matmul(T, T, transpose_a=True)

    def reduction(self) -> tf.Tensor:
        """Return Q = Λ^½B⁻¹Λ^½, [L, N, N]: the variance at new inputs is k** − K*ᵀQK*. O(N³)."""
        return self.root[:, :, None] * linalg.inverse(self.chol) * self.root[:, None, :]

    def reduction_root(self) -> tf.Tensor:
        """Return W = B^-½Λ^½ with WᵀW = Q of `reduction`, lower triangular [L, N, N]. O(N³/3).

        The variance k** − ‖WK*‖² has an error of the square root of the condition number, where K*ᵀQK* has
        that of the number itself.
        """
        return linalg.triangular_inverse(self.chol) * self.root[:, None, :]

    def inverted(self) -> InvertedFactor:
        """Return the same factor with B⁻¹, for those who want variances and `reduction` alike."""
        return InvertedFactor(self, linalg.inverse(self.chol))

    def _half(self) -> tf.Tensor:
        """Return T = B^-½ Λ^½ Σ, [L, N, N]."""
        return linalg.triangular_solve(self.chol, self.root[:, :, None] * self.cov)


class InvertedFactor(NamedTuple):
    """A factor whose variances and reduction share B⁻¹; see `DenseFactor`."""

    factor: DenseFactor
    inverse: tf.Tensor  # B⁻¹, [L, N, N]

    @property
    def finite(self) -> tf.Tensor:
        """Whether the factorisation worked, []."""
        return self.factor.finite

    def variance(self) -> tf.Tensor:
        """Return the variances of q(f), [N, L], as (1 − diag B⁻¹)/Λ unless a site is too weak for that.

        That is exact to rounding over Λ, and so is what a site of precision Λ does with it.
        """
        prec = self.factor.root**2
        seen = prec * tf.linalg.diag_part(self.factor.cov)
        weak = tf.reduce_any(seen < 64.0 * float(np.sqrt(np.finfo(seen.dtype.as_numpy_dtype).eps)))

        def by_inverse() -> tf.Tensor:
            return tf.transpose((1.0 - tf.linalg.diag_part(self.inverse)) / prec)

        return tf.cond(weak, self.factor.variance, by_inverse)

    def solve(self, b: tf.Tensor) -> Pair:
        """See `DenseFactor.solve`."""
        return self.factor.solve(b)

    def half_log_det(self) -> tf.Tensor:
        """See `DenseFactor.half_log_det`."""
        return self.factor.half_log_det()

    def reduction(self) -> tf.Tensor:
        """See `DenseFactor.reduction`."""
        return self.factor.root[:, :, None] * self.inverse * self.factor.root[:, None, :]
