"""Cavities of sites that were added along another projection than the present one."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.moment_matching import Cavity
from gpflow_ext.sites import Projection, Sites, Whitened


class Removal(NamedTuple):
    """What is left of q(v) when sites are taken out one by one; see `inference.stochastic_ep`."""

    cavity: Cavity  # along the present projection, [B, L]
    overlap: tf.Tensor  # log ∫ q∖ₙ(v) tₙ(v) dv, [B, L]
    G: tf.Tensor  # R⁻¹a, [L, M, B]
    H: tf.Tensor  # R⁻¹w, [L, M, B]
    kappa: tf.Tensor  # κ, [B, L]
    gain: tf.Tensor  # (τ/d) v_×, [B, L]

    def adjoint(self, q: Whitened, by_mean: tf.Tensor, by_var: tf.Tensor) -> tf.Tensor:
        """Return Σ_l E[v] by_mean + 2 Var[v]a by_var of q∖ₙ for adjoints [B, L]: the one of A, [1, M, B]."""
        pull = self.G * _rows(2.0 * by_var) + self.H * _rows(self.kappa * by_mean + 2.0 * self.gain * by_var)
        through_q = tf.reduce_sum(tf.linalg.triangular_solve(q.chol, pull, adjoint=True), 0, keepdims=True)
        return through_q + tf.matmul(q.mean, by_mean, transpose_b=True)


def remove(q: Whitened, prior: Projection, own: tf.Tensor, sites: Sites) -> Removal:
    """Take sites out of q(v). O(M²B).

    Parameters
    ----------
    q
        q(v).
    prior
        The present prior.
    own
        The projection w that each site was added with, [1, M, B].
    sites
        (ρ, τ), counted from the mean that they were added with, each [B, L].
    """
    rho, prec = sites
    shape = tf.concat([tf.shape(q.chol)[:2], tf.shape(own)[2:]], axis=0)
    G, H = (tf.linalg.triangular_solve(q.chol, tf.broadcast_to(A, shape)) for A in (prior.A, own))
    var, own_var, cross = (tf.transpose(tf.reduce_sum(part, axis=-2)) for part in (G**2, H**2, G * H))
    m, own_m = (tf.matmul(A[0], q.mean, transpose_a=True) for A in (prior.A, own))
    ratio = 1.0 - prec * own_var
    kappa, gain = (prec * own_m - rho) / ratio, prec * cross / ratio
    cav = Cavity(prior.mean + m + kappa * cross, var + gain * cross, ratio)
    quadratic = (0.5 * prec * own_m**2 - rho * own_m + 0.5 * rho**2 * own_var) / ratio
    return Removal(cav, 0.5 * tf.math.log(ratio) - quadratic, G, H, kappa, gain)


def _rows(part: tf.Tensor) -> tf.Tensor:
    """Return [B, L] as [L, 1, B]."""
    return tf.transpose(part)[:, None, :]
