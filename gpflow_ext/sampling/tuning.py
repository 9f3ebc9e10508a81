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
import numpy.typing as npt
import tensorflow as tf
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize
from scipy.stats import norm, qmc

Array = npt.NDArray[np.float64]

_CANDIDATES = 512  # scrambled Sobol points
_LENGTH_SCALE = 0.3  # of the box, in each direction
_STARTS = 4  # Sobol points tried before the surrogate decides
_JITTER = 1e-8


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


class Surrogate:
    """A Gaussian process on the unit square, length scales 0.3, its variance and noise by maximum evidence.

    Parameters
    ----------
    inputs, rewards
        The trials, [n, 2] in the unit square and [n].
    """

    def __init__(self, inputs: Array, rewards: Array) -> None:
        self._inputs = inputs
        self._shift, self._unit = float(rewards.mean()), float(rewards.std()) or 1.0
        standardised = (rewards - self._shift) / self._unit
        correlation = _correlation(inputs, inputs)

        def loss(logs: Array) -> float:
            factor = cho_factor(_covariance(correlation, logs), lower=True)
            fit = 0.5 * standardised @ cho_solve(factor, standardised) + np.log(np.diag(factor[0])).sum()
            return float(fit + 0.02 * (logs[0] ** 2 + (logs[1] + 3.0) ** 2))

        starts = (np.array([0.0, -3.0]), np.array([0.0, -1.0]))
        bounds = [(-4.0, 4.0), (-9.0, 2.0)]
        found = min((minimize(loss, start, method="L-BFGS-B", bounds=bounds) for start in starts), key=_value)
        self._variance = math.exp(found.x[0])
        self._factor = cho_factor(_covariance(correlation, found.x), lower=True)
        self._weights = cho_solve(self._factor, standardised)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the reward without its noise at points [m, 2], each [m]."""
        cross = self._variance * _correlation(points, self._inputs)
        explained = np.einsum("mn,nm->m", cross, cho_solve(self._factor, cross.T))
        deviation = np.sqrt(np.maximum(self._variance - explained, 1e-12))
        return self._shift + self._unit * (cross @ self._weights), self._unit * deviation


def _value(result: Any) -> float:
    return float(result.fun)


def _correlation(a: Array, b: Array) -> Array:
    squared = ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)
    return np.exp(-0.5 * squared / _LENGTH_SCALE**2)


def _covariance(correlation: Array, logs: Array) -> Array:
    return np.exp(logs[0]) * correlation + (np.exp(logs[1]) + _JITTER) * np.eye(len(correlation))


class BayesianOptimizer:
    """Ask for a setting, tell its reward; the same seed and rewards give the same settings.

    Parameters
    ----------
    step_sizes
        Bounds of ε, searched in its logarithm.
    max_leapfrogs
        Bounds of L_max.
    seed
        Seed of the candidates.
    """

    def __init__(
        self,
        step_sizes: tuple[float, float] = (1e-4, 1.0),
        max_leapfrogs: tuple[int, int] = (1, 50),
        seed: int = 0,
    ) -> None:
        if not 0.0 < step_sizes[0] < step_sizes[1]:
            raise ValueError(f"`step_sizes` must be two positive bounds in order; got {step_sizes}.")
        if not 1 <= max_leapfrogs[0] <= max_leapfrogs[1]:
            raise ValueError(
                f"`max_leapfrogs` must be two bounds of at least 1 in order; got {max_leapfrogs}."
            )
        self._low = np.array([math.log(step_sizes[0]), float(max_leapfrogs[0])])
        self._high = np.array([math.log(step_sizes[1]), float(max_leapfrogs[1])])
        unit = qmc.Sobol(2, seed=seed).random(_CANDIDATES)
        self._candidates = self._box(self._settings(unit))
        self.trials: list[Trial] = []

    def ask(self) -> Setting:
        """Return the setting to try: the centre, then Sobol points, then the largest expected improvement."""
        tried = len(self.trials)
        if tried == 0:
            return self._settings(np.array([[0.5, 0.5]]))[0]
        if tried <= _STARTS:
            return self._settings(self._candidates[tried - 1 : tried])[0]
        surrogate = self.surrogate()
        mean, deviation = surrogate.predict(self._candidates)
        incumbent = surrogate.predict(self._box([trial.setting for trial in self.trials]))[0].max()
        z = (mean - incumbent) / deviation
        improvement = deviation * (z * norm.cdf(z) + norm.pdf(z))
        return self._settings(self._candidates[improvement.argmax()][None])[0]

    def tell(self, trial: Trial) -> None:
        """Record a trial; a reward that is not finite counts as 0."""
        self.trials.append(trial if math.isfinite(trial.reward) else trial._replace(reward=0.0))

    def best(self) -> Setting:
        """Return the candidate or trial whose reward the surrogate expects to be the largest."""
        points = np.concatenate([self._box([trial.setting for trial in self.trials]), self._candidates])
        return self._settings(points[self.surrogate().predict(points)[0].argmax()][None])[0]

    def surrogate(self) -> Surrogate:
        """Return the Gaussian process of the trials so far."""
        inputs = self._box([trial.setting for trial in self.trials])
        return Surrogate(inputs, np.array([trial.reward for trial in self.trials]))

    def grid(self, points: int = 40) -> tuple[Array, Array, Array]:
        """Return step sizes [p], leapfrog numbers [q] and the surrogate's mean [q, p], for a picture."""
        unit = np.linspace(0.0, 1.0, points)
        pairs = np.stack(np.meshgrid(unit, unit), axis=-1).reshape(-1, 2)
        mean = self.surrogate().predict(pairs)[0].reshape(points, points)
        both = self._low + unit[:, None] * (self._high - self._low)
        return np.exp(both[:, 0]), both[:, 1], mean

    def _settings(self, unit: Array) -> list[Setting]:
        raw = self._low + unit * (self._high - self._low)
        return [Setting(math.exp(log_step), round(length)) for log_step, length in raw]

    def _box(self, settings: Sequence[Setting]) -> Array:
        raw = np.array([[math.log(each.step_size), float(each.max_leapfrogs)] for each in settings])
        return (raw - self._low) / np.maximum(self._high - self._low, 1e-12)


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
