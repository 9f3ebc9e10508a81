"""The Gibbs baseline of Hensman et al. (2015), section 4: hyperparameters and latent functions in turn.

An iteration proposes θ + α N(0, I) with v held, a Metropolis–Hastings step, then moves v by Hamiltonian Monte
Carlo with θ held. What depends on θ alone, the projection A = L⁻¹K_uf, is computed once for each proposal, so
that a gradient costs O(NMP) instead of O(M³ + NM²). On the other hand v limits how far θ can move.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.numerics import philox
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.hmc import Counting, Randomness, Results, State, draw_length, hamiltonian
from gpflow_ext.sampling.target import Target


class TwoSteps(NamedTuple):
    """A log likelihood of v and θ whose first step does not depend on v."""

    size: int  # coordinates of v, which come first
    prepare: Callable[[Stack], Any]  # what depends on θ alone, a nest of tensors [C, ...] or [1, ...]
    log_likelihood: Callable[[Stack, Any], tf.Tensor]  # of a stack and what `prepare` returned, [C]


class Blocks:
    """A log density of z = (v, θ) in two steps, in coordinates in which θ does not depend on those of v.

    Parameters
    ----------
    target, steps
        The density.

    Attributes
    ----------
    size
        Coordinates of v, which come first.
    """

    def __init__(self, target: Target, steps: TwoSteps) -> None:
        self._target, self._steps, self.size = target, steps, steps.size

    def prepare(self, z: tf.Tensor) -> Any:
        """Return what does not depend on v, a nest of tensors [C, ...], of z [C, d]."""
        prepared = self._steps.prepare(self._target.values(self._target.position(z)))
        return tf.nest.map_structure(
            lambda part: tf.broadcast_to(part, tf.concat([tf.shape(z)[:1], tf.shape(part)[1:]], axis=0)),
            prepared,
        )

    def density(self, z: tf.Tensor, prepared: Any) -> tf.Tensor:
        """Return the log density of z [C, d] and what `prepare` returned, [C]."""
        return self._target.density(z, lambda stack: self._steps.log_likelihood(stack, prepared))


class _Known(NamedTuple):
    prepared: Any
    log_density: tf.Tensor


class MetropolisWithinGibbs(Counting):
    """Metropolis–Hastings for θ, then HMC of random length for v.

    Parameters
    ----------
    blocks
        The density.
    steps, longest
        ε of a leapfrog step of v and α of the random walk of θ, [2], and L_max.
    """

    def __init__(
        self,
        blocks: Blocks,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        among: philox.Among | None = None,
    ) -> None:
        super().__init__(randomness, among)
        self._blocks, self._steps, self._longest = blocks, steps, longest

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        prepared = self._blocks.prepare(z)
        return self.before(_Known(prepared, self._blocks.density(z, prepared)), z)

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        for_walk, for_length, for_v = philox.split(self.seed(previous), 3)
        z, known = self._walk(z, previous.inner, for_walk)
        v, theta = tf.split(z, [self._blocks.size, -1], axis=1)
        steps = draw_length(for_length, self._longest)

        def density(v: tf.Tensor) -> tf.Tensor:
            return self._blocks.density(tf.concat([v, theta], axis=1), known.prepared)

        state = State(*tfp.math.value_and_gradient(density, v))
        moved = hamiltonian(density, v, state, self._steps[0], steps, for_v, self._among)
        after = known._replace(log_density=moved.state.log_density)
        return tf.concat([moved.position, theta], axis=1), moved.results(previous, steps, after)

    def _walk(self, z: tf.Tensor, known: _Known, seed: tf.Tensor) -> tuple[tf.Tensor, _Known]:
        """Propose another θ and accept or reject it."""
        for_move, for_choice = philox.split(seed)
        v, theta = tf.split(z, [self._blocks.size, -1], axis=1)
        move = philox.normal(tf.shape(theta), for_move, z.dtype, self._among)
        proposed = tf.concat([v, theta + self._steps[1] * move], axis=1)
        prepared = self._blocks.prepare(proposed)
        log_density = self._blocks.density(proposed, prepared)
        level = tf.math.log(philox.uniform(tf.shape(log_density), for_choice, z.dtype, self._among))
        taken = level < log_density - known.log_density  # never where the density is not a number

        def choose(new: tf.Tensor, old: tf.Tensor) -> tf.Tensor:
            return tf.where(tf.reshape(taken, [-1] + [1] * (new.shape.rank - 1)), new, old)

        return choose(proposed, z), _Known(
            tf.nest.map_structure(choose, prepared, known.prepared), choose(log_density, known.log_density)
        )
