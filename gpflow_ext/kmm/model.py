"""Variational Gaussian process with the fast fixed-point inference of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext import sites
from gpflow_ext.sites.model import SiteModel


class VGPKMM(SiteModel):
    """Non-conjugate Gaussian process regression by Khan, Mohamed & Murphy (NIPS 2012).

    The Gaussian posterior q(f) = N(m, V) maximises the lower bound of their equation 6,

        ELBO = −KL[N(m, V) || N(μ, Σ)] + Σₙ f_b(yₙ, mₙ, Vₙₙ),

    where f_b is ``likelihood.variational_expectations``: the expected log likelihood, or a local
    variational bound such as `BernoulliLogit`'s. At the optimum V = (Σ⁻¹ + Λ)⁻¹ with λₙ = −2 ∂f_b/∂Vₙₙ
    and m = μ + Σα with αₙ = ∂f_b/∂mₙ: O(N) numbers, the model's sites (``prec`` = λ, ``nat1`` = α + λm).

    `gpflow_ext.fit` finds them by the safeguarded parallel fixed point or by the paper's Algorithm 1, and
    learns the hyperparameters on the same bound with the sites held fixed. The likelihood must be
    log-concave in each latent function, so that λ ≥ 0. With ``inducing_variable`` the same inference runs
    on the sparse prior at O(NM²).
    """

    def elbo(self) -> tf.Tensor:
        """Return the lower bound of equation 6 at the current sites, a scalar; O(N³) or O(NM²).

        As a function of the hyperparameters with the sites held fixed it is the dual objective: a valid
        bound everywhere, with the exact gradient of the optimised bound at a fixed point.
        """
        prior = self.prior()
        q = sites.condition(prior, self.sites)
        return tf.reduce_sum(self.expectation(q.mean, q.var)) - q.kl

    def envelope(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return a function of the hyperparameters whose gradient is that of the optimised bound.

        At a fixed point of the sites, with marginals ``mean`` and ``var`` [N, L] held fixed, the bound and
        log ∫ p(f) ∏ tₙ(fₙ) df + Σₙ f_b(yₙ, mₙ, vₙ) have one gradient (the envelope theorem), but this one
        needs no derivative of the variances. Its value is not the bound. Derived in
        docs/derivations.md, section 5.
        """
        prior, current = self.prior(), self.sites
        unseen = 0.5 * tf.reduce_sum(current.prec * prior.residual)
        return prior.log_normaliser(current) - unseen + tf.reduce_sum(self.expectation(mean, var))

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the bound that training maximises."""
        return self.elbo()
