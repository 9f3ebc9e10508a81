"""Tuners: each moves the chains, discards what they draw, and returns the setting that the long run keeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from gpflow_ext.sampling import hmc
from gpflow_ext.sampling.hmc import Run
from gpflow_ext.sampling.tuning import BayesianOptimizer, Setting, Trial, reward


class Tuned(NamedTuple):
    """What a tuner found."""

    setting: Setting
    positions: tf.Tensor  # where the chains are, [C, d]
    trials: tuple[Trial, ...]


def bayesopt(
    run: Run,
    z: tf.Tensor,
    seed: int,
    *,
    trials: int = 30,
    samples: int = 30,
    step_sizes: tuple[float, float] = (1e-4, 1.0),
    max_leapfrogs: tuple[int, int] = (1, 50),
    penalty: float = 0.5,
    progress: Callable[[int, float], None] = lambda step, value: None,
) -> Tuned:
    """Tune by Bayesian optimisation of the expected squared jump distance; see `sampling.tuning`.

    Parameters
    ----------
    run
        Of `hmc.runner`.
    z
        Where the chains start, [C, d]; they go on from trial to trial. A chain that has moved to where the
        density is not finite is impossible: such proposals are rejected.
    seed
        Seed of the candidates and the chains.
    trials, samples
        Settings to try, and iterations for each; the reward is averaged over the chains.
    step_sizes, max_leapfrogs
        The box that is searched.
    penalty
        Power of L_max that divides the squared jump, see `tuning.reward`.
    progress
        Called with the number of each trial and its reward.
    """
    optimizer = BayesianOptimizer(step_sizes, max_leapfrogs, seed)
    for number in range(trials):
        setting = optimizer.ask()
        last, trace = hmc.call(run, z, setting, [seed, -1 - number], samples)
        value, jump = reward(trace.position.numpy(), z.numpy(), setting.max_leapfrogs, penalty)
        optimizer.tell(Trial(setting, value, float(tf.reduce_mean(trace.accepted)), jump))
        z = last
        progress(number + 1, value)
    return Tuned(optimizer.best(), z, tuple(optimizer.trials))


def dual_averaging(
    run: Run,
    z: tf.Tensor,
    seed: int,
    *,
    iterations: int = 500,
    max_leapfrogs: int = 20,
    step_size: float = 0.1,
    acceptance: float = 0.75,
    progress: Callable[[int, float], None] = lambda step, value: None,
) -> Tuned:
    """Tune the step size alone by dual averaging (Hoffman & Gelman 2014, section 3.2) at a given L_max.

    The acceptance is averaged over the chains. With NUTS ``max_leapfrogs`` does not matter.
    """
    gamma, t0, kappa, mu = 0.05, 10.0, 0.75, math.log(10.0 * step_size)
    error, average, log_step = 0.0, 0.0, math.log(step_size)
    for t in range(1, iterations + 1):
        z, trace = hmc.call(run, z, Setting(math.exp(log_step), max_leapfrogs), [seed, -t], 1)
        shortfall = acceptance - float(np.nan_to_num(trace.accepted).mean())
        error += (shortfall - error) / (t + t0)
        log_step = mu - math.sqrt(t) / gamma * error
        average += t**-kappa * (log_step - average)
        progress(t, math.exp(average))
    return Tuned(Setting(math.exp(average), max_leapfrogs), z, ())


def gibbs(
    run: Run,
    z: tf.Tensor,
    seed: int,
    *,
    block: int,
    rounds: int = 25,
    iterations: int = 40,
    max_leapfrogs: int = 20,
    step_size: float = 0.1,
    walk: float = 0.3,
    progress: Callable[[int, float], None] = lambda step, value: None,
) -> Tuned:
    """Tune `gibbs.MetropolisWithinGibbs` as its authors do: by what is accepted in each of a few rounds.

    A step that is accepted too rarely becomes shorter and one that is accepted too often longer, each by a
    factor that falls from 1.6 to the authors' 1.2: to 50 to 90 % for v and 10 to 40 % for θ.

    Parameters
    ----------
    block
        Coordinates of v.
    rounds, iterations
        Rounds, and iterations of each.
    max_leapfrogs
        L_max, which is kept.
    step_size, walk
        ε and α to begin with.
    """
    for number in range(1, rounds + 1):
        setting = Setting(step_size, max_leapfrogs, walk)
        last, trace = hmc.call(run, z, setting, [seed, -number], iterations)
        path = np.concatenate([z.numpy()[None], trace.position.numpy()])[:, :, block:]
        moved = float((np.diff(path, axis=0) != 0.0).any(axis=-1).mean())
        accepted = float(np.nan_to_num(trace.accepted).mean())
        factor = 1.2 + 0.4 * (1.0 - number / rounds)
        step_size *= _towards(accepted, 0.5, 0.9, factor)
        walk *= _towards(moved, 0.1, 0.4, factor)
        z = last
        progress(number, accepted)
    return Tuned(Setting(step_size, max_leapfrogs, walk), z, ())


def _towards(rate: float, low: float, high: float, factor: float) -> float:
    return 1.0 / factor if rate < low else factor if rate > high else 1.0


def chees(
    target: Callable[[tf.Tensor], tf.Tensor],
    z: tf.Tensor,
    seed: int,
    *,
    iterations: int = 500,
    step_size: float = 0.1,
    max_leapfrogs: int = 100,
) -> Tuned:
    """Tune step size and trajectory length by ChEES (Hoffman, Radul & Sountsov 2021), by TFP.

    Its jittered trajectories, uniform on (0, T], are those of `hmc.RandomLengthHMC` with L_max = T/ε.
    """
    if z.shape[0] < 2:
        raise ValueError("ChEES compares chains: give `num_chains` of at least 2.")
    step = tf.constant(step_size, z.dtype)
    inner = tfp.mcmc.HamiltonianMonteCarlo(target, step_size=step, num_leapfrog_steps=1)
    kernel = tfp.experimental.mcmc.GradientBasedTrajectoryLengthAdaptation(
        inner, num_adaptation_steps=iterations, max_leapfrog_steps=max_leapfrogs
    )
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(kernel, num_adaptation_steps=iterations)

    @tf.function(autograph=False)
    def adapt(z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        position, _, results = tfp.mcmc.sample_chain(
            1,
            z,
            kernel=kernel,
            num_burnin_steps=iterations - 1,
            trace_fn=lambda *_: (),
            return_final_kernel_results=True,
            seed=tf.constant([seed, 0]),
        )
        return position[0], results.new_step_size, results.inner_results.max_trajectory_length

    position, step, length = adapt(z)
    longest = min(max_leapfrogs, max(1, math.ceil(float(length) / float(step))))
    return Tuned(Setting(float(step), longest), position, ())
