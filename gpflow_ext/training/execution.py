"""The execution of a plan, from a checkpoint or where the last run has ended, to an end with a reason."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from gpflow_ext.data import arguments
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.training import continuation, progress
from gpflow_ext.training.deadline import Deadline, whole_steps
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.ends import check_first_step
from gpflow_ext.training.findings import findings, noted
from gpflow_ext.training.interrupts import Interrupts
from gpflow_ext.training.loop import Callback, FitResult, Status, Trail, iterate
from gpflow_ext.training.recipe import Plan
from gpflow_ext.training.rising import LastSteps
from gpflow_ext.training.workers import start

_AGAIN = "Another `fit` goes on."


@dataclass(frozen=True)
class Asked:
    """The arguments of `gpflow_ext.fit` that say how long it runs, and what it shows and saves."""

    steps: int | None = None
    seconds: float | None = None
    tolerance: float | None = None
    monitor: Callable[[int], None] | None = None
    checkpoint_dir: str | os.PathLike[str] | None = None
    checkpoint_every: int = 10
    progress: bool | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        whole = {} if self.steps is None else {"steps": self.steps}
        arguments.check_whole(checkpoint_every=self.checkpoint_every, **whole)
        given = {"seconds": self.seconds, "tolerance": self.tolerance}
        arguments.check_number(**{name: value for name, value in given.items() if value is not None})
        arguments.check_flag(progress=self.progress)
        if self.monitor is not None:
            arguments.check_callable(monitor=self.monitor)
        if self.checkpoint_every < 1:
            raise ValueError(f"`checkpoint_every` must be at least 1; got {self.checkpoint_every}.")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"`steps` must not be negative; got {self.steps}.")
        if self.seconds is not None and not self.seconds > 0.0:
            raise ValueError(f"`seconds` must be positive; got {self.seconds}.")
        if self.tolerance is not None and math.isnan(self.tolerance):
            raise ValueError("`tolerance` must be a number; got nan.")

    @property
    def time(self) -> float:
        """The seconds, infinite if none were given."""
        return math.inf if self.seconds is None else self.seconds

    @property
    def is_timed(self) -> bool:
        """Whether the seconds may be over."""
        return math.isfinite(self.time)


class Execution:
    """A plan and what is asked of its execution.

    Parameters
    ----------
    model
        What the user trains, which checkpoints hold.
    plan
        How.
    asked
        What was asked for.
    trained, data
        The model that the plan trains, with the same parameters, and the data that it does not hold.
    """

    def __init__(self, model: tf.Module, plan: Plan, asked: Asked, trained: tf.Module, data: Any) -> None:
        self._model, self._plan, self._asked = model, plan, asked
        self._trained, self._data = trained, data
        self._trail = Trail(plan.steps, plan.period)
        self._checkpoints: Checkpoints | None = None
        self._steps = plan.steps if asked.steps is None else asked.steps
        self._tolerance = plan.tolerance if asked.tolerance is None else asked.tolerance
        self._prolonged = plan.is_open and asked.steps is None

    @property
    def is_chief(self) -> bool:
        """Whether this process tells of the run, and saves it."""
        return self._plan.shards is None or self._plan.shards.is_chief

    def run(self) -> tuple[FitResult, str | None]:
        """Do the steps; return how they ended, and by how much the objective was still rising, if it was.

        Raises
        ------
        ValueError
            For a first step without an objective, naming the rows at fault; for a checkpoint of another run.
        KeyboardInterrupt, SystemExit
            After a signal, once all is saved.
        """
        plan, asked = self._plan, self._asked
        with _together(plan.shards):
            first_step = self._begin()
            steps = self._trail.end.look if self._prolonged else self._steps
            odd = findings(self._trained, self._data)
            timed = self._prolonged or asked.is_timed
            last = LastSteps(self._model, steps, first_step=first_step, timed=timed, block=plan.period)
            shown = asked.progress if self.is_chief else False
            name, deadline = type(self._model).__name__, Deadline(asked.time)
            interrupts = Interrupts(deadline.bring_forward if asked.checkpoint_dir is None else None)
            signals = asked.checkpoint_dir is not None or plan.shards is None
            with (
                progress.bar(name, steps, first_step, shown, plan.report) as bar,
                interrupts if signals else contextlib.nullcontext(),
            ):
                result = self._iterate(steps, first_step, [*self._callbacks(last), bar], deadline, interrupts)
            plan.gather()
        self._end(result, interrupts)
        slope = last.slope(result, deadline.has_cut, self._prolonged and not asked.is_timed)
        notes = noted(slope, odd, findings(self._trained, self._data))
        return dataclasses.replace(result, starts=plan.tried(), notes=notes), slope

    def _begin(self) -> int:
        """Restore a checkpoint, or go on from the last run, if there is one; return the steps done."""
        plan, asked = self._plan, self._asked
        saves = [asked.checkpoint_every, asked.monitor is None, asked.checkpoint_dir is None]
        alike = {"arguments": [self._steps, self._tolerance, *saves]}
        first_step = start(plan, self._model, self._trail, self._restore, alike)
        if first_step and plan.rests and plan.solver.start().violation > plan.stationarity:
            self._trail.unsettle()  # a tighter one than that which the checkpoint has met
        if not first_step:
            continuation.take_up(self._model, plan)
        self._trail.end.resume(first_step)
        return first_step

    def _restore(self) -> int:
        """Return the step of the newest checkpoint, restored, or 0."""
        if self._asked.checkpoint_dir is None:
            return 0
        plan = self._plan
        self._checkpoints = Checkpoints(
            self._asked.checkpoint_dir,
            self._model,
            training=plan.settings,
            data=plan.data,
            trail=self._trail,
            **plan.trackables,
        )
        return self._checkpoints.restore_latest() or 0

    def _callbacks(self, last: LastSteps) -> Iterator[Callback]:
        """Yield what is called after each step, but for the progress bar."""
        plan, monitor = self._plan, self._asked.monitor
        if monitor is not None:
            yield lambda *_: plan.gather()
            if self.is_chief:
                yield lambda step, _: monitor(step)
        if plan.period:
            yield self._trail.end
        yield last
        if self._asked.checkpoint_dir is not None:
            yield self._save

    def _save(self, step: int, _: float) -> None:
        """Save at some steps; without checkpoints only send the chief what it has to save."""
        if step % self._asked.checkpoint_every == 0:
            self._plan.gather()
            if self._checkpoints is not None:
                self._checkpoints.save(step)

    def _iterate(
        self,
        steps: int,
        first_step: int,
        callbacks: list[Callback],
        deadline: Deadline,
        interrupts: Interrupts,
    ) -> FitResult:
        plan, end = self._plan, self._trail.end
        return iterate(
            plan.update,
            plan.variables,
            steps=steps,
            first_step=first_step,
            tolerance=self._tolerance,
            monotone=plan.monotone,
            callbacks=callbacks,
            trail=self._trail,
            settled=plan.settled,
            deadline=deadline,
            interrupted=lambda: bool(interrupts),
            rests=plan.rests,
            further=functools.partial(end.further, deadline) if self._prolonged else None,
        )

    def _end(self, result: FitResult, interrupts: Interrupts) -> None:
        """Save, finish the model unless a signal has come, and leave what a next run goes on from."""
        plan, checkpoints, folder = self._plan, self._checkpoints, self._asked.checkpoint_dir
        if result.status is Status.NON_FINITE and result.steps == 0:
            check_first_step(self._trained, self._data)
        if checkpoints is not None and result.steps > max(checkpoints.steps, default=0):
            checkpoints.save(result.steps)
        if not interrupts and plan.finish() and checkpoints is not None:
            checkpoints.save_finished()
        continuation.leave(self._model, plan, result)
        again = _AGAIN if folder is None else f"The same call resumes in {folder}."
        interrupts.end(f"Interrupted after step {result.steps}. {again}")


@contextlib.contextmanager
def _together(shards: Shards | None) -> Iterator[None]:
    """Watch the other workers of a strategy, if there are any, whose steps are whole."""
    with contextlib.ExitStack() as stack:
        if shards is not None:
            stack.enter_context(shards.watched())
            if shards.num_processes > 1:
                stack.enter_context(whole_steps())
        yield
