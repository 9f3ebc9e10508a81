"""The prior f = μ + h(t)ᵀx(t) of a Gauss-Markov process x at sorted times, and its factor for given sites.

    x_k = F_k x_{k−1} + w_k,  w_k ~ N(0, Q_k),  f_k = μ_k + hₖᵀx_k,        F_0 = 0, Q_0 the prior covariance

A Kalman filter with the sites in natural parameters, and the smoother of Bryson & Frazier (1963; de Jong
1989), which inverts nothing: P⁻ may be singular, as for constants, cosines and equal times. With p = P⁻h:

    s = 1 + λ hᵀp    g = λ/s    K = pg    u = (ρ − λhᵀx⁻)/s    x = x⁻ + pu    P = P⁻ − g ppᵀ
    ½ log|I + ΛΣ| = ½ Σ log|s|
    backwards from q = 0, M = 0:    α = u − Kᵀq    r = q + hα    q ← Fᵀr
    N = M − (MK)hᵀ − h(MK)ᵀ + (g + KᵀMK) hhᵀ                     M ← FᵀNF
    Σα = hᵀx⁻ + pᵀr                 Var[f] = hᵀp − pᵀNp

α is exact: it is not ρ − ΛΣα, which cancels where Λ is large. Precisions may be negative while Σ⁻¹ + Λ is
positive definite. An s may then be negative too, until later data make up for it: by Haynsworth's additivity
of inertia as many s are negative at λ > 0 as at λ < 0 (docs/derivations.md, section 3).
O(Nd³) for d states, in chunks; see `chunked`. All of it is in double precision, whatever the model is in: in
single precision Q = P∞ − FP∞Fᵀ would cancel where times are close.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites import chunked, sweeps
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser


class Markov(NamedTuple):
    """A Gauss-Markov prior at the data; see the module for the letters, `chunked` for the layout.

    Of the latent functions in all but ``mean`` there are 1, where all share a kernel, or L.
    """

    mean: tf.Tensor  # μ, [N, L]
    order: tf.Tensor  # the datum of each time, [N]
    rank: tf.Tensor  # the time of each datum, [N]
    F: tf.Tensor  # [n, d, d, 1 or L, C]
    Q: tf.Tensor  # [n, d, d, 1 or L, C]
    h: tf.Tensor  # [n, d, 1 or L, C]
    leap: tf.Tensor  # the product of the F of a chunk, [d, d, 1 or L, C]
    own: tf.Tensor  # the prior variances diag Σ, [N, 1 or L]

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def lay(self, values: tf.Tensor) -> tf.Tensor:
        """Return values of the data [N, L] in the layout of time, [n, L, C], zero where it is filled up."""
        moved = tf.cast(tf.gather(values, self.order), self.F.dtype)
        n, C = sizes(self.F)[0], sizes(self.F)[-1]
        N, L = sizes(moved)
        filled = tf.concat([moved, tf.zeros([n * C - N, L], moved.dtype)], axis=0)
        return tf.transpose(tf.reshape(filled, [C, n, L]), [1, 2, 0])

    def unlay(self, values: tf.Tensor) -> tf.Tensor:
        """Undo `lay`, also for several columns to a latent function, [N, LS]."""
        moved = tf.gather(chunked.unlay(values, sizes(self.mean)[0]), self.rank)
        return tf.ensure_shape(tf.cast(moved, self.mean.dtype), [self.mean.shape[0], values.shape[1]])

    def variance(self) -> tf.Tensor:
        """Return diag Σ, [N, 1 or L]."""
        return self.own

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L]: one pass back, r = Fᵀr₊ + hα, and one forth, x = Fx₋ + Qr. O(Nd²).

        Differentiable once, in F, Q and α: of gᵀΣα the adjoint of Q is sym(r_g r_αᵀ), that of F
        r_g x_αᵀ + r_α x_gᵀ with the states x before.
        """

        @tf.custom_gradient
        def value(alpha: tf.Tensor, F: tf.Tensor, Q: tf.Tensor) -> Any:
            prior = self._replace(F=F, Q=Q)
            r, x, shift = prior._through(alpha)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
                r_g, x_g, back = prior._through(upstream)
                by_Q = _symmetric_rows(_outer_rows(r_g, r))
                by_F = _outer_rows(r_g, chunked.before(x)) + _outer_rows(r, chunked.before(x_g))
                return back, _like(by_F, F), _like(by_Q, Q)

            return shift, gradient

        return value(alpha, self.F, self.Q)

    def _through(self, alpha: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return r [n, d, L, C], x [n, d, L, C] and Σα [N, L]."""
        r, x = sweeps.sums(self.F, self.Q, self.h, self.leap, self.lay(alpha))
        return r, x, self.unlay(tf.reduce_sum(self.h * x, axis=1))

    def factorise(self, prec: tf.Tensor) -> MarkovFactor:
        """Run the filter of covariances for prec [N, L]. O(Nd³)."""
        lam = self.lay(prec)
        return MarkovFactor(self, lam, *sweeps.covariances(self.F, self.Q, self.h, lam))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites). O(Nd³).

        No loop is differentiated: the adjoints of the filter are those of the smoother, ½(rrᵀ − N) for Q and
        (rrᵀ − N)FP₋ + rx₋ᵀ for F, with the filtered state before; α for μ (docs/derivations.md, section 3).
        """

        @tf.custom_gradient
        def value(mean: tf.Tensor, F: tf.Tensor, Q: tf.Tensor) -> Any:
            mean, F, Q = map(tf.stop_gradient, (mean, F, Q))
            prior = self._replace(mean=mean, F=F, Q=Q, leap=tf.stop_gradient(self.leap))
            known = prior.factorise(sites.prec) if factor is None else factor
            passes = known.passes(sites.nat1 - sites.prec * mean)
            alpha, shift = known.pair(passes)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
                spread = known.adjoint().N
                by_Q = 0.5 * (_outer_rows(passes.r, passes.r) - spread)
                filtered = known.filtered_mean(passes), known.filtered_covariance()
                x, P = map(chunked.before, filtered)
                by_F = 2.0 * _matmul_rows(_matmul_rows(by_Q, F + tf.zeros_like(P)), P)
                by_F += _outer_rows(passes.r, x)
                scale = tf.cast(upstream, F.dtype)
                return upstream * alpha, scale * _like(by_F, F), scale * _like(by_Q, Q)

            return log_normaliser(prior, sites, known, shift), gradient

        return value(self.mean, self.F, self.Q)


class Passes(NamedTuple):
    """Results of the filter and the smoother for b = ρ, each over time."""

    before: tf.Tensor  # x⁻, [n, d, L, C]
    u: tf.Tensor  # [n, L, C]
    alpha: tf.Tensor  # [n, L, C]
    r: tf.Tensor  # [n, d, L, C]
    shift: tf.Tensor  # Σα, [n, L, C]


class Adjoint(NamedTuple):
    """Results of the smoother for covariances, each over time."""

    N: tf.Tensor  # [n, d, d, L, C]
    reduced: tf.Tensor  # diag Λ^½B⁻¹Λ^½ = g + KᵀMK, [n, L, C]
    var: tf.Tensor  # of f, [n, L, C]


class MarkovFactor(NamedTuple):
    """Results of the covariance filter, for given precisions."""

    prior: Markov
    lam: tf.Tensor  # λ, [n, L, C]
    P: tf.Tensor  # P⁻, [n, d, d, L, C]
    p: tf.Tensor  # P⁻h, [n, d, L, C]
    s: tf.Tensor  # [n, L, C]
    Psi: tf.Tensor  # the product of (I − Khᵀ)F of a chunk, [d, d, L, C]

    @property
    def finite(self) -> tf.Tensor:
        """Whether Σ⁻¹ + Λ is positive definite, [].

        Where s = 1 + λhᵀp is negative, λ has the other sign than hᵀp.
        """
        sign = -tf.sign(tf.reduce_sum(self.prior.h * self.p, axis=1))
        negative = tf.where(self.s < 0.0, sign, tf.zeros_like(self.s))
        balanced = tf.reduce_all(tf.equal(tf.reduce_sum(negative, axis=[0, 2]), 0.0))
        return balanced & tf.reduce_all(tf.math.is_finite(self.s) & tf.not_equal(self.s, 0.0))

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L], or S of each [N, LS]. O(Nd²)."""
        return self.pair(self.passes(b))

    def pair(self, passes: Passes) -> Pair:
        """Return what `solve` does."""
        return Pair(self.prior.unlay(passes.alpha), self.prior.unlay(passes.shift))

    def passes(self, b: tf.Tensor) -> Passes:
        """Run the filter of means and the smoother's adjoint, for b [N, L], or S of each [N, LS]. O(Nd²)."""
        prior, b = self.prior, self.prior.lay(b)
        number = sizes(b)[1]
        fixed = (copies(part, number) for part in (prior.F, prior.h, self.p, self.lam, self.s, self.Psi))
        return Passes(*sweeps.means(b, *fixed))

    def adjoint(self) -> Adjoint:
        """Run the smoother's pass for covariances. O(Nd³)."""
        return Adjoint(*sweeps.adjoint(self.prior.F, self.prior.h, self.p, self.lam, self.s, self.Psi))

    def variance(self) -> tf.Tensor:
        """Return diag[(Σ⁻¹ + Λ)⁻¹], [N, L]. O(Nd³)."""
        return self.prior.unlay(self.adjoint().var)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, [], NaN where it is not `finite`."""
        value = 0.5 * chunked.sum_of_logs(tf.abs(self.s))
        return tf.cast(tf.where(self.finite, value, tf.constant(np.nan, value.dtype)), self.prior.mean.dtype)

    def filtered_mean(self, passes: Passes) -> tf.Tensor:
        """Return x, [n, d, L, C]."""
        return passes.before + copies(self.p, sizes(passes.u)[1]) * passes.u[:, None]

    def filtered_covariance(self) -> tf.Tensor:
        """Return P, [n, d, d, L, C]."""
        return self.P - (self.lam / self.s)[:, None, None] * _outer_rows(self.p, self.p)


def copies(part: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return a part [..., L, C] for ``number`` functions, each of L as often; that of one or all as it is."""
    L = part.shape[-2]
    same = L == 1 or (isinstance(number, int) and number == L)
    return part if same else tf.repeat(part, number // L, axis=-2)


def _outer_rows(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply [n, i, ...] by [n, j, ...] to [n, i, j, ...]."""
    return a[:, :, None] * b[:, None]


def _matmul_rows(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Multiply [n, i, j, ...] by [n, j, k, ...] to [n, i, k, ...]."""
    return tf.einsum("nij...,njk...->nik...", a, b)


def _symmetric_rows(a: tf.Tensor) -> tf.Tensor:
    """Return the symmetric part of [n, i, i, ...]."""
    return 0.5 * (a + tf.transpose(a, [0, 2, 1, *range(3, a.shape.rank)]))


def _like(by: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Return an adjoint [n, ..., L, C] of what may be shared by the latent functions, in its shape."""
    return tf.reduce_sum(by, axis=-2, keepdims=True) if part.shape[-2] == 1 else by
