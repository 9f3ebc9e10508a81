"""Hamiltonian Monte Carlo of many chains in one graph.

Hensman et al. (2015), section 3: momenta from N(0, I), and in each iteration a number of leapfrog steps drawn
uniformly from 1, …, L_max. A fixed number resonates: on a Gaussian the trajectory can return to where it
began. All chains share the draw, which is valid because it does not depend on them, so none waits for
another.

Random numbers are Philox's, which TensorFlow draws alike in a plain graph and under XLA; those of the
no-U-turn sampler, which is TensorFlow Probability's, are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.numerics import philox

DIVERGENCE = 1000.0  # energy error beyond which a trajectory counts as divergent
MAX_TREE_DEPTH = 7  # of NUTS: 127 leapfrog steps

LogDensity = Callable[[tf.Tensor], tf.Tensor]
"""Map positions z [C, d] to log densities [C]."""


class Results(NamedTuple):
    """Results of an iteration; each [C] but ``gradients`` []."""

    inner: Any
    log_density: tf.Tensor
    accepted: tf.Tensor
    energy: tf.Tensor
    divergent: tf.Tensor
    gradients: tf.Tensor
    iteration: tf.Tensor  # its number, [], which decides its random numbers


class Randomness(NamedTuple):
    """Source of the random numbers of iterations."""

    seed: tf.Tensor  # [2]
    first: tf.Tensor  # number of the first iteration, []


class Counting:
    """A kernel that adds up the divergences and gradients of its iterations.

    The random numbers of an iteration depend on the seed and its number alone: in how many calls a chain is
    run, and how far, changes none of its draws.

    Parameters
    ----------
    randomness
        See there.
    among
        Which of all chains these are, whose random numbers they then have; by default all.
    """

    def __init__(self, randomness: Randomness, among: philox.Among | None = None) -> None:
        self._randomness, self._among = randomness, among

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        raise NotImplementedError

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        raise NotImplementedError

    def before(self, inner: Any, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened, given those of the inner kernel."""
        zeros, counts = tf.zeros([tf.shape(z)[0]], z.dtype), tf.zeros([tf.shape(z)[0]], tf.int32)
        none = tf.zeros([], tf.int32)
        return Results(inner, zeros, zeros, zeros, counts, none, self._randomness.first)

    def seed(self, previous: Results) -> tf.Tensor:
        """Return the seed of the next iteration, [2]."""
        return philox.fold_in(self._randomness.seed, previous.iteration)


class State(NamedTuple):
    """State of chains: the log density, [C], and its gradient, [C, d]."""

    log_density: tf.Tensor
    gradient: tf.Tensor


class RandomLengthHMC(Counting):
    """HMC whose number of leapfrog steps is uniform on 1, …, ``longest`` in each iteration.

    Parameters
    ----------
    target
        Log density of z [C, d], [C].
    steps, longest
        Step sizes, the first of them ε, and L_max, tensors: another value needs no new graph.
    """

    def __init__(
        self,
        target: LogDensity,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        among: philox.Among | None = None,
    ) -> None:
        super().__init__(randomness, among)
        self._target, self._step, self._longest = target, steps[0], longest

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return self.before(State(*tfp.math.value_and_gradient(self._target, z)), z)

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        for_length, for_move = philox.split(self.seed(previous))
        steps = draw_length(for_length, self._longest)
        moved = hamiltonian(self._target, z, previous.inner, self._step, steps, for_move, self._among)
        return moved.position, moved.results(previous, steps, moved.state)


def draw_length(seed: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    """Return a number of leapfrog steps, uniform on 1, …, ``longest``."""
    return philox.integers([], seed, 1, longest + 1)


class Moved(NamedTuple):
    """End of a trajectory; each [C] but ``position`` [C, d]."""

    position: tf.Tensor
    state: State
    log_ratio: tf.Tensor  # what the energy fell by, of which the acceptance is the exponential
    energy: tf.Tensor  # where it began

    def results(self, previous: Results, steps: tf.Tensor, inner: Any) -> Results:
        """Return the results of the iteration after ``previous``, of some leapfrog steps."""
        lost = ~(self.log_ratio > -DIVERGENCE)
        return Results(
            inner,
            self.state.log_density,
            tf.exp(tf.minimum(self.log_ratio, tf.zeros_like(self.log_ratio))),
            self.energy,
            previous.divergent + tf.cast(lost, tf.int32),
            previous.gradients + steps,
            previous.iteration + 1,
        )


def hamiltonian(
    target: LogDensity,
    z: tf.Tensor,
    state: State,
    step: tf.Tensor,
    steps: tf.Tensor,
    seed: tf.Tensor,
    among: philox.Among | None = None,
) -> Moved:
    """Move chains along trajectories from random momenta, and accept or reject where they end (Neal 2011).

    Parameters
    ----------
    target
        Log density of z [C, d], [C].
    z, state
        Where the chains are.
    step, steps
        ε and the number of leapfrog steps, at least 1.
    seed, among
        Seed of the momenta and the choices, and the chains that these are.
    """
    for_momentum, for_choice = philox.split(seed)
    momentum = philox.normal(tf.shape(z), for_momentum, z.dtype, among)
    # Between positions the momentum is half a step ahead.
    _, position, ahead, end = tf.while_loop(
        lambda k, *_: k < steps,
        lambda k, position, ahead, _: (k + 1, *_leap(target, position, ahead, step)),
        (0, z, momentum + 0.5 * step * state.gradient, state),
    )
    last = ahead - 0.5 * step * end.gradient
    energy = _kinetic(momentum) - state.log_density
    log_ratio = energy - (_kinetic(last) - end.log_density)
    log_ratio = tf.where(tf.math.is_nan(log_ratio), tf.constant(-np.inf, z.dtype), log_ratio)
    taken = tf.math.log(philox.uniform(tf.shape(log_ratio), for_choice, z.dtype, among)) < log_ratio
    chosen = State(
        tf.where(taken, end.log_density, state.log_density),
        tf.where(taken[:, None], end.gradient, state.gradient),
    )
    return Moved(tf.where(taken[:, None], position, z), chosen, log_ratio, energy)


def _leap(
    target: LogDensity, position: tf.Tensor, ahead: tf.Tensor, step: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, State]:
    position = position + step * ahead
    state = State(*tfp.math.value_and_gradient(target, position))
    return position, ahead + step * state.gradient, state


def _kinetic(momentum: tf.Tensor) -> tf.Tensor:
    return 0.5 * tf.reduce_sum(momentum**2, axis=-1)


class CountingNUTS(Counting):
    """The no-U-turn sampler (Hoffman & Gelman 2014), as a cross-check: all chains pay for the longest."""

    def __init__(
        self, target: LogDensity, steps: tf.Tensor, longest: tf.Tensor, randomness: Randomness
    ) -> None:
        super().__init__(randomness)
        self._step = steps[0]
        self._inner = tfp.mcmc.NoUTurnSampler(target, self._step, max_tree_depth=MAX_TREE_DEPTH)

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return self.before(self._inner.bootstrap_results(z), z)

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        before = previous.inner._replace(step_size=self._step)  # it may have moved
        new, inner = self._inner.one_step(z, before, seed=self.seed(previous))
        return new, Results(
            inner,
            inner.target_log_prob,
            tf.exp(tf.minimum(inner.log_accept_ratio, tf.zeros_like(inner.energy))),
            -inner.energy,  # TFP's sign
            previous.divergent + tf.cast(inner.has_divergence, tf.int32),
            previous.gradients + tf.reduce_max(inner.leapfrogs_taken),
            previous.iteration + 1,
        )
