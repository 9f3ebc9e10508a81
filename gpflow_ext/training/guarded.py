"""The guard of a search by L-BFGS: where it comes back, and where it has come to rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from gpflow_ext.training.search import SettledError, Vector

SETTLED = 3e-4  # of a coordinate: a change of a logarithm by less does not count
STEEP = 1e-3  # of an objective in a logarithm; where a run ends with more, another one looks for a way up
GENTLE = 100.0  # times a change that counts as none: a slope that is not steep for a large objective
BARRED = 6  # trials without a finite loss that end a run
LITTLE = 3e-4  # relative: after an iteration that gains more they are counted anew
CURVATURE = 0.02  # relative to a loss, of most in logarithms
SHORT = 1 / 64  # a first step that is never too long


def is_gentle(slope: Any, least: Any) -> Any:
    """Tell whether the largest element of a gradient is none that a run goes on for.

    Parameters
    ----------
    slope
        That element.
    least
        A change of the loss that counts as none.
    """
    return (slope <= STEEP) | (slope <= GENTLE * least)


def nothing_is_ahead(tangent: Any, slope: Any, least: Any) -> Any:
    """Tell whether a trial is not worth its evaluation, see `lbfgs.Run`; all are numbers or tensors [].

    Parameters
    ----------
    tangent
        Change of the tangent of the loss at the iterate.
    slope
        The largest element of the gradient there.
    least
        A change of the loss that counts as none.
    """
    return is_gentle(slope, least) & (abs(tangent) <= least)


def is_noise(change: Any, tangent: Any, move: Any, least: Any) -> Any:
    """Tell whether a trial is where the iterate is, see `lbfgs.Run`; all are numbers or tensors [].

    Parameters
    ----------
    change, tangent
        Of the loss, and of its tangent at the iterate.
    move
        The largest move of a coordinate.
    least
        A change of the loss that counts as none.
    """
    return (move <= SETTLED) & (abs(change) <= least) & (abs(tangent) <= least)


def is_at_rest(gain: Any, move: Any, slope: Any, least: Any) -> Any:
    """Tell whether an iteration is the last one, see `lbfgs.Run`; all are numbers or tensors [].

    Parameters
    ----------
    gain
        The fall of the loss.
    move, slope
        The largest move of a coordinate, and the largest element of the gradient afterwards.
    least
        A change of the loss that counts as none.
    """
    still = (move <= SETTLED) | is_gentle(slope, least)
    return (slope <= 10.0 * least) | (gain <= 0.01 * least) | (still & (gain <= least))


def gains_little(gain: Any, size: Any) -> Any:
    """Tell whether an iteration has lowered a loss of a size, at least one, by next to nothing."""
    return gain <= LITTLE * size


def promise(tangent: Any, value: Any) -> Any:
    """Return by how much, relative to a loss at an iterate, its tangent changes to a trial."""
    return abs(tangent) / (1.0 + abs(value))


def is_too_long(distance: Any, promised: Any) -> Any:
    """Tell whether a first step goes far beyond where a loss of usual curvature has its minimum.

    The first step of L-BFGS has length one, whatever the gradient. From near an optimum it leads up a slope,
    to where an evaluation costs most: with curvature c the minimum is at p/(cd) for a step of length d that
    promises p, both relative to the loss.

    Parameters
    ----------
    distance
        Its length, [].
    promised
        See `promise`.
    """
    return (distance > SHORT) & (CURVATURE * distance**2 > 4.0 * promised)


class Ends(Protocol):
    """Protocol of when a search in the graph ends; the arguments are those of the functions above."""

    def beyond(self, distance: Any, promised: Any) -> Any:
        """Tell whether to turn back from a first trial, unevaluated."""

    def before(self, tangent: Any, slope: Any, value: Any) -> Any:
        """Tell whether to end instead of an evaluation, at an iterate of this loss."""

    def within(self, gain: Any, tangent: Any, move: Any, value: Any) -> Any:
        """Tell whether to end at a trial of this loss, or at the iterate if that is no higher."""

    def after(self, gain: Any, move: Any, slope: Any, value: Any) -> Any:
        """Tell whether to end after an iteration that has come to this loss."""

    def bars(self, turned: Any) -> Any:
        """Tell whether to end after so many trials without a finite loss."""

    def little(self, gain: Any, value: Any) -> Any:
        """Tell whether an iteration to this loss leaves trials without a finite loss counted."""


@dataclass(frozen=True)
class AtRest:
    """The ends of `lbfgs.Run`, whose tolerance this is."""

    tolerance: float

    def beyond(self, distance: Any, promised: Any) -> Any:
        """See `is_too_long`."""
        return is_too_long(distance, promised)

    def before(self, tangent: Any, slope: Any, value: Any) -> Any:
        """See `nothing_is_ahead`."""
        return nothing_is_ahead(tangent, slope, self._least(value))

    def within(self, gain: Any, tangent: Any, move: Any, value: Any) -> Any:
        """See `is_noise`."""
        return is_noise(gain, tangent, move, self._least(value))

    def after(self, gain: Any, move: Any, slope: Any, value: Any) -> Any:
        """See `is_at_rest`."""
        return is_at_rest(gain, move, slope, self._least(value))

    def bars(self, turned: Any) -> Any:
        """See `BARRED`."""
        return turned >= BARRED

    def little(self, gain: Any, value: Any) -> Any:
        """See `gains_little`."""
        return gains_little(gain, tf.maximum(abs(value), 1.0))

    def _least(self, value: Any) -> Any:
        return self.tolerance * tf.maximum(abs(value), 1.0)


@dataclass(frozen=True)
class ByGain:
    """The end of SciPy's L-BFGS-B by itself: at an iteration whose relative gain is no more than this."""

    tolerance: float

    def beyond(self, distance: Any, promised: Any) -> Any:
        """Never."""
        return False

    def before(self, tangent: Any, slope: Any, value: Any) -> Any:
        """Never."""
        return False

    def within(self, gain: Any, tangent: Any, move: Any, value: Any) -> Any:
        """Never."""
        return False

    def after(self, gain: Any, move: Any, slope: Any, value: Any) -> Any:
        """By the larger of both losses, and at least by one."""
        return gain <= self.tolerance * tf.maximum(tf.maximum(abs(value), abs(value + gain)), 1.0)

    def bars(self, turned: Any) -> Any:
        """Never."""
        return tf.constant(False)

    def little(self, gain: Any, value: Any) -> Any:
        """Never."""
        return tf.constant(False)


class Guarded:
    """A loss for L-BFGS whose line search backtracks where the loss is not finite or a step is too long.

    Too far is where a coordinate has moved by more than ``leap`` from the current iterate, and with a
    tolerance where a first step `is_too_long`. There the loss is as far above the current iterate as the
    tangent is below, with the opposite gradient: cubic interpolation then tries a seventh of the step. From a
    huge value it would come all the way back, where the search ends as if it had converged. ``first`` is the
    loss at the start, where it ends if that is not finite.
    ``promised`` is the `promise` of the point at which the loss is asked for, zero at the start.
    ``is_barred`` tells whether it has ended before an edge of where the loss is finite, see `BARRED`.
    """

    def __init__(
        self,
        loss: Callable[[Vector], tuple[float, Vector]],
        tolerance: float | None = None,
        leap: Vector | float = np.inf,
    ) -> None:
        self._loss, self._tolerance, self._leap = loss, tolerance, leap
        self._iterate: tuple[Vector, float, Vector] | None = None
        self._turned = self._iterations = 0
        self.promised = 0.0

    @property
    def is_barred(self) -> bool:
        """Whether it has ended there."""
        return self._turned >= BARRED

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        """Return the loss and its gradient at x [P], or what turns the search back; end it at rest."""
        if self._iterate is not None:
            at, base, slope = self._iterate
            move, promised = x - at, float(promise(slope @ (x - at), base))
            if (np.abs(move) > self._leap).any() or self._is_too_long(move, promised):
                return self._turned_back(x)
            if self._rests_before(x):
                raise SettledError
            self.promised = promised
        value, gradient = self._loss(x)
        sound = np.isfinite(value) and np.isfinite(gradient).all()
        if self._iterate is None:
            self.first = value if sound else np.nan
            self._iterate = x.copy(), value if sound else 0.0, gradient if sound else np.zeros_like(x)
            self.best = x.copy(), self.first
        elif sound and self._rests_at(x, value):
            raise SettledError
        if sound:
            self._last = x.copy(), value, gradient
            return value, gradient
        self._turned += 1
        if self._tolerance is not None and self.is_barred:
            self.best = self._iterate[:2]
            raise SettledError
        return self._turned_back(x)

    def _turned_back(self, x: Vector) -> tuple[float, Vector]:
        assert self._iterate is not None
        at, base, slope = self._iterate
        return base + abs(float(slope @ (x - at))), -slope

    def _is_too_long(self, move: Vector, promised: float) -> bool:
        guards = self._tolerance is not None and self._iterations == 0
        return guards and bool(is_too_long(np.linalg.norm(move), promised))

    def _rests_before(self, x: Vector) -> bool:
        """Tell whether a trial is not worth its evaluation; ``best`` is then the iterate."""
        if self._tolerance is None or self._iterate is None:
            return False
        at, base, slope = self._iterate
        self.best = at, base
        return bool(nothing_is_ahead(float(slope @ (x - at)), _largest(slope), self._least(base)))

    def _rests_at(self, x: Vector, value: float) -> bool:
        """Tell whether a trial is where the iterate is; ``best`` is then the better one."""
        if self._tolerance is None or self._iterate is None:
            return False
        at, base, slope = self._iterate
        self.best = (x.copy(), value) if value <= base else (at, base)
        move = x - at
        return bool(is_noise(value - base, float(slope @ move), _largest(move), self._least(value)))

    def _least(self, value: float) -> float:
        """Return a change of the loss that counts as none."""
        assert self._tolerance is not None
        return self._tolerance * max(1.0, abs(value))

    def arrive(self, x: Vector) -> None:
        """Take the last evaluation for the iterate, as L-BFGS-B has accepted it; end the run at rest."""
        before, self._iterate = self._iterate, self._last
        self._iterations += 1
        self.best = self._last[:2]
        if self._tolerance is None or before is None:
            return
        at, value, gradient = self._last
        gain, move = before[1] - value, _largest(at - before[0])
        if not gains_little(gain, max(1.0, abs(value))):
            self._turned = 0
        if is_at_rest(gain, move, _largest(gradient), self._least(value)):
            raise StopIteration


def _largest(x: Vector) -> float:
    return float(np.max(np.abs(x), initial=0.0))
