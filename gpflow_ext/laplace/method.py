"""The site methods of Izmailov (2016): Laplace's, Taylor's, and Jaakkola and Jordan's."""

from __future__ import annotations

from typing import Any, ClassVar

import gpflow
import tensorflow as tf

from gpflow_ext.laplace import expansion, nearby, updates
from gpflow_ext.laplace.expansion import Located
from gpflow_ext.likelihoods import CategoricalLikelihood
from gpflow_ext.sites import Prior, Sites, concavity, condition, units, variational_bound, with_inverse
from gpflow_ext.sites.concavity import expand
from gpflow_ext.sites.method import SitedModel, SiteMethod, Step, check_one_factor, envelope, register_method


class Laplace(SiteMethod):
    """Laplace's approximation (section 1.3.1): sites expand log p(y | f) about the mode of the posterior.

    Safeguarded Newton steps find the mode; see `laplace.expansion` for the objective and its gradient. With
    inducing points it charges for the variance that these do not explain, J₂ of section 2.3.2.
    """

    name: ClassVar[str] = "laplace"
    newton: ClassVar[bool] = True
    sums_variances: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    def check(self, model: SitedModel) -> None:
        """Refuse a likelihood whose second derivatives couple the latent functions, or are zero.

        A model with one that is not log-concave is told that precisions may be below zero.
        """
        check_one_factor(model, self.name)
        self._check_likelihood(model)
        concavity.tell(model, not concavity.is_concave(model))

    def _check_likelihood(self, model: SitedModel) -> None:
        name = type(model.likelihood).__name__
        if concavity.is_coupled(model):
            raise NotImplementedError(
                f"The second derivatives of {name} couple its latent functions, but {type(model).__name__} "
                f"has one site for each: {_instead(model.likelihood)}."
            )
        if not concavity.is_curved(model):
            raise NotImplementedError(
                f"log p(y | f) of {name} has no curvature to expand; use a smooth likelihood."
            )

    def remedy(self, model: SitedModel) -> str:
        """See `SiteMethod.remedy`: a curvature below zero at the prior mean tells what is at fault."""
        mean = tf.zeros_like(model.sites.nat1) + model.prior().mean
        if not tf.reduce_any(expand(model.log_density, mean).curvature < 0.0):
            return super().remedy(model)
        return (
            f"{type(model.likelihood).__name__} is not log-concave: Laplace's method may find no mode. Start "
            "from more noise, give `starts=3`, or use gpflow_ext.models.SGPMCFreeForm or GPflow's SVGP."
        )

    def begin(self, model: SitedModel, prior: Prior, sites: Sites) -> Located:
        """See `SiteMethod.begin`: the mean stays, the precisions are taken there."""
        return expansion.start(prior, model.log_density, sites, units.unit(model))

    def step(self, model: SitedModel, prior: Prior, state: Located) -> Located:
        """See `SiteMethod.step`."""
        return updates.newton_step(prior, model.log_density, state)

    def _solve(
        self, model: SitedModel, prior: Prior, sites: Sites, steps: Any, tolerance: Any, least: float
    ) -> tuple[Located, tf.Tensor]:
        if not getattr(prior, "solves_nearby", False):
            return super()._solve(model, prior, sites, steps, tolerance, least)
        prior, sites = tf.nest.map_structure(tf.stop_gradient, (prior, sites))
        found = nearby.find_mode(prior, model.log_density, sites, steps, tolerance, units.unit(model))
        found = tf.nest.map_structure(tf.stop_gradient, found)
        finite = [tf.reduce_all(tf.math.is_finite(part)) for part in (*found.sites, found.violation)]
        return found, tf.reduce_all(finite)

    def objective(self, model: SitedModel, prior: Prior, sites: Sites) -> tf.Tensor:
        """Return log q(y), equation 5, less the charge; see `expansion.laplace_evidence`."""
        return expansion.laplace_evidence(prior, model.log_density, sites)

    def value(self, model: SitedModel, prior: Prior, state: Located) -> tf.Tensor:
        """See `expansion.evidence`."""
        return expansion.evidence(prior, state)

    def at_rest(self, model: SitedModel, prior: Prior, state: Located) -> tf.Tensor:
        """See `expansion.evidence_at_mode`."""
        return expansion.evidence_at_mode(prior, model.log_density, state)


class Taylor(Laplace):
    """vi-Taylor (section 2.3.2): Laplace's at its optimal μ and Σ, and ξ = m."""

    name: ClassVar[str] = "taylor"


class Jaakkola(SiteMethod):
    """vi-JJ (section 2.3.1): ξ and q are set to their optima in turn, which never lowers the bound."""

    name: ClassVar[str] = "jaakkola"
    monotone: ClassVar[bool] = True

    def check(self, model: SitedModel) -> None:
        """Refuse a likelihood without Jaakkola and Jordan's bound, and estimates of variances."""
        super().check(model)
        check_one_factor(model, self.name)
        likelihood = model.likelihood
        if getattr(likelihood, "bound", None) != "jaakkola":
            raise ValueError(
                f"{type(model).__name__} needs a `likelihood` with Jaakkola and Jordan's bound, such as "
                f'BernoulliLogit(bound="jaakkola"); got {type(likelihood).__name__} with '
                f"bound={getattr(likelihood, 'bound', None)!r}."
            )

    def step(self, model: SitedModel, prior: Prior, state: Step) -> Step:
        """See `SiteMethod.step`."""
        return updates.jaakkola_step(prior, model.expectation, state.sites)

    def objective(self, model: SitedModel, prior: Prior, sites: Sites) -> tf.Tensor:
        """Return J(μ̂, Σ̂, ξ) at its best ξ."""
        return variational_bound(prior, model.expectation, sites)

    def at_rest(self, model: SitedModel, prior: Prior, state: Step) -> tf.Tensor:
        """Return the bound at a fixed point of the sites, its gradient in closed form.

        By the envelope theorem that is the gradient of log ∫ p(f) ∏ tₙ(fₙ) df − ½ Σₙ precₙ residualₙ, and of
        the likelihood's own terms, with the marginals held fixed.
        """
        held = tf.nest.map_structure(tf.stop_gradient, prior)
        factor = with_inverse(held.factorise(state.sites.prec))
        q = condition(held, state.sites, factor)
        value = tf.reduce_sum(model.expectation(q.mean, q.var)) - q.kl
        moving = envelope(model, prior, state.sites, q.mean, q.var, factor)
        return tf.stop_gradient(value - moving) + moving


def _instead(likelihood: gpflow.likelihoods.Likelihood) -> str:
    """Return what to use for a likelihood that couples its latent functions."""
    if isinstance(likelihood, (CategoricalLikelihood, gpflow.likelihoods.Softmax)):
        return "use gpflow_ext.likelihoods.StickBreaking for several classes"
    return "use gpflow_ext.models.VGPKMM, whose sites come from expectations over the other functions"


register_method(Laplace())
register_method(Taylor())
register_method(Jaakkola())
