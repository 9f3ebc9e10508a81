"""Test scores at geometrically spaced seconds of a training, whose clock stops while they are taken."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from ...shared.journal import Record
from .methods import Clock

POINTS = 20
Now: TypeAlias = Callable[[], float]


class Finished(Exception):
    """Ends a training whose time is spent."""


class Tracer:
    """Scores at geometrically spaced seconds of a training; called after each step.

    The clock starts at the end of the first step, and stops for the scores. Raises `Finished` when the
    budget is spent, or when a score is not finite: ``diverged`` then holds the seconds.
    """

    def __init__(
        self,
        evaluate: Callable[[], Mapping[str, float]],
        budget: float,
        now: Now = time.perf_counter,
        points: int = POINTS,
    ) -> None:
        self._evaluate, self._budget, self._now = evaluate, budget, now
        self._marks = [0.0, *np.geomspace(budget / 300.0, budget, points)]
        self._first, self._clock = Clock(now), Clock(now)
        self.record: Record = {"first_call": 0.0, "seconds": [], "steps": [], "nll": [], "error": []}

    def __call__(self, step: int) -> None:
        """Record the scores if it is time; raise `Finished` at the end."""
        if not self.record["seconds"]:
            self.record["first_call"] = self._first.seconds
            self._clock = Clock(self._now)
        done = len(self.record["seconds"])
        if self._clock.seconds < self._marks[done]:
            return
        with self._clock.paused():
            found = {"seconds": self._clock.seconds, "steps": step, **self._evaluate()}
        if not np.isfinite(list(found.values())).all():
            self.record["diverged"] = found["seconds"]
            raise Finished
        for name, value in found.items():
            self.record[name].append(value)
        if len(self.record["seconds"]) == len(self._marks) or found["seconds"] >= self._budget:
            raise Finished


def traced(
    train: Callable[[Tracer], Any],
    evaluate: Callable[[], Mapping[str, float]],
    budget: float,
    now: Now = time.perf_counter,
    points: int = POINTS,
) -> Record:
    """Train with a tracer until the budget is spent or the training ends by itself; return the trace."""
    tracer = Tracer(evaluate, budget, now, points)
    with contextlib.suppress(Finished):
        train(tracer)
    return tracer.record
