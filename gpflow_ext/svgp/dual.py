"""Sites tied to the inducing variables that stay where the data put them while the hyperparameters move.

q(v) = N(v; 0, I) exp(sᵀv − ½vᵀSv), u = Lv, K_uu = LLᵀ, in whitened coordinates; with aₙ = L⁻¹k_u(xₙ)

    S = Σₙ λₙaₙaₙᵀ        s = Σₙ ρₙaₙ

are the dual parameters of sparse variational inference (Adam, Chang, Khan & Solin 2021), summed over the
data. The natural-gradient step of `svgp.natural_gradient` averages them over minibatches, and holds q(v),
hence (s, S), while the hyperparameters move. Here the sites are held as functions of u,
exp(sᵀL⁻¹u − ½uᵀL⁻ᵀSL⁻¹u): q follows the hyperparameters as the posterior of the same sites does, and the
bound is tighter than with q held. When L becomes L', W = L⁻¹L' takes (s, S) to (Wᵀs, WᵀSW): S stays a sum of
outer products, in single precision too.

The paper holds LSLᵀ and Ls, sites weighted by kernel values. Where the kernel's variance grows c-fold S ought
to grow as much, as it does here; with LSLᵀ held it shrinks, and bounds were lower than with q held.

The gradient in L needs no derivative of a factorisation of I + S. With m, C the moments of q, (ŝ, Ŝ) the
dual parameters that the step moves towards, δ = ŝ − s, Δ = Ŝ − S and w = C(δ − Δm), the bound has in W = I
the adjoint

    W̄ = s wᵀ + S (CΔC − w mᵀ − m wᵀ)        L̄ = L⁻ᵀW̄, lower triangle

besides that with q held (docs/derivations.md, section 12). It vanishes where the dual parameters are at their
fixed point, (s, S) = (ŝ, Ŝ), and is as noisy as one minibatch is about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Projection, products
from gpflow_ext.svgp.natural_gradient import AscentUpdates, WhitenedVariational
from gpflow_ext.svgp.whitened_normal import moments
from gpflow_ext.training.distribute import Shards


class SparseVariational(WhitenedVariational, Protocol):
    """Protocol of a model for the engine."""

    def gram(self) -> tf.Tensor:
        """Return K_uu, [1 or K, M, M]."""


class DualUpdates(AscentUpdates):
    """Functions to compile: a step on a minibatch whose dual parameters follow the hyperparameters.

    The parameters are those of `AscentUpdates`, and q moves by natural gradients.
    """

    _target: SparseVariational

    def __init__(
        self,
        target: SparseVariational,
        hypers: Sequence[tf.Variable],
        optimizer: Any,
        natural: bool,
        shards: Shards | None,
    ) -> None:
        super().__init__(target, hypers, optimizer, natural, shards)
        self.chol = tf.Variable(tf.zeros_like(target.gram()), trainable=False)  # L where (s, S) are

    @property
    def of_q(self) -> list[tf.Variable]:
        """See `AscentUpdates.of_q`."""
        return [*super().of_q, self.chol]

    def start(self) -> tf.Tensor:
        """See `AscentUpdates.start`."""
        self.chol.assign(linalg.cholesky(self._target.gram())[0])
        return super().start()

    def _step(
        self, X: tf.Tensor, Y: tf.Tensor, least: tf.Tensor, length: tf.Tensor, moving: Sequence[tf.Variable]
    ) -> tf.Tensor:
        outcome = super()._step(X, Y, least, length, moving)
        if moving:
            self._carry()
        return outcome

    def _carry(self) -> None:
        """Take (s, S) to where the hyperparameters are now. O(KM³).

        Where that gives no Gaussian q is held instead.
        """
        chol, known = linalg.cholesky(self._target.gram())
        W = tf.linalg.triangular_solve(self.chol, chol)
        WS = tf.matmul(W, self._seen(), transpose_a=True)
        prec = tf.reverse(tf.matmul(WS, W), [-1, -2])
        prec = tf.linalg.set_diag(prec, tf.linalg.diag_part(prec) + 1.0)
        nat1 = products.matvec(tf.linalg.matrix_transpose(W), self.nat1)
        mean, root, finite = moments(nat1, prec)
        kept = (self.nat1, self.prec, self._target.q_mu, self._target.q_sqrt)
        for variable, value in zip(kept, (nat1, prec, mean, root), strict=True):
            variable.assign(tf.where(known & finite, value, variable))
        self.chol.assign(chol)

    def _seen(self) -> tf.Tensor:
        """Return S, [K, M, M]."""
        prec = _symmetric(tf.reverse(self.prec, [-1, -2]))
        return tf.linalg.set_diag(prec, tf.linalg.diag_part(prec) - 1.0)

    def _further_adjoints(
        self, prior: Projection, gram: tf.Tensor, pull: tf.Tensor
    ) -> list[tuple[tf.Tensor, tf.Tensor]]:
        """Return L and the gradient of the bound in it that comes by (s, S), the share of one replica."""
        q_mu, q_sqrt = (tf.convert_to_tensor(part) for part in (self._target.q_mu, self._target.q_sqrt))
        S, share = self._seen(), 1.0 / (1 if self._shards is None else self._shards.num_replicas)
        change = _symmetric(tf.reverse(gram, [-1, -2])) - share * S
        C = tf.matmul(q_sqrt, q_sqrt, transpose_b=True)
        w = products.matvec(C, pull - share * self.nat1 - products.matvec(change, q_mu))
        w, m, s = (tf.transpose(part)[..., None] for part in (w, q_mu, self.nat1))  # [K, M, 1]
        outer = tf.matmul(w, m, transpose_b=True)
        inner = tf.matmul(C, tf.matmul(change, C)) - outer - tf.linalg.matrix_transpose(outer)
        by_W = tf.matmul(s, w, transpose_b=True) + tf.matmul(S, inner)
        if prior.chol.shape[0] == 1:
            by_W = tf.reduce_sum(by_W, axis=0, keepdims=True)
        by_W = tf.linalg.band_part(by_W, -1, 0)  # W is lower triangular
        by_L = tf.linalg.triangular_solve(prior.chol, by_W, adjoint=True)
        return [(prior.chol, tf.linalg.band_part(by_L, -1, 0))]


def _symmetric(upper: tf.Tensor) -> tf.Tensor:
    """Return the symmetric matrices [K, M, M] of which only the upper triangles are read."""
    half = tf.linalg.band_part(upper, 0, -1)
    return tf.linalg.set_diag(half + tf.linalg.matrix_transpose(half), tf.linalg.diag_part(half))
