"""Hamiltonian Monte Carlo of many chains in one graph.

Hensman et al. (2015), section 3: momenta from N(0, I), and in each iteration a number of leapfrog steps drawn
uniformly from 1, …, L_max. A fixed number resonates: on a Gaussian it can return to where it began. The draw
is shared by the chains, which is valid because it does not depend on them, and none waits for another.

Random numbers are Philox's, which TensorFlow draws alike in a plain graph and under XLA; those of the
no-U-turn sampler, which is TensorFlow Probability's, are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.compiled import Compiled
from gpflow_ext.sampling import philox
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.loop import resolve_jit

DIVERGENCE = 1000.0  # error of the energy beyond which a trajectory has left the posterior
MAX_TREE_DEPTH = 7  # of NUTS: 127 leapfrog steps
BLOCK = 64  # draws for which one call under XLA has room; it ends after as many as it is asked for

LogDensity = Callable[[tf.Tensor], tf.Tensor]
"""Map positions z [C, d] to log densities [C]."""


class Trace(NamedTuple):
    """What is recorded of each kept iteration; leading axes [S, C], of ``gradients`` [S]."""

    position: tf.Tensor  # z, [S, C, d]
    log_density: tf.Tensor  # of the position
    accepted: tf.Tensor  # probability of acceptance of the last proposal
    energy: tf.Tensor  # at the start of the last trajectory: log density and momentum
    divergent: tf.Tensor  # trajectories since the last kept one that left the energy's surface
    gradients: tf.Tensor  # leapfrog steps since the last kept iteration


class Results(NamedTuple):
    """Of an iteration; each [C] but ``gradients`` []."""

    inner: Any
    log_density: tf.Tensor
    accepted: tf.Tensor
    energy: tf.Tensor
    divergent: tf.Tensor
    gradients: tf.Tensor
    iteration: tf.Tensor  # its number, [], which decides its random numbers


class Randomness(NamedTuple):
    """Where the random numbers of iterations come from."""

    seed: tf.Tensor  # [2]
    first: tf.Tensor  # number of the first iteration, []


class Counting:
    """A kernel that adds up the divergences and gradients of its iterations.

    The random numbers of an iteration depend on the seed and its number alone: in how many calls a chain is
    run, and how far, changes none of its draws.
    """

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness

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
    """Where chains are: the log density there, [C], and its gradient, [C, d]."""

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
        self, target: LogDensity, steps: tf.Tensor, longest: tf.Tensor, randomness: Randomness
    ) -> None:
        super().__init__(randomness)
        self._target, self._step, self._longest = target, steps[0], longest

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return self.before(State(*tfp.math.value_and_gradient(self._target, z)), z)

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        for_length, for_move = philox.split(self.seed(previous))
        steps = draw_length(for_length, self._longest)
        moved = hamiltonian(self._target, z, previous.inner, self._step, steps, for_move)
        return moved.position, moved.results(previous, steps, moved.state)


def draw_length(seed: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    """Return a number of leapfrog steps, uniform on 1, …, ``longest``."""
    return philox.integer(seed, 1, longest + 1)


class Moved(NamedTuple):
    """Where a trajectory has led; each [C] but ``position`` [C, d]."""

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
    target: LogDensity, z: tf.Tensor, state: State, step: tf.Tensor, steps: tf.Tensor, seed: tf.Tensor
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
    seed
        Of the momenta and the choices.
    """
    for_momentum, for_choice = philox.split(seed)
    momentum = philox.normal(tf.shape(z), for_momentum, z.dtype)
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
    taken = tf.math.log(philox.uniform(tf.shape(log_ratio), for_choice, z.dtype)) < log_ratio
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
        self._inner = tfp.mcmc.NoUTurnSampler(target, steps[0], max_tree_depth=MAX_TREE_DEPTH)

    def begin(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return self.before(self._inner.bootstrap_results(z), z)

    def one_step(self, z: tf.Tensor, previous: Results) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number."""
        new, inner = self._inner.one_step(z, previous.inner, seed=self.seed(previous))
        return new, Results(
            inner,
            inner.target_log_prob,
            tf.exp(tf.minimum(inner.log_accept_ratio, tf.zeros_like(inner.energy))),
            -inner.energy,  # TFP's sign
            previous.divergent + tf.cast(inner.has_divergence, tf.int32),
            previous.gradients + tf.reduce_max(inner.leapfrogs_taken),
            previous.iteration + 1,
        )


class Iterations:
    """Chains of a kernel on a target, as one function to compile."""

    def __init__(self, target: Any, kernel: Callable[..., Counting]) -> None:
        self._target, self._kernel = target, kernel

    def run(
        self,
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
        room: int | None = None,
    ) -> Trace:
        """Run chains from z [C, d]; see `call`. The trace has ``room`` rows, by default ``num_kept``."""
        kernel = self._kernel(self._target, steps, longest, randomness)
        begin = kernel.begin(z)
        rows = num_kept if room is None else room
        kept = tuple(tf.TensorArray(part.dtype, rows, element_shape=part.shape) for part in (z, *begin[1:-1]))

        def iteration(k: tf.Tensor, z: tf.Tensor, results: Results, kept: Any) -> Any:
            z, results = kernel.one_step(z, results)
            at = k // thin  # of the iterations for a draw the last one stays
            kept = tuple(array.write(at, part) for array, part in zip(kept, (z, *results[1:-1]), strict=True))
            return k + 1, z, results, kept

        *_, kept = tf.while_loop(lambda k, *_: k < num_kept * thin, iteration, (0, z, begin, kept))
        positions, log_density, accepted, energy, divergent, gradients = (array.stack() for array in kept)
        per_kept = [tf.concat([part[:1], part[1:] - part[:-1]], axis=0) for part in (divergent, gradients)]
        return Trace(positions, log_density, accepted, energy, *per_kept)

    def block(
        self,
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        randomness: Randomness,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
    ) -> Trace:
        """Keep at most `BLOCK` draws; see `run`."""
        return self.run(z, steps, longest, randomness, num_kept, thin, BLOCK)


Run = Callable[..., Trace]


def runner(
    target: Any, kernel: Callable[..., Counting] = RandomLengthHMC, jit_compile: bool | None = None
) -> Run:
    """Return what runs chains in compiled functions, for the target that the kernel takes; see `call`."""
    iterations, jit = Iterations(target, kernel), resolve_jit(jit_compile)
    compiled = Compiled(iterations, jit)
    if not jit:
        return functools.partial(compiled, iterations.run)

    def in_blocks(
        z: tf.Tensor, steps: Any, longest: Any, randomness: Randomness, num_kept: int, thin: int
    ) -> Trace:
        parts = []
        for done in range(0, num_kept, BLOCK):
            at = randomness._replace(first=randomness.first + done * thin)
            number = min(BLOCK, num_kept - done)
            block = compiled(iterations.block, z, steps, longest, at, number, thin)
            parts.append(Trace(*(part[:number] for part in block)))
            z = parts[-1].position[-1]
        return Trace(*(tf.concat(part, axis=0) for part in zip(*parts, strict=True)))

    return in_blocks


def call(
    run: Run,
    z: tf.Tensor,
    setting: Setting,
    seed: Sequence[int],
    number: int,
    thin: int = 1,
    first: int = 0,
) -> tuple[tf.Tensor, Trace]:
    """Run chains by what `runner` returned, and return their last positions and what they kept.

    The same arguments give the same result bit by bit, and so does any division into several calls.

    Parameters
    ----------
    run
        Of `runner`.
    z
        Where the chains are, [C, d].
    setting
        The sampler's parameters.
    seed
        Two integers.
    number, thin
        Draws to keep, and iterations for each.
    first
        Draws that have been kept before, with this seed.
    """
    steps = tf.constant([setting.step_size, setting.walk], z.dtype)
    randomness = Randomness(tf.constant(seed), tf.constant(first * thin))
    trace = run(z, steps, setting.max_leapfrogs, randomness, number, thin)
    return trace.position[-1], trace
