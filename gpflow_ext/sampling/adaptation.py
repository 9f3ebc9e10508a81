"""Tuners: each runs the chains, discards their draws, and returns the setting for the long run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.compiled import Compiled
from gpflow_ext.sampling import averaging, iterations
from gpflow_ext.sampling.hmc import LogDensity, Randomness
from gpflow_ext.sampling.iterations import Run
from gpflow_ext.sampling.options import (
    BayesOptOptions,
    ChEESOptions,
    DualAveragingOptions,
    GibbsOptions,
    NUTSOptions,
)
from gpflow_ext.sampling.tuning import BayesianOptimizer, Setting, Trial, reward

_AT_ONCE = 50  # iterations of dual averaging in a call
_FIRST = 10  # leapfrog steps of ChEES's first trajectories, which an iteration lengthens by 2.5 %

Report = Callable[[int, float], None]
"""Called with the number of each round and what it reached."""


class Start(NamedTuple):
    """Chains that a tuner moves."""

    run: Run  # of `iterations.runner`
    positions: tf.Tensor  # z, where they start, [C, d]
    seed: int
    target: LogDensity  # what they sample
    own: int = 0  # of Gibbs sampling: coordinates of v, which come first


class Tuned(NamedTuple):
    """Result of a tuner."""

    setting: Setting
    positions: tf.Tensor  # where the chains are, [C, d]
    trials: tuple[Trial, ...] = ()


def bayesopt(start: Start, options: BayesOptOptions, report: Report) -> Tuned:
    """Tune by Bayesian optimisation of the expected squared jump distance; see `sampling.tuning`.

    The chains continue from trial to trial. None can move to where the density is not finite, since such
    proposals are rejected.
    """
    steps, samples = options.search()
    optimizer, z = BayesianOptimizer(steps, options.max_leapfrogs, start.seed), start.positions
    for number in range(options.trials):
        setting = optimizer.ask()
        last, trace = iterations.call(start.run, z, setting, [start.seed, -1 - number], samples)
        value, jump = reward(trace.position, z, setting.max_leapfrogs, options.penalty)
        optimizer.tell(Trial(setting, value, float(tf.reduce_mean(trace.accepted)), jump))
        z = last
        report(number + 1, value)
    return Tuned(optimizer.best(), z, tuple(optimizer.trials))


def dual_averaging(start: Start, options: DualAveragingOptions, report: Report) -> Tuned:
    """Tune the step size alone by dual averaging (Hoffman & Gelman 2014, section 3.2) at a given L_max.

    The acceptance is averaged over the chains. The step size is adapted where they run, and read by the host
    once in `_AT_ONCE` iterations.
    """
    z, longest, found = start.positions, options.max_leapfrogs, options.step_size
    state = averaging.adapting(options.step_size, options.acceptance, z.dtype)
    step = tf.constant(options.step_size, z.dtype)
    for done in range(0, options.iterations, _AT_ONCE):
        number = min(_AT_ONCE, options.iterations - done)
        randomness = Randomness(tf.constant([start.seed, -1]), tf.constant(done))
        steps = tf.stack([step, tf.zeros_like(step)])
        trace, step, state = start.run(z, steps, longest, randomness, 1, number, state)
        z, found = trace.position[-1], math.exp(float(state.log_average))
        report(done + number, found)
    return Tuned(Setting(found, longest), z)


def nuts(start: Start, options: NUTSOptions, report: Report) -> Tuned:
    """Tune the step size of the no-U-turn sampler by `dual_averaging`; it does not use L_max."""
    return dual_averaging(start, DualAveragingOptions(**dataclasses.asdict(options)), report)


def gibbs(start: Start, options: GibbsOptions, report: Report) -> Tuned:
    """Tune `gibbs.MetropolisWithinGibbs` as its authors do, by the acceptance rates of a few rounds.

    A step that is accepted too rarely becomes shorter and one that is accepted too often longer, by a factor
    that falls from 1.6 to the authors' 1.2. The aim is an acceptance of 50 to 90 % for v, 10 to 40 % for θ.
    """
    z, rounds, longest = start.positions, options.rounds, options.max_leapfrogs
    step_size, walk = options.step_size, options.walk
    for number in range(1, rounds + 1):
        setting = Setting(step_size, longest, walk)
        last, trace = iterations.call(start.run, z, setting, [start.seed, -number], options.iterations)
        path = tf.concat([z[None], trace.position], axis=0)[:, :, start.own :]
        moved, accepted = _rates(path, trace.accepted)
        factor = 1.2 + 0.4 * (1.0 - number / rounds)
        step_size *= _towards(accepted, 0.5, 0.9, factor)
        walk *= _towards(moved, 0.1, 0.4, factor)
        z = last
        report(number, accepted)
    return Tuned(Setting(step_size, longest, walk), z)


def _rates(path: tf.Tensor, accepted: tf.Tensor) -> list[float]:
    """Return the share of steps of a path [S + 1, C, D] that have moved, and the mean acceptance."""
    moved = tf.cast(tf.reduce_any(path[1:] != path[:-1], axis=-1), accepted.dtype)
    accepted = tf.where(tf.math.is_nan(accepted), tf.zeros_like(accepted), accepted)
    return tf.stack([tf.reduce_mean(moved), tf.reduce_mean(accepted)]).numpy().tolist()


def _towards(rate: float, low: float, high: float, factor: float) -> float:
    return 1.0 / factor if rate < low else factor if rate > high else 1.0


def chees(start: Start, options: ChEESOptions, report: Report) -> Tuned:
    """Tune step size and trajectory length by ChEES (Hoffman, Radul & Sountsov 2021), by TFP.

    Its jittered trajectories, uniform on (0, T], are those of `hmc.RandomLengthHMC` with L_max = T/ε. It
    compares chains, and needs at least two. All iterations are one call: ``report`` is not called.
    """
    z, adapted = start.positions, Adapted(start.target, options)
    position, step, length = Compiled(adapted)(adapted.run, z, tf.constant([start.seed, 0]))
    longest = min(options.max_leapfrogs, max(1, math.ceil(float(length) / float(step))))
    return Tuned(Setting(float(step), longest), position)


class Adapted:
    """Chains whose step size and trajectory length adapt, as one function to compile."""

    def __init__(self, target: LogDensity, options: ChEESOptions) -> None:
        self._target, self._options = target, options

    def run(self, z: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the last positions [C, d], the step size and the trajectory length."""
        iterations, most = self._options.iterations, self._options.max_leapfrogs
        step = tf.constant(self._options.step_size, z.dtype)
        first = min(_FIRST, most)
        inner = tfp.mcmc.HamiltonianMonteCarlo(self._target, step_size=step, num_leapfrog_steps=first)
        kernel = tfp.experimental.mcmc.GradientBasedTrajectoryLengthAdaptation(
            inner, num_adaptation_steps=iterations, max_leapfrog_steps=most
        )
        kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(kernel, num_adaptation_steps=iterations)
        position, _, results = tfp.mcmc.sample_chain(
            1,
            z,
            kernel=kernel,
            num_burnin_steps=iterations - 1,
            trace_fn=lambda *_: (),
            return_final_kernel_results=True,
            seed=seed,
        )
        return position[0], results.new_step_size, results.inner_results.max_trajectory_length
