"""A run of L-BFGS whose iterations are done in the graph, some evaluations in each call of one function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics.devices import has_accelerator
from gpflow_ext.training import climb, deadline, guarded, lbfgs
from gpflow_ext.training.log_space import LogSpace, Vector
from gpflow_ext.training.loop import resolve_jit

CALL = 50  # evaluations in a call, at most


class Lowered(Protocol):
    """What a run lowers, such as a `Loss`."""

    def value_and_gradient(self, *data: Any) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Return the loss at the current values of the variables, [], and its gradient in each of them."""


class Climb:
    """The function to compile, with what a run keeps from call to call.

    Parameters
    ----------
    loss
        The loss, in the variables of the coordinates.
    coordinates, tolerance
        As for `lbfgs.Run`.
    carried
        Variables that an evaluation moves, such as the sites of a model. Each evaluation finds them as that
        at the iterate has left them, and so a call leaves them.
    guard
        Whether it ends as `lbfgs.Run` does; else as `lbfgs.climb`, with as few pairs.
    promised
        A variable [] that says what a trial promises before it is evaluated, see `guarded.promise`.
    """

    def __init__(
        self,
        loss: Lowered,
        coordinates: LogSpace,
        tolerance: float,
        carried: Sequence[tf.Variable] = (),
        guard: bool = True,
        promised: tf.Variable | None = None,
    ) -> None:
        self._loss, self.coordinates, self.tolerance = loss, coordinates, tolerance
        self._ends = guarded.AtRest(tolerance) if guard else guarded.ByGain(tolerance)
        self._carried, self._promised = list(carried), promised
        self.kept = [tf.Variable(part.read_value(), False, shape=part.shape) for part in carried]
        self.call = CALL
        start = tf.zeros([len(coordinates.is_log)], tf.float64)
        self._pairs = lbfgs.number_of_pairs(len(start)) if guard else lbfgs.PAIRS
        self.start = tf.Variable(start, trainable=False)
        state = climb.fresh(start, self._pairs)
        self.state = [tf.Variable(part, trainable=False) for part in tf.nest.flatten(state)]

    def begin(self, start: Vector) -> None:
        """Let a new run begin at coordinates [P]."""
        self.start.assign(start)
        _copy(self._carried, self.kept)
        state = tf.nest.flatten(climb.fresh(tf.constant(start), self._pairs))
        for variable, value in zip(self.state, state, strict=True):
            variable.assign(value)

    def go_on(self, total: tf.Tensor, *data: Any) -> tf.Tensor:
        """Do iterations until there are ``total``, the run ends or `CALL` evaluations are made.

        The variables are left at the iterate, or at the start if that is no better.

        Returns
        -------
            The losses of the evaluations, each with 1 where it ends an iteration, else 0, [2 `CALL`]; then
            how many evaluations there are, the iterations, the status, the losses at the start and the end,
            and the steepest slope of a logarithm there, [6].
        """
        at = tf.nest.pack_sequence_as(
            climb.fresh(self.start.read_value(), self._pairs), [part.read_value() for part in self.state]
        )
        leap = tf.constant(np.where(self.coordinates.is_log, lbfgs.LEAP, np.inf))

        def evaluate(x: tf.Tensor, promised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            if self._promised is not None:
                self._promised.assign(promised)
            self.coordinates.assign_in_graph(x)
            _copy(self.kept, self._carried)
            loss, gradient = self._loss.value_and_gradient(*data)
            return tf.cast(loss, x.dtype), self.coordinates.gradient_in_graph(x, gradient)

        def goes_on(state: climb.State, made: tf.Tensor, losses: tf.TensorArray) -> tf.Tensor:
            return (state.status == climb.RUNNING) & (state.iterations < total) & (made < self.call)

        def turn(state: climb.State, made: tf.Tensor, losses: tf.TensorArray) -> Any:
            before = state.iterations
            state, loss, evaluated, there = climb.turn(state, evaluate, leap, self._ends)
            arrived = tf.cast(state.iterations > before, loss.dtype)
            for part, kept in zip(self._carried, self.kept, strict=True):
                kept.assign(tf.cond(there, part.read_value, kept.read_value))
            # Over that of a trial which is not evaluated.
            losses = losses.write(made, tf.stack([loss, arrived]))
            return state, made + tf.cast(evaluated, tf.int32), losses

        losses = tf.TensorArray(tf.float64, self.call, clear_after_read=False, element_shape=[2])
        at, made, losses = tf.while_loop(goes_on, turn, (at, 0, losses), parallel_iterations=1)
        for variable, value in zip(self.state, tf.nest.flatten(at), strict=True):
            variable.assign(value)
        self.coordinates.assign_in_graph(tf.where(at.value <= at.first, at.at, self.start))
        _copy(self.kept, self._carried)
        steepest = tf.reduce_max(tf.abs(at.gradient) * tf.cast(self.coordinates.is_log, at.value.dtype))
        counts = (tf.cast(part, tf.float64) for part in (made, at.iterations, at.status))
        ends = tf.stack([*counts, at.first, at.value, steepest])
        return tf.concat([tf.reshape(losses.stack(), [-1]), ends], axis=0)


def _copy(source: Sequence[tf.Variable], target: Sequence[tf.Variable]) -> None:
    """Assign the values of some variables to others."""
    for variable, other in zip(source, target, strict=True):
        other.assign(variable.read_value())


class GraphRun(tf.Module):
    """One run of L-BFGS that is done in parts and keeps its memory, without the host.

    It does what `lbfgs.Run` does of an objective that is not bounded, to rounding, and ends where that ends.
    In a checkpoint it goes on exactly: its memory is held by variables. An interrupt comes through between
    two calls of at most `CALL` evaluations; what was done is kept. The record is that of the objective alone.

    Parameters
    ----------
    climb
        What is compiled.
    jit_compile, data
        As for `lbfgs.Evaluation`.
    rows
        As for `Compiled`.
    """

    def __init__(
        self,
        climb: Climb,
        jit_compile: bool | None = None,
        data: Sequence[Any] = (),
        rows: Sequence[int] | None = (),
    ) -> None:
        super().__init__()
        self._climb, self._data = climb, tuple(data)
        self.units = climb.coordinates.units
        self.state = [climb.start, *climb.state, *climb.kept]
        self._compiled = Compiled(climb, resolve_jit(jit_compile), rows, batches=True)
        self.record = tf.Variable(tf.zeros([0], tf.float64), trainable=False, shape=[None])
        self.iterations = tf.Variable(0, trainable=False)
        self.ended = tf.Variable(False, trainable=False)
        self.barred = False  # see `lbfgs.Run`
        self.best = tf.Variable(np.nan, dtype=tf.float64, trainable=False)

    def can_be_traced(self) -> bool:
        """Tell whether the loss can; it is then traced."""
        try:
            self._compiled.bound(self._climb.go_on, tf.constant(0), *self._data)
        except Exception:  # of any kind: users' models and kernels may compute in NumPy
            return False
        return True

    def restart(self) -> None:
        """Begin a new run where the variables are."""
        self.record.assign(self.record[:0])
        self.iterations.assign(0)
        self.ended.assign(False)

    def climb(self, iterations: int) -> bool:
        """Do more iterations and leave the variables at the best point; return whether it is no worse."""
        return lbfgs.off_slopes(self, functools.partial(self.go_on, iterations))

    def go_on(
        self, iterations: int, arrived: Callable[[float], None] = lambda objective: None
    ) -> tuple[bool, bool]:
        """Do the same without a new run where one ends on a slope.

        ``arrived`` is called with the objective after each iteration, once the call of the graph is over.

        Returns
        -------
            Whether the end is no worse than the start, and whether it is better with a slope that is not
            gentle.
        """
        record = self.record.numpy()
        if not record.size:
            self._climb.begin(self._climb.coordinates.vector())
        total = int(self.iterations) + iterations
        while True:
            called = self._compiled(self._climb.go_on, tf.constant(total), *self._data).numpy()
            made, done, status, first, last, slope = called[2 * self._climb.call :]
            losses, arrivals = called[: 2 * int(made)].reshape(-1, 2).T
            record = np.concatenate([record, -losses])
            self.record.assign(record)
            for loss in losses[arrivals > 0.0]:
                arrived(-float(loss))
            goes_on = status == climb.RUNNING and done < total
            if not goes_on or deadline.current().cuts():
                break
        self.iterations.assign(int(done) if goes_on else total)
        self.barred = status == climb.BARRED
        self.ended.assign(self.barred or status == climb.ENDED or (status == climb.RESTING and done < total))
        raised = bool(last <= first)
        self.best.assign(-last if raised else -first)
        least = self._climb.tolerance * max(1.0, abs(last))
        rising = first - last > least and not guarded.is_gentle(slope, least)
        return raised, bool(rising and not self.barred)


AnyRun: TypeAlias = lbfgs.Run | GraphRun


def where(run: AnyRun) -> dict[str, bool]:
    """Return what a resumed run must share of where the iterations are done."""
    return {"in_graph": True} if isinstance(run, GraphRun) else {}


def if_wanted(in_graph: bool | None, build: Callable[[], GraphRun]) -> GraphRun | None:
    """Return a run in the graph if it is wanted: by default on a GPU or TPU, if the loss can be traced."""
    if not (has_accelerator() if in_graph is None else in_graph):
        return None
    run = build()
    return run if in_graph or run.can_be_traced() else None
