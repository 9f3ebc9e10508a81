"""L-BFGS on an objective that is itself the result of an inner iteration over the sites."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import gpflow
import numpy as np
import numpy.typing as npt
import scipy.optimize
import tensorflow as tf

from gpflow_ext.compiled import Preferred
from gpflow_ext.training import deadline
from gpflow_ext.training.at_values import Objective, in_coordinates
from gpflow_ext.training.guarded import Guarded, is_gentle
from gpflow_ext.training.log_space import LogSpace, Vector, present_shape
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Loss, LossFunction
from gpflow_ext.training.search import Arrived, Asked, Ended, Search

LEAP = 2.0  # of a logarithm in one iteration: a longer first step may end where the kernel is mere noise
SMALLEST_GAIN = 1e-9  # relative, of an iteration; below is none
MEMORY = (
    50,
    100,
)  # least and most pairs of steps and changes of the gradient; between them as many as coordinates
SLOPE = 1e-5  # of every element of the gradient, where SciPy ends
FEW, FLAT = 20, 1e-6  # coordinates, and the relative gain of a step that is none where there are more
MANY, VALLEY = 100, 3e-5  # the same where the kernel moves with so many inducing inputs
LONGEST, LARGEST = 10_000, 2**22  # evaluations and numbers in a record, after which a run starts again
PAIRS, GAIN = 10, 1e7 * 2.0**-52  # of `climb`: SciPy's own
MOST = 10**9  # iterations and evaluations of SciPy's, which never ends by their number

_SUSPENDED: WeakKeyDictionary[Run, tuple[Search, int, Vector]] = WeakKeyDictionary()  # with rows and the last

Evaluate: TypeAlias = Objective | Callable[[], tuple[float, Sequence[tf.Tensor]]]
"""An objective, or a function that evaluates at the current values of the variables, see `in_coordinates`."""


class Evaluation(Objective):
    """Minus a loss of the data and its gradient in the variables.

    It is compiled, unless the loss cannot be traced, as that of GPflow's ``CGLB``.
    """

    def __init__(
        self,
        closure: LossFunction,
        variables: Sequence[tf.Variable],
        jit_compile: bool | None = None,
        *data: Any,
    ) -> None:
        loss = Loss(closure, variables)
        compiled = Preferred(loss, resolve_jit(jit_compile), lasting=True)
        method: Callable[..., tf.Tensor] = loss.objective_and_gradient
        super().__init__(lambda values: compiled.bound(method, values, *data), variables)
        self._purity = functools.partial(compiled.is_pure, method)
        self._data = data

    def is_pure(self) -> bool:
        """Tell whether it is sure to return the same wherever the variables are the same."""
        return self._purity(self.present(), *self._data)


def gain_of_a_step(variables: Sequence[tf.Variable], valley: bool = True) -> float:
    """Return the relative gain below which steps of some iterations end a run.

    With many numbers to move, above all inducing inputs, a run would otherwise creep along a flat ridge for
    thousands of iterations. Without ``valley`` the looser gain for more than `MANY` is not used.
    """
    rounding = 1e-8 if gpflow.default_float() == np.float64 else 1e-5
    number = sum(math.prod(present_shape(variable)) for variable in variables)
    if valley and number > MANY:
        return max(rounding, VALLEY)
    return max(rounding, FLAT) if number > FEW else rounding


def climb(
    variables: Sequence[tf.Variable],
    objective: Evaluate,
    iterations: int,
    bounds: Sequence[tuple[float, float]] | None = None,
    parameters: Sequence[gpflow.Parameter] = (),
    arrived: Callable[[float], None] | None = None,
    inputs: Sequence[tf.Variable] = (),
    units: Sequence[npt.ArrayLike] | None = None,
    pairs: int = PAIRS,
) -> bool:
    """Raise an objective by some iterations of L-BFGS, and leave the variables at the best point.

    With ``bounds``, a pair for each element of the variables one after the other, they stay between them;
    ``parameters``, ``inputs`` and ``units`` as for `LogSpace`; ``arrived`` is called with the objective at
    each iterate, and may end the run by ``StopIteration``. For any number of variables: only so many
    ``pairs`` of steps and changes of the gradient are kept. Return whether the end is no worse than
    the start; if not, the variables are put back.
    """
    coordinates = LogSpace(variables, parameters, inputs, units)

    evaluate = in_coordinates(objective, coordinates)

    def loss(x: Vector) -> tuple[float, Vector]:
        value, gradient = evaluate(x)
        return -value, -gradient

    def arrive(x: Vector) -> None:
        guarded.arrive(x)
        if arrived is not None:
            arrived(-guarded.best[1])

    kept = [variable.read_value() for variable in variables]
    guarded = Guarded(loss, leap=np.where(coordinates.is_log, LEAP / coordinates.units.numpy(), np.inf))
    outcome = scipy.optimize.minimize(
        guarded,
        coordinates.vector(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds if bounds is None else coordinates.at(np.transpose(bounds)).T,
        callback=arrive,
        options={"maxiter": iterations, "maxcor": pairs, "ftol": GAIN},
    )
    raised = bool(outcome.fun <= guarded.first)
    if raised:
        coordinates.assign(outcome.x)
    else:
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
    return raised


class Run(tf.Module):
    """One run of L-BFGS-B that is done in parts and keeps its memory.

    Between two parts the search waits; see `training.search`. It is a function of the values that it has
    asked for: where none waits, as in a new process, another repeats the run from the record of its
    evaluations and goes on from there. So a checkpoint that holds the record resumes exactly. Where the
    record is long the run starts again from its best point, without its memory.

    It ends where an iteration has raised the objective by no more than ``tolerance·max(1, |objective|)`` and
    either moved no coordinate by more than `guarded.SETTLED` or left a gentle gradient, as where a length
    scale grows for ever; where it has raised it by less than a hundredth of that; where no element of the
    gradient is above ``10·tolerance·max(1, |objective|)``; or by SciPy's own test, that no step raises the
    objective. It also ends at a trial within `guarded.SETTLED` of the iterate if neither the objective nor
    its tangent changes by more than that: the line search would only go on in the noise. Where the gradient
    is gentle, a trial on whose tangent the objective rises by no more than that is not evaluated. It is if
    no element is above `guarded.STEEP`, or `guarded.GENTLE` times the gain that counts as none.

    Where the objective rises to an edge behind which it is not finite, the run is ``barred``: it ends after
    `guarded.BARRED` trials there, since the last iteration that gained more than a little.

    A run with a bad memory may end on a slope. Where a run that has raised the objective ends with a gradient
    in logarithms that is not gentle, the next one begins there, without memory. So the last run of all has
    ended where it began, where the objective is flat, or barred.

    Parameters
    ----------
    coordinates
        What moves.
    evaluate
        The objective, a function where the variables of the coordinates are; an `Objective` may have more.
    tolerance
        Relative gain of an iteration that counts as none.
    bounds
        A pair for each element of the variables one after the other, between which they stay.
    arrived
        Called where the point that was evaluated last has become the iterate, as the start does.
    """

    def __init__(
        self,
        coordinates: LogSpace,
        evaluate: Evaluate,
        tolerance: float,
        bounds: Sequence[tuple[float, float]] | None = None,
        arrived: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._arrived = arrived
        self._coordinates, self.evaluate, self._tolerance = coordinates, evaluate, tolerance
        self._raw_bounds, self.units = bounds, coordinates.units
        width = 2 * len(coordinates.is_log) + 1  # x, the objective and its gradient
        none = tf.zeros([0, width], tf.float64)
        self.record = tf.Variable(none, trainable=False, shape=[None, width])
        self.iterations = tf.Variable(0, trainable=False)
        self.ended = tf.Variable(False, trainable=False)
        self.latest: Vector | None = None  # where this object has evaluated last
        self.promised = 0.0  # of that, see `guarded.promise`; known when it is evaluated
        self.at_latest = False  # whether the last part has left the variables there
        self.barred = False  # whether the last part has ended where the objective is no longer finite
        self.best = tf.Variable(np.nan, dtype=tf.float64, trainable=False)  # the objective where it left them

    @property
    def _bounds(self) -> Vector | None:
        """The bounds of the coordinates, [P, 2]."""
        return None if self._raw_bounds is None else self._coordinates.at(np.transpose(self._raw_bounds)).T

    def restart(self) -> None:
        """Begin a new run where the variables are."""
        self.record.assign(self.record[:0])
        self.iterations.assign(0)
        self.ended.assign(False)

    def climb(self, iterations: int) -> bool:
        """Do more iterations and leave the variables at the best point; return whether it is no worse."""

        def part() -> tuple[bool, bool]:
            raised = self._go_on(iterations)
            return raised, bool(self.ended) and not self.barred and self._ended_on_a_slope()

        return off_slopes(self, part)

    def _go_on(self, iterations: int) -> bool:
        rows, width = self.record.numpy().shape
        if rows > LONGEST or rows * width > LARGEST:
            self.restart()
        record, size = list(self.record.numpy()), len(self._coordinates.is_log)
        start = record[0][:size] if record else self._coordinates.vector()
        search, total = self._suspended(record) or self._search(start), int(self.iterations) + iterations
        found = self._advance(search, record, total)
        self.record.assign(np.array(record))
        self.iterations.assign(search.iterations if isinstance(found, Arrived) else total)
        self.ended.assign(isinstance(found, Ended))
        self.barred = isinstance(found, Ended) and found.barred
        if isinstance(found, Arrived):
            _SUSPENDED[self] = search, len(record), record[-1]
        raised = bool(found.loss <= found.first)
        self.best.assign(-found.loss if raised else -found.first)
        end = found.x if raised else start
        self._coordinates.assign(end)
        self.at_latest = self.latest is not None and np.array_equal(end, self.latest)
        return raised

    def _search(self, start: Vector) -> Search:
        tolerance, leap = self._tolerance, np.where(self._coordinates.is_log, LEAP, np.inf)
        pairs = number_of_pairs(len(start))
        options = {"maxiter": MOST, "maxfun": MOST, "ftol": 0.0, "gtol": SLOPE, "maxcor": pairs}
        return Search(start, lambda loss: Guarded(loss, tolerance, leap), options, self._bounds)

    def _suspended(self, record: Sequence[Vector]) -> Search | None:
        """Return the search that waits where the record ends, if this object has left one; it goes on."""
        if self not in _SUSPENDED:
            return None
        search, rows, last = _SUSPENDED.pop(self)
        here = search.iterations == int(self.iterations) and rows == len(record)
        if not here or not np.array_equal(last, record[-1], equal_nan=True):
            return None
        search.go_on()
        return search

    def _advance(self, search: Search, record: list[Vector], total: int) -> Arrived | Ended:
        """Go on to an iteration, by the record as far as it goes; less far at the end or a deadline."""
        size, known = len(self._coordinates.is_log), len(record)
        evaluate = in_coordinates(self.evaluate, self._coordinates)
        calls = itertools.count(known if search.iterations else 0)
        while True:
            found = search.next()
            if isinstance(found, Asked):
                call = next(calls)
                if call == len(record):
                    self.promised = found.promised
                    self.latest, (value, gradient) = found.x, evaluate(found.x)
                    record.append(np.concatenate([found.x, [value], gradient]))
                    if call == 0:  # the start is the first iterate
                        self._arrived()
                search.go_on((-record[call][size], -record[call][size + 1 :]))
                continue
            if isinstance(found, Arrived):
                new = len(record) > known
                if new:
                    self._arrived()
                if search.iterations < total and not (new and deadline.current().cuts()):
                    search.go_on()
                    continue
            return found

    def _ended_on_a_slope(self) -> bool:
        """Tell whether a run has ended higher than it began, with the objective still rising somewhere."""
        record, size = self.record.numpy(), len(self._coordinates.is_log)
        values, best = record[:, size], float(self.best)
        least = self._tolerance * max(1.0, abs(best))
        gained = best - values[0] > least
        at = record[np.flatnonzero(values == best)[-1]] if gained else record[0]
        x, slope = at[:size], at[size + 1 :]
        free = slope if self._bounds is None else np.clip(x + slope, *self._bounds.T) - x
        steepest = np.max(np.abs(free[self._coordinates.is_log]), initial=0.0)
        return bool(gained and not is_gentle(steepest, least))


def off_slopes(run: Any, part: Callable[[], tuple[bool, bool]]) -> bool:
    """Do a part of a run, and of a new one wherever one ends on a slope.

    Parameters
    ----------
    run
        A `Run`, or one in the graph.
    part
        Goes on; returns whether the end is no worse than the start, and whether it is on a slope.

    Returns
    -------
    What the first part has returned first.
    """
    raised, on_a_slope = part()
    while bool(run.ended) and on_a_slope:
        reached = float(run.best)
        run.restart()
        _, on_a_slope = part()
        if np.isnan(run.best):  # the sites of its end could not be found again: the next run has not begun
            run.best.assign(reached)
            break
    return raised


def number_of_pairs(coordinates: int) -> int:
    """Return how many pairs of steps and changes of the gradient a run keeps."""
    return int(np.clip(coordinates, *MEMORY))


def minimize(
    closure: Callable[[], tf.Tensor],
    variables: Sequence[tf.Variable],
    *,
    parameters: Sequence[gpflow.Parameter] = (),
    bounds: Sequence[tuple[float, float]] | None = None,
    iterations: int = 1000,
) -> float:
    """Lower a loss by L-BFGS-B and return it; ``parameters`` as for `LogSpace`, ``bounds`` as for `Run`."""
    objective = Evaluation(closure, variables)
    Run(LogSpace(variables, parameters), objective, SMALLEST_GAIN, bounds).climb(iterations)
    return -objective()[0]
