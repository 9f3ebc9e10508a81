"""Runs that stop too early: by how much the objective was still rising, and which parameters still moved."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data.checks import Array
from gpflow_ext.training.log_space import present_shape
from gpflow_ext.training.loop import FitResult, Status

_SHARE = 0.1  # of the steps, the last ones, that are looked at
_RISE = 1e-4  # relative: a smaller rise over them is none
_ERRORS = 3.0  # standard errors of a rise that is not noise
_SHOWN = 3  # parameters that are named
_AGAIN = "`fit` the model again to go on from there, or give `steps`."
_LARGEST = 100  # elements of a parameter that is watched


class LastSteps:
    """Callback that records the parameters of a model before the last tenth of its steps.

    Parameters
    ----------
    model
        The model.
    steps
        Number of the last step.
    again
        How to go on.

    Attributes
    ----------
    first
        The step after which the parameters are recorded.
    """

    def __init__(self, model: tf.Module, steps: int, again: str = _AGAIN) -> None:
        self._again = again
        self._model, self.first = model, steps - max(2, round(_SHARE * steps))
        self._before: dict[str, Array] = {}

    def __call__(self, step: int, objective: float) -> None:
        """See `loop.Callback`."""
        if step == self.first:
            self._before = self._values()

    def slope(self, result: FitResult) -> str | None:
        """Say by how much the objective was still rising when the steps ran out; ``None`` if it was not."""
        last = result.objective[-max(2, round(_SHARE * result.steps)) :]
        if result.status is not Status.MAX_STEPS or len(last) < 2:
            return None
        rise = _rise(last)
        if rise is None:
            return None
        return (
            f"The objective was still rising when the {result.steps} steps were over, by {rise:.3g} in the "
            f"last {len(last)}{self._moving()}. {self._again}"
        )

    def _moving(self) -> str:
        now = self._values()
        moves = {name: _change(before, now[name]) for name, before in self._before.items()}
        names = sorted((name for name in moves if moves[name] > 0.0), key=lambda name: -moves[name])
        shown = [f"{name} {_text(self._before[name])} to {_text(now[name])}" for name in names[:_SHOWN]]
        return f" ({', '.join(shown)})" if shown else ""

    def _values(self) -> dict[str, Array]:
        """Return the trainable parameters that a user knows by their values."""
        named = gpflow.utilities.parameter_dict(self._model).items()
        return {
            name.lstrip("."): np.array(parameter)
            for name, parameter in named
            if parameter.trainable
            and getattr(parameter, "transform", None) is not None  # plain variables have none
            and math.prod(present_shape(parameter.unconstrained_variable)) <= _LARGEST
        }


def _rise(objective: Array) -> float | None:
    """Return the rise of a straight line through the objective; ``None`` where it is none, or noise."""
    steps = np.arange(len(objective)) - 0.5 * (len(objective) - 1)
    slope = steps @ objective / (steps @ steps)
    left = objective - objective.mean() - slope * steps
    error = np.sqrt(left @ left / max(1, len(objective) - 2) / (steps @ steps))
    rise = float(slope * len(objective))
    sure = rise > _RISE * max(1.0, abs(float(objective.mean()))) and slope > _ERRORS * error
    return rise if sure else None


def _change(before: Array, now: Array) -> float:
    size = np.abs(before) + np.abs(now)
    return float(np.max(np.abs(now - before)[size > 0.0] / size[size > 0.0], initial=0.0))


def _text(value: Any) -> str:
    flat = np.ravel(value)
    return f"{flat[0]:.3g}" if len(flat) == 1 else f"[{flat.min():.3g} ... {flat.max():.3g}]"
