"""Expectation propagation as a site method, on any site model; see `ep.moment_matching` for the equations."""

from __future__ import annotations

from typing import Any, ClassVar

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.ep import factors, moment_matching, sweeps, unwhitened
from gpflow_ext.ep.moment_matching import WHOLE_DATUM, Layout
from gpflow_ext.ep.optimum import is_near, settle
from gpflow_ext.ep.sweeps import Sweep
from gpflow_ext.numerics import linalg
from gpflow_ext.numerics.log_predictive import log_predictive
from gpflow_ext.sites import Prior, Seen, SitedModel, SiteMethod, Sites, register_method, sparse_prior
from gpflow_ext.sites.concavity import is_concave, is_separate, tell


class EP(SiteMethod):
    """Parallel expectation propagation: each site matches the moments of its factor; see `ep.engine`.

    A dense model is its own set of inducing points. A prior that cannot be whitened is conditioned on the
    sites as it is. Where the likelihood is not log-concave, precisions may be below zero.
    """

    name: ClassVar[str] = "ep"

    def check(self, model: SitedModel) -> None:
        """Refuse likelihoods that are random or weighted, or whose factors the model has no sites for."""
        super().check(model)
        likelihood = model.likelihood
        if getattr(model, "prior_name", None) == "grid":
            raise NotImplementedError(
                'prior="grid" estimates variances by probes, which cavities need more exactly: use '
                'recipe="kmm" or "laplace", or prior="vecchia" for expectation propagation.'
            )
        if hasattr(likelihood, "weights"):
            raise NotImplementedError(
                f"{type(likelihood).__name__} gives a datum the weight of several, each with a site of its "
                "own in expectation propagation: use gpflow_ext.models.VGPKMM, or repeat the rows."
            )
        if isinstance(likelihood, gpflow.likelihoods.MonteCarloLikelihood):
            raise NotImplementedError(
                f"The predictive density of {type(likelihood).__name__} is a Monte Carlo estimate, which has "
                "no fixed point; use a likelihood with a deterministic `predict_log_density`."
            )
        if hasattr(likelihood, "factors") and not hasattr(model, "layout"):
            raise NotImplementedError(
                f"{type(likelihood).__name__} splits into factors of some latent functions, which need sites "
                "of their own: use gpflow_ext.models.SparseEP."
            )
        tell(model, _is_dense(model) and not (is_concave(model) and is_separate(model, True)))

    def remedy(self, model: SitedModel) -> str:
        """See `SiteMethod.remedy`: outliers are the first suspect."""
        if isinstance(model.likelihood, gpflow.likelihoods.StudentT):
            return (
                "With far outliers expectation propagation may have no fixed point: start from a larger "
                "scale, give `starts=3`, or use GPflow's SVGP."
            )
        return super().remedy(model)

    def stationarity(self) -> float:
        """See `SiteMethod.stationarity`."""
        return 1e-6 if super().stationarity() < 1e-3 else 1e-3

    def is_near(self, violation: tf.Tensor, steps: int | tf.Tensor) -> tf.Tensor:
        """See `SiteMethod.is_near`: log Z means nothing where no fixed point is in sight."""
        return is_near(violation, steps)

    def begin(self, model: SitedModel, prior: Prior, sites: Sites) -> Sweep:
        """See `SiteMethod.begin`; sites that are not sound under the prior are set to zero."""
        target, seen = factored(model), unwhitened.seen(prior)
        point = factors.evaluate(target, seen, sites)
        zero = Sites(*map(tf.zeros_like, sites))
        sites, point = tf.cond(
            point.sound, lambda: (sites, point), lambda: (zero, factors.evaluate(target, seen, zero))
        )
        return Sweep(
            sites, point.proposal, point.violation, point.objective, sweeps.beginning(tf.stack(sites))
        )

    def step(self, model: SitedModel, prior: Prior, state: Sweep) -> Sweep:
        """See `SiteMethod.step`; a sweep that does not stand is taken again at half the length."""
        target, seen = factored(model), unwhitened.seen(prior)

        def attempt(k: tf.Tensor, _: tf.Tensor, point: Sweep) -> tuple[tf.Tensor, tf.Tensor, Sweep]:
            new, stands = sweeps.sweep(target, seen, point, 0.5 ** tf.cast(k, state.violation.dtype), None)
            return k + 1, stands, new

        _, stands, new = tf.while_loop(
            lambda k, stands, _: (k < sweeps.ATTEMPTS) & ~stands,
            attempt,
            (tf.constant(0), tf.constant(False), state),
        )
        failed = tf.constant(float("nan"), new.violation.dtype)
        return new._replace(violation=tf.where(stands, new.violation, failed))

    def solve(
        self,
        model: SitedModel,
        prior: Prior,
        sites: Sites,
        steps: int | tf.Tensor,
        tolerance: float | tf.Tensor,
        smallest_gain: float = -np.inf,
    ) -> tuple[Sweep, tf.Tensor]:
        """See `SiteMethod.solve`; K is whitened once, and the graph evaluates the factors in one place."""
        prior = tf.nest.map_structure(tf.stop_gradient, prior)
        sites = Sites(*map(tf.stop_gradient, sites))
        state = settle(factored(model), unwhitened.seen(prior), sites, steps, tolerance)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack(state.sites)))
        return state, finite & tf.math.is_finite(state.violation)

    def objective(self, model: SitedModel, prior: Prior, sites: Sites) -> tf.Tensor:
        """Return log Z."""
        target = factored(model)
        seen = unwhitened.seen(prior)
        return moment_matching.evaluate(
            seen, target.log_normaliser, sites, layout=target.layout()
        ).log_evidence


def _is_dense(model: Any) -> bool:
    return model.inducing_variable is None and not model.is_structured


class FactorView:
    """A site model as expectation propagation sees it: a factor to a datum, a prior of whitened variables."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def data(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The data of the model."""
        return self._model.data

    @property
    def likelihood(self) -> gpflow.likelihoods.Likelihood:
        """The likelihood of the model."""
        return self._model.likelihood

    @property
    def sites(self) -> Sites:
        """See `ep.factors.FactoredModel`."""
        return self._model.sites

    def assign_sites(self, new: Sites) -> None:
        """See `ep.factors.FactoredModel`."""
        self._model.assign_sites(new)

    def gram(self) -> tf.Tensor:
        """Return K_uu, or K at the data of a dense model, [1 or L, M, M]."""
        if self._model.inducing_variable is not None:
            return sparse_prior.gram(self._model)
        return linalg.above_rounding(self._model.prior().cov)

    def prior(self, X: None = None, chol: tf.Tensor | None = None) -> Seen:
        """See `ep.factors.FactoredModel`."""
        model = self._model
        if chol is None:
            return model.prior().whiten()
        if model.inducing_variable is not None:
            return sparse_prior.project(model, model.data[0], chol)
        return model.prior().whiten(chol)

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """See `ep.factors.FactoredModel`."""
        X, Y = self.data
        return log_predictive(self.likelihood, X, mean, var, Y)

    def layout(self) -> Layout:
        """Return that each datum is one factor."""
        return WHOLE_DATUM

    def log_prior_density(self) -> tf.Tensor:
        """See `ep.factors.FactoredModel`."""
        return self._model.log_prior_density()


def factored(model: Any) -> Any:
    """Return a site model as `ep.factors.FactoredModel`: itself where it is one, else a view of it."""
    return model if hasattr(model, "layout") else FactorView(model)


register_method(EP())
