"""Hamiltonian Monte Carlo of many chains in one graph, by TensorFlow Probability's kernels.

Hensman et al. (2015), section 3: momenta from N(0, I), and in each iteration a number of leapfrog steps drawn
uniformly from 1, …, L_max. A fixed number resonates: on a Gaussian it can return to where it began. The draw
is shared by the chains, which is valid because it does not depend on them, and none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.training.loop import resolve_jit

DIVERGENCE = 1000.0  # error of the energy beyond which a trajectory has left the posterior
MAX_TREE_DEPTH = 7  # of NUTS: 127 leapfrog steps

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


class Counting(tfp.mcmc.TransitionKernel):
    """A kernel that adds up the divergences and gradients of its iterations."""

    is_calibrated = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def parameters(self) -> dict[str, Any]:
        """The kernel's arguments."""
        return {"inner": self._inner}

    def bootstrap_results(self, z: tf.Tensor) -> Results:
        """Return the results of an iteration that has not happened."""
        return before(self._inner.bootstrap_results(z), z)


class RandomLengthHMC(Counting):
    """HMC whose number of leapfrog steps is uniform on 1, …, ``longest`` in each iteration.

    Parameters
    ----------
    target
        Log density of z [C, d], [C].
    steps, longest
        Step sizes, the first of them ε, and L_max, tensors: another value needs no new graph.
    """

    def __init__(self, target: LogDensity, steps: tf.Tensor, longest: tf.Tensor) -> None:
        super().__init__(
            tfp.mcmc.HamiltonianMonteCarlo(
                target, step_size=steps[0], num_leapfrog_steps=1, store_parameters_in_results=True
            )
        )
        self._longest = longest

    def one_step(
        self, z: tf.Tensor, previous: Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Results]:
        """Do one iteration."""
        for_length, for_step = tfp.random.split_seed(tfp.random.sanitize_seed(seed))
        steps = draw_length(for_length, self._longest)
        state = previous.inner.accepted_results._replace(num_leapfrog_steps=steps)
        new, inner = self._inner.one_step(z, previous.inner._replace(accepted_results=state), seed=for_step)
        return new, trajectory(inner, previous, previous.inner.accepted_results.target_log_prob, steps, inner)


def before(inner: Any, z: tf.Tensor) -> Results:
    """Return the results of an iteration that has not happened."""
    zeros, counts = tf.zeros([tf.shape(z)[0]], z.dtype), tf.zeros([tf.shape(z)[0]], tf.int32)
    return Results(inner, zeros, zeros, zeros, counts, tf.zeros([], tf.int32))


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
    )


class CountingNUTS(Counting):
    """The no-U-turn sampler (Hoffman & Gelman 2014), as a cross-check: all chains pay for the longest."""

    def __init__(self, target: LogDensity, steps: tf.Tensor, longest: tf.Tensor) -> None:
        super().__init__(tfp.mcmc.NoUTurnSampler(target, steps[0], max_tree_depth=MAX_TREE_DEPTH))

    def one_step(
        self, z: tf.Tensor, previous: Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, Results]:
        """Do one iteration."""
        new, inner = self._inner.one_step(z, previous.inner, seed=seed)
        return new, Results(
            inner,
            inner.target_log_prob,
            tf.exp(tf.minimum(inner.log_accept_ratio, tf.zeros_like(inner.energy))),
            -inner.energy,  # TFP's sign
            previous.divergent + tf.cast(inner.has_divergence, tf.int32),
            previous.gradients + tf.reduce_max(inner.leapfrogs_taken),
        )


Run = Callable[..., tuple[tf.Tensor, Trace]]


def runner(
    target: Any, kernel: Callable[..., Counting] = RandomLengthHMC, jit_compile: bool | None = None
) -> Run:
    """Return a compiled function that runs chains, for the target that the kernel takes.

    It takes positions z [C, d], the step sizes [2] of `Setting`, the largest number of leapfrog steps [], a
    seed [2] of stateless random numbers, and the numbers of kept iterations S and of iterations to a kept
    one; it returns the last positions and the `Trace`. The same arguments give the same result bit by bit.
    """

    def run(
        z: tf.Tensor,
        steps: tf.Tensor,
        longest: tf.Tensor,
        seed: tf.Tensor,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
    ) -> tuple[tf.Tensor, Trace]:
        positions, (log_density, accepted, energy, divergent, gradients) = tfp.mcmc.sample_chain(
            num_kept,
            z,
            kernel=kernel(target, steps, longest),
            num_burnin_steps=thin - 1,  # before the first one too
            num_steps_between_results=thin - 1,
            trace_fn=lambda _, results: results[1:],
            seed=seed,
        )
        per_kept = [tf.concat([part[:1], part[1:] - part[:-1]], axis=0) for part in (divergent, gradients)]
        return positions[-1], Trace(positions, log_density, accepted, energy, *per_kept)

    return tf.function(run, jit_compile=resolve_jit(jit_compile), autograph=False)


def call(
    run: Run, z: tf.Tensor, setting: Setting, seed: Sequence[int], number: int, thin: int = 1
) -> tuple[tf.Tensor, Trace]:
    """Call what `runner` returned: everything goes in as a tensor, so that nothing is traced anew."""
    steps = tf.constant([setting.step_size, setting.walk], z.dtype)
    counts = tf.constant([number, thin])
    return run(z, steps, tf.constant(setting.max_leapfrogs), tf.constant(seed), counts[0], counts[1])
