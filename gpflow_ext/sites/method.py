"""Site methods: how Gaussian sites are proposed, and what they maximise, on any site model.

Variational inference, Laplace's method, Taylor's, Jaakkola and Jordan's, and expectation propagation are each
a `SiteMethod`: an iteration over a state that knows its sites, an objective, and a function of the
hyperparameters that at a fixed point has the gradient of the optimised objective. All functions are pure:
they compile under XLA, and the same ones serve `gpflow_ext.fit` and GPflow's own optimisers.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.sites.algebra import Factor, Prior, Sites, as_one_function

REMEDY = "Standardise the data, or start from other hyperparameters."
SMALLEST_GAIN = 1e-10  # relative: an iteration that gains no more is at rest


class SitedModel(Protocol):
    """Protocol of a model with Gaussian sites for a method; `gpflow_ext.models.SiteModel` implements it."""

    data: Any
    kernel: gpflow.kernels.Kernel
    likelihood: gpflow.likelihoods.Likelihood
    num_latent_gps: int

    @property
    def parameters(self) -> Sequence[gpflow.Parameter]:
        """All parameters."""

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def prior(self, X: tf.Tensor | None = None) -> Prior:
        """Return the prior at the training inputs."""

    def expectation(self, mean: tf.Tensor, var: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
        """Return Eq[log p(yₙ | fₙ)], or the likelihood's bound of it, of all data or of some rows, [N]."""

    def log_density(self, F: tf.Tensor) -> tf.Tensor:
        """Return log p(yₙ | fₙ) for latent values F [N, L], as [N]."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters, []."""


class SiteState(Protocol):
    """A point of an iteration over sites: a named tuple of tensors with two properties, at least."""

    @property
    def sites(self) -> Sites:
        """The sites of this point, [N, L]."""

    @property
    def violation(self) -> tf.Tensor:
        """How far it is from the fixed point, relative to 1 + |prec|, as by `sites.units.violation`, []."""


class Step(NamedTuple):
    """The state of a method without memory: the outcome of one update of all sites."""

    sites: Sites
    violation: tf.Tensor  # [], infinite before the first update


class SiteMethod(abc.ABC):
    """A site method: how sites are updated and what they maximise; it has no state of its own.

    A subclass implements `step` and `objective`. ``name`` is its name in a model and in ``fit(recipe=...)``.
    """

    name: ClassVar[str]
    monotone: ClassVar[bool] = False  # whether a step never lowers the objective
    newton: ClassVar[bool] = False  # whether a step near the fixed point squares the violation
    sums_variances: ClassVar[bool] = False  # whether estimates of variances do, whose errors even out
    hands_on: ClassVar[bool] = False  # whether a step hands its factor on to the next
    signed: ClassVar[bool] = False  # whether `check` tells a model that precisions may be below zero

    def check(self, model: SitedModel) -> None:
        """Raise if the method does not support the model's likelihood, sites or prior.

        Raises
        ------
        ValueError, NotImplementedError
            With the reason, and what to use instead.
        """
        if getattr(model, "estimates_variances", False) and not self.sums_variances:
            raise NotImplementedError(
                f'recipe="{self.name}" needs the variance at each datum, of which the iterative solver of '
                'prior="vecchia" has estimates by probes: use VecchiaOptions(solver="direct"), or '
                "gpflow_ext.models.GPLaplace."
            )

    def begin(self, model: SitedModel, prior: Prior, sites: Sites) -> Any:
        """Return the state at given sites under a prior that has moved; by default the sites as they are."""
        return Step(sites, tf.constant(np.inf, sites.nat1.dtype))

    @abc.abstractmethod
    def step(self, model: SitedModel, prior: Prior, state: Any) -> Any:
        """Return the state after one update of all sites, of the same structure and shapes."""

    @abc.abstractmethod
    def objective(self, model: SitedModel, prior: Prior, sites: Sites) -> tf.Tensor:
        """Return what is maximised, at any sites, []."""

    def finisher(self, model: SitedModel) -> SiteMethod | None:
        """Return a method with the same fixed points for where this one gains little by each step, if any."""
        return None

    def known(self, state: Any) -> tf.Tensor:
        """Return the objective of a state of a monotone method if the state holds it, [], else NaN."""
        return tf.constant(np.nan, state.violation.dtype)

    def value(self, model: SitedModel, prior: Prior, state: Any) -> tf.Tensor:
        """Return the objective of a state, []; by default that of its sites."""
        return self.objective(model, prior, state.sites)

    def at_rest(self, model: SitedModel, prior: Prior, state: Any) -> tf.Tensor:
        """Return the objective at a fixed point, differentiable in the hyperparameters as the optimised one.

        By default `objective` with the sites held fixed, which is right if it is stationary in the sites. For
        priors with ``held_factors`` make it of `variational_bound` or ``prior.log_normaliser``.
        """
        return self.objective(model, prior, Sites(*map(tf.stop_gradient, state.sites)))

    def is_near(self, violation: tf.Tensor, steps: int | tf.Tensor) -> tf.Tensor:
        """Return whether the objective means something at a violation after so many steps, []."""
        return tf.constant(True)

    def remedy(self, model: SitedModel) -> str:
        """Say what to do where the objective of a fit is not finite, in a sentence."""
        return REMEDY

    def stationarity(self) -> float:
        """Return the violation that counts as converged, for GPflow's default float type."""
        if gpflow.default_float() != np.float64:
            return 1e-3
        return 1e-7 if self.newton else 1e-5

    def solve(
        self,
        model: SitedModel,
        prior: Prior,
        sites: Sites,
        steps: int | tf.Tensor,
        tolerance: float | tf.Tensor,
        smallest_gain: float = -np.inf,
    ) -> tuple[Any, tf.Tensor]:
        """Return the state after steps until the violation is within ``tolerance``, and whether it is finite.

        They also end where the objective, if it is `known`, gains no more than ``smallest_gain``,
        relative to it. The prior and the sites are held fixed: nothing is differentiated through the
        iteration.
        """
        with as_one_function(model.expectation, sites.nat1):
            return self._solve(model, prior, sites, steps, tolerance, smallest_gain)

    def _solve(
        self, model: SitedModel, prior: Prior, sites: Sites, steps: Any, tolerance: Any, least: float
    ) -> tuple[Any, tf.Tensor]:
        prior = tf.nest.map_structure(tf.stop_gradient, prior)
        first = self.begin(model, prior, Sites(*map(tf.stop_gradient, sites)))
        return self._iterate(lambda state: self.step(model, prior, state), first, steps, tolerance, least)

    def _iterate(
        self, step: Callable[[Any], Any], first: Any, steps: Any, tolerance: Any, least: float
    ) -> tuple[Any, tf.Tensor]:
        """See `solve`: what a step maps is a state, or holds one."""

        def going(k: tf.Tensor, gain: tf.Tensor, state: Any) -> tf.Tensor:
            return (k < steps) & (state.violation > tolerance) & (gain > 0.0)  # false for a NaN violation

        def move(k: tf.Tensor, gain: tf.Tensor, state: Any) -> tuple[tf.Tensor, tf.Tensor, Any]:
            new = step(state)
            _check_alike(self.name, new, state)
            new = tf.nest.map_structure(lambda a, b: tf.ensure_shape(a, b.shape), new, state)
            known = self.known(new)
            gain = known - self.known(state) - least * tf.maximum(tf.abs(known), tf.ones_like(known))
            return k + 1, tf.where(tf.math.is_nan(gain), tf.ones_like(gain), gain), new

        begin = (tf.constant(0), tf.ones_like(self.known(first)), first)
        _, _, state = tf.while_loop(going, move, begin)
        state = tf.nest.map_structure(tf.stop_gradient, state)
        finite = [tf.reduce_all(tf.math.is_finite(part)) for part in (*state.sites, state.violation)]
        return state, tf.reduce_all(finite)


def _check_alike(name: str, new: Any, state: Any) -> None:
    """Raise ``ValueError`` where a step returns anything but a state like the one that it was given."""

    def kinds(state: Any) -> list[str]:
        parts = map(tf.convert_to_tensor, tf.nest.flatten(state))
        return [type(state).__name__, *(f"{part.shape} {part.dtype.name}" for part in parts)]

    try:
        tf.nest.assert_same_structure(new, state)
        pairs = list(zip(tf.nest.flatten(new), tf.nest.flatten(state), strict=True))
        alike = all(a.shape.is_compatible_with(b.shape) and a.dtype == b.dtype for a, b in pairs)
    except (TypeError, ValueError):
        alike = False
    if not alike:
        found = "None" if new is None else ", ".join(kinds(new))
        raise ValueError(
            f'`step` of the site method "{name}" must return a state like the one that it is given: '
            f"{', '.join(kinds(state))}; got {found}."
        )


def envelope(
    model: SitedModel,
    prior: Prior,
    sites: Sites,
    mean: tf.Tensor,
    var: tf.Tensor,
    factor: Factor | None = None,
) -> tf.Tensor:
    """Return a function of the hyperparameters whose gradient is that of the optimised bound.

    At a fixed point of the sites, with marginals ``mean`` and ``var`` [N, L] held fixed, the bound and
    log ∫ p(f) ∏ tₙ(fₙ) df + Σₙ f_b(yₙ, mₙ, vₙ) have one gradient (the envelope theorem), but this one
    needs no derivative of the variances. Its value is not the bound. ``factor`` is that of the sites'
    precisions, if it is known. Derived in docs/derivations.md, section 5.
    """
    sites = Sites(*map(tf.stop_gradient, sites))
    mean, var = tf.stop_gradient(mean), tf.stop_gradient(var)
    unseen = 0.5 * tf.reduce_sum(sites.prec * prior.residual)
    return prior.log_normaliser(sites, factor) - unseen + tf.reduce_sum(model.expectation(mean, var))


def check_one_factor(model: SitedModel, name: str) -> None:
    """Raise ``NotImplementedError`` for a model whose data have several factors, each with its own sites."""
    shape = model.sites.nat1.shape
    if shape.rank != 2:
        raise NotImplementedError(
            f'recipe="{name}" has one site for each datum and latent function, but this model has those of '
            f'several factors, {shape}: use recipe="ep".'
        )


class Named(Protocol):
    """A model that names its site method."""

    site_method: SiteMethod | str


def adopt(model: Named, method: SiteMethod) -> None:
    """Let a model name a method as its own, where it does not yet."""
    if site_method(model.site_method).name != method.name:
        model.site_method = method


_METHODS: dict[str, SiteMethod] = {}


def register_method(method: SiteMethod) -> SiteMethod:
    """Make a site method known by its name, for ``SiteModel.site_method``; return it."""
    _METHODS[method.name] = method
    return method


def site_method(given: SiteMethod | str) -> SiteMethod:
    """Return a site method, given itself or by its name.

    Raises
    ------
    ValueError
        For an unknown name, or anything else; the message lists the known ones.
    """
    if isinstance(given, SiteMethod):
        return given
    if not isinstance(given, str) or given not in _METHODS:
        known = ", ".join(map(repr, sorted(_METHODS)))
        raise ValueError(f"`site_method` must be a SiteMethod, or one of {known}; got {given!r}.")
    return _METHODS[given]
