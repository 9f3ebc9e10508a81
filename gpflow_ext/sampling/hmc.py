"""Hamiltonian Monte Carlo of many chains in one graph, by TensorFlow Probability's kernels.

Hensman et al. (2015), section 3: momenta from N(0, I), and in each iteration a number of leapfrog steps drawn
uniformly from 1, …, L_max. A fixed number resonates: on a Gaussian it can return to where it began. The draw
is shared by the chains, which is valid because it does not depend on them, and none waits for another.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.compiled import Compiled
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.loop import resolve_jit

DIVERGENCE = 1000.0  # error of the energy beyond which a trajectory has left the posterior
MAX_TREE_DEPTH = 7  # of NUTS: 127 leapfrog steps
BLOCK = 64  # draws of one call under XLA, where their number is a constant of the compiled function

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


class Counting(tfp.mcmc.TransitionKernel):
    """A kernel that adds up the divergences and gradients of its iterations.

    The random numbers of an iteration depend on the seed and its number alone: in how many calls a chain is
    run, and how far, changes none of its draws.
    """

    is_calibrated = True

    def __init__(self, inner: Any, randomness: Randomness) -> None:
        self._inner, self._randomness = inner, randomness

    @property
    def parameters(self) -> dict[str, Any]:
        """The kernel's arguments."""
        return {"inner": self._inner, "randomness": self._randomness}

    def bootstrap_results(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return self.before(self._inner.bootstrap_results(z), z)

    def before(self, inner: Any, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened, given those of the inner kernel."""
        zeros, counts = tf.zeros([tf.shape(z)[0]], z.dtype), tf.zeros([tf.shape(z)[0]], tf.int32)
        none = tf.zeros([], tf.int32)
        return Results(inner, zeros, zeros, zeros, counts, none, self._randomness.first)

    def seed(self, previous: Results) -> tf.Tensor:
        """Return the seed of the next iteration, [2]."""
        return tf.random.experimental.stateless_fold_in(self._randomness.seed, previous.iteration)


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
        inner = tfp.mcmc.HamiltonianMonteCarlo(
            target, step_size=steps[0], num_leapfrog_steps=1, store_parameters_in_results=True
        )
        super().__init__(inner, randomness)
        self._longest = longest

    def one_step(
        self, z: tf.Tensor, previous: Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number, not of ``seed``."""
        for_length, for_step = tfp.random.split_seed(self.seed(previous))
        steps = draw_length(for_length, self._longest)
        state = previous.inner.accepted_results._replace(num_leapfrog_steps=steps)
        new, inner = self._inner.one_step(z, previous.inner._replace(accepted_results=state), seed=for_step)
        return new, trajectory(inner, previous, previous.inner.accepted_results.target_log_prob, steps, inner)


def draw_length(seed: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
    """Return a number of leapfrog steps, uniform on 1, …, ``longest``."""
    return tf.random.stateless_uniform([], seed, 1, longest + 1, dtype=tf.int32)


def trajectory(hmc: Any, previous: Results, log_density: tf.Tensor, steps: tf.Tensor, inner: Any) -> Results:
    """Return the results of an iteration.

    Parameters
    ----------
    hmc
        Results of TFP's kernel.
    previous
        Of the iteration before.
    log_density
        Where the trajectory began.
    steps
        Its leapfrog steps.
    inner
        What the next iteration needs.
    """
    momentum = tf.nest.flatten(hmc.proposed_results.initial_momentum)[0]
    lost = ~(hmc.log_accept_ratio > -DIVERGENCE)
    return Results(
        inner,
        hmc.accepted_results.target_log_prob,
        tf.exp(tf.minimum(hmc.log_accept_ratio, tf.zeros_like(log_density))),
        0.5 * tf.reduce_sum(momentum**2, axis=-1) - log_density,
        previous.divergent + tf.cast(lost, tf.int32),
        previous.gradients + steps,
        previous.iteration + 1,
    )


class CountingNUTS(Counting):
    """The no-U-turn sampler (Hoffman & Gelman 2014), as a cross-check: all chains pay for the longest."""

    def __init__(
        self, target: LogDensity, steps: tf.Tensor, longest: tf.Tensor, randomness: Randomness
    ) -> None:
        super().__init__(tfp.mcmc.NoUTurnSampler(target, steps[0], max_tree_depth=MAX_TREE_DEPTH), randomness)

    def one_step(
        self, z: tf.Tensor, previous: Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Results]:
        """Do one iteration; its random numbers are those of its number, not of ``seed``."""
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
    ) -> Trace:
        """Run chains from z [C, d]; see `call`."""
        kernel = self._kernel(self._target, steps, longest, randomness)
        positions, (log_density, accepted, energy, divergent, gradients) = tfp.mcmc.sample_chain(
            num_kept,
            z,
            kernel=kernel,
            num_burnin_steps=thin - 1,  # before the first one too
            num_steps_between_results=thin - 1,
            trace_fn=lambda _, results: results[1:-1],
            seed=randomness.seed,
        )
        per_kept = [tf.concat([part[:1], part[1:] - part[:-1]], axis=0) for part in (divergent, gradients)]
        return Trace(positions, log_density, accepted, energy, *per_kept)

    def block(
        self, z: tf.Tensor, steps: tf.Tensor, longest: tf.Tensor, randomness: Randomness, thin: tf.Tensor
    ) -> Trace:
        """Keep `BLOCK` draws; see `run`."""
        return self.run(z, steps, longest, randomness, BLOCK, thin)


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
            parts.append(compiled(iterations.block, z, steps, longest, at, thin))
            z = parts[-1].position[-1]
        return Trace(*(tf.concat(part, axis=0)[:num_kept] for part in zip(*parts, strict=True)))

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
