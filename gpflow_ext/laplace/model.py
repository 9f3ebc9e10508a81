"""Classification by a quadratic in place of each log likelihood: Laplace, Jaakkola-Jordan, Taylor.

The methods of Izmailov (2016), "Review of materials on Gaussian Processes for Machine Learning", sections
1.3, 2.3.1 and 2.3.2, as Gaussian sites: they differ in where the quadratic comes from.
"""

from __future__ import annotations

import abc
from typing import Any

import gpflow
import tensorflow as tf
from gpflow.models.util import InducingVariablesLike

from gpflow_ext import sites
from gpflow_ext.laplace import expansion
from gpflow_ext.sites.model import SiteModel


class ExpandedModel(SiteModel, abc.ABC):
    """A site model whose sites are the expansion of log p(y | f) about the mode of the posterior.

    Parameters and errors are those of `SiteModel`; see `gpflow_ext.laplace.expansion` for the equations.

    Raises
    ------
    NotImplementedError
        For a likelihood whose second derivatives couple the latent functions, such as `MultinomialLogit`, or
        are zero, such as the robust maximum.
    """

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike | None = None,
    ) -> None:
        super().__init__(
            data, kernel, likelihood, mean_function, num_latent_gps, inducing_variable=inducing_variable
        )
        point = tf.zeros_like(self.nat1) + tf.range(1, self.num_latent_gps + 1, dtype=self.nat1.dtype) / 8.0
        name = type(likelihood).__name__
        if self.num_latent_gps > 1 and expansion.is_coupled(self.log_density, point):
            raise NotImplementedError(
                f"The second derivatives of {name} couple its latent functions, but {type(self).__name__} "
                "has one site for each: use gpflow_ext.likelihoods.StickBreaking for several classes."
            )
        if not tf.reduce_any(expansion.expand(self.log_density, point).curvature != 0.0):
            raise NotImplementedError(
                f"log p(y | f) of {name} has no curvature to expand; use a smooth likelihood."
            )

    def log_density(self, F: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | fₙ) for latent values F [N, L], as [N]."""
        X, Y = self.data
        return self.likelihood.log_prob(X, F, Y)

    @abc.abstractmethod
    def log_evidence(self) -> tf.Tensor:
        """Return the approximation of log p(y) at the mode that the sites give, []."""

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the log evidence, which training maximises."""
        return self.log_evidence()


class GPLaplace(ExpandedModel):
    """Laplace's approximation (Izmailov 2016, section 1.3.1; Rasmussen & Williams 2006, section 3.4).

    q(f) = N(f̂, (Σ⁻¹ + W)⁻¹) at the mode f̂ of p(f | y), W = −∂² log p(y | f̂). `gpflow_ext.fit` finds the
    mode by Newton's method with a line search and learns the hyperparameters by L-BFGS on log q(y), whose
    gradient counts that the mode moves. The likelihood must be log-concave in each latent function; its
    second derivatives must not couple them (`StickBreaking` for several classes).

    With ``inducing_variable`` the mode is that of p(y | f = μ + Aᵀv) p(v), at O(NM²): what the inducing
    points do not explain of f enters predictions, not log q(y), so that learnt inducing points may overfit.
    `GPTaylor` charges for it.
    """

    def log_evidence(self) -> tf.Tensor:
        """Return log q(y), equation 5 with |B| = |I + W^½ΣW^½|, a scalar; O(N³) or O(NM²).

        At the mode it has the gradient of the optimised log q(y), sites held fixed; see
        `gpflow_ext.laplace.expansion`. It is not a bound of log p(y).
        """
        return expansion.laplace_evidence(self.prior(), self.log_density, self.sites)[0]

    def objective_at_rest(self) -> tf.Tensor:
        """Return the log evidence at the mode, its gradient in closed form; see `expansion`."""
        return expansion.evidence_at_mode(self.prior(), self.log_density, self.sites, charged=False)


class GPTaylor(ExpandedModel):
    """vi-Taylor (Izmailov 2016, section 2.3.2): the variational bound with log p(y | f) expanded about ξ = m.

    At its fixed point ξ = m the posterior is Laplace's, and with all data as inducing points so is J₂. With
    fewer, J₂ charges ½ Σₙ Wₙ residualₙ for what the inducing points do not explain.

    The paper's two claims about ξ do not hold: J₂ is no lower bound of log p(y), and ξ = m is not where J₂ is
    largest. So ξ = m is kept while the hyperparameters move: the gradient is that of J₂ with ξ = m
    throughout.
    """

    def log_evidence(self) -> tf.Tensor:
        """Return J₂ at the optimal μ, Σ and ξ = m, a scalar; O(N³) or O(NM²)."""
        prior = self.prior()
        evidence, point = expansion.laplace_evidence(prior, self.log_density, self.sites)
        return evidence - 0.5 * tf.reduce_sum(point.at.curvature * prior.residual)

    def objective_at_rest(self) -> tf.Tensor:
        """Return J₂ at ξ = m, its gradient in closed form; see `expansion`."""
        return expansion.evidence_at_mode(self.prior(), self.log_density, self.sites, charged=True)


class GPJaakkola(SiteModel):
    """vi-JJ (Izmailov 2016, section 2.3.1): the variational bound with the logistic bounded by a quadratic.

    log σ(z) ≥ log σ(ξ) + (z − ξ)/2 − λ(ξ)(z² − ξ²), λ(ξ) = tanh(ξ/2)/4ξ (Jaakkola & Jordan 1996): the sites
    are nat1 = y − ½ and prec = 2λ(ξ), equations 13 and 14. The best ξ² = m² + v is substituted into the
    likelihood's ``variational_expectations``, so any likelihood with ``bound="jaakkola"`` will do:
    `BernoulliLogit`, `StickBreaking`, `CumulativeLogit`. `gpflow_ext.fit` alternates ξ and q, which never
    lowers the bound.

    Parameters and errors are those of `SiteModel`.

    Raises
    ------
    ValueError
        For a likelihood without Jaakkola and Jordan's bound.
    """

    def __init__(
        self,
        data: tuple[Any, Any],
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.MeanFunction | None = None,
        num_latent_gps: int | None = None,
        *,
        inducing_variable: InducingVariablesLike | None = None,
    ) -> None:
        if getattr(likelihood, "bound", None) != "jaakkola":
            raise ValueError(
                "GPJaakkola needs a `likelihood` with Jaakkola and Jordan's bound, such as "
                f'BernoulliLogit(bound="jaakkola"); got {type(likelihood).__name__} with '
                f"bound={getattr(likelihood, 'bound', None)!r}."
            )
        super().__init__(
            data, kernel, likelihood, mean_function, num_latent_gps, inducing_variable=inducing_variable
        )

    def elbo(self) -> tf.Tensor:
        """Return J(μ̂, Σ̂, ξ) of the current sites at its best ξ, a scalar; O(N³) or O(NM²).

        A lower bound of log p(y) wherever the hyperparameters are; with the sites held fixed it has the
        gradient of the optimised bound at a fixed point.
        """
        prior = self.prior()
        q = sites.condition(prior, self.sites)
        return tf.reduce_sum(self.expectation(q.mean, q.var)) - q.kl

    def objective_at_rest(self) -> tf.Tensor:
        """Return the bound at a fixed point of the sites, its gradient in closed form.

        By the envelope theorem that is the gradient of log ∫ p(f) ∏ tₙ(fₙ) df − ½ Σₙ precₙ residualₙ, and of
        the likelihood's own terms, with the marginals held fixed (derived in docs/derivations.md, section 5).
        """
        prior, current = self.prior(), self.sites
        q = sites.condition(tf.nest.map_structure(tf.stop_gradient, prior), current)
        terms = tf.reduce_sum(self.expectation(tf.stop_gradient(q.mean), tf.stop_gradient(q.var)))
        unseen = 0.5 * tf.reduce_sum(current.prec * prior.residual)
        moving = prior.log_normaliser(current) - unseen + terms
        return tf.stop_gradient(terms - q.kl - moving) + moving

    def maximum_log_likelihood_objective(self) -> tf.Tensor:
        """Return the bound that training maximises."""
        return self.elbo()
