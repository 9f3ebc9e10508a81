"""Priors that cannot be whitened, such as those of a state space, as expectation propagation sees them."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.sites import Marginals, Prior, Sites


class Unwhitened(NamedTuple):
    """A prior that only its factor conditions on sites.

    Its marginals are held fixed under a tape. The derivatives of Σₙ [log Ẑₙ − log ∫ cavityₙ tₙ] in them
    cancel at a fixed point, where moments match, so that the gradient of log Z is that of log ∫ p ∏ tₙ, up to
    the error of the moments where these are found by quadrature.
    """

    prior: Any

    @property
    def mean(self) -> tf.Tensor:
        """The prior mean, held fixed, [N, L]."""
        return tf.stop_gradient(self.prior.mean)

    @property
    def residual(self) -> tf.Tensor:
        """The variance of f that the sites do not see, held fixed."""
        return tf.stop_gradient(self.prior.residual)

    def conditioned(self, sites: Sites) -> tuple[Marginals, tf.Tensor]:
        """Return the marginals of what the sites see, and log ∫ p ∏ₙ tₙ counted from the prior mean, []."""
        nat1, prec = sites
        held = tf.nest.map_structure(tf.stop_gradient, self.prior)
        factor = tf.nest.map_structure(tf.stop_gradient, held.factorise(prec))
        shift = factor.solve(nat1 - prec * held.mean).shift
        marginals = Marginals(held.mean + shift, factor.variance() - held.residual)
        offset = tf.reduce_sum(nat1 * held.mean - 0.5 * prec * held.mean**2)
        value = self.prior.log_normaliser(Sites(*map(tf.stop_gradient, sites)), factor) - offset
        return Marginals(*map(tf.stop_gradient, marginals)), value


def seen(prior: Prior) -> Any:
    """Return a prior as a `Projection` where it can be whitened, else as it is."""
    whiten = getattr(prior, "whiten", None)
    return Unwhitened(prior) if whiten is None else whiten()
