"""Expectation propagation of all factors at given sites: the evidence, and the sites that match moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from gpflow_ext.ep import moment_matching
from gpflow_ext.ep.moment_matching import Layout
from gpflow_ext.sites import Seen, Sites, units


class FactoredModel(Protocol):
    """Protocol of a model for the engine, its sites standing for factors of the likelihood."""

    data: Any

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def gram(self) -> tf.Tensor:
        """Return K_uu, [1 or L, M, M]."""

    def prior(self, X: None = None, chol: tf.Tensor | None = None) -> Seen:
        """Return the prior at the training inputs, for the Cholesky factor of K_uu where it is known."""

    def log_normaliser(self, mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        """Return log ∫ p(yₙ | f) N(f; mean, var) df for all data, [N]."""

    def layout(self) -> Layout:
        """Return which latent functions each factor sees."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""


class Evaluated(NamedTuple):
    """All that a step needs to know at given sites and hyperparameters."""

    objective: tf.Tensor  # log Z, of `Factors` plus the log prior density, []
    proposal: Sites  # the sites that match the moments, in the shape of the sites
    violation: tf.Tensor  # largest change of a site that they propose, relative to 1 + |prec|, []
    sound: tf.Tensor  # whether all of it is finite, B and the cavity variances are positive, []
    gradient: list[tf.Tensor]  # of the objective in the hyperparameters, where these move


def evaluate(target: FactoredModel, prior: Seen, sites: Sites) -> Evaluated:
    """Evaluate the evidence and match the moments of all factors. O(NM²): one Cholesky factorisation."""
    layout = target.layout()
    at = moment_matching.evaluate(prior, target.log_normaliser, sites, layout=layout)
    residual = layout.select(prior.residual)
    unit = units.unit(target)
    proposal, violation, finite = match(target.log_normaliser, at.cavity, residual, sites, unit)
    return Evaluated(at.log_evidence, proposal, violation, at.sound & finite, [])


def match(
    log_normaliser: moment_matching.LogNormaliser,
    cavity: moment_matching.Cavity,
    residual: tf.Tensor,
    sites: Sites,
    unit: tf.Tensor,
) -> tuple[Sites, tf.Tensor, tf.Tensor]:
    """Return the matching sites, the largest relative change that they are, and whether all are finite."""
    proposal = moment_matching.matched_sites(log_normaliser, cavity, residual)
    change = Sites(proposal.nat1 - sites.nat1, proposal.prec - sites.prec)
    finite = tf.math.is_finite(tf.reduce_sum(tf.abs(tf.stack(change))))
    return proposal, units.violation(change, sites.prec, unit), finite


def evaluate_with_gradient(
    target: FactoredModel, variables: Sequence[tf.Variable], sites: Sites
) -> Evaluated:
    """Return `evaluate`, the log prior density added, and the gradient of the objective.

    The sites are held fixed, the cavities are not.
    """
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variables)
        chol = tf.stop_gradient(tf.linalg.cholesky(target.gram()))  # its derivative is cheaper in closed form
        point = _with_prior_density(target, evaluate(target, target.prior(None, chol), sites))
    gradient = tape.gradient(point.objective, variables, unconnected_gradients="zero")
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(part)) for part in gradient])
    return point._replace(gradient=gradient, sound=point.sound & finite)


def _with_prior_density(target: FactoredModel, point: Evaluated) -> Evaluated:
    return point._replace(objective=point.objective + target.log_prior_density())


def sum_over_factors(values: tf.Tensor) -> tf.Tensor:
    """Return the sum of values [K, N, ...] over all but the first axis, [K]."""
    return tf.reduce_sum(values, axis=list(range(1, values.shape.rank)))


class Factors(Protocol):
    """Evaluates the factors of a model: all at once, or in shards."""

    def prior(self) -> Any:
        """Return the prior at the data, in the form that ``at`` takes."""

    def at(self, prior: Any, sites: Sites) -> Evaluated:
        """Return `evaluate` of all factors, the log prior density added."""

    def with_gradient(self, variables: Sequence[tf.Variable], sites: Sites) -> Evaluated:
        """Return `evaluate_with_gradient` of all factors."""

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Return the sum of values [K, N, ...] over all but the first axis, [K]."""


class WholeFactors:
    """All factors of a model at once."""

    def __init__(self, target: FactoredModel) -> None:
        self._target = target

    def prior(self) -> Seen:
        """Return the prior at the data."""
        return self._target.prior()

    def at(self, prior: Seen, sites: Sites) -> Evaluated:
        """See `Factors`."""
        return _with_prior_density(self._target, evaluate(self._target, prior, sites))

    def with_gradient(self, variables: Sequence[tf.Variable], sites: Sites) -> Evaluated:
        """Return `evaluate_with_gradient`."""
        return evaluate_with_gradient(self._target, variables, sites)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """See `sum_over_factors`."""
        return sum_over_factors(values)
