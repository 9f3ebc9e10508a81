"""Dual averaging of the step size, as a part of the graph that runs the chains.

Hoffman & Gelman (2014, section 3.2): with the shortfall of the mean acceptance hₜ = δ − aₜ

    h̄ ← h̄ + (hₜ − h̄)/(t + t₀)      log ε = μ − √t/γ h̄      log ε̄ ← log ε̄ + t^−κ (log ε − log ε̄)

ε moves the next iteration, and ε̄ is what is found.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

_GAMMA, _T0, _KAPPA = 0.05, 10.0, 0.75  # γ, t₀ and κ of the paper


class Averaging(NamedTuple):
    """State of dual averaging; each []."""

    on: tf.Tensor  # whether the step size is adapted
    wanted: tf.Tensor  # δ
    centre: tf.Tensor  # μ
    count: tf.Tensor  # iterations done, t
    shortfall: tf.Tensor  # h̄
    log_average: tf.Tensor  # log ε̄

    def after(self, step: tf.Tensor, accepted: tf.Tensor) -> tuple[tf.Tensor, Averaging]:
        """Return the next step size and state after an iteration.

        Parameters
        ----------
        step
            ε, [].
        accepted
            Probabilities of acceptance, [C]; none where not a number.
        """
        mean = tf.reduce_mean(tf.where(tf.math.is_nan(accepted), tf.zeros_like(accepted), accepted))
        t = self.count + 1.0
        shortfall = self.shortfall + (self.wanted - mean - self.shortfall) / (t + _T0)
        log_step = self.centre - tf.sqrt(t) / _GAMMA * shortfall
        log_average = self.log_average + t**-_KAPPA * (log_step - self.log_average)
        new = self._replace(count=t, shortfall=shortfall, log_average=log_average)
        return tf.where(self.on, tf.exp(log_step), step), new


def adapting(step_size: float, acceptance: float, dtype: tf.DType) -> Averaging:
    """Return the state that begins at a step size and looks for one with an acceptance."""
    numbers = (acceptance, math.log(10.0 * step_size), 0.0, 0.0, 0.0)
    return Averaging(tf.constant(True), *(tf.constant(number, dtype) for number in numbers))


def still(dtype: tf.DType) -> Averaging:
    """Return the state that leaves the step size."""
    return Averaging(tf.constant(False), *[tf.zeros([], dtype)] * 5)
