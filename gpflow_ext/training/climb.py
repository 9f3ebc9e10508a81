"""L-BFGS in one compiled function: many iterations, and the evaluations in them, in one call.

`lbfgs.Run` comes back to the host at each evaluation, as SciPy searches there. Here the search is a loop of
tensors around the objective, so that an accelerator does all of it by itself. Where nothing is bounded it is
the arithmetic of SciPy's L-BFGS-B, with the guard of `lbfgs.Run`: the same iterates, to rounding.

The direction at a gradient g is −Hg by the two-loop recursion (Nocedal 1980). For pairs S, Y [m, P] of steps
and changes of the gradient, with R the upper triangle of SYᵀ and γ = sᵀy/yᵀy of the newest pair, it is

    R a = Sg,    q = g − Yᵀa,    Rᵀb = diag(R) a − γYq,    Hg = γq + Sᵀb :

each of its loops is a triangular solve.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from gpflow_ext.training import guarded, lbfgs, line_search
from gpflow_ext.training.line_search import LineSearch, where

# RESTING: at the last iterate, as the next iteration would find. BARRED: before an edge of the finite loss.
RUNNING, RESTING, ENDED, BARRED = 0, 1, 2, 3
_EPSILON = 2.0**-52

Evaluate: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Maps coordinates [P] and what they promise, see `guarded.promise`, to the loss, [], and gradient, [P]."""


class Memory(NamedTuple):
    """The last pairs, the newest in the last place; zero where there is none."""

    steps: tf.Tensor  # [m, P]
    changes: tf.Tensor  # of the gradient, [m, P]
    products: tf.Tensor  # the upper triangle of SYᵀ, [m, m]
    pairs: tf.Tensor  # how many there are


class State(NamedTuple):
    """A run between two evaluations; a loss is minus the objective."""

    first: tf.Tensor  # the loss at the start, NaN where that or its gradient is not finite
    value: tf.Tensor  # at the iterate
    at: tf.Tensor  # [P]
    gradient: tf.Tensor  # [P]
    direction: tf.Tensor  # of the line search, [P]
    search: LineSearch
    memory: Memory
    turned: tf.Tensor  # trials without a finite loss, see `guarded.BARRED`
    begun: tf.Tensor  # whether the start has been evaluated
    iterations: tf.Tensor
    status: tf.Tensor


def fresh(start: tf.Tensor, pairs: int) -> State:
    """Return the state of a run that begins somewhere [P], of so many pairs at most."""
    P, none, whole = start.shape[0], tf.zeros([], start.dtype), tf.zeros([], tf.int32)
    empty, products = tf.zeros([pairs, P], start.dtype), tf.zeros([pairs, pairs], start.dtype)
    memory = Memory(empty, empty, products, whole)
    search = line_search.begin(none, none, none)
    still = tf.zeros_like(start)
    return State(none, none, start, still, still, search, memory, whole, tf.constant(False), whole, whole)


def turn(
    state: State, evaluate: Evaluate, leap: tf.Tensor, ends: guarded.Ends
) -> tuple[State, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Go on to the next trial of a run.

    Parameters
    ----------
    state
        The run.
    evaluate
        Called at the trial, unless that is too far or not worth it.
    leap
        How far each coordinate may move in an iteration, [P].
    ends
        When it ends.

    Returns
    -------
        The run afterwards, the loss at the trial, whether it was evaluated, and whether the run is there, [].
    """
    trial = tf.where(state.begun, state.at + state.search.step * state.direction, state.at)
    move = trial - state.at
    tangent = tf.tensordot(state.gradient, move, 1)
    promised = guarded.promise(tangent, state.value)  # zero at the start
    long = (state.iterations == 0) & ends.beyond(tf.linalg.norm(move), promised)
    far = state.begun & (long | tf.reduce_any(tf.abs(move) > leap))
    slope = tf.reduce_max(tf.abs(state.gradient))
    rests = state.begun & ends.before(tangent, slope, state.value)
    nothing = tf.fill([], tf.constant(float("nan"), trial.dtype)), tf.zeros_like(trial)
    evaluated = ~(far | rests)
    loss, slopes = tf.cond(evaluated, lambda: evaluate(trial, promised), lambda: nothing)
    sound = tf.math.is_finite(loss) & tf.reduce_all(tf.math.is_finite(slopes))
    value = tf.where(sound, loss, state.value + tf.abs(tangent))  # turned back, see `guarded.Guarded`
    gradient = tf.where(sound, slopes, -state.gradient)
    state = state._replace(turned=state.turned + tf.cast(state.begun & evaluated & ~sound, tf.int32))
    after = _after(state, trial, value, gradient, sound, tangent, ends)
    begun = _begun(state, value, gradient, sound)
    new = where(rests, state._replace(status=ENDED), where(state.begun, after, begun))
    new = new._replace(status=tf.where(ends.bars(state.turned), BARRED, new.status))
    return new, loss, evaluated, evaluated & tf.reduce_all(new.at == trial)


def _begun(state: State, value: tf.Tensor, gradient: tf.Tensor, sound: tf.Tensor) -> State:
    """Return a run whose start has been evaluated; the first step is of length one, at most."""
    direction = (state.at - gradient) - state.at
    step = tf.minimum(1.0 / tf.linalg.norm(direction), line_search.LONGEST)
    flat = tf.reduce_max(tf.abs(gradient)) <= lbfgs.SLOPE
    return state._replace(
        first=tf.where(sound, value, float("nan")),
        value=value,
        gradient=gradient,
        direction=direction,
        search=line_search.begin(step, value, tf.tensordot(gradient, direction, 1)),
        begun=tf.constant(True),
        status=tf.where(flat, ENDED, RUNNING),
    )


def _after(
    state: State,
    trial: tf.Tensor,
    value: tf.Tensor,
    gradient: tf.Tensor,
    sound: tf.Tensor,
    tangent: tf.Tensor,
    ends: guarded.Ends,
) -> State:
    """Return a run after a trial: at a new iterate, in another line search or the same one, or ended."""
    gain, moved = state.value - value, tf.reduce_max(tf.abs(trial - state.at))
    noise = sound & ends.within(gain, tangent, moved, value)
    search, over = line_search.advance(state.search, value, tf.tensordot(gradient, state.direction, 1))
    arrived = over & sound & ~noise
    failed = ~noise & ~arrived & (over | (search.trials >= line_search.MOST))
    here = arrived | (noise & (gain >= 0.0))
    at, value, slopes = (
        tf.where(here, new, old)
        for new, old in ((trial, state.at), (value, state.value), (gradient, state.gradient))
    )
    stuck = failed & (state.memory.pairs == 0)
    memory = where(arrived, remembered(state, slopes), state.memory)
    memory = where(failed, _empty(memory), memory)
    turning = at - descent(memory, slopes) - at
    rising = tf.tensordot(slopes, turning, 1) >= 0.0
    memory = where(rising & (arrived | failed), _empty(memory), memory)
    turning = tf.where(rising, (at - slopes) - at, turning)
    largest = tf.reduce_max(tf.abs(slopes))
    rests = ends.after(gain, moved, largest, value) | (largest <= lbfgs.SLOPE)
    one = tf.ones_like(value)
    another = line_search.begin(one, value, tf.tensordot(slopes, turning, 1))
    return State(
        state.first,
        value,
        at,
        slopes,
        tf.where(arrived | failed, turning, state.direction),
        where(arrived | failed, another, search),
        memory,
        tf.where(arrived & ~ends.little(gain, value), 0, state.turned),
        state.begun,
        state.iterations + tf.cast(arrived, tf.int32),
        tf.where(noise | stuck, ENDED, tf.where(arrived & rests, RESTING, RUNNING)),
    )


def remembered(state: State, gradient: tf.Tensor) -> Memory:
    """Return the memory after the step of a line search has led to another gradient [P].

    A pair whose curvature sᵀy is nothing beside the slope along s is left out.
    """
    old, step = state.memory, state.search.step
    s, y = step * state.direction, gradient - state.gradient
    curvature = (tf.tensordot(gradient, state.direction, 1) - state.search.slope) * step
    steps, changes = (
        tf.concat([part[1:], new[None]], axis=0) for part, new in ((old.steps, s), (old.changes, y))
    )
    column = tf.concat([tf.linalg.matvec(steps[:-1], y), curvature[None]], axis=0)
    rows = tf.concat([old.products[1:, 1:], tf.zeros_like(old.products[:1, 1:])], axis=0)
    new = Memory(
        steps, changes, tf.concat([rows, column[:, None]], axis=1), tf.minimum(old.pairs + 1, column.shape[0])
    )
    return where(curvature > _EPSILON * -state.search.slope * step, new, old)


def _empty(memory: Memory) -> Memory:
    return Memory(*(tf.zeros_like(part) for part in memory))


def descent(memory: Memory, gradient: tf.Tensor) -> tf.Tensor:
    """Return Hg for a gradient g [P]; see the head of this module. O(mP + m²)."""
    curvatures = tf.linalg.diag_part(memory.products)
    R = tf.linalg.set_diag(memory.products, tf.where(curvatures > 0.0, curvatures, 1.0))
    newest = tf.reduce_sum(memory.changes[-1] ** 2)
    scale = tf.where(memory.pairs > 0, curvatures[-1] / newest, tf.ones_like(newest))
    a = _solve(R, tf.linalg.matvec(memory.steps, gradient), adjoint=False)
    q = gradient - tf.linalg.matvec(memory.changes, a, transpose_a=True)
    b = _solve(R, curvatures * a - scale * tf.linalg.matvec(memory.changes, q), adjoint=True)
    return scale * q + tf.linalg.matvec(memory.steps, b, transpose_a=True)


def _solve(R: tf.Tensor, vector: tf.Tensor, adjoint: bool) -> tf.Tensor:
    return tf.linalg.triangular_solve(R, vector[:, None], lower=False, adjoint=adjoint)[:, 0]
