"""The site methods of Khan, Mohamed & Murphy (2012): the parallel fixed point, and Algorithm 1."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from gpflow_ext.kmm import algorithm1, ascent, joint
from gpflow_ext.kmm import held as held_ascent
from gpflow_ext.kmm.ascent import State
from gpflow_ext.kmm.held import Held
from gpflow_ext.likelihoods.robust_max import has_curvature
from gpflow_ext.sites import Prior, Sites, concavity, units, variational_bound
from gpflow_ext.sites.method import SitedModel, SiteMethod, check_one_factor, envelope, register_method


class KMM(SiteMethod):
    """Variational inference: the Gaussian q(f) that maximises E_q[log p(y | f)] − KL[q || p], or a bound.

    It uses the safeguarded parallel fixed point of `kmm.ascent`, which never lowers the bound. Where the
    likelihood is log-concave in each latent function λ ≥ 0; else precisions may be negative.
    """

    name: ClassVar[str] = "kmm"
    monotone: ClassVar[bool] = True
    hands_on: ClassVar[bool] = True
    signed: ClassVar[bool] = True

    def check(self, model: SitedModel) -> None:
        """Refuse sites of several factors to a datum, and estimates of variances."""
        super().check(model)
        check_one_factor(model, self.name)
        if self.signed:
            concavity.tell(model, not concavity.is_concave(model))
        concavity.tell_separate(model)

    def begin(self, model: SitedModel, prior: Prior, sites: Sites) -> Any:
        """See `SiteMethod.begin`."""
        _check_curvature(model)
        return ascent.start(prior, model.expectation, sites, signed=_is_signed(model), unit=units.unit(model))

    def step(self, model: SitedModel, prior: Prior, state: Any) -> Any:
        """See `SiteMethod.step`."""
        return ascent.parallel_step(prior, model.expectation, state, _is_separate(model))

    def objective(self, model: SitedModel, prior: Prior, sites: Sites) -> tf.Tensor:
        """Return the bound of equation 6."""
        return variational_bound(prior, model.expectation, sites)

    def known(self, state: Any) -> tf.Tensor:
        """See `SiteMethod.known`."""
        return state.objective

    def value(self, model: SitedModel, prior: Prior, state: Any) -> tf.Tensor:
        """See `SiteMethod.value`."""
        return self.known(state)

    def finisher(self, model: SitedModel) -> SiteMethod | None:
        """See `SiteMethod.finisher`: Newton's steps for dense priors, one function and λ ≥ 0."""
        dense = (
            getattr(model, "prior_name", None) is None and getattr(model, "inducing_variable", None) is None
        )
        if type(self) is not KMM or not dense or _is_signed(model) or model.num_latent_gps > 1:
            return None
        return Joint()

    def at_rest(self, model: SitedModel, prior: Prior, state: Any) -> tf.Tensor:
        """Return the bound with the gradient of the optimised one; see `envelope`."""
        point, factor = state, None
        if isinstance(state, Held):
            point, factor = state.point, state.factor(tf.nest.map_structure(tf.stop_gradient, prior))
        moving = envelope(model, prior, point.sites, point.mean, point.var, factor)
        return tf.stop_gradient(point.objective - moving) + moving

    def _solve(
        self, model: SitedModel, prior: Prior, sites: Sites, steps: Any, tolerance: Any, least: float
    ) -> tuple[Any, tf.Tensor]:
        if not getattr(prior, "hands_on", False):
            return super()._solve(model, prior, sites, steps, tolerance, least)
        _check_curvature(model)
        prior, sites = tf.nest.map_structure(tf.stop_gradient, (prior, sites))

        def step(held: Held) -> Held:
            return held_ascent.step(prior, model.expectation, held, _is_separate(model))

        first = held_ascent.start(prior, model.expectation, sites, _is_signed(model), units.unit(model))
        return self._iterate(step, first, steps, tolerance, least)


class Joint(KMM):
    """The same fixed point by Newton's steps in the precisions and the mean together; see `kmm.joint`."""

    _solve = SiteMethod._solve

    def step(self, model: SitedModel, prior: Any, state: Any) -> Any:
        """See `SiteMethod.step`; as `KMM` for the priors of a user's own."""
        if getattr(prior, "forms_covariance", False):
            return joint.step(prior, model.expectation, state)
        return super().step(model, prior, state)


def _is_signed(model: SitedModel) -> bool:
    return getattr(model, "indefinite", False)


def _is_separate(model: SitedModel) -> bool:
    return getattr(model, "separate", False)


def _check_curvature(model: SitedModel) -> None:
    """Refuse the expectations of robust-max, which have no second derivatives for more than two classes.

    When the method begins, since the constructor does not know which method will train the model.
    """
    if not has_curvature(model.likelihood):
        raise NotImplementedError(
            f"{type(model).__name__} needs a likelihood whose expectations have second derivatives, which "
            "those of RobustMax have for two classes only: use gpflow_ext.models.SVGPRobustMax, or SparseEP."
        )


class Sweeping(NamedTuple):
    """A point of Algorithm 1: that of the ascent, and the whole covariance V, [L, N, N]."""

    point: State
    cov: tf.Tensor

    @property
    def sites(self) -> Sites:
        """See `SiteState`."""
        return self.point.sites

    @property
    def violation(self) -> tf.Tensor:
        """See `SiteState`."""
        return self.point.violation


class Algorithm1(KMM):
    """Algorithm 1 of the paper, one site after the other; see `kmm.algorithm1`. For dense priors.

    Parameters
    ----------
    block
        Sites whose rank-one updates are applied together; it does not change the iterates.
    """

    _solve = SiteMethod._solve
    signed: ClassVar[bool] = False

    def __init__(self, block: int = 64) -> None:
        self.block = block

    def check(self, model: SitedModel) -> None:
        """Refuse priors without a covariance of all rows too."""
        super().check(model)
        if not concavity.is_concave(model):
            name = type(model.likelihood).__name__
            raise NotImplementedError(
                f'method="algorithm1" is for log-concave likelihoods, which {name} is not: use "parallel".'
            )
        prior_name = getattr(model, "prior_name", None)
        if prior_name is not None:
            raise NotImplementedError(
                f'prior="{prior_name}" forms no covariance of all rows, which method="algorithm1" sweeps '
                'over: use "parallel".'
            )

    def begin(self, model: SitedModel, prior: Any, sites: Sites) -> Sweeping:
        """See `SiteMethod.begin`."""
        if not getattr(prior, "forms_covariance", False):
            raise ValueError(
                'method="algorithm1" sweeps over the dense covariance of each latent function; with inducing '
                'variables, or a kernel that mixes functions, use "parallel".'
            )
        _check_curvature(model)
        point = ascent.start(prior, model.expectation, sites, unit=units.unit(model))
        return Sweeping(point, algorithm1.covariance(prior, point.prec))

    def step(self, model: SitedModel, prior: Any, state: Any) -> Sweeping:
        """See `SiteMethod.step`."""

        def at_rows(rows: tf.Tensor, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            return model.expectation(mean, var, rows)

        return Sweeping(
            *algorithm1.sweep_step(prior, model.expectation, at_rows, state.point, state.cov, self.block)
        )

    def known(self, state: Any) -> tf.Tensor:
        """See `SiteMethod.known`."""
        return state.point.objective

    def at_rest(self, model: SitedModel, prior: Prior, state: Any) -> tf.Tensor:
        """See `KMM.at_rest`."""
        return super().at_rest(model, prior, state.point)


register_method(KMM())
