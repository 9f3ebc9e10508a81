"""A full-scale prior: inducing points for what is smooth, a Vecchia approximation of what they leave.

With Φ and the residual process of `residual`, whose precision is Ω (Gyger, Furrer & Sigrist 2024):

    f = μ + Φv + r,  v ~ N(0, I),  r ~ N(0, Ω⁻¹)        H = (Ω + Λ)⁻¹ΛΦ    C = I + ΦᵀΛ(Φ − H)
    w = C⁻¹Φᵀ(ρ − Λ(Ω + Λ)⁻¹ρ)    r̂ = (Ω + Λ)⁻¹ρ − Hw    Σα = Φw + r̂    α = ρ − ΛΣα
    V = (Ω + Λ)⁻¹ + (Φ − H)C⁻¹(Φ − H)ᵀ        ½ log|I + ΛΣ| = ½ log|I + ΛΩ⁻¹| + ½ log|C|

w and C⁻¹ are mean and covariance of v, and Φᵀα = w. M right-hand sides of the sparse factor and O(NM²) beside
what `prior` takes. Without inducing points it is Vecchia's prior, without neighbours FITC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser
from gpflow_ext.sites.vecchia.prior import Vecchia, VecchiaFactor


class FullScale(NamedTuple):
    """A full-scale prior at the data; S is 1, where all latent functions share a kernel, or L."""

    rest: Vecchia  # the residual process, with the mean and the prior variances of f
    phi: tf.Tensor  # Φ, [S, N, M]

    @property
    def mean(self) -> tf.Tensor:
        """μ, [N, L]."""
        return self.rest.mean

    @property
    def held_factors(self) -> bool:
        """Whether only `log_normaliser` and `product` are differentiable in the prior."""
        return True

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return self.rest.residual

    def variance(self) -> tf.Tensor:
        """Return the prior variances of the kernel, [N, 1 or L]."""
        return self.rest.variance()

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L]; differentiable once, as `Vecchia.product`."""
        return self.smooth(self.weights(alpha)) + self.rest.product(alpha)

    def coupling(self, a: Pair, b: Pair) -> tf.Tensor:
        """See `algebra.coupling`."""
        mine, its = self.weights(a.alpha), self.weights(b.alpha)
        return tf.reduce_sum(mine * its) + self.rest.coupling(self._left(a, mine), self._left(b, its))

    def _left(self, pair: Pair, weights: tf.Tensor) -> Pair:
        """Return α, and what it moves the residual process by."""
        return Pair(pair.alpha, pair.shift - self.smooth(weights))

    def weights(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Φᵀα for α [N, L], [L, M, 1]."""
        return tf.matmul(self.phi, _columns(alpha), transpose_a=True)

    def smooth(self, weights: tf.Tensor) -> tf.Tensor:
        """Return Φw for w [L, M, 1], [N, L]."""
        return _rows(tf.matmul(self.phi, weights))

    def factorise(self, prec: tf.Tensor) -> FullScaleFactor:
        """Factorise I + ΛΣ for prec [N, L]."""
        rest = self.rest.factorise(prec)
        weighted = _columns(prec) * self.phi  # ΛΦ, [L, N, M]
        H = tf.transpose(rest.columns(tf.transpose(weighted, [1, 0, 2])), [1, 0, 2])
        seen = tf.matmul(weighted, self.phi - H, transpose_a=True)
        C = tf.linalg.set_diag(seen, tf.linalg.diag_part(seen) + 1.0)
        return FullScaleFactor(self, prec, rest, H, tf.linalg.cholesky(C))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites).

        Its gradient is that of E_q[log p(f | v)] with q held (Fisher's identity): as `Vecchia`'s in the
        residual process, αwᵀ − Λ(Φ − H)C⁻¹ for Φ, and α for μ.
        """
        held = tf.nest.map_structure(tf.stop_gradient, self)
        known = held.factorise(sites.prec) if factor is None else factor
        alpha, shift = map(tf.stop_gradient, known.solve(sites.nat1 - sites.prec * held.mean))
        value = log_normaliser(held, sites, known, shift)
        weights = held.weights(alpha)
        columns = tf.concat([(shift - held.smooth(weights))[..., None], known.spread()], axis=-1)
        moving = self.rest.expected_log_density(*known.rest.innovations(columns))
        by_phi = _columns(alpha) * tf.linalg.matrix_transpose(weights) - tf.stop_gradient(known.explained())
        moving += tf.reduce_sum(by_phi * self.phi) + tf.reduce_sum(alpha * self.mean)
        return tf.stop_gradient(value - moving) + moving


class FullScaleFactor(NamedTuple):
    """The factorised I + ΛΣ."""

    prior: FullScale
    prec: tf.Tensor  # [N, L]
    rest: VecchiaFactor
    H: tf.Tensor  # [L, N, M]
    chol: tf.Tensor  # of C, [L, M, M]

    @property
    def finite(self) -> tf.Tensor:
        """Whether both factorisations worked, []."""
        return tf.math.is_finite(self.half_log_det())

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L]."""
        alone = self.rest.solve(b)
        w = tf.linalg.cholesky_solve(self.chol, self.prior.weights(alone.alpha))
        shift = self.prior.smooth(w) + alone.shift - _rows(tf.matmul(self.H, w))
        return Pair(b - self.prec * shift, shift)

    def draw(
        self, b: tf.Tensor, num_samples: int, normal: Callable[..., tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return draws of v [L, M, S] and r [N, L, S] given b [N, L]; ``normal`` returns such numbers."""
        w = tf.linalg.cholesky_solve(self.chol, self.prior.weights(self.rest.solve(b).alpha))
        noise = normal([*sizes(w)[:2], num_samples])
        v = w + tf.linalg.triangular_solve(self.chol, noise, adjoint=True)
        explained = tf.transpose(tf.matmul(self.H, v), [1, 0, 2])
        return v, self.rest.draw(b, num_samples, normal) - explained

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, []."""
        return self.rest.half_log_det() + tf.reduce_sum(tf.math.log(tf.linalg.diag_part(self.chol)))

    def variance(self) -> tf.Tensor:
        """Return the variances of q(fₙ), [N, L]."""
        half = tf.linalg.triangular_solve(self.chol, tf.linalg.matrix_transpose(self.prior.phi - self.H))
        return self.rest.variance() + tf.transpose(tf.reduce_sum(half**2, axis=1))

    def spread(self) -> tf.Tensor:
        """Return columns whose products are what v adds to the covariances of r, HC⁻½, [N, L, M]."""
        half = tf.linalg.triangular_solve(self.chol, tf.linalg.matrix_transpose(self.H))  # [L, M, N]
        return tf.transpose(half, [2, 0, 1])

    def explained(self) -> tf.Tensor:
        """Return Λ(Φ − H)C⁻¹, [L, N, M]."""
        half = tf.linalg.cholesky_solve(self.chol, tf.linalg.matrix_transpose(self.prior.phi - self.H))
        return _columns(self.prec) * tf.linalg.matrix_transpose(half)


def _columns(values: tf.Tensor) -> tf.Tensor:
    """Return [N, L] as [L, N, 1]."""
    return tf.transpose(values)[..., None]


def _rows(columns: tf.Tensor) -> tf.Tensor:
    """Undo `_columns`."""
    return tf.transpose(columns[..., 0])
