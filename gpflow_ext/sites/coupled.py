"""The prior of outputs f = Wg, mixtures of independent functions g, as one Gaussian vector of all outputs.

The values of P outputs at N data are laid out in a line of NP, output by output within each datum: a prior
of one latent function at NP "data", on which all of the algebra stands. The inducing variables are those of
all g in a line of T = SM, with a K_uu of S blocks. All sites are conditioned on together, at O((NP)³) or
O(NPT²).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics import batched
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.sites.algebra import Pair, Sites, energy, with_inverse
from gpflow_ext.sites.projection import Message


class Coupled(NamedTuple):
    """The prior of coupled outputs at the data."""

    mean: tf.Tensor  # [N, P]
    flat: Any  # the same as a `Dense` or `Projection` of NP values of one latent function

    @property
    def hands_on(self) -> bool:
        """Whether a factor is made of tensors alone, which a loop can hand on."""
        return True

    @property
    def solves_nearby(self) -> bool:
        """Whether a factor is to serve for other precisions near its own; see `conjugate.near`."""
        near: bool = self.flat.solves_nearby
        return near

    @property
    def residual(self) -> tf.Tensor:
        """Variance that the sites do not see, [N, P]."""
        return self.unpack(self.flat.residual + tf.zeros_like(self.flat.mean))

    @property
    def A(self) -> tf.Tensor:
        """See `Projection`, [1, T, NP]."""
        return self.flat.A

    @property
    def chol(self) -> tf.Tensor:
        """See `Projection`, [1, T, T]."""
        return self.flat.chol

    @property
    def cov(self) -> tf.Tensor:
        """See `Dense`, [1, NP, NP]."""
        return self.flat.cov

    def pack(self, values: tf.Tensor) -> tf.Tensor:
        """Lay values [N, P] out in a line, [NP, 1]."""
        return tf.reshape(values, [-1, 1])

    def unpack(self, values: tf.Tensor) -> tf.Tensor:
        """Undo `pack`."""
        return tf.ensure_shape(tf.reshape(values, tf.shape(self.mean)), self.mean.shape)

    def product(self, alpha: tf.Tensor) -> tf.Tensor:
        """Return Qα, [N, P]."""
        return self.unpack(self.flat.product(self.pack(alpha)))

    def energy(self, alpha: tf.Tensor, shift: tf.Tensor) -> tf.Tensor:
        """See `algebra.energy`."""
        return energy(self.flat, self.pack(alpha), self.pack(shift))

    def variance(self) -> tf.Tensor:
        """Return the prior variances of f, [N, P]."""
        return self.unpack(self.flat.variance())

    def factorise(self, prec: tf.Tensor) -> CoupledFactor:
        """Factorise I + ΛQ for prec [N, P]."""
        return CoupledFactor(self, self.flat.factorise(self.pack(prec)))

    def log_normaliser(self, sites: Sites, factor: Any = None) -> tf.Tensor:
        """See `Prior.log_normaliser`."""
        packed = Sites(*map(self.pack, sites))
        return self.flat.log_normaliser(packed, None if factor is None else factor.flat)

    def message(self, sites: Sites) -> Message:
        """Return the message of the sites [N, P] to v; see `Projection.message`."""
        told: Message = self.flat.message(Sites(*map(self.pack, sites)))
        return told

    def whiten(self, chol: tf.Tensor | None = None) -> Coupled:
        """Return the same prior seen through whitened variables."""
        return Coupled(self.mean, self.flat.whiten(chol))


class CoupledFactor(NamedTuple):
    """The factorised I + ΛQ of all outputs together."""

    prior: Coupled
    flat: Any

    @property
    def finite(self) -> tf.Tensor:
        """Whether the factorisation worked, []."""
        return self.flat.finite

    def solve(self, b: tf.Tensor) -> Pair:
        """Return α = (I + ΛQ)⁻¹ b and Qα for b [N, P]."""
        return Pair(*map(self.prior.unpack, self.flat.solve(self.prior.pack(b))))

    def variance(self) -> tf.Tensor:
        """Return the variances of q(f), [N, P]."""
        return self.prior.unpack(self.flat.variance())

    def half_log_det(self) -> tf.Tensor:
        """Return ½ log|I + ΛQ|, []."""
        return self.flat.half_log_det()

    def reduction(self) -> tf.Tensor:
        """See `DenseFactor.reduction`, [1, NP, NP]."""
        return self.flat.reduction()

    @property
    def reduction_root(self) -> Callable[[], tf.Tensor] | None:
        """See `DenseFactor.reduction_root`, [1, NP, NP]; a projection's has none."""
        return getattr(self.flat, "reduction_root", None)

    def inverted(self) -> CoupledFactor:
        """See `DenseFactor.inverted`."""
        return self._replace(flat=with_inverse(self.flat))


def mixed_columns(W: tf.Tensor, cross: tf.Tensor) -> tf.Tensor:
    """Return covariances of g with outputs, [S, M, N] to [1, SM, NP], for W [P, S]."""
    found = tf.einsum("smn,ps->smnp", cross, W)
    S, M, N, P = batched.sizes(found)
    return tf.reshape(found, [1, S * M, N * P])


def mixed_blocks(W: tf.Tensor, cross: tf.Tensor) -> tf.Tensor:
    """Return covariances of outputs with outputs, [S, N, R] of g to [1, NP, RP], for W [P, S]."""
    found = tf.einsum("snr,ps,qs->nprq", cross, W, W)
    N, P, R, _ = batched.sizes(found)
    return tf.reshape(found, [1, N * P, R * P])


def block_diagonal(blocks: tf.Tensor) -> tf.Tensor:
    """Return blocks [S, M, M] as one matrix [1, SM, SM]."""
    S, M, _ = batched.sizes(blocks)
    found = tf.einsum("smn,st->smtn", blocks, tf.eye(S, dtype=blocks.dtype))
    return tf.reshape(found, [1, S * M, S * M])


_PRIOR = {
    (False, False): "s...n,ps,ps->...np",
    (False, True): "s...n,ps,qs->...npq",
    (True, False): "s...nm,ps,ps->...pnm",
    (True, True): "s...nm,ps,qs->...npmq",
}
_PRODUCTS = {
    (False, False): "t...np,t...np->...np",
    (False, True): "t...np,t...nq->...npq",
    (True, False): "t...np,t...mp->...pnm",
    (True, True): "t...np,t...mq->...npmq",
}


def prior_covariance(W: tf.Tensor, own: tf.Tensor, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    """Return the prior (co)variances of outputs in the shapes that GPflow's models return.

    From those of g, [S, batch..., N, N] with ``full_cov``, else [S, batch..., N].
    """
    return tf.einsum(_PRIOR[full_cov, full_output_cov], own, W, W)


def products(
    a: tf.Tensor, b: tf.Tensor, rows: Rows, width: int, full_cov: bool, full_output_cov: bool
) -> tf.Tensor:
    """Return Σ_t a_t b_t for a and b [T, RP], R rows of ``width`` P, in the shapes of `prior_covariance`."""
    parts = [rows.apart(tf.reshape(part, [-1, batched.sizes(rows.flat)[0], width]), 1) for part in (a, b)]
    return tf.einsum(_PRODUCTS[full_cov, full_output_cov], *parts)
