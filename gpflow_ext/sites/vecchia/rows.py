"""The rows of B of a Vecchia approximation: how each value depends on its neighbours, Ω = BᵀD⁻¹B."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.algebra import Pair

DTYPE = tf.float64


class Rows(NamedTuple):
    """B and D; S is 1, where all latent functions share a kernel, or L."""

    cliques: tf.Tensor  # each datum and its neighbours, N for none, [N, m + 1]
    a: tf.Tensor  # coefficients of the neighbours, zero for none, [N, m, S]
    D: tf.Tensor  # conditional variances, [N, S]

    def innovations(self, h: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return Bh [N, L], and h at the neighbours, [N, m, L]."""
        near = tf.gather(tf.pad(h, [[0, 1], [0, 0]]), self.cliques[:, 1:])
        return h - tf.reduce_sum(self.a * near, axis=1), near

    def transposed(self, values: tf.Tensor) -> tf.Tensor:
        """Return Bᵀv for v [N, L]. O(Nm)."""
        N, L = sizes(values)
        pulled = tf.reshape(self.a * values[:, None], [-1, L])
        neighbours = tf.reshape(self.cliques[:, 1:], [-1])
        return values - tf.math.unsorted_segment_sum(pulled, neighbours, N + 1)[:-1]

    def precision(self, h: tf.Tensor) -> tf.Tensor:
        """Return Ωh = BᵀD⁻¹Bh for h [N, L]. O(Nm)."""
        return self.transposed(self.innovations(h)[0] / self.D)

    def coupling(self, a: Pair, b: Pair) -> tf.Tensor:
        """See `algebra.coupling`: aᵀΣb has the gradient of −h_aᵀΩh_b with h = Σa and Σb held."""
        (mine, _), (its, _) = (self.innovations(tf.stop_gradient(tf.cast(p.shift, DTYPE))) for p in (a, b))
        moving = tf.cast(-tf.reduce_sum(mine * its / self.D), a.alpha.dtype)
        return tf.stop_gradient(tf.reduce_sum(a.alpha * b.shift) - moving) + moving

    def product(
        self, alpha: tf.Tensor, solve: Callable[[Rows], Callable[[tf.Tensor], tf.Tensor]]
    ) -> tf.Tensor:
        """Return Σα, [N, L], for what returns a function Ω⁻¹ of rows.

        Differentiable once, in a, D and α: of gᵀΣα = (Bh_g)ᵀD⁻¹(Bh_α) for h = Σα the adjoints are those of
        −h_gᵀΩh_α with both h held.
        """

        @tf.custom_gradient
        def value(alpha: tf.Tensor, a: tf.Tensor, D: tf.Tensor) -> Any:
            rows = self._replace(a=a, D=D)
            solved = solve(rows)
            h = solved(tf.cast(alpha, DTYPE))

            def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
                back = solved(tf.cast(upstream, DTYPE))
                (mine, near), (its, its_near) = map(rows.innovations, (h, back))
                by_a = (its_near * mine[:, None] + near * its[:, None]) / D[:, None]
                by_D = mine * its / D**2
                return tf.cast(back, alpha.dtype), _like(by_a, a), _like(by_D, D)

            return tf.cast(h, alpha.dtype), gradient

        return value(alpha, self.a, self.D)


def _like(by: tf.Tensor, part: tf.Tensor) -> tf.Tensor:
    """Return an adjoint [..., L] of what may be shared by the latent functions, in its shape."""
    return tf.reduce_sum(by, axis=-1, keepdims=True) if part.shape[-1] == 1 else by
