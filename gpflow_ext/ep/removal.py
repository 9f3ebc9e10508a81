"""Cavities of sites that were added along a projection other than the current one."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from gpflow_ext.ep.moment_matching import WHOLE_DATUM, Cavity, Layout
from gpflow_ext.sites import Seen, Sites, Whitened, products


class Removal(NamedTuple):
    """Cavities of q(v) with sites removed one by one; see `ep.stochastic`.

    The cavity of a site whose removal leaves no positive variance is not that of q: its ratio is not
    positive, its mean and variance are finite but meaningless, and its overlap is zero.
    """

    cavity: Cavity  # along the current projection, [..., L']
    overlap: tf.Tensor  # log ∫ q∖ₙ(v) tₙ(v) dv, [..., L']
    G: tf.Tensor  # R⁻¹a, [L, M, B]
    H: tf.Tensor  # R⁻¹w, [L, M, B]
    kappa: tf.Tensor  # κ, [..., L']
    gain: tf.Tensor  # (τ/d) v_×, [..., L']
    layout: Layout
    prior: Seen

    def adjoint(self, q: Whitened, by_mean: tf.Tensor, by_var: tf.Tensor) -> tf.Tensor:
        """Return Σ E[v] by_mean + 2 Var[v]a by_var of q∖ₙ for adjoints [..., L']: that of A, in its shape."""
        by_own = self.kappa * by_mean + 2.0 * self.gain * by_var
        sums = *self.layout.combine(Sites(by_mean, by_own)), self.layout.combine(Sites(by_var, by_var)).prec
        shift, by_own, spread = (_rows(self.prior.pack(part)) for part in sums)  # over factors, [L, 1, B]
        pull = self.G * (2.0 * spread) + self.H * by_own
        by_A = tf.linalg.triangular_solve(q.chol, pull, adjoint=True)
        by_A += tf.transpose(q.mean)[:, :, None] * shift
        return tf.reduce_sum(by_A, axis=0, keepdims=True) if self.prior.A.shape[0] == 1 else by_A


def remove(q: Whitened, prior: Seen, own: tf.Tensor, sites: Sites, layout: Layout = WHOLE_DATUM) -> Removal:
    """Take sites out of q(v), each alone. O(M²B).

    Parameters
    ----------
    q
        q(v).
    prior
        The current prior.
    own
        The projection w that each site was added with, in the shape of A.
    sites
        (ρ, τ), counted from the mean that they were added with, each [B, L] or [B, F, L'].
    layout
        Which latent functions their factors see.
    """
    rho, prec = sites
    shape = tf.concat([tf.shape(q.chol)[:2], tf.shape(own)[2:]], axis=0)
    G, H = (tf.linalg.triangular_solve(q.chol, tf.broadcast_to(A, shape)) for A in (prior.A, own))
    var, own_var, cross = (tf.transpose(tf.reduce_sum(part, axis=-2)) for part in (G**2, H**2, G * H))
    m, own_m = (products.matvec(A, q.mean, transpose=True) for A in (prior.A, own))
    m, var, own_m, own_var, cross = map(prior.unpack, (m, var, own_m, own_var, cross))
    mean, var, own_m, own_var, cross = map(layout.select, (prior.mean + m, var, own_m, own_var, cross))
    ratio = 1.0 - prec * own_var
    sound = ratio > 0.0
    positive = tf.where(sound, ratio, tf.ones_like(ratio))
    kappa, gain = (prec * own_m - rho) / positive, prec * cross / positive
    quadratic = (0.5 * prec * own_m**2 - rho * own_m + 0.5 * rho**2 * own_var) / positive
    overlap = tf.where(sound, 0.5 * tf.math.log(positive) - quadratic, tf.zeros_like(ratio))
    cav = Cavity(mean + kappa * cross, var + gain * cross, ratio)
    return Removal(cav, overlap, G, H, kappa, gain, layout, prior)


def _rows(part: tf.Tensor) -> tf.Tensor:
    """Return [B, L] as [L, 1, B]."""
    return tf.transpose(part)[:, None, :]
