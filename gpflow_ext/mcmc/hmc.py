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

from gpflow_ext.inference.loops import resolve_jit
from gpflow_ext.mcmc.tuning import Setting

DIVERGENCE = 1000.0  # error of the energy beyond which a trajectory has left the posterior
MAX_TREE_DEPTH = 7  # of NUTS: 127 leapfrog steps


class Trace(NamedTuple):
    """What is recorded of each kept iteration; leading axes [S, C], of ``gradients`` [S]."""

    position: tf.Tensor  # z, [S, C, d]
    log_density: tf.Tensor  # of the position
    accepted: tf.Tensor  # probability of acceptance of the last proposal
    energy: tf.Tensor  # at the start of the last trajectory: log density and momentum
    divergent: tf.Tensor  # trajectories since the last kept one that left the energy's surface
    gradients: tf.Tensor  # leapfrog steps since the last kept iteration


class _Results(NamedTuple):
    inner: Any
    accepted: tf.Tensor
    energy: tf.Tensor
    divergent: tf.Tensor
    gradients: tf.Tensor


class _Counting(tfp.mcmc.TransitionKernel):
    """A kernel that adds up the divergences and gradients of its iterations."""

    is_calibrated = True

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def parameters(self) -> dict[str, Any]:
        """The kernel's arguments."""
        return {"inner": self._inner}

    def bootstrap_results(self, z: tf.Tensor) -> _Results:
        """Return the results of an iteration that has not happened."""
        inner = self._inner.bootstrap_results(z)
        zeros = tf.zeros([tf.shape(z)[0]], z.dtype)
        counts = tf.zeros([tf.shape(z)[0]], tf.int32)
        return _Results(inner, zeros, zeros, counts, tf.zeros([], tf.int32))


class RandomLengthHMC(_Counting):
    """HMC whose number of leapfrog steps is uniform on 1, …, ``longest`` in each iteration.

    Parameters
    ----------
    target
        Log density of z [C, d], [C].
    step_size, longest
        ε and L_max, tensors: another value needs no new graph.
    """

    def __init__(
        self, target: Callable[[tf.Tensor], tf.Tensor], step_size: tf.Tensor, longest: tf.Tensor
    ) -> None:
        super().__init__(
            tfp.mcmc.HamiltonianMonteCarlo(
                target, step_size=step_size, num_leapfrog_steps=1, store_parameters_in_results=True
            )
        )
        self._longest = longest

    def one_step(
        self, z: tf.Tensor, previous: _Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, _Results]:
        """Do one iteration."""
        for_length, for_step = tfp.random.split_seed(tfp.random.sanitize_seed(seed))
        steps = tf.random.stateless_uniform([], for_length, 1, self._longest + 1, dtype=tf.int32)
        state = previous.inner.accepted_results._replace(num_leapfrog_steps=steps)
        new, inner = self._inner.one_step(z, previous.inner._replace(accepted_results=state), seed=for_step)
        momentum = tf.nest.flatten(inner.proposed_results.initial_momentum)[0]
        energy = 0.5 * tf.reduce_sum(momentum**2, axis=-1) - previous.inner.accepted_results.target_log_prob
        lost = ~(inner.log_accept_ratio > -DIVERGENCE)
        return new, _Results(
            inner,
            tf.exp(tf.minimum(inner.log_accept_ratio, tf.zeros_like(energy))),
            energy,
            previous.divergent + tf.cast(lost, tf.int32),
            previous.gradients + steps,
        )


class CountingNUTS(_Counting):
    """The no-U-turn sampler (Hoffman & Gelman 2014), as a cross-check: all chains pay for the longest."""

    def __init__(
        self, target: Callable[[tf.Tensor], tf.Tensor], step_size: tf.Tensor, longest: tf.Tensor
    ) -> None:
        super().__init__(tfp.mcmc.NoUTurnSampler(target, step_size, max_tree_depth=MAX_TREE_DEPTH))

    def one_step(
        self, z: tf.Tensor, previous: _Results, seed: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, _Results]:
        """Do one iteration."""
        new, inner = self._inner.one_step(z, previous.inner, seed=seed)
        return new, _Results(
            inner,
            tf.exp(tf.minimum(inner.log_accept_ratio, tf.zeros_like(inner.energy))),
            -inner.energy,  # TFP's sign
            previous.divergent + tf.cast(inner.has_divergence, tf.int32),
            previous.gradients + tf.reduce_max(inner.leapfrogs_taken),
        )


KERNELS = {"hmc": RandomLengthHMC, "nuts": CountingNUTS}
Run = Callable[..., tuple[tf.Tensor, Trace]]


def runner(
    target: Callable[[tf.Tensor], tf.Tensor], kind: str = "hmc", jit_compile: bool | None = None
) -> Run:
    """Return a compiled function that runs chains.

    It takes positions z [C, d], the step size ε [], the largest number of leapfrog steps [], a seed [2] of
    stateless random numbers, and the numbers of kept iterations S and of iterations to a kept one; it
    returns the last positions and the `Trace`. The same arguments give the same result bit by bit.
    """

    def run(
        z: tf.Tensor,
        step_size: tf.Tensor,
        longest: tf.Tensor,
        seed: tf.Tensor,
        num_kept: tf.Tensor,
        thin: tf.Tensor,
    ) -> tuple[tf.Tensor, Trace]:
        kernel = KERNELS[kind](target, step_size, longest)

        def record(position: tf.Tensor, results: _Results) -> tuple[tf.Tensor, ...]:
            inner = results.inner
            log_density = inner.accepted_results.target_log_prob if kind == "hmc" else inner.target_log_prob
            return log_density, results.accepted, results.energy, results.divergent, results.gradients

        positions, (log_density, accepted, energy, divergent, gradients) = tfp.mcmc.sample_chain(
            num_kept,
            z,
            kernel=kernel,
            num_burnin_steps=thin - 1,  # before the first one too
            num_steps_between_results=thin - 1,
            trace_fn=record,
            seed=seed,
        )
        per_kept = [tf.concat([part[:1], part[1:] - part[:-1]], axis=0) for part in (divergent, gradients)]
        return positions[-1], Trace(positions, log_density, accepted, energy, *per_kept)

    return tf.function(run, jit_compile=resolve_jit(jit_compile), autograph=False)


def call(
    run: Run, z: tf.Tensor, setting: Setting, seed: Sequence[int], number: int, thin: int = 1
) -> tuple[tf.Tensor, Trace]:
    """Call what `runner` returned: everything goes in as a tensor, so that nothing is traced anew."""
    step, counts = tf.constant(setting.step_size, z.dtype), tf.constant([number, thin])
    return run(z, step, tf.constant(setting.max_leapfrogs), tf.constant(seed), counts[0], counts[1])
