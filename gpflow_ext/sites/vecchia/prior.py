"""The Vecchia prior at the data, and its factor for given sites.

Each value depends on its neighbours among those before it in an order (Vecchia 1988):

    f_n = μ_n + aₙᵀ(f − μ)_c + ε_n,  ε_n ~ N(0, D_n)        Ω = Σ⁻¹ = BᵀD⁻¹B
    α = (I + ΛΣ)⁻¹ρ = ρ − Λh    h = Σα = (Ω + Λ)⁻¹ρ    ½ log|I + ΛΣ| = ½ log|Ω + Λ| + ½ Σ log D

Row n of B has 1 at n and −aₙ at the neighbours c. Ω + Λ is factorised by nested dissection; see `fronts`.
Precisions may be negative while it is positive definite. All of it is in double precision, whatever the model
is in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import conjugate_gradients
from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.algebra import Pair, Sites, log_normaliser
from gpflow_ext.sites.vecchia import blocks, fronts, grouping
from gpflow_ext.sites.vecchia.rows import DTYPE, Rows

ITERATIONS = 25  # of conjugate gradients, which take as long as a factor


class TreeAt(NamedTuple):
    """`grouping.Tree` as tensors, with the cliques."""

    cliques: tf.Tensor  # each datum and its neighbours, N for none, [N, m + 1]
    root: fronts.GroupAt
    entries: tf.Tensor  # [N, pairs]


class Vecchia(NamedTuple):
    """A Vecchia prior at the data; S is 1, where all latent functions share a kernel, or L."""

    mean: tf.Tensor  # μ, [N, L]
    a: tf.Tensor  # coefficients of the neighbours, zero for none, [N, m, S]
    D: tf.Tensor  # conditional variances, [N, S]
    omega: tf.Tensor  # Ω in the panels of the tree, [entries, S]
    own: tf.Tensor  # prior variances, [N, S]
    tree: TreeAt

    @property
    def hands_on(self) -> bool:
        """Whether a factor is made of tensors alone, which a loop can hand on."""
        return True

    @property
    def solves_nearby(self) -> bool:
        """Whether a factor solves systems of other precisions too, see `VecchiaFactor.near`."""
        return True

    @property
    def held_factors(self) -> bool:
        """Whether only `log_normaliser` and `product` are differentiable in the prior."""
        return True

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see: none, [1, 1]."""
        return tf.zeros([1, 1], self.mean.dtype)

    def variance(self) -> tf.Tensor:
        """Return the prior variances of the kernel, [N, 1 or L]."""
        return self.own

    @property
    def rows(self) -> Rows:
        """B and D."""
        return Rows(self.tree.cliques, self.a, self.D)

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Σα, [N, L], by a factorisation of Ω; differentiable once, see `Rows.product`."""

        def solve(rows: Rows) -> Callable[[tf.Tensor], tf.Tensor]:
            held = self._replace(a=rows.a, D=rows.D, omega=tf.stop_gradient(self.omega))
            return functools.partial(fronts.solve, self.tree.root, held._blocks(tf.zeros_like(alpha)))

        return self.rows.product(alpha, solve)

    def precision(self, h: tf.Tensor) -> tf.Tensor:
        """Return Ωh for h [N, L]. O(Nm)."""
        return self.rows.precision(h)

    def coupling(self, a: Pair, b: Pair) -> tf.Tensor:
        """See `algebra.coupling`."""
        return self.rows.coupling(a, b)

    def _blocks(self, prec: tf.Tensor) -> tuple[fronts.Block, ...]:
        """Return the blocks of Ω + Λ for prec [N, L]."""
        omega = self.omega
        if omega.shape[-1] != prec.shape[-1]:
            omega = tf.repeat(omega, sizes(prec)[1], axis=1)
        return fronts.factorise(self.tree.root, omega, tf.cast(prec, DTYPE))

    def system(self, prec: tf.Tensor) -> VecchiaFactor:
        """Return what solves with Ω + Λ for prec [N, L]."""
        return self.factorise(prec)

    def factorise(self, prec: tf.Tensor) -> VecchiaFactor:
        """Factorise Ω + Λ for prec [N, L]."""
        return VecchiaFactor(self, prec, self._blocks(prec))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """Return log ∫ p(f) ∏ₙ tₙ(fₙ) df, differentiable in the prior (not in the sites).

        Its gradient is that of E_q[log p(f)] with q held (Fisher's identity), which needs the covariances
        within cliques alone; α for μ (docs/derivations.md, section 3).
        """
        held = tf.nest.map_structure(tf.stop_gradient, self)
        known = held.factorise(sites.prec) if factor is None else factor
        alpha, shift = known.solve(sites.nat1 - sites.prec * held.mean)
        value = log_normaliser(held, sites, known, shift)
        squares, slopes = known.innovations(shift[..., None])
        moving = tf.cast(self.expected_log_density(squares, slopes), self.mean.dtype)
        moving += tf.reduce_sum(tf.stop_gradient(alpha) * self.mean)
        return tf.stop_gradient(value - moving) + moving

    def expected_log_density(self, squares: tf.Tensor, slopes: tf.Tensor) -> tf.Tensor:
        """Return E[log p(h)] up to a constant, from what `VecchiaFactor.innovations` returns, held, []."""
        squares, slopes = tf.stop_gradient(squares), tf.stop_gradient(slopes)
        squares -= 2.0 * tf.reduce_sum(slopes * (self.a - tf.stop_gradient(self.a)), axis=1)
        return -0.5 * tf.reduce_sum(squares / self.D + tf.math.log(self.D))


class VecchiaFactor(NamedTuple):
    """The factorised Ω + Λ."""

    prior: Vecchia
    prec: tf.Tensor  # [N, L]
    blocks: tuple[fronts.Block, ...]

    @property
    def finite(self) -> tf.Tensor:
        """Whether Ω + Λ is positive definite, []."""
        return tf.math.is_finite(self.half_log_det())

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛΣ)⁻¹b and Σα for b [N, L]."""
        h = fronts.solve(self.prior.tree.root, self.blocks, tf.cast(b, DTYPE))
        alpha = tf.cast(b, DTYPE) - tf.cast(self.prec, DTYPE) * h
        return Pair(tf.cast(alpha, b.dtype), tf.cast(h, b.dtype))

    def draw(self, b: tf.Tensor, num_samples: int, normal: Callable[..., tf.Tensor]) -> tf.Tensor:
        """Return draws of N(Σα, (Ω + Λ)⁻¹) for b [N, L], [N, L, S]; see `fronts.draw`."""
        return fronts.draw(self.prior.tree.root, self.blocks, tf.cast(b, DTYPE), num_samples, normal)

    def near(self, prec: tf.Tensor, b: tf.Tensor, tolerance: tf.Tensor) -> tuple[Pair, tf.Tensor]:
        """Return α = Ωh and h for (Ω + Λ')h = b at other precisions Λ', and whether h is within a tolerance.

        By conjugate gradients that this factor preconditions; the tolerance is relative, in its norm.
        """
        own, root = tf.cast(prec, DTYPE), self.prior.tree.root
        h, enough = conjugate_gradients.solve(
            lambda x: self.prior.precision(x) + own * x,
            tf.cast(b, DTYPE),
            tf.cast(tolerance, DTYPE),
            0,
            ITERATIONS,
            lambda r: fronts.solve(root, self.blocks, r),
        )
        return Pair(tf.cast(self.prior.precision(h), b.dtype), tf.cast(h, b.dtype)), enough

    def columns(self, b: tf.Tensor) -> tf.Tensor:
        """Return (Ω + Λ)⁻¹b for columns b [N, L, C]."""
        return fronts.solve_columns(self.prior.tree.root, self.blocks, b)

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛΣ|, summed over the latent functions, []."""
        log_D = tf.math.log(self.prior.D) + tf.zeros(sizes(self.prec), DTYPE)
        return tf.cast(fronts.half_log_det(self.blocks) + 0.5 * tf.reduce_sum(log_D), self.prec.dtype)

    def variance(self) -> tf.Tensor:
        """Return diag[(Ω + Λ)⁻¹], [N, L]."""
        found = tf.gather(self._inverse(), self.prior.tree.entries[:, 0])
        return tf.ensure_shape(tf.cast(found, self.prec.dtype), self.prec.shape)

    def innovations(self, columns: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return E[(uᵀh)²], [N, L], and E[hhᵀ]u at the neighbours, [N, m, L], of cliques with u = (1, −a).

        hᵢhⱼ has the expectation (Ω + Λ)⁻¹ᵢⱼ + cᵢᵀcⱼ for rows cᵢ of columns [N, L, C].
        """
        V, a, tree = self._inverse(), tf.stop_gradient(self.prior.a), self.prior.tree
        columns = tf.cast(columns, DTYPE)
        (k, (N, L, C)), total = (sizes(tree.cliques)[1], sizes(columns)), sizes(V)[0]
        square = grouping.squared(k)

        def step(rows: list[tf.Tensor], _: Any) -> Any:
            entries, clique, a = rows
            u = tf.pad(-a, [[0, 0], [1, 0], [0, 0]], constant_values=tf.ones([], DTYPE))  # [b, k, S]
            cov = tf.gather(V, tf.minimum(entries, total - 1)) * _there(entries < total)
            cov = tf.reshape(tf.gather(cov, square, axis=1), [-1, k, k, L])
            near = tf.gather(columns, tf.minimum(clique, N - 1)) * _there(clique < N)[..., None]
            own = tf.reduce_sum(near * u[..., None], axis=1)  # [b, L, C]
            seen = tf.reduce_sum(cov * u[:, None], axis=2) + tf.reduce_sum(near * own[:, None], axis=-1)
            seen = tf.ensure_shape(seen, [None, k, V.shape[1]])
            return [tf.reduce_sum(seen * u, axis=1), seen[:, 1:]], []

        rows, shapes = [tree.entries, tree.cliques, a], [[L], [k - 1, L]]
        (squares, slopes), _ = blocks.over(step, rows, L * k * max(k, C), shapes)
        return squares, slopes

    def _inverse(self) -> tf.Tensor:
        return fronts.inverse(self.prior.tree.root, self.blocks)


def _there(where: tf.Tensor) -> tf.Tensor:
    return tf.cast(where, DTYPE)[..., None]


def assemble(tree: TreeAt, a: tf.Tensor, D: tf.Tensor, entries: int | tf.Tensor) -> tf.Tensor:
    """Return Ω = BᵀD⁻¹B in the panels, [entries, S]."""
    first, second = grouping.pairs(a.shape[1] + 1)
    u = tf.pad(-a, [[0, 0], [1, 0], [0, 0]], constant_values=tf.ones([], a.dtype))
    values = tf.gather(u, first, axis=1) * tf.gather(u, second, axis=1) / D[:, None]  # [N, pairs, S]
    S = sizes(D)[1]
    at, flat = tf.reshape(tree.entries, [-1]), tf.reshape(values, [-1, S])
    return tf.math.unsorted_segment_sum(flat, at, entries + 1)[:-1]
