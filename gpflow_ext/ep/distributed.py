"""Expectation propagation over the shards of a ``tf.distribute`` strategy.

Each replica k sends the inducing variables the message (A_kΛ_kA_kᵀ, A_kρ_k). The sum of the messages gives
every replica the posterior (Hernández-Lobato & Hernández-Lobato 2016, section 3), and each matches the
moments of its own factors alone. With log Z = Σ_k terms_k(θ, message) + log ∫ N(v; 0, I) message(v) dv, the
gradient in the hyperparameters θ needs ∂/∂message summed over the replicas, pulled back through each one's
own message.

An iteration exchanges one [L, M, M] and one [M, L] tensor, their gradients, those of the hyperparameters and
a few scalars. The sites travel only where they are `gather`ed: between times a process knows its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

from gpflow_ext.ep import engine, factors, moment_matching
from gpflow_ext.ep.moment_matching import Layout
from gpflow_ext.sites import Seen, Sites, units
from gpflow_ext.training.distribute import Shards, total


class ShardableModel(Protocol):
    """Protocol of a model for the engine, beyond `ep.factors.FactoredModel`."""

    data: tuple[tf.Tensor, tf.Tensor]

    @property
    def sites(self) -> Sites:
        """The current sites."""

    def assign_sites(self, new: Sites) -> None:
        """Replace the sites."""

    def prior(self, X: tf.Tensor | None = None) -> Seen:
        """Return the prior at inputs X [R, D]."""

    def log_normaliser(
        self, mean: tf.Tensor, var: tf.Tensor, data: tuple[tf.Tensor, tf.Tensor] | None = None
    ) -> tf.Tensor:
        """Return log ∫ p(yₙ | f) N(f; mean, var) df for the given data, [R]."""

    def layout(self, data: tuple[tf.Tensor, tf.Tensor] | None = None) -> Layout:
        """Return which latent functions each factor of the given data sees."""

    def log_prior_density(self) -> tf.Tensor:
        """Return the log density of the priors of the hyperparameters."""


class ShardedFactors:
    """The factors of a model, each at the replica that holds its datum.

    Parameters
    ----------
    target
        The model.
    shards
        Its rows, sharded over the replicas.
    """

    def __init__(self, target: ShardableModel, shards: Shards) -> None:
        self._target, self._shards = target, shards
        self._data = tuple(shards.shard(part) for part in target.data)

    def prior(self) -> Any:
        """Return the prior at each replica's data."""
        return self._shards.run(self._target.prior, self._data[0])

    def at(self, prior: Any, sites: Sites) -> factors.Evaluated:
        """Evaluate the evidence and match the moments of all factors; see `ep.engine`."""
        return self._point(prior, sites, [])

    def with_gradient(self, variables: Sequence[tf.Variable], sites: Sites) -> factors.Evaluated:
        """Return `at` and the gradient of its objective with the sites held fixed."""
        return self._point(None, sites, variables)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """Return the sum of values [K, N, ...] over all but the first axis, [K]."""
        return self._shards.sum(values)

    def _point(self, prior: Any, sites: Sites, variables: Sequence[tf.Variable]) -> factors.Evaluated:
        """Return the point; its proposal is that of this process's factors, the other sites stay."""

        def part(prior: Seen | None, X: tf.Tensor, Y: tf.Tensor, rows: tf.Tensor) -> Any:
            return self._part(prior, (X, Y), Sites(*(tf.gather(p, rows) for p in sites)), variables)

        results = self._shards.run(part, prior, *self._data, self._shards.rows)
        value, unsound, violations, *gradient = self._shards.equal(results[0])
        proposal = Sites(*(self._shards.replace(*pair) for pair in zip(sites, results[1], strict=True)))
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in [value, violations, *gradient]])
        return factors.Evaluated(
            value, proposal, tf.reduce_max(violations), finite & (unsound == 0.0), gradient
        )

    def _part(
        self,
        prior: Seen | None,
        data: tuple[tf.Tensor, tf.Tensor],
        sites: Sites,
        variables: Sequence[tf.Variable],
    ) -> tuple[list[tf.Tensor], Sites]:
        """Return the sums over all replicas (of log Z, unsound ones, …), and the proposal of this one."""
        target, replicas = self._target, self._shards.num_replicas

        def log_normaliser(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
            return target.log_normaliser(mean, var, data)

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            prior = target.prior(data[0]) if prior is None else prior
            layout = target.layout(data)
            message = total(prior.message(layout.combine(sites)))
            at = moment_matching.evaluate(prior, log_normaliser, sites, message, layout)
            shared = message.posterior().log_normaliser() + target.log_prior_density()
            value = at.log_evidence + shared / replicas
        gradient = tape.gradient(value, variables, unconnected_gradients="zero")
        residual = layout.select(prior.residual)
        unit = units.unit_of(target, data[1], sites.nat1.dtype)
        proposal, violation, finite = factors.match(log_normaliser, at.cavity, residual, sites, unit)
        unsound = tf.cast(~(at.sound & finite), value.dtype)
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        violations = tf.one_hot(number, replicas, on_value=violation, off_value=tf.zeros_like(violation))
        return total([value, unsound, violations, *gradient]), proposal


def gatherer(target: ShardableModel, matcher: engine.MomentMatcher, shards: Shards) -> Callable[[], None]:
    """Return the function that makes the sites and the matcher's memory of them complete in each process."""

    def gather() -> None:
        if shards.num_processes == 1:
            return
        known = tf.concat([tf.stack(target.sites), matcher.proposal, matcher.direction], axis=0)  # [6, N, L]
        whole = shards.gather(tf.stack(tf.unstack(known), axis=1))  # [N, 6, L]
        sites, proposal, direction = tf.split(tf.stack(tf.unstack(whole, axis=1)), 3)
        target.assign_sites(Sites(*tf.unstack(sites)))
        matcher.proposal.assign(proposal)
        matcher.direction.assign(direction)

    return gather
