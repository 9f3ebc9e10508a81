"""The line search of Moré and Thuente (1994) in tensors, a trial at a time: that of SciPy's L-BFGS-B.

A step t along a direction is sought where the loss φ(t) has fallen enough and its slope is flat enough,

    φ(t) ≤ φ(0) + μ t φ'(0),    |φ'(t)| ≤ η |φ'(0)|,    μ = 1e-3, η = 0.9.

Steps are tried at minima of cubics and parabolas, within an interval that shrinks once it holds a minimum.
All is as in ``dcsrch`` and ``dcstep`` of MINPACK-2, by selection in place of branches.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import tensorflow as tf

DECREASE, FLATNESS, WIDTH = 1e-3, 0.9, 0.1
LONGEST = 1e10
MOST = 20  # trials
_NEARER, _FARTHER, _SHRINKING = 1.1, 4.0, 0.66

T = TypeVar("T")


class End(NamedTuple):
    """An end of the interval: a step, the loss there and its slope, each []."""

    step: tf.Tensor
    value: tf.Tensor
    slope: tf.Tensor


class LineSearch(NamedTuple):
    """A search that waits for the loss at its trial step; all are []."""

    step: tf.Tensor  # the trial
    value: tf.Tensor  # at the start
    slope: tf.Tensor
    best: End
    other: End
    least: tf.Tensor  # between which the next trial lies
    most: tf.Tensor
    width: tf.Tensor  # of the interval, and before the last trial
    before: tf.Tensor
    bracketed: tf.Tensor  # 1 where the interval holds a minimum, else 0
    second: tf.Tensor  # 1 in the second stage, in which the loss itself is modelled
    trials: tf.Tensor  # evaluated


def begin(step: tf.Tensor, value: tf.Tensor, slope: tf.Tensor) -> LineSearch:
    """Begin with a trial step, from where the loss and its slope are known."""
    none = tf.zeros_like(value)
    end = End(none, value, slope)
    farthest = (1.0 + _FARTHER) * step
    widths = none + LONGEST, none + 2.0 * LONGEST
    return LineSearch(step, value, slope, end, end, none, farthest, *widths, none, none, none)


def advance(search: LineSearch, value: tf.Tensor, slope: tf.Tensor) -> tuple[LineSearch, tf.Tensor]:
    """Take the loss and its slope at the trial; return the search at its next one, and whether it is over."""
    t, decrease, bracketed = search.step, DECREASE * search.slope, search.bracketed > 0.0
    enough = value <= search.value + t * decrease
    second = (search.second > 0.0) | (enough & (slope >= 0.0))
    stuck = bracketed & ((t <= search.least) | (t >= search.most) | _is_narrow(search.least, search.most))
    longest = (t == LONGEST) & enough & (slope <= decrease)
    shortest = (t == 0.0) & (~enough | (slope >= decrease))
    over = stuck | longest | shortest | (enough & (tf.abs(slope) <= FLATNESS * tf.abs(search.slope)))
    # In the first stage the loss is modelled less the line of sufficient decrease.
    tilt = tf.where(~second & (value <= search.best.value) & ~enough, decrease, tf.zeros_like(decrease))
    best, other, trial = (_tilted(end, tilt) for end in (search.best, search.other, End(t, value, slope)))
    best, other, step, bracketed = _trial(best, other, trial, bracketed, search.least, search.most)
    best, other = (_tilted(end, -tilt) for end in (best, other))
    width = tf.abs(other.step - best.step)
    slow = bracketed & (width >= _SHRINKING * search.before)
    step = tf.where(slow, best.step + 0.5 * (other.step - best.step), step)
    least = tf.where(bracketed, tf.minimum(best.step, other.step), step + _NEARER * (step - best.step))
    most = tf.where(bracketed, tf.maximum(best.step, other.step), step + _FARTHER * (step - best.step))
    step = tf.clip_by_value(step, 0.0, LONGEST)
    no_further = bracketed & ((step <= least) | (step >= most) | _is_narrow(least, most))
    next_one = LineSearch(
        tf.where(no_further, best.step, step),
        search.value,
        search.slope,
        best,
        other,
        least,
        most,
        tf.where(bracketed, width, search.width),
        tf.where(bracketed, search.width, search.before),
        tf.cast(bracketed, value.dtype),
        tf.cast(second, value.dtype),
        search.trials + 1.0,
    )
    return next_one, over


def _is_narrow(least: tf.Tensor, most: tf.Tensor) -> tf.Tensor:
    return most - least <= WIDTH * most


def _tilted(end: End, by: tf.Tensor) -> End:
    """Return an end of the loss less a line."""
    return End(end.step, end.value - end.step * by, end.slope - by)


def _trial(
    best: End, other: End, trial: End, bracketed: tf.Tensor, least: tf.Tensor, most: tf.Tensor
) -> tuple[End, End, tf.Tensor, tf.Tensor]:
    """Return the ends of the interval with a trial taken in, the next trial, and whether it is bracketed."""
    forward = trial.step > best.step
    higher = trial.value > best.value
    opposite = ~higher & (tf.sign(trial.slope) * tf.sign(best.slope) < 0.0)
    flatter = ~higher & ~opposite & (tf.abs(trial.slope) < tf.abs(best.slope))
    step = tf.where(
        higher,
        _beyond_a_minimum(best, trial),
        tf.where(
            opposite,
            _across_a_minimum(best, trial),
            tf.where(
                flatter,
                _towards_a_minimum(best, other, trial, bracketed, least, most),
                tf.where(bracketed, _cubic(trial, other), tf.where(forward, most, least)),
            ),
        ),
    )
    ends = where(higher, trial, where(opposite, best, other)), where(higher, best, trial)
    return ends[1], ends[0], step, bracketed | higher | opposite


def _beyond_a_minimum(best: End, trial: End) -> tf.Tensor:
    """Return the trial where the loss is higher: by the cubic, or half-way to a nearer parabola."""
    cubic = _cubic(best, trial)
    way = trial.step - best.step
    parabola = best.step + best.slope / ((best.value - trial.value) / way + best.slope) / 2.0 * way
    nearer = tf.abs(cubic - best.step) <= tf.abs(parabola - best.step)
    return tf.where(nearer, cubic, cubic + (parabola - cubic) / 2.0)


def _across_a_minimum(best: End, trial: End) -> tf.Tensor:
    """Return the trial where the slope has turned: by the cubic or the secant, the farther one."""
    cubic, secant = _cubic(trial, best), _secant(best, trial)
    return tf.where(tf.abs(cubic - trial.step) > tf.abs(secant - trial.step), cubic, secant)


def _towards_a_minimum(
    best: End, other: End, trial: End, bracketed: tf.Tensor, least: tf.Tensor, most: tf.Tensor
) -> tf.Tensor:
    """Return the trial where the loss falls on, less steeply."""
    forward = trial.step > best.step
    root, theta = _root(trial, best, least=0.0)
    ratio = (root - trial.slope + theta) / (root + (best.slope - trial.slope) + root)
    beyond = (ratio < 0.0) & (root != 0.0)
    cubic = tf.where(beyond, trial.step + ratio * (best.step - trial.step), tf.where(forward, most, least))
    secant = _secant(best, trial)
    nearer = tf.abs(cubic - trial.step) < tf.abs(secant - trial.step)
    farther = tf.abs(cubic - trial.step) > tf.abs(secant - trial.step)
    limit = trial.step + _SHRINKING * (other.step - trial.step)
    inside = tf.where(nearer, cubic, secant)
    inside = tf.where(forward, tf.minimum(limit, inside), tf.maximum(limit, inside))
    outside = tf.clip_by_value(tf.where(farther, cubic, secant), least, most)
    return tf.where(bracketed, inside, outside)


def _secant(best: End, trial: End) -> tf.Tensor:
    return trial.step + trial.slope / (trial.slope - best.slope) * (best.step - trial.step)


def _cubic(one: End, two: End) -> tf.Tensor:
    """Return where the cubic through two ends has its minimum."""
    root, theta = _root(one, two)
    return one.step + (root - one.slope + theta) / (root - one.slope + root + two.slope) * (
        two.step - one.step
    )


def _root(one: End, two: End, least: float | None = None) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the root in the minimum of the cubic through two ends, of the sign of the way, and θ."""
    way = two.step - one.step
    theta = 3.0 * (one.value - two.value) / way + one.slope + two.slope
    size = tf.maximum(tf.abs(theta), tf.maximum(tf.abs(one.slope), tf.abs(two.slope)))
    square = (theta / size) ** 2 - (one.slope / size) * (two.slope / size)
    square = square if least is None else tf.maximum(square, least)
    return size * tf.sqrt(square) * tf.where(way < 0.0, -tf.ones_like(way), tf.ones_like(way)), theta


def where(condition: tf.Tensor, one: T, two: T) -> T:
    """Return one of two structures of tensors."""
    chosen: T = tf.nest.map_structure(lambda a, b: tf.where(condition, a, b), one, two)
    return chosen
