"""Runs that stop too early: by how much the objective was still rising, and which parameters still moved."""

from __future__ import annotations

import math
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.data import on_host
from gpflow_ext.data.checks import Array
from gpflow_ext.training.line import Line
from gpflow_ext.training.log_space import present_shape
from gpflow_ext.training.loop import FitResult, Status

_SHARE = 0.1  # of the steps, the last ones, that are looked at
_GROWTH = 1.1  # of the number of steps, between two that are recorded where any may be the last
_SHOWN = 3  # parameters that are named
_AGAIN = "`fit` the model again to go on from there."
_LARGEST = 100  # elements of a parameter that is watched


class LastSteps:
    """Callback that records the parameters of a model before the last tenth of its steps.

    Parameters
    ----------
    model
        The model, before these steps.
    steps
        Number of the last step.
    again
        How to go on.
    first_step
        Number of the last step done already.
    timed
        Whether seconds may be over before the last step.
    block
        Steps of a pass through the data; see `Line`.

    Attributes
    ----------
    first
        The step after which the parameters are recorded; in a timed run also after others.
    """

    def __init__(
        self,
        model: tf.Module,
        steps: int,
        again: str = _AGAIN,
        first_step: int = 0,
        timed: bool = False,
        block: int = 1,
    ) -> None:
        self._again, self._timed, self._block = again, timed, block
        self._watched, self.first = _watched(model), _before_last(steps)
        self._recorded = {first_step: self._values()}

    def __call__(self, step: int, objective: float) -> None:
        """See `loop.Callback`."""
        if step == self.first or (self._timed and step >= _GROWTH * max(self._recorded)):
            self._recorded[step] = self._values()

    def slope(self, result: FitResult, cut: bool = False, unsettled: bool = False) -> str | None:
        """Say by how much the objective was still rising when steps or seconds were over; ``None`` if not.

        Where the seconds were over after a single step, cut one short (``cut``), or ended a run that had not
        settled at its last look (``unsettled``), that is said in any case.
        """
        timed = result.status is Status.OUT_OF_TIME
        if not timed and result.status is not Status.MAX_STEPS:
            return None
        first = _before_last(result.steps)
        since = max((step for step in self._recorded if step <= first), default=result.first_step)
        last = result.objective[since - result.first_step :]
        rise = Line.through(last, self._block).rise
        if rise is not None:
            over, of = ("seconds", f" of {result.steps} steps") if timed else (f"{result.steps} steps", "")
            rose = f"by {rise:.3g} in the last {len(last)}{of}"
            said = f"The objective was still rising when the {over} were over, {rose}"
        elif cut:
            said = f"The seconds cut step {result.steps} short"
        elif timed and (unsettled or len(last) == 1):
            said = f"The seconds were over after step {result.steps}"
            said += ", before the objective had settled" if unsettled else ""
        else:
            return None
        return f"{said}{self._moving(self._recorded[since])}. {self._again}"

    def _moving(self, before: list[Array]) -> str:
        moves = []
        for (name, parameter), *ends in zip(self._watched.items(), before, self._values(), strict=True):
            old, new = (on_host.value_at(parameter, end) for end in ends)
            moves.append((_change(old, new), f"{name} {_text(old)} to {_text(new)}"))
        largest = sorted((move for move in moves if move[0] > 0.0), key=lambda move: -move[0])
        shown = [text for _, text in largest[:_SHOWN]]
        return f" ({', '.join(shown)})" if shown else ""

    def _values(self) -> list[Array]:
        """Return the values of the parameters before their transforms."""
        return [parameter.unconstrained_variable.read_value().numpy() for parameter in self._watched.values()]


def _watched(model: tf.Module) -> dict[str, gpflow.Parameter]:
    """Return the trainable parameters that a user knows by their values, by their names."""
    named = gpflow.utilities.parameter_dict(model).items()
    return {
        name.lstrip("."): parameter
        for name, parameter in named
        if parameter.trainable
        and getattr(parameter, "transform", None) is not None  # plain variables have none
        and math.prod(present_shape(parameter.unconstrained_variable)) <= _LARGEST
    }


def _before_last(steps: int) -> int:
    return steps - max(2, round(_SHARE * steps))


def _change(before: Array, now: Array) -> float:
    size = np.abs(before) + np.abs(now)
    return float(np.max(np.abs(now - before)[size > 0.0] / size[size > 0.0], initial=0.0))


def _text(value: Any) -> str:
    flat = np.ravel(value)
    return f"{flat[0]:.3g}" if len(flat) == 1 else f"[{flat.min():.3g} ... {flat.max():.3g}]"
