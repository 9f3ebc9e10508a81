"""How step lengths fall: by a root, whatever the number of steps, or by a cosine over so many.

On minibatches constant lengths leave noise in q, which the likelihood then learns as noise of the labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf
from gpflow.keras import tf_keras

NAMES = ("root", "cosine", "constant")
ROOT = 50  # steps after which a root has fallen to 0.7
OPTIONS = ("schedule", "decay_steps")  # of `ScheduleOptions`
LEAST = 0.01  # to which γ falls by a root: q is then an average over the last hundred minibatches
_WARM_UP = 10  # steps over which γ rises to its value
_LAST_SHARE = 0.05  # of a length, where a cosine ends


class Schedule(NamedTuple):
    """A schedule, and the steps of a cosine, or after which a root has fallen to 0.7."""

    name: str = "constant"
    steps: int = ROOT

    def lengths(self, gamma: float, warm_up: int = _WARM_UP) -> Callable[[int], float]:
        """Return γ as a function of the step: it rises over ``warm_up`` steps, and falls."""
        least = min(gamma, LEAST) if self.name == "root" else 0.0
        return lambda step: max(least, gamma * self._share(step)) * min(1.0, (step + 1) / warm_up)

    def _share(self, step: int) -> float:
        """Return the share of a length that is left at a step."""
        if self.name == "constant":
            return 1.0
        if self.name == "root":
            return 1.0 / math.sqrt(1.0 + step / self.steps)
        turn = math.pi * min(1.0, step / self.steps)
        return _LAST_SHARE + (1.0 - _LAST_SHARE) * 0.5 * (1.0 + math.cos(turn))

    def rate(self, rate: float, hold: int = 0) -> Any:
        """Return the rate, or its schedule by the optimiser's own steps, which begin after ``hold``."""
        if self.name == "constant":
            return rate
        if self.name == "root":
            return FallingRate(rate, self.steps)
        return tf_keras.optimizers.schedules.CosineDecay(rate, max(1, self.steps - hold), alpha=_LAST_SHARE)


@dataclass(frozen=True)
class ScheduleOptions:
    """Options of how the natural-gradient lengths γ of q and the rate of the default optimiser fall.

    Attributes
    ----------
    schedule
        ``"root"``: at step t their first values are divided by √(1 + t/50), whatever the number of steps,
        and γ falls to no less than 0.01; ``"cosine"``: they fall to a twentieth over ``decay_steps``;
        ``"constant"``. By default that of the recipe, or a cosine where ``decay_steps`` is given.
    decay_steps
        Steps of a cosine.
    """

    schedule: str | None = None
    decay_steps: int | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        if self.schedule not in (None, *NAMES):
            raise ValueError(f"`schedule` must be one of {NAMES}, or None; got {self.schedule!r}.")
        if self.decay_steps is not None and self.decay_steps < 1:
            raise ValueError(f"`decay_steps` must be at least 1, or None; got {self.decay_steps}.")
        if self.schedule is not None and (self.schedule == "cosine") != (self.decay_steps is not None):
            raise ValueError('`decay_steps` goes with schedule="cosine": give both, or `decay_steps` alone.')

    def falling(self, otherwise: Schedule) -> Schedule:
        """Return the schedule that was asked for, if any."""
        if self.decay_steps is not None:
            return Schedule("cosine", self.decay_steps)
        return otherwise if self.schedule is None else Schedule(self.schedule)


class FallingRate(tf_keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that falls as 1/√(1 + t/T).

    Parameters
    ----------
    rate
        The learning rate of step 0.
    decay_steps
        T.
    """

    def __init__(self, rate: float, decay_steps: int) -> None:
        self._rate, self._decay_steps = rate, decay_steps

    def __call__(self, step: tf.Tensor) -> tf.Tensor:
        """Return the rate of a step, []."""
        return self._rate * tf.math.rsqrt(1.0 + tf.cast(step, tf.float32) / self._decay_steps)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {"rate": self._rate, "decay_steps": self._decay_steps}
