"""Expectation propagation by moment matching: cavities, matched sites and the log evidence, data by data.

A factor p(yₙ | fₙ) of the likelihood is replaced by a Gaussian site tₙ(hₙ) = exp(nat1ₙ hₙ − ½ precₙ hₙ²) on
the part hₙ of the prior that the inducing variables explain; the residual rₙ = fₙ − hₙ stays with the factor,
which sees the cavity through (Hernández-Lobato & Hernández-Lobato 2016; Naish-Guzman & Holden 2008)

    log Ẑₙ(m, v) = log ∫ p(yₙ | f) N(f; m, v + residualₙ) df.

With q(hₙ) = N(m, v), τ = precₙ, ν = nat1ₙ and β, −γ the first two derivatives of log Ẑₙ in the cavity mean:

    d = 1 − τv        v_c = v/d             m_c = (m − νv)/d               the cavity
    t = 1 − γv_c      τ ← γ/t               ν ← (β + γm_c)/t               the site that matches the moments
    log Z = log ∫ p(h) ∏ₙ tₙ(hₙ) dh + Σₙ [log Ẑₙ(m_c, v_c) − ½ log d + (½τm² − νm + ½ν²v)/d]

Nothing is divided by v or by τ, so that v = 0 and τ <= 0 are allowed. Every function is elementwise over the
leading axes: [..., L] stands for [N, L], a shard of it, or [N, F, L] with F factors to a datum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import tensorflow as tf

from gpflow_ext.ep.seen_posterior import seen_posterior
from gpflow_ext.sites import Marginals, Message, Seen, Sites

LogNormaliser: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
"""Map (mean [..., L], var [..., L]) of a Gaussian over f to log ∫ p(y | f) N(f; mean, var) df, [...]."""


class Layout(Protocol):
    """Maps each factor of the likelihood to the latent functions that it depends on."""

    def select(self, latent: tf.Tensor) -> tf.Tensor:
        """Give each factor its latent functions: [N, L], or what broadcasts with it, to [..., L']."""

    def combine(self, sites: Sites) -> Sites:
        """Add up the sites [..., L'] of all factors of a datum, [N, L]."""


class Factors(Layout, Protocol):
    """A likelihood's own split of p(y | f) into factors of a few latent functions each."""

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return log Ẑ of each factor for its latent functions ~ N(mean, var): [..., L'] to [...]."""


class WholeDatum(NamedTuple):
    """One factor to a datum, which sees all its latent functions."""

    def select(self, latent: tf.Tensor) -> tf.Tensor:
        """Return the latent functions as they are."""
        return latent

    def combine(self, sites: Sites) -> Sites:
        """Return the sites as they are."""
        return sites


WHOLE_DATUM = WholeDatum()


class Cavity(NamedTuple):
    """The marginals without their own site, each [..., L]; ``ratio`` = v/v_c must be positive."""

    mean: tf.Tensor
    var: tf.Tensor
    ratio: tf.Tensor


def cavity(marginals: Marginals, sites: Sites) -> Cavity:
    """Divide each site out of its marginal, in the form that does not divide by the variance."""
    mean, var = marginals
    ratio = 1.0 - sites.prec * var
    return Cavity((mean - sites.nat1 * var) / ratio, var / ratio, ratio)


def matched_sites(log_normaliser: LogNormaliser, cav: Cavity, residual: tf.Tensor) -> Sites:
    """Return the sites that give cavity times site the mean and variance of cavity times factor, [..., L].

    A factor may couple its latent functions: each gets the site that matches its own marginal. The second
    derivative is taken of the first one rather than as β² − 2 ∂v, which cancels in the tails of a probit.
    """
    var = cav.var + residual
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(cav.mean)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(cav.mean)
            value = tf.reduce_sum(log_normaliser(cav.mean, var))
        slope = tf.ensure_shape(inner.gradient(value, cav.mean), cav.mean.shape)
        slopes = tf.unstack(slope, axis=-1)
    rows = [outer.gradient(s, cav.mean, unconnected_gradients="zero")[..., k] for k, s in enumerate(slopes)]
    bend = -tf.stack(rows, axis=-1)  # γ
    shrinkage = 1.0 - bend * cav.var  # tilted over cavity variance: positive
    return Sites((slope + bend * cav.mean) / shrinkage, bend / shrinkage)


def factor_terms(
    log_normaliser: LogNormaliser,
    marginals: Marginals,
    sites: Sites,
    cav: Cavity,
    prior_mean: tf.Tensor,
    residual: tf.Tensor,
) -> tf.Tensor:
    """Return Σₙ [log Ẑₙ − log ∫ cavityₙ(h) tₙ(h) dh] of a shard of data, a scalar. O(N).

    The sites and marginals are counted from the prior mean, h − μ, where the terms nat1ᵀμ − ½μᵀΛμ of the
    log normaliser cancel exactly.
    """
    shift, nat1 = marginals.mean - prior_mean, sites.nat1 - sites.prec * prior_mean
    quadratic = (0.5 * sites.prec * shift**2 - nat1 * shift + 0.5 * nat1**2 * marginals.var) / cav.ratio
    value = log_normaliser(cav.mean, cav.var + residual)
    return tf.reduce_sum(value) + tf.reduce_sum(quadratic - 0.5 * tf.math.log(cav.ratio))


class Evaluation(NamedTuple):
    """The evidence and the cavities at given sites."""

    log_evidence: tf.Tensor  # []
    cavity: Cavity
    sound: tf.Tensor  # whether B and all cavity variances are positive and the evidence is finite, []


def evaluate(
    prior: Seen,
    log_normaliser: LogNormaliser,
    sites: Sites,
    message: Message | None = None,
    layout: Layout = WHOLE_DATUM,
) -> Evaluation:
    """Return log Z of expectation propagation at any sites, and the cavities.

    Differentiable in the prior and in the parameters of the likelihood: with ``sites`` held fixed and the
    cavities moving along, the gradient is exact at a fixed point, where log Z is stationary in the sites
    (derived in docs/derivations.md, section 6).

    Parameters
    ----------
    prior
        The prior seen from the data of ``log_normaliser``, or one that is `unwhitened`.
    log_normaliser
        log Ẑ of these data.
    sites
        Their sites, [N, L], or [..., L'] of another layout.
    message
        The sum of the messages of all data, where these are only a shard of them. The log evidence is then
        that of the shard's factors alone, without ``message.posterior().log_normaliser()``.
    layout
        What each factor sees of these data; ``log_normaliser`` and the cavities then have its shape.

    Returns
    -------
    The evaluation; O(NM²): one Cholesky factorisation, one triangular solve, one matrix product.
    """
    shared: tf.Tensor | float = 0.0
    if message is None:
        seen_by_all, shared = _conditioned(prior, layout.combine(sites))
    else:
        seen_by_all = message.posterior().marginals(prior)
    marginals = Marginals(*map(layout.select, seen_by_all))
    cav, mean, residual = cavity(marginals, sites), layout.select(prior.mean), layout.select(prior.residual)
    terms = factor_terms(log_normaliser, marginals, sites, cav, mean, residual)
    value = terms + shared
    sound = tf.reduce_all(cav.ratio > 0.0) & tf.math.is_finite(value)
    return Evaluation(value, cav, sound)


def _conditioned(prior: Any, sites: Sites) -> tuple[Marginals, tf.Tensor]:
    """Return the marginals of what the sites see, and log ∫ p ∏ₙ tₙ counted from the prior mean, []."""
    own = getattr(prior, "conditioned", None)
    if own is not None:
        found: tuple[Marginals, tf.Tensor] = own(sites)
        return found
    nat1, prec = sites
    packed = prior.pack(nat1 - prec * prior.mean), prior.pack(prec)
    shift, var, shared = seen_posterior(prior.A, *packed)
    return Marginals(prior.mean + prior.unpack(shift), prior.unpack(var)), shared
