"""Models that replace each log likelihood by a quadratic: Laplace, Jaakkola-Jordan, Taylor.

The methods of Izmailov (2016), "Review of materials on Gaussian Processes for Machine Learning", sections
1.3, 2.3.1 and 2.3.2, as Gaussian sites: they differ in where the quadratic comes from.
"""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.laplace.method import Jaakkola, Laplace, Taylor
from gpflow_ext.sites import site_method, variational_bound
from gpflow_ext.sites.model import SiteModel


class ExpandedModel(SiteModel):
    """A site model whose sites are the expansion of log p(y | f) about the mode of the posterior.

    Parameters and errors are those of `SiteModel`; see `gpflow_ext.laplace.expansion` for the equations.

    Raises
    ------
    NotImplementedError
        For a likelihood whose second derivatives couple the latent functions, such as `MultinomialLogit`, or
        are zero, such as the robust maximum.
    """

    def log_evidence(self) -> tf.Tensor:
        """Return the site method's approximation of log p(y) at the current sites, []; O(N³) or O(NM²).

        At the mode its gradient is that of the optimised one; elsewhere it is approximate with
        ``prior="vecchia"`` or ``"grid"``.
        """
        return site_method(self.site_method).objective(self, self.prior(), self.sites)


class GPLaplace(ExpandedModel):
    """Laplace's approximation (Izmailov 2016, section 1.3.1; Rasmussen & Williams 2006, section 3.4).

    q(f) = N(f̂, (Σ⁻¹ + W)⁻¹) at the mode f̂ of p(f | y), W = −∂² log p(y | f̂). `gpflow_ext.fit` finds the
    mode by Newton's method with a line search and learns the hyperparameters by L-BFGS on log q(y), whose
    gradient includes the movement of the mode. The second derivatives of the likelihood must not couple the
    latent functions (use `StickBreaking` for several classes). If it is not log-concave in each, as
    `StudentT`, there may be several modes: the one that is reached from the prior mean is taken.

    With ``inducing_variable`` the mode is that of p(y | f = μ + Aᵀv) p(v), at O(NM²). The objective is then
    `GPTaylor`'s J₂, which charges for the variance of f that the inducing points do not explain.
    """

    site_method = Laplace.name


class GPTaylor(ExpandedModel):
    """vi-Taylor (Izmailov 2016, section 2.3.2): the variational bound with log p(y | f) expanded about ξ = m.

    At its fixed point ξ = m the posterior is Laplace's, and with all data as inducing points J₂ is log q(y).
    With fewer, J₂ subtracts ½ Σₙ Wₙ residualₙ for the variance that the inducing points do not explain. So
    this is `GPLaplace` by the name that the review gives it.

    The paper's two claims about ξ do not hold: J₂ is not a lower bound of log p(y), and ξ = m does not
    maximise J₂. So ξ = m is kept while the hyperparameters move: the gradient is that of J₂ with ξ = m
    throughout.
    """

    site_method = Taylor.name


class GPJaakkola(SiteModel):
    """vi-JJ (Izmailov 2016, section 2.3.1): the variational bound, the logistic bounded by a quadratic.

    log σ(z) ≥ log σ(ξ) + (z − ξ)/2 − λ(ξ)(z² − ξ²), λ(ξ) = tanh(ξ/2)/4ξ (Jaakkola & Jordan 1996): the sites
    are nat1 = y − ½ and prec = 2λ(ξ), equations 13 and 14. The optimal ξ² = m² + v is substituted into the
    likelihood's ``variational_expectations``, so any likelihood with ``bound="jaakkola"`` can be used:
    `BernoulliLogit`, `StickBreaking`, `CumulativeLogit`. `gpflow_ext.fit` alternates ξ and q, which never
    lowers the bound.

    Parameters and errors are those of `SiteModel`.

    Raises
    ------
    ValueError
        For a likelihood without Jaakkola and Jordan's bound.
    """

    site_method = Jaakkola.name

    def elbo(self) -> tf.Tensor:
        """Return J(μ̂, Σ̂, ξ) of the current sites at its best ξ, a scalar; O(N³) or O(NM²).

        It is a lower bound of log p(y) at any hyperparameters; with the sites held fixed it has the
        gradient of the optimised bound at a fixed point. Elsewhere it is approximate with
        ``prior="vecchia"`` or ``"grid"``.
        """
        return variational_bound(self.prior(), self.expectation, self.sites)
