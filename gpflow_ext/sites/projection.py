"""The prior f = μ + Aᵀv + r of whitened inducing variables v, its factor, and the message of sites to v."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from gpflow_ext.numerics import linalg, triangular
from gpflow_ext.sites import products
from gpflow_ext.sites.algebra import Marginals, Pair, Sites, log_normaliser


class Seen(Protocol):
    """A prior seen through whitened inducing variables: a `Projection`, or a `Coupled` one on it."""

    @property
    def mean(self) -> tf.Tensor:
        """The prior mean, [N, L]."""

    @property
    def A(self) -> tf.Tensor:
        """The projection, [1 or L, M, N], or [1, M, NL] where the latent functions are coupled."""

    @property
    def residual(self) -> tf.Tensor:
        """The variance of f that the sites do not see, [N or 1, 1 or L]."""

    @property
    def chol(self) -> tf.Tensor:
        """Cholesky factor of K_uu, [1 or L, M, M]."""

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Give values [N, L] the layout of A's columns, [N, L] or [NL, 1]."""

    def unpack(self, values: tf.Tensor) -> tf.Tensor:
        """Undo `pack`."""

    def message(self, sites: Sites) -> Message:
        """Return the message of the sites [N, L] of these data to the inducing variables."""


class Projection(NamedTuple):
    """The prior f = mean + Aᵀv + r, v ~ N(0, I_M), r ~ N(0, diag(residual))."""

    mean: tf.Tensor  # [N, L]
    A: tf.Tensor  # chol⁻¹ K_uf, [1 or L, M, N]
    residual: tf.Tensor  # k_nn − ‖aₙ‖², [N or 1, 1 or L]
    chol: tf.Tensor  # Cholesky factor of K_uu, [1 or L, M, M]

    @property
    def hands_on(self) -> bool:
        """Whether a factor is made of tensors alone, which a loop can hand on."""
        return True

    @property
    def solves_nearby(self) -> bool:
        """Whether a factor is to serve for other precisions near its own; see `conjugate.near`."""
        M, N = self.A.shape[-2:]
        return linalg.expected(N) * (M or 0) ** 2 > linalg.LEAF**3

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return AᵀAα, [N, L]. O(NM)."""
        return products.matvec(self.A, products.matvec(self.A, alpha), transpose=True)

    def energy(self, alpha: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        """Return ½‖Aα‖², []; with precise sites α and AᵀAα, multiplied, have lost it to rounding. O(NM)."""
        return 0.5 * tf.reduce_sum(tf.square(products.matvec(self.A, alpha)))

    def variance(self) -> tf.Tensor:
        """Return the prior variances residual + diag AᵀA, [N, 1 or L]. O(NM)."""
        return self.residual + tf.transpose(tf.reduce_sum(self.A**2, axis=-2))

    def factorise(self, prec: tf.Tensor) -> ProjectedFactor:
        """Factorise B = I + AΛAᵀ, the whitened posterior precision, for prec [N, L]. O(NM²)."""
        gram = self._gram(prec)
        chol, finite = linalg.cholesky(tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + 1.0))
        return ProjectedFactor(self, prec, chol, finite)

    def message(self, sites: Sites) -> Message:
        """Return the message of the sites [N, L] of these data to the inducing variables. O(NM²)."""
        return Message(self._gram(sites.prec), products.matvec(self.A, sites.nat1 - sites.prec * self.mean))

    def _gram(self, prec: tf.Tensor) -> tf.Tensor:
        """Return AΛAᵀ, [L, M, M]; functions that share A share its products, of lower triangles alone."""
        return triangular.symmetric(triangular.weighted_gram(self.A, prec))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(h) ∏ₙ tₙ(hₙ) dh for the part h = μ + Aᵀv that sites see, [].

        Differentiable in the prior (not in the sites), in closed form: α for μ and wαᵀ − B⁻¹AΛ for A, with
        w = B⁻¹Aρ (docs/derivations.md, section 3). O(NM²).
        """

        @tf.custom_gradient
        def value(mean: tf.Tensor, A: tf.Tensor) -> Any:
            prior = self._replace(mean=mean, A=A)
            known = prior.factorise(sites.prec) if factor is None else factor
            alpha, shift = known.solve(sites.nat1 - sites.prec * mean)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                w = products.matvec(A, alpha)  # AᵀB⁻¹Aρ weighs as A(ρ − ΛAᵀw) does: Aα = w
                outer = tf.transpose(w)[:, :, None] * tf.transpose(alpha)[:, None, :]
                by_A = upstream * (outer - known.gain())  # [L, M, N]
                shared = A.shape[0] == 1
                return upstream * alpha, tf.reduce_sum(by_A, axis=0, keepdims=True) if shared else by_A

            return log_normaliser(prior, sites, known, shift), gradient

        return value(self.mean, self.A)

    def whiten(self, chol: tf.Tensor | None = None) -> Projection:
        """Return the prior itself, which is whitened."""
        return self

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Return values [N, L] in the layout of A's columns: as they are; see `Coupled`."""
        return values

    def unpack(self, values: tf.Tensor) -> tf.Tensor:
        """Undo `pack`."""
        return values


class ProjectedFactor(NamedTuple):
    """Cholesky factor of B = I + AΛAᵀ and what is computed from it."""

    prior: Projection
    prec: tf.Tensor  # [N, L]
    chol: tf.Tensor  # [L, M, M]
    finite: tf.Tensor  # []

    def variance(self) -> tf.Tensor:
        """Return residual + diag(AᵀB⁻¹A), [N, L]. O(NM²)."""
        G = linalg.triangular_solve(self.chol, self._stacked())
        return self.prior.residual + tf.transpose(tf.reduce_sum(G**2, axis=-2))

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛAᵀA)⁻¹ b = b − ΛAᵀB⁻¹A b and AᵀAα = AᵀB⁻¹A b for b [N, L]. O(NM)."""
        inner = products.cholesky_solve(self.chol, products.matvec(self.prior.A, b))
        shift = products.matvec(self.prior.A, inner, transpose=True)
        return Pair(b - self.prec * shift, shift)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|B|, summed over the latent functions, []."""
        return linalg.half_log_det(self.chol)

    def reduction(self) -> tf.Tensor:
        """Return Q = (I + ΛAᵀA)⁻¹Λ = Λ − ΛAᵀB⁻¹AΛ, [L, N, N], indefinite as Λ is. O(N²M)."""
        prec = tf.transpose(self.prec)
        half = linalg.triangular_solve(self.chol, self._stacked()) * prec[:, None, :]
        return tf.linalg.diag(prec) - tf.matmul(half, half, transpose_a=True)

    def gain(self) -> tf.Tensor:
        """Return B⁻¹AΛ, [L, M, N]. O(NM²)."""
        half = linalg.triangular_solve(self.chol, self._stacked())
        return linalg.triangular_solve(self.chol, half, adjoint=True) * tf.transpose(self.prec)[:, None, :]

    def _stacked(self) -> tf.Tensor:
        """Return A, [L, M, N]."""
        return tf.broadcast_to(self.prior.A, products.batch_shape(self.prior.A, self.prec))


class Message(NamedTuple):
    """The message of sites to the whitened v: exp(nat1ᵀv − ½ vᵀ prec v), per latent function.

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

    def marginals(self, prior: Seen) -> Marginals:
        """Return q(hₙ) of the part h = μ + Aᵀv that sites see, the residual left out. O(NM²)."""
        A = tf.broadcast_to(prior.A, [tf.shape(self.chol)[0], tf.shape(prior.A)[1], tf.shape(prior.A)[2]])
        G = linalg.triangular_solve(self.chol, A)
        mean = prior.mean + prior.unpack(products.matvec(prior.A, self.mean, transpose=True))
        return Marginals(mean, prior.unpack(tf.transpose(tf.reduce_sum(G**2, axis=-2))))

    def covariance(self) -> tf.Tensor:
        """Return B⁻¹, [L, M, M]. O(M³)."""
        return products.inverse(self.chol)

    def log_normaliser(self) -> tf.Tensor:
        """Return log ∫ N(v; 0, I) exp(nat1ᵀv − ½ vᵀ prec v) dv = −½ log|B| + ½ ‖R⁻¹Aρ‖², summed over L."""
        return 0.5 * tf.reduce_sum(self.root**2) - linalg.half_log_det(self.chol)
