"""Gaussian sites: q(f) ∝ p(f) ∏ₙ exp(nat1ₙ fₙ − ½ precₙ fₙ²), the algebra every site method shares.

The prior seen from the data is either `Dense`, f ~ N(μ, Σ), or a `Projection`, f = μ + Aᵀv + r with
v ~ N(0, I) and r ~ N(0, diag(residual)). With Q = Σ or AᵀA, Λ = diag(prec), ρ = nat1 − Λμ:

    α = (I + ΛQ)⁻¹ ρ      m = μ + Qα      nat1 = α + Λm
    KL[q || p] = ½ log|I + ΛQ| − ½ Σₙ precₙ Varₙ + ½ αᵀ(m − μ)
    log ∫ p(f) ∏ₙ tₙ(fₙ) df = −½ log|I + ΛQ| + ½ ρᵀ(m − μ) + nat1ᵀμ − ½ μᵀΛμ

where Var is the variance of the part of f that the sites see (without the residual). Neither Σ⁻¹ nor
1/prec is ever formed. A `Projection` accepts negative precisions while I + AΛAᵀ stays positive definite;
a `Dense` prior uses Λ^½ and needs prec ≥ 0.

Shapes: N data, M inducing variables, L latent functions; vectors over the data are [N, L].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from gpflow_ext.numerics import linalg

Expectation: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Map (mean [N, L], var [N, L]) of q to the expected log likelihood, or a lower bound of it, [N]."""


class Sites(NamedTuple):
    """Natural parameters of the sites t(f) = exp(nat1 f − ½ prec f²), each [N, L]."""

    nat1: tf.Tensor
    prec: tf.Tensor


class Marginals(NamedTuple):
    """Mean and variance of q(fₙ), each [N, L]."""

    mean: tf.Tensor
    var: tf.Tensor


class Dense(NamedTuple):
    """The prior f ~ N(mean, cov): mean [N, L], cov [1, N, N] or [L, N, N].

    All matrices have the precision of ``cov``, all vectors that of ``mean``, which may be higher.
    """

    mean: tf.Tensor
    cov: tf.Tensor

    @property
    def dtype(self) -> tf.DType:
        """The dtype of the matrices."""
        return self.cov.dtype

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L]. O(N²)."""
        return _matvec(self.cov, alpha)

    def variance(self) -> tf.Tensor:
        """Return diag Σ, [N, 1 or L]."""
        return tf.cast(tf.transpose(tf.linalg.diag_part(self.cov)), self.mean.dtype)

    def factorise(self, prec: tf.Tensor) -> DenseFactor:
        """Factorise B = I + Λ^½ΣΛ^½ for prec ≥ 0, [N, L]. O(N³/3)."""
        root = tf.transpose(tf.sqrt(prec))  # [L, N]
        scale = tf.cast(root, self.cov.dtype)
        B = scale[:, :, None] * self.cov * scale[:, None, :]
        chol, finite = linalg.cholesky(tf.linalg.set_diag(B, tf.linalg.diag_part(B) + 1.0))
        return DenseFactor(self.cov, root, chol, finite)

    def log_normaliser(self, sites: Sites) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites). O(N³).

        Its gradient is in closed form, ½(ααᵀ − Λ^½B⁻¹Λ^½) for Σ and α for μ, in 3/2 N³ multiplications
        where the derivative of the factorisation takes 7/2 N³ (docs/derivations.md, section 3).
        """

        @tf.custom_gradient
        def value(mean: tf.Tensor, cov: tf.Tensor) -> Any:
            prior = Dense(mean, cov)
            factor = prior.factorise(sites.prec)
            alpha = factor.solve(sites.nat1 - sites.prec * mean)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                outer = tf.transpose(alpha)[:, :, None] * tf.transpose(alpha)[:, None, :]
                by_cov = 0.5 * upstream * (outer - factor.reduction())  # [L, N, N]
                shared = cov.shape[0] == 1
                return upstream * alpha, tf.reduce_sum(by_cov, axis=0, keepdims=True) if shared else by_cov

            return _log_normaliser(prior, sites, factor.chol, prior.product(alpha)), gradient

        return value(self.mean, self.cov)

    def whiten(self) -> Projection:
        """Return the same prior as f = μ + Lv with LLᵀ = Σ, for GPflow's whitened parameters. O(N³/3)."""
        chol, _ = linalg.cholesky(self.cov)
        return Projection(self.mean, tf.linalg.matrix_transpose(chol), self.residual, chol)


class DenseFactor(NamedTuple):
    """Cholesky factor of B = I + Λ^½ΣΛ^½ and what is computed from it."""

    cov: tf.Tensor  # [1 or L, N, N]
    root: tf.Tensor  # Λ^½, [L, N]
    chol: tf.Tensor  # [L, N, N]
    finite: tf.Tensor  # []

    def variance(self) -> tf.Tensor:
        """Return diag[(Σ⁻¹ + Λ)⁻¹] = diag Σ − colsum (B^-½ Λ^½ Σ)², [N, L]. O(N³)."""
        reduction = tf.reduce_sum(self._half() ** 2, axis=-2)
        return tf.cast(tf.transpose(tf.linalg.diag_part(self.cov) - reduction), self.root.dtype)

    def solve(self, b: tf.Tensor) -> tf.Tensor:
        """Return (I + ΛΣ)⁻¹ b = b − Λ^½ B⁻¹ Λ^½ Σ b, [N, L]. O(N²)."""
        root = tf.transpose(self.root)
        return b - root * _cholesky_solve(self.chol, root * _matvec(self.cov, b))

    def covariance(self) -> tf.Tensor:
        """Return V = (Σ⁻¹ + Λ)⁻¹ = Σ − TᵀT, [L, N, N]. O(N³)."""
        T = self._half()
        return self.cov - tf.matmul(T, T, transpose_a=True)

    def reduction(self) -> tf.Tensor:
        """Return Q = Λ^½B⁻¹Λ^½, [L, N, N]: the variance at new inputs is k** − K*ᵀQK*. O(N³)."""
        half = linalg.triangular_solve(self.chol, tf.linalg.diag(self.root))
        return tf.matmul(half, half, transpose_a=True)

    def _half(self) -> tf.Tensor:
        """Return T = B^-½ Λ^½ Σ, [L, N, N]."""
        scale = tf.cast(self.root, self.cov.dtype)[:, :, None]
        return linalg.triangular_solve(self.chol, scale * self.cov)


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
        return _matvec(self.A, _matvec(self.A, alpha), transpose=True)

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
        return Message(self._gram(sites.prec), _matvec(self.A, sites.nat1 - sites.prec * self.mean))

    def _gram(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AΛAᵀ, [L, M, M]."""
        weights = tf.transpose(prec)[:, None, :]  # [L, 1, N]
        return tf.matmul(self.A * weights, tf.broadcast_to(self.A, _batch(self.A, prec)), transpose_b=True)

    def log_normaliser(self, sites: Sites) -> tf.Tensor:
        """Return log ∫ p(h) ∏ₙ tₙ(hₙ) dh for the part h = μ + Aᵀv that sites see, differentiable. O(NM²)."""
        factor = self.factorise(sites.prec)
        alpha = factor.solve(sites.nat1 - sites.prec * self.mean)
        return _log_normaliser(self, sites, factor.chol, self.product(alpha))


class ProjectedFactor(NamedTuple):
    """Cholesky factor of B = I + AΛAᵀ and what is computed from it."""

    prior: Projection
    prec: tf.Tensor  # [N, L]
    chol: tf.Tensor  # [L, M, M]
    finite: tf.Tensor  # []

    def variance(self) -> tf.Tensor:
        """Return residual + diag(AᵀB⁻¹A), [N, L]. O(NM²)."""
        A = tf.broadcast_to(self.prior.A, _batch(self.prior.A, self.prec))
        G = linalg.triangular_solve(self.chol, A)
        return self.prior.residual + tf.transpose(tf.reduce_sum(G**2, axis=-2))

    def solve(self, b: tf.Tensor) -> tf.Tensor:
        """Return (I + ΛAᵀA)⁻¹ b = b − ΛAᵀB⁻¹A b, [N, L]. O(NM)."""
        inner = _cholesky_solve(self.chol, _matvec(self.prior.A, b))
        return b - self.prec * _matvec(self.prior.A, inner, transpose=True)


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
        mean = prior.mean + _matvec(prior.A, self.mean, transpose=True)
        return Marginals(mean, tf.transpose(tf.reduce_sum(G**2, axis=-2)))

    def covariance(self) -> tf.Tensor:
        """Return B⁻¹, [L, M, M]. O(M³)."""
        return _inverse(self.chol)

    def log_normaliser(self) -> tf.Tensor:
        """Return log ∫ N(v; 0, I) exp(nat1ᵀv − ½ vᵀ prec v) dv = −½ log|B| + ½ ‖R⁻¹Aρ‖², summed over L."""
        return 0.5 * tf.reduce_sum(self.root**2) - linalg.half_log_det(self.chol)


Prior: TypeAlias = Dense | Projection
Factor: TypeAlias = DenseFactor | ProjectedFactor


class Posterior(NamedTuple):
    """q(f) conditioned on sites, as far as the data see it."""

    alpha: tf.Tensor  # m = μ + Qα, [N, L]
    mean: tf.Tensor  # [N, L]
    var: tf.Tensor  # [N, L]
    kl: tf.Tensor  # KL[q || p], []
    finite: tf.Tensor  # whether the factorisation worked, []


def condition(prior: Prior, sites: Sites) -> Posterior:
    """Return q(f) ∝ p(f) ∏ₙ tₙ(fₙ): one Cholesky factorisation and one triangular solve."""
    factor = prior.factorise(sites.prec)
    alpha = factor.solve(sites.nat1 - sites.prec * prior.mean)
    shift = prior.product(alpha)
    var = factor.variance()
    kl = divergence(prior, sites.prec, var, factor.chol, alpha, shift)
    return Posterior(alpha, prior.mean + shift, var, kl, factor.finite)


def divergence(
    prior: Prior, prec: tf.Tensor, var: tf.Tensor, chol: tf.Tensor, alpha: tf.Tensor, shift: tf.Tensor
) -> tf.Tensor:
    """Return KL[q || p] from the precisions, the variances, the factor of B, α and m − μ = Qα."""
    spread = linalg.half_log_det(chol, prec.dtype) - 0.5 * tf.reduce_sum(prec * (var - prior.residual))
    return spread + 0.5 * tf.reduce_sum(alpha * shift)


def _log_normaliser(prior: Prior, sites: Sites, chol: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
    """Return −½ log|B| + ½ ρᵀ(m − μ) + nat1ᵀμ − ½ μᵀΛμ from the factor of B and m − μ."""
    mean, (nat1, prec) = prior.mean, sites
    quadratic = 0.5 * (nat1 - prec * mean) * shift + nat1 * mean - 0.5 * prec * mean**2
    return tf.reduce_sum(quadratic) - linalg.half_log_det(chol)


class Expected(NamedTuple):
    """The expected log likelihood of q, or its bound, with the derivatives that make sites."""

    value: tf.Tensor  # summed over the data, []
    grad: tf.Tensor  # g = ∂/∂m, [N, L]
    curvature: tf.Tensor  # −H = −2 ∂/∂v, which is −∂²/∂m² of an exact expectation (Price's theorem), [N, L]


def expect(expectation: Expectation, mean: tf.Tensor, var: tf.Tensor) -> Expected:
    """Evaluate the expected log likelihood and its derivatives in one pass."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch((mean, var))
        value = tf.reduce_sum(expectation(mean, var))
    by_mean, by_var = tape.gradient(value, (mean, var))
    return Expected(value, by_mean, -2.0 * by_var)


def variational_sites(expectation: Expectation, marginals: Marginals) -> Sites:
    """Propose the sites of a natural-gradient step of length one: prec = −2 ∂v, nat1 = ∂m + prec·m."""
    _, grad, prec = expect(expectation, *marginals)
    return Sites(grad + prec * marginals.mean, prec)


def _matvec(matrix: tf.Tensor, vectors: tf.Tensor, transpose: bool = False) -> tf.Tensor:
    """Multiply [1 or L, A, B] by the columns of [B, L] to [A, L] (or its transpose by [A, L] to [B, L])."""
    columns = tf.cast(tf.transpose(vectors), matrix.dtype)
    return tf.cast(tf.transpose(tf.linalg.matvec(matrix, columns, transpose_a=transpose)), vectors.dtype)


def _cholesky_solve(chol: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    columns = tf.cast(tf.transpose(vectors)[..., None], chol.dtype)
    return tf.cast(tf.transpose(tf.linalg.cholesky_solve(chol, columns)[..., 0]), vectors.dtype)


def _inverse(chol: tf.Tensor) -> tf.Tensor:
    """Return (RRᵀ)⁻¹ for R [L, M, M]."""
    eye = tf.eye(tf.shape(chol)[-1], batch_shape=tf.shape(chol)[:1], dtype=chol.dtype)
    half = tf.linalg.triangular_solve(chol, eye)
    return tf.matmul(half, half, transpose_a=True)


def _batch(A: tf.Tensor, prec: tf.Tensor) -> tf.Tensor:
    """Return the shape [L, M, N] that A takes beside precisions [N, L]."""
    return tf.concat([tf.shape(prec)[1:], tf.shape(A)[1:]], axis=0)
