"""Choice of the step size ε and the largest number of leapfrog steps L_max, before any draw is kept.

`BayesianOptimizer` does what Wang, Mohamed & de Freitas (2013) propose and Hensman et al. (2015) use: short
runs of the chains are scored by log(1 + ESJD/√L_max), ESJD the expected squared jump distance, and a small
Gaussian process with expected improvement proposes where to try next. All draws made on the way are discarded
and the parameters then stay, so that the run that follows is a Markov chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # loads its part for statistics where it is used
import tensorflow as tf
from scipy.special import ndtr

from gpflow_ext.sampling.surrogate import Array, Surrogate

STEP_SIZES = (1e-4, 1.0)  # that are searched where nothing is known of the posterior
LEAPFROGS = (1, 50)
_CANDIDATES = 512  # scrambled Sobol points
_NEAR, _NEARBY = 128, 0.08  # points around the best setting, and how far away, as a share of the box
_STARTS = 4  # Sobol points tried before the surrogate decides


class Setting(NamedTuple):
    """Parameters of the sampler: step size, number of leapfrog steps, and for Gibbs sampling the walk."""

    step_size: float  # ε of a leapfrog step
    max_leapfrogs: int
    walk: float = 0.0  # standard deviation of a random walk's step, of `gibbs` alone


class Trial(NamedTuple):
    """A setting and its score."""

    setting: Setting
    reward: float
    acceptance: float
    jump: float  # expected squared jump distance


def trials_from(plain: Sequence[Any]) -> tuple[Trial, ...]:
    """Return trials from what JSON makes of them."""
    return tuple(Trial(Setting(*setting), *scores) for setting, *scores in plain)


def check_bounds(step_sizes: tuple[float, float], max_leapfrogs: tuple[int, int]) -> None:
    """Raise ``ValueError`` for bounds of a search that are not in order or below what there is."""
    if not 0.0 < step_sizes[0] < step_sizes[1]:
        raise ValueError(f"`step_sizes` must be two positive bounds in order; got {step_sizes}.")
    if not 1 <= max_leapfrogs[0] <= max_leapfrogs[1]:
        raise ValueError(f"`max_leapfrogs` must be two bounds of at least 1 in order; got {max_leapfrogs}.")


class BayesianOptimizer:
    """Ask for a setting, tell its reward; the same seed and rewards give the same settings.

    ε and L_max are searched in their logarithms, and none of the settings is proposed twice.

    Parameters
    ----------
    step_sizes
        Bounds of ε.
    max_leapfrogs
        Bounds of L_max.
    seed
        Seed of the candidates.
    """

    def __init__(
        self,
        step_sizes: tuple[float, float] = STEP_SIZES,
        max_leapfrogs: tuple[int, int] = LEAPFROGS,
        seed: int = 0,
    ) -> None:
        check_bounds(step_sizes, max_leapfrogs)
        self._low, self._high = np.log([step_sizes, max_leapfrogs]).T
        self._anywhere = scipy.stats.qmc.Sobol(2, seed=seed).random(_CANDIDATES)
        self._nearby = _NEARBY * (2.0 * self._anywhere[:_NEAR] - 1.0)
        self.trials: list[Trial] = []

    def ask(self) -> Setting:
        """Return the setting to try: the centre, then Sobol points, then the largest expected improvement."""
        tried = len(self.trials)
        if tried == 0:
            return self._settings(np.array([[0.5, 0.5]]))[0]
        if tried <= _STARTS:
            return self._settings(self._anywhere[tried - 1 : tried])[0]
        surrogate, settings = self.surrogate(), [trial.setting for trial in self.trials]
        means = surrogate.predict(_inputs(_logarithms(settings)))[0]
        candidates = self._candidates(settings[means.argmax()])
        mean, deviation = surrogate.predict(_inputs(_logarithms(candidates)))
        z = (mean - means.max()) / deviation
        improvement = deviation * (z * ndtr(z) + np.exp(-0.5 * z**2) / math.sqrt(2.0 * math.pi))
        return candidates[improvement.argmax()]

    def tell(self, trial: Trial) -> None:
        """Record a trial; a reward that is not finite counts as 0."""
        self.trials.append(trial if math.isfinite(trial.reward) else trial._replace(reward=0.0))

    def best(self) -> Setting:
        """Return the trial's setting whose reward the surrogate expects to be the largest."""
        settings = [trial.setting for trial in self.trials]
        return settings[self.surrogate().predict(_inputs(_logarithms(settings)))[0].argmax()]

    def surrogate(self) -> Surrogate:
        """Return the Gaussian process of the trials so far, over log ε and log(ε L_max)."""
        inputs = _inputs(_logarithms([trial.setting for trial in self.trials]))
        return Surrogate(inputs, np.array([trial.reward for trial in self.trials]))

    def grid(self, points: int = 40) -> tuple[Array, Array, Array]:
        """Return step sizes [p], leapfrog numbers [p] and the surrogate's mean [p, p], for a picture."""
        logs = np.linspace(self._low, self._high, points)
        pairs = np.stack(np.meshgrid(*logs.T), axis=-1).reshape(-1, 2)
        mean = self.surrogate().predict(_inputs(pairs))[0].reshape(points, points)
        return np.exp(logs[:, 0]), np.exp(logs[:, 1]), mean

    def _candidates(self, incumbent: Setting) -> list[Setting]:
        """Return settings of the whole box and around the best, none of which has been tried."""
        centre = (_logarithms([incumbent]) - self._low) / np.maximum(self._high - self._low, 1e-12)
        unit = np.concatenate([self._anywhere, np.clip(centre + self._nearby, 0.0, 1.0)])
        tried = {trial.setting for trial in self.trials}
        return [setting for setting in self._settings(unit) if setting not in tried]

    def _settings(self, unit: Array) -> list[Setting]:
        logs = self._low + unit * (self._high - self._low)
        return [Setting(math.exp(step), round(math.exp(longest))) for step, longest in logs]


def _logarithms(settings: Sequence[Setting]) -> Array:
    """Return log ε and log L_max of settings, [n, 2]."""
    return np.log([[each.step_size, float(each.max_leapfrogs)] for each in settings])


def _inputs(logs: Array) -> Array:
    """Return log ε, which decides what is accepted, and log(ε L_max), how far it goes; [n, 2]."""
    return logs @ np.array([[1.0, 1.0], [0.0, 1.0]])


def reward(positions: Any, first: Any, max_leapfrogs: int, penalty: float = 0.5) -> tuple[float, float]:
    """Return log(1 + ESJD/L_max^penalty) and the ESJD of chains, squared jumps averaged over all of them.

    The positions stay on their device, and one number is read.

    Parameters
    ----------
    positions
        Positions of a short run, [S, C, d].
    first
        Where it began, [C, d].
    max_leapfrogs
        L_max.
    penalty
        ½ in the paper; 1 charges each gradient its cost, which suits posteriors with few slow coordinates.
    """
    path = tf.concat([first[None], positions], axis=0)
    jump = float(tf.reduce_mean(tf.reduce_sum(tf.square(path[1:] - path[:-1]), axis=-1)))
    return (math.log1p(jump / max_leapfrogs**penalty) if math.isfinite(jump) else 0.0), jump
