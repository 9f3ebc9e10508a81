"""The Gaussian process by which `tuning.BayesianOptimizer` sees the rewards of a few settings."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

Array = npt.NDArray[np.float64]

_JITTER = 1e-8
# Normal priors of the logarithms of the variance, of the noise, both of standardised rewards, and of the two
# length scales, in the units of the inputs: what a reward of HMC looks like over log ε and log(ε L_max).
_MEANS = np.array([0.0, math.log(0.01), 0.3, 0.3])
_DEVIATIONS = np.array([1.0, 1.5, 0.7, 0.7])
_STARTS = _MEANS + np.array([[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, -1.0, 0.0]])
_REACH = 4.0  # standard deviations of the priors that are searched


class Surrogate:
    """A Gaussian process with a Matérn-5/2 kernel and noise, by its most probable hyperparameters.

    Parameters
    ----------
    inputs, rewards
        The trials, [n, 2] and [n].
    """

    def __init__(self, inputs: Array, rewards: Array) -> None:
        self._inputs = inputs
        self._shift, self._unit = float(rewards.mean()), float(rewards.std()) or 1.0
        standardised = (rewards - self._shift) / self._unit
        squares = _squares(inputs, inputs)
        bounds = list(zip(_MEANS - _REACH * _DEVIATIONS, _MEANS + _REACH * _DEVIATIONS, strict=True))
        found = min(
            (
                minimize(_loss, start, (squares, standardised), "L-BFGS-B", jac=True, bounds=bounds)
                for start in _STARTS
            ),
            key=lambda result: float(result.fun),
        )
        self._variance, noise = np.exp(found.x[:2])
        self._length_scales = np.exp(found.x[2:])
        covariance = self._covariance(squares) + (noise + _JITTER) * np.eye(len(inputs))
        self._factor = cho_factor(covariance, lower=True)
        self._weights = cho_solve(self._factor, standardised)

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of the reward without its noise at points [m, 2], each [m]."""
        cross = self._covariance(_squares(points, self._inputs))
        explained = np.einsum("mn,nm->m", cross, cho_solve(self._factor, cross.T))
        deviation = np.sqrt(np.maximum(self._variance - explained, 1e-12))
        return self._shift + self._unit * (cross @ self._weights), self._unit * deviation

    def _covariance(self, squares: Array) -> Array:
        return np.asarray(self._variance * _matern(squares @ self._length_scales**-2.0)[0])


def _squares(a: Array, b: Array) -> Array:
    """Return the squared distances along each coordinate, [n, m, 2]."""
    return np.asarray(np.square(a[:, None, :] - b[None, :, :]))


def _matern(squared: Array) -> tuple[Array, Array]:
    """Return the Matérn-5/2 correlation at squared distances, and minus twice its derivative by them."""
    r = np.sqrt(5.0 * squared)
    decay = np.exp(-r)
    return (1.0 + r + 5.0 / 3.0 * squared) * decay, 5.0 / 3.0 * (1.0 + r) * decay


def _loss(logs: Array, squares: Array, rewards: Array) -> tuple[float, Array]:
    """Return minus the log density of hyperparameters given the rewards, and its gradient."""
    variance, noise = np.exp(logs[:2])
    scaled = squares * np.exp(-2.0 * logs[2:])
    correlation, slope = _matern(scaled.sum(-1))
    identity = np.eye(len(rewards))
    factor = cho_factor(variance * correlation + (noise + _JITTER) * identity, lower=True)
    weights = cho_solve(factor, rewards)
    z = (logs - _MEANS) / _DEVIATIONS
    value = 0.5 * rewards @ weights + np.log(np.diag(factor[0])).sum() + 0.5 * z @ z
    by_covariance = 0.5 * (cho_solve(factor, identity) - np.outer(weights, weights))
    by_correlation = variance * by_covariance
    by_scales = np.einsum("nm,nmk->k", by_correlation * slope, scaled)
    gradient = [np.sum(by_correlation * correlation), noise * np.trace(by_covariance), *by_scales]
    return float(value), np.array(gradient) + z / _DEVIATIONS
