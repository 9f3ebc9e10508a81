"""The prior f = μ + h(t)ᵀx(t) of a Gauss-Markov process x at sorted times, and its factor for given sites.

    x_k = F_k x_{k−1} + w_k,  w_k ~ N(0, Q_k),  f_k = μ_k + hₖᵀx_k,        F_0 = 0, Q_0 the prior covariance

A Kalman filter with the sites in natural parameters, and the smoother of Bryson & Frazier (1963; de Jong
1989), which inverts nothing: P⁻ may be singular, as for constants, cosines and equal times. With p = P⁻h:

    s = 1 + λ hᵀp    g = λ/s    K = pg    u = (ρ − λhᵀx⁻)/s    x = x⁻ + pu    P = P⁻ − g ppᵀ
    ½ log|I + ΛΣ| = ½ Σ log s
    backwards from q = 0, M = 0:    α = u − Kᵀq    r = q + hα    q ← Fᵀr
    N = M − (MK)hᵀ − h(MK)ᵀ + (g + KᵀMK) hhᵀ                     M ← FᵀNF
    Σα = hᵀx⁻ + pᵀr                 Var[f] = hᵀp − pᵀNp

α is exact: it is not ρ − ΛΣα, which cancels where Λ is large. Precisions may be negative while all s > 0.
O(Nd³) for d states, in chunks; see `chunked`. All of it is in double precision, whatever the model is in: in
single precision Q = P∞ − FP∞Fᵀ would cancel where times are close.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites import chunked
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser
from gpflow_ext.sites.chunked import dot, matmul, matvec, outer, symmetric, transpose


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
        """Undo `lay`."""
        moved = tf.gather(chunked.unlay(values, sizes(self.mean)[0]), self.rank)
        return tf.ensure_shape(tf.cast(moved, self.mean.dtype), self.mean.shape)

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
        b, zero = self.lay(alpha), self._zero(alpha)

        def back(q: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            F, h, b = row
            r = q + h * b
            return matvec(transpose(F), r), [r]

        def forth(x: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            F, Q, r = row
            x = matvec(F, x) + matvec(Q, r)
            return x, [x]

        (r,) = _affine(back, zero, [self.F, self.h, b], 1, self.leap, reverse=True)
        (x,) = _affine(forth, zero, [self.F, self.Q, r], 1, self.leap)
        return r, x, self.unlay(tf.reduce_sum(self.h * x, axis=1))

    def _zero(self, like: tf.Tensor) -> tf.Tensor:
        """Return the state of no data, [d, L, C]."""
        return tf.zeros([self.h.shape[1], sizes(like)[1], sizes(self.F)[-1]], self.F.dtype)

    def factorise(self, prec: tf.Tensor) -> MarkovFactor:
        """Run the filter of covariances for prec [N, L]. O(Nd³)."""
        lam, (d, L, C) = self.lay(prec), sizes(self._zero(prec))
        rows = [self.F, self.Q, self.h, lam]
        zeros = tf.zeros([d, d, L, C], self.F.dtype)
        eye = zeros + tf.eye(d, dtype=self.F.dtype)[:, :, None, None]

        def predict(P: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, ...]:
            F, Q, h, lam = row
            P = symmetric(matmul(matmul(F, P), transpose(F)) + Q)
            p = matvec(P, h)
            s = 1.0 + lam * dot(h, p)
            return P, p, s, lam / s

        def from_nothing(carry: Any, row: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
            A, P, J = carry
            P, p, _, g = predict(P, row)
            A = matmul(row[0], A)
            seen = matvec(transpose(A), row[2] + tf.zeros_like(p))
            A -= outer(p * g, seen)
            return (A, P - outer(p * g, p), J + outer(seen * g, seen)), []

        def over_chunk(P: tf.Tensor, row: list[tf.Tensor]) -> tf.Tensor:
            A, end, J = row
            PJ = matmul(P, J) + tf.eye(d, dtype=P.dtype)[:, :, None]
            inner = tf.linalg.solve(*(tf.transpose(part, [2, 0, 1]) for part in (PJ, P)))  # [L, d, d]
            return symmetric(matmul(matmul(A, tf.transpose(inner, [1, 2, 0])), transpose(A)) + end)

        def filtered(carry: Any, row: list[tf.Tensor]) -> tuple[Any, list[tf.Tensor]]:
            Psi, P = carry
            P, p, s, g = predict(P, row)
            Psi = matmul(row[0], Psi)
            Psi -= outer(p * g, matvec(transpose(Psi), row[2] + tf.zeros_like(p)))
            return (Psi, P - outer(p * g, p)), [P, p, s]

        start = zeros
        if not chunked.is_one(C):
            maps, _ = chunked.scan(from_nothing, (eye, zeros, zeros), rows, 0)
            start = chunked.along_chunks(over_chunk, zeros[..., 0], maps)
        (Psi, _), (P, p, s) = chunked.scan(filtered, (eye, start), rows, 3)
        return MarkovFactor(self, lam, P, p, s, Psi)

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites). O(Nd³).

        No loop is differentiated: the adjoints of the filter are those of the smoother, ½(rrᵀ − N) for Q and
        (rrᵀ − N)FP₋ + rx₋ᵀ for F, with the filtered state before; α for μ (docs/derivations.md, section 3).
        """

        @tf.custom_gradient
        def value(mean: tf.Tensor, F: tf.Tensor, Q: tf.Tensor) -> Any:
            prior = self._replace(mean=mean, F=F, Q=Q)
            known = prior.factorise(sites.prec) if factor is None else factor
            passes = known.passes(sites.nat1 - sites.prec * mean)
            alpha, shift = known.pair(passes)

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
                spread, _ = known.adjoint()
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
        """Whether I + ΛΣ is positive, []."""
        return tf.reduce_all(self.s > 0.0)

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L]. O(Nd²)."""
        return self.pair(self.passes(b))

    def pair(self, passes: Passes) -> Pair:
        """Return what `solve` does."""
        shift = tf.reduce_sum(self.prior.h * passes.before + self.p * passes.r, axis=1)
        return Pair(self.prior.unlay(passes.alpha), self.prior.unlay(shift))

    def passes(self, b: tf.Tensor) -> Passes:
        """Run the filter of means and the smoother's adjoint, for b [N, L], or S of each [N, LS]. O(Nd²)."""
        prior, b, zero = self.prior, self.prior.lay(b), self.prior._zero(b)

        def forth(x: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            F, h, p, lam, s, b = row
            x = matvec(F, x)
            u = (b - lam * dot(h, x)) / s
            return x + p * u, [x, u]

        def back(q: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            F, h, p, lam, s, u = row
            alpha = u - lam / s * dot(p, q)
            r = q + h * alpha
            return matvec(transpose(F), r), [alpha, r]

        *fixed, Psi = (
            copies(part, sizes(zero)[1]) for part in (prior.F, prior.h, self.p, self.lam, self.s, self.Psi)
        )
        before, u = _affine(forth, zero, [*fixed, b], 2, Psi)
        alpha, r = _affine(back, zero, [*fixed, u], 2, Psi, reverse=True)
        return Passes(before, u, alpha, r)

    def adjoint(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return N [n, d, d, L, C] of the smoother, and diag Λ^½B⁻¹Λ^½ = g + KᵀMK [n, L, C]. O(Nd³)."""
        prior, zero = self.prior, tf.zeros_like(self.P[0])

        def back(M: tf.Tensor, row: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            F, h, p, lam, s = row
            g = lam / s
            MK = matvec(M, p * g)
            held = h + tf.zeros_like(p)
            reduced = g + g * dot(p, MK)
            cross = outer(MK, held)
            N = symmetric(M - cross - transpose(cross) + reduced * outer(held, held))
            return matmul(matmul(transpose(F), N), F), [N, reduced]

        def over_chunk(M: tf.Tensor, row: list[tf.Tensor]) -> tf.Tensor:
            Psi, own = row
            return symmetric(matmul(matmul(transpose(Psi), M), Psi) + own)

        rows, start = [prior.F, prior.h, self.p, self.lam, self.s], zero
        if not chunked.is_one(sizes(zero)[-1]):
            own, _ = chunked.scan(lambda M, row: (back(M, row)[0], []), zero, rows, 0, reverse=True)
            start = chunked.along_chunks(over_chunk, zero[..., 0], [self.Psi, own], reverse=True)
        _, (N, reduced) = chunked.scan(back, start, rows, 2, reverse=True)
        return N, reduced

    def variance(self) -> tf.Tensor:
        """Return diag[(Σ⁻¹ + Λ)⁻¹], [N, L]. O(Nd³)."""
        N, _ = self.adjoint()
        Np = tf.reduce_sum(N * self.p[:, None], axis=2)
        return self.prior.unlay(tf.reduce_sum(self.p * (self.prior.h - Np), axis=1))

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, []."""
        return tf.cast(0.5 * tf.reduce_sum(tf.math.log(self.s)), self.prior.mean.dtype)

    def filtered_mean(self, passes: Passes) -> tf.Tensor:
        """Return x, [n, d, L, C]."""
        return passes.before + copies(self.p, sizes(passes.u)[1]) * passes.u[:, None]

    def filtered_covariance(self) -> tf.Tensor:
        """Return P, [n, d, d, L, C]."""
        return self.P - (self.lam / self.s)[:, None, None] * _outer_rows(self.p, self.p)


def _affine(
    step: chunked.Step,
    zero: tf.Tensor,
    rows: list[tf.Tensor],
    outputs: int,
    product: tf.Tensor,
    reverse: bool = False,
) -> list[tf.Tensor]:
    """Run an affine recursion of vectors [d, L, C] from zero, the linear parts of whose chunks are known.

    Parameters
    ----------
    product
        The product over a chunk of what multiplies the state forwards, [d, d, L, C]; backwards that is its
        transpose.
    """
    start = zero
    if not chunked.is_one(sizes(zero)[-1]):
        own, _ = chunked.scan(lambda x, row: (step(x, row)[0], []), zero, rows, 0, reverse)
        whole = (transpose(product) if reverse else product) + tf.zeros_like(zero[None])
        start = chunked.along_chunks(
            lambda x, row: matvec(row[0], x) + row[1], zero[..., 0], [whole, own], reverse
        )
    return chunked.scan(step, start, rows, outputs, reverse)[1]


def copies(part: tf.Tensor, number: int | tf.Tensor) -> tf.Tensor:
    """Return a part [..., L, C] for ``number`` functions, each of L as often; that of one or all as it is."""
    L = part.shape[-2]
    return part if L in (1, number) else tf.repeat(part, number // L, axis=-2)


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
