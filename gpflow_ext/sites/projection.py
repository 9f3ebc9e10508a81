"""The prior f = μ + Aᵀv + r seen through whitened inducing variables v, its factor, and what sites tell v."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import products
from gpflow_ext.sites.algebra import Marginals, Sites, log_normaliser


class Projection(NamedTuple):
    """The prior f = mean + Aᵀv + r, v ~ N(0, I_M), r ~ N(0, diag(residual))."""

    mean: tf.Tensor  # [N, L]
    A: tf.Tensor  # chol⁻¹ K_uf, [1 or L, M, N]
    residual: tf.Tensor  # k_nn − ‖aₙ‖², [N or 1, 1 or L]
    chol: tf.Tensor  # Cholesky factor of K_uu, [1 or L, M, M]

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the matrices."""
        return self.A.dtype

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return AᵀAα, [N, L]. O(NM)."""
        return products.matvec(self.A, products.matvec(self.A, alpha), transpose=True)

    def variance(self) -> tf.Tensor:
        """Return the prior variances residual + diag AᵀA, [N, 1 or L]. O(NM)."""
        return self.residual + tf.transpose(tf.reduce_sum(self.A**2, axis=-2))

    def factorise(self, prec: tf.Tensor) -> ProjectedFactor:
        """Factorise B = I + AΛAᵀ, the whitened posterior precision, for prec [N, L]. O(NM²)."""
        gram = self._gram(prec)
        chol, finite = linalg.cholesky(tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + 1.0))
        return ProjectedFactor(self, prec, chol, finite)

    def message(self, sites: Sites) -> Message:
        """Return what the sites [N, L] of these data tell the inducing variables. O(NM²)."""
        return Message(self._gram(sites.prec), products.matvec(self.A, sites.nat1 - sites.prec * self.mean))

    def _gram(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AΛAᵀ, [L, M, M]."""
        weights = tf.transpose(prec)[:, None, :]  # [L, 1, N]
        return tf.matmul(
            self.A * weights, tf.broadcast_to(self.A, products.batch_shape(self.A, prec)), transpose_b=True
        )

    def log_normaliser(self, sites: Sites) -> tf.Tensor:
        """Return log ∫ p(h) ∏ₙ tₙ(hₙ) dh for the part h = μ + Aᵀv that sites see, differentiable. O(NM²)."""
        factor = self.factorise(sites.prec)
        alpha = factor.solve(sites.nat1 - sites.prec * self.mean)
        return log_normaliser(self, sites, factor, self.product(alpha))

    def whiten(self) -> Projection:
        """Return the prior itself, which is whitened."""
        return self


class ProjectedFactor(NamedTuple):
    """Cholesky factor of B = I + AΛAᵀ and what is computed from it."""

    prior: Projection
    prec: tf.Tensor  # [N, L]
    chol: tf.Tensor  # [L, M, M]
    finite: tf.Tensor  # []

    def variance(self) -> tf.Tensor:
        """Return residual + diag(AᵀB⁻¹A), [N, L]. O(NM²)."""
        A = tf.broadcast_to(self.prior.A, products.batch_shape(self.prior.A, self.prec))
        G = linalg.triangular_solve(self.chol, A)
        return self.prior.residual + tf.transpose(tf.reduce_sum(G**2, axis=-2))

    def solve(self, b: tf.Tensor) -> tf.Tensor:
        """Return (I + ΛAᵀA)⁻¹ b = b − ΛAᵀB⁻¹A b, [N, L]. O(NM)."""
        inner = products.cholesky_solve(self.chol, products.matvec(self.prior.A, b))
        return b - self.prec * products.matvec(self.prior.A, inner, transpose=True)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|B|, summed over the latent functions, []."""
        return linalg.half_log_det(self.chol, self.prec.dtype)


class Message(NamedTuple):
    """What sites tell the whitened inducing variables v: exp(nat1ᵀv − ½ vᵀ prec v), per latent function.

    The message of several shards of data is the sum of theirs, field by field.
    """

    prec: tf.Tensor  # AΛAᵀ, [L, M, M]
    nat1: tf.Tensor  # Aρ with ρ = nat1 − Λμ, [M, L]

    def posterior(self) -> Whitened:
        """Return q(v) ∝ N(v; 0, I) times the message of all data. O(M³)."""
        B = tf.linalg.set_diag(self.prec, tf.linalg.diag_part(self.prec) + 1.0)
        chol, finite = linalg.cholesky(B)
        root = tf.linalg.triangular_solve(chol, tf.transpose(self.nat1)[..., None])  # [L, M, 1]
        mean = tf.linalg.triangular_solve(chol, root, adjoint=True)
        return Whitened(tf.transpose(mean[..., 0]), chol, tf.transpose(root[..., 0]), finite)

    def moments(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the mean of q(v) [M, L] and the lower factors F of its covariances FFᵀ = B⁻¹, [L, M, M].

        B is factorised in reversed order, whose factor has F for its inverse: B⁻¹ is never formed. O(M³).
        """
        B = tf.linalg.set_diag(self.prec, tf.linalg.diag_part(self.prec) + 1.0)
        chol, _ = linalg.cholesky(tf.reverse(B, [-1, -2]))
        eye = tf.eye(tf.shape(B)[-1], batch_shape=tf.shape(B)[:-2], dtype=B.dtype)
        factor = tf.reverse(tf.linalg.triangular_solve(chol, eye), [-1, -2])  # Fᵀ
        nat1 = tf.transpose(self.nat1)
        mean = tf.linalg.matvec(factor, tf.linalg.matvec(factor, nat1), transpose_a=True)
        return tf.transpose(mean), tf.linalg.matrix_transpose(factor)


class Whitened(NamedTuple):
    """q(v) = N(mean, B⁻¹) over the whitened inducing variables, B = RRᵀ."""

    mean: tf.Tensor  # B⁻¹Aρ, [M, L]
    chol: tf.Tensor  # R, [L, M, M]
    root: tf.Tensor  # R⁻¹Aρ, [M, L]
    finite: tf.Tensor  # whether the factorisation worked, []

    def marginals(self, prior: Projection) -> Marginals:
        """Return q(hₙ) of the part h = μ + Aᵀv that sites see, the residual left out. O(NM²)."""
        A = tf.broadcast_to(prior.A, [tf.shape(self.chol)[0], tf.shape(prior.A)[1], tf.shape(prior.A)[2]])
        G = linalg.triangular_solve(self.chol, A)
        mean = prior.mean + products.matvec(prior.A, self.mean, transpose=True)
        return Marginals(mean, tf.transpose(tf.reduce_sum(G**2, axis=-2)))

    def covariance(self) -> tf.Tensor:
        """Return B⁻¹, [L, M, M]. O(M³)."""
        return products.inverse(self.chol)

    def log_normaliser(self) -> tf.Tensor:
        """Return log ∫ N(v; 0, I) exp(nat1ᵀv − ½ vᵀ prec v) dv = −½ log|B| + ½ ‖R⁻¹Aρ‖², summed over L."""
        return 0.5 * tf.reduce_sum(self.root**2) - linalg.half_log_det(self.chol)
