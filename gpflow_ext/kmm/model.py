"""Variational Gaussian process with the fast fixed-point inference of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.kmm.method import KMM
from gpflow_ext.sites import envelope, variational_bound
from gpflow_ext.sites.model import SiteModel


class VGPKMM(SiteModel):
    """Variational Gaussian process by the fixed-point inference of Khan, Mohamed & Murphy (NIPS 2012).

    The Gaussian posterior q(f) = N(m, V) maximises the lower bound of their equation 6,

        ELBO = −KL[N(m, V) || N(μ, Σ)] + Σₙ f_b(yₙ, mₙ, Vₙₙ),

    where f_b is ``likelihood.variational_expectations``: the expected log likelihood, or a local
    variational bound such as `BernoulliLogit`'s. At the optimum V = (Σ⁻¹ + Λ)⁻¹ with λₙ = −2 ∂f_b/∂Vₙₙ
    and m = μ + Σα with αₙ = ∂f_b/∂mₙ: O(N) numbers, the model's sites (``prec`` = λ, ``nat1`` = α + λm).

    `gpflow_ext.fit` finds them by the safeguarded parallel fixed point, and by Newton's steps in both where
    that gains little (`kmm.joint`), or by the paper's Algorithm 1, and learns the hyperparameters on the same
    bound with the sites held fixed. A likelihood that is not log-concave in each latent function, such as
    `StudentT`, may have λ < 0, and a bound with several maxima; Algorithm 1 is not for it. With
    ``inducing_variable`` the same inference runs on the sparse prior at O(NM²).
    """

    site_method = KMM.name

    def elbo(self) -> tf.Tensor:
        """Return the lower bound of equation 6 at the current sites, a scalar; O(N³) or O(NM²).

        As a function of the hyperparameters with the sites held fixed it is the dual objective: a valid
        bound everywhere, with the exact gradient of the optimised bound at a fixed point. With
        ``prior="vecchia"`` or ``"grid"`` the gradient elsewhere is approximate.
        """
        return variational_bound(self.prior(), self.expectation, self.sites)

    def envelope(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return `sites.envelope` at the current sites, for their marginals ``mean`` and ``var`` [N, L]."""
        return envelope(self, self.prior(), self.sites, mean, var)
