"""The training loop shared by every recipe: it only knows an update and variables, not the model."""

from __future__ import annotations

import enum
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext import _html
from gpflow_ext.data.float_type import default_float
from gpflow_ext.numerics.devices import has_accelerator
from gpflow_ext.training.deadline import Deadline
from gpflow_ext.training.open_end import UntilSettled
from gpflow_ext.training.starts import Tried, assign

_STILL = 10  # steps that change nothing, after which none is done

Update: TypeAlias = Callable[[], tuple[float, bool]]
"""Perform one step; return the objective and whether the method itself has converged."""

Callback: TypeAlias = Callable[[int, float], None]
"""Called after each accepted step with its number (from 1) and the objective."""


class Status(enum.Enum):
    """How a training loop ended."""

    CONVERGED = "The objective and the stationarity conditions settled within the tolerance."
    STOPPED_EARLY = "The score on held-out data stopped improving; the best parameters were restored."
    MAX_STEPS = "The number of steps asked for was reached before the objective settled."
    STALLED = "The objective no longer changes, but the stationarity conditions do not settle."
    INTERRUPTED = "A signal asked the run to end."
    OUT_OF_TIME = "The seconds were over before the objective settled."
    NON_FINITE = "The objective became NaN or infinite; the last good state was restored."
    DIVERGED = (
        "The objective fell although the method should only raise it; the last good state was restored."
    )


@dataclass(frozen=True)
class FitResult:
    """The result of a fit: its objective, times, and why it ended.

    Attributes
    ----------
    objective
        The objective after each step of this run, shape [steps run].
    times
        Seconds from the start of this run to the end of each step, shape [steps run].
    first_step
        Number of steps done before this run, by a checkpoint.
    status
        Why the run ended.
    starts
        The starting points that were tried, if there were several, and the objective that the first step, or
        some first-order steps, reached from each; the best was kept. Checkpoints do not hold them: there are
        none where the run resumed after its first step.
    notes
        A sentence about each oddity of the parameters, trained or at the start; see `training.findings`.
    """

    objective: npt.NDArray[np.float64]
    times: npt.NDArray[np.float64]
    first_step: int
    status: Status
    starts: tuple[Tried, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Number of the last step, counting those before a restart."""
        return self.first_step + len(self.objective)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of this run."""
        return float(self.times[-1]) if len(self.times) else 0.0

    def __str__(self) -> str:
        last = f"objective {self.objective[-1]:.6g}, " if len(self.objective) else ""
        number = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return " ".join([f"{number}, {last}{self.seconds:.2f} s.", self.status.value, *self.notes])

    def _repr_html_(self) -> str:
        cells = (
            str(self.steps),
            f"{self.objective[-1]:.6g}" if len(self.objective) else "",
            f"{self.seconds:.2f}",
        )
        tried = [f"From {one.name}: {one.objective:.6g}" for one in self.starts]
        return _html.table(
            self.status.value, ("steps", "objective", "seconds"), [cells], [*tried, *self.notes]
        )


class Trail(tf.Module):
    """The last two objectives, which decide convergence.

    A checkpoint that holds the trail makes a restarted run stop where the uninterrupted one does. The
    variables are written at each step and read once, by `recall`.

    Parameters
    ----------
    steps, period
        As for `UntilSettled`, which decides it for a run without a number of steps.
    """

    def __init__(self, steps: int = 0, period: int = 1) -> None:
        super().__init__()
        self.end = UntilSettled(steps, period)
        with tf.device("CPU"):  # the host writes them at each step
            self.objectives = tf.Variable([np.nan, np.nan], dtype=tf.float64, trainable=False)
            self.settled = tf.Variable(False, trainable=False)
        self.recall()

    def recall(self) -> None:
        """Take up what the variables hold, which a checkpoint may have restored."""
        self._previous, self.last = self.objectives.numpy().tolist()  # NaN before the first step
        self._settled = bool(self.settled)

    def unsettle(self) -> None:
        """Forget that the method's own conditions held: others are asked for now."""
        self.settled.assign(False)
        self.recall()

    def add(self, objective: float, settled: bool) -> None:
        """Append the objective of a step, and whether the method's own conditions hold."""
        self._previous, self.last, self._settled = self.last, objective, settled
        self.objectives.assign(np.array([self._previous, self.last]), read_value=False)
        self.settled.assign(settled, read_value=False)

    def converged(self, tolerance: float | None) -> bool:
        """Tell whether the last step changed the objective by less than ``tolerance·max(1, |objective|)``."""
        change = abs(self.last - self._previous)
        within = tolerance is not None and change < tolerance * max(1.0, abs(self.last))
        return within and self._settled


def iterate(
    update: Update,
    variables: Sequence[tf.Variable],
    *,
    steps: int,
    first_step: int = 0,
    tolerance: float | None = None,
    monotone: bool = False,
    callbacks: Sequence[Callback] = (),
    trail: Trail | None = None,
    settled: Status = Status.CONVERGED,
    deadline: Deadline | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    rests: bool = False,
    further: Callable[[], int] | None = None,
) -> FitResult:
    """Repeat an update until it settles, fails or has been done ``steps`` times in all.

    Parameters
    ----------
    update
        One step. Its objective may be measured before or after the variables move.
    variables
        What an update changes; copied before each step, so that a failed one can be undone.
    steps, first_step
        Number of the last step, and of the last one already done.
    tolerance
        Stop when the objective changes by less than ``tolerance·max(1, |objective|)`` and the update says
        that its own conditions hold, or where they do not in ten steps that change no digit of it, or raise
        none where it is monotone; never with ``None``.
    monotone
        Whether a fall of the objective is a failure, beyond 1e-9 relative, or 1e-5 in single precision.
    callbacks
        Called in order after each accepted step.
    trail
        What earlier steps left for the test of convergence; kept up to date.
    settled
        The status of a run that stops by ``tolerance``.
    deadline
        After which no step begins but the first, and one that can end early does; by default it never comes.
    interrupted
        Asked before each step, and after one that was cut short, whether a signal ends the run.
    rests
        Whether a step after one whose conditions hold would change nothing: none is done to see that.
    further
        Asked after the last step for the number of another last one; the same where the run has settled.
    """
    trail = Trail() if trail is None else trail
    trail.recall()
    objective: list[float] = []
    begin, times, failure = time.perf_counter(), [], None
    deadline = Deadline(math.inf) if deadline is None else deadline
    double, still, top = default_float() == np.float64, 0, trail.last
    good, fall, same = None, 1e-9 if double else 1e-5, 1e-12 if double else 1e-7
    for step in itertools.count(first_step + 1):
        if step > steps and further is not None:
            steps = further()
        if step > steps or trail.converged(tolerance):
            break
        if interrupted():
            failure = Status.INTERRUPTED
            break
        if objective and deadline.is_over:
            failure = Status.OUT_OF_TIME
            break
        before = _read(variables)
        try:
            with deadline.observed():
                value, at_rest = update()
        except BaseException:  # an error, or a second signal: no half of a step is left
            assign(variables, before)
            raise
        at_rest = at_rest and not deadline.has_cut
        if not math.isfinite(value):
            failure = Status.NON_FINITE
            assign(variables, before if good is None else good)
            break
        if monotone and value < trail.last - fall * max(1.0, abs(value)):
            failure = Status.DIVERGED
            assign(variables, before)
            break
        good = before
        margin = same * max(1.0, abs(value))
        unmoved = (value - top if monotone else abs(value - trail.last)) <= margin  # false for a NaN at first
        still = still + 1 if unmoved and not at_rest else 0
        top = max(value, top)  # the value, where there was none before
        objective.append(value)
        times.append(time.perf_counter() - begin)
        trail.add(value, at_rest)
        if rests and at_rest:
            trail.add(value, at_rest)
        for callback in callbacks:
            callback(step, value)
        if deadline.has_cut:
            failure = Status.INTERRUPTED if interrupted() else Status.OUT_OF_TIME
            break
        if tolerance is not None and still >= _STILL:
            failure = Status.STALLED
            break
    last = Status.MAX_STEPS if further is None else Status.CONVERGED
    status = failure or (settled if trail.converged(tolerance) else last)
    return FitResult(np.array(objective, float), np.array(times, float), first_step, status)


def resolve_jit(jit_compile: bool | None) -> bool:
    """Return whether to compile with XLA: by default on GPU and TPU only, its Cholesky being slow on CPU."""
    return has_accelerator() if jit_compile is None else jit_compile


def _read(variables: Sequence[tf.Variable]) -> list[Any]:
    return list(map(tf.convert_to_tensor, variables))  # shares the memory until the variable is assigned to
