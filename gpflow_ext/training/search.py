"""SciPy's L-BFGS-B, suspended between two parts of a run.

SciPy calls the loss and returns at the end. Here it does so in a thread of its own, which waits while the run
is suspended; the loss is evaluated, and all else done, in the caller's thread. Only one runs at a time.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import scipy.optimize

Vector = npt.NDArray[np.float64]
Loss = Callable[[Vector], tuple[float, Vector]]

_CLOSED = object()


class Guard(Protocol):
    """Wrapper of the loss that guards the search."""

    first: float
    best: tuple[Vector, float]
    promised: float

    @property
    def is_barred(self) -> bool:
        """Whether it has ended at the edge of where the loss is finite."""

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        """Return loss and gradient."""

    def arrive(self, x: Vector) -> None:
        """Take the last evaluation for the iterate; raise ``StopIteration`` at the end."""


class Asked(NamedTuple):
    """A point at which the loss is asked for."""

    x: Vector
    promised: float  # see `guarded.promise`


class Arrived(NamedTuple):
    """The next iterate; the search waits for leave to go on."""

    x: Vector
    loss: float
    first: float  # the loss at the start


class Ended(NamedTuple):
    """The end."""

    x: Vector
    loss: float
    first: float
    barred: bool  # whether it is at the edge of where the loss is finite


class SettledError(Exception):
    """Raised where a search has nothing more to find: before a trial, or at one within the noise."""


class _ClosedError(Exception):
    """Raised in the thread of a search that is abandoned."""


class Search:
    """One run of L-BFGS-B.

    Parameters
    ----------
    start
        Where it begins.
    guard
        Makes the guard of a loss.
    options
        Options of ``scipy.optimize.minimize``.
    bounds
        Pairs, or ``None``.
    """

    def __init__(
        self,
        start: Vector,
        guard: Callable[[Loss], Guard],
        options: dict[str, Any],
        bounds: npt.ArrayLike | None,
    ) -> None:
        self.iterations = 0
        self._in: SimpleQueue[Any] = SimpleQueue()
        self._out: SimpleQueue[Any] = SimpleQueue()
        arguments = (self._in, self._out, start.copy(), guard, options, bounds)
        threading.Thread(target=_work, args=arguments, daemon=True, name="L-BFGS").start()
        weakref.finalize(self, self._in.put, _CLOSED)  # the thread knows the queues alone

    def next(self) -> Asked | Arrived | Ended:
        """Wait until the search asks for the loss, arrives at an iterate or ends."""
        found = self._out.get()
        if isinstance(found, BaseException):
            raise found
        self.iterations += isinstance(found, Arrived)
        return found

    def go_on(self, answer: tuple[float, Vector] | None = None) -> None:
        """Answer with loss and gradient, or let it go on after an iterate."""
        self._in.put(answer)


def _work(
    inbox: SimpleQueue[Any],
    outbox: SimpleQueue[Any],
    start: Vector,
    guard: Callable[[Loss], Guard],
    options: dict[str, Any],
    bounds: npt.ArrayLike | None,
) -> None:
    def ask(question: Asked | Arrived) -> Any:
        outbox.put(question)
        answer = inbox.get()
        if answer is _CLOSED:
            raise _ClosedError
        return answer

    def arrive(x: Vector) -> None:
        settled = False
        try:
            guarded.arrive(x)
        except StopIteration:
            settled = True
        ask(Arrived(*guarded.best, guarded.first))
        if settled:
            raise StopIteration

    guarded = guard(lambda x: ask(Asked(x.copy(), guarded.promised)))
    try:
        with contextlib.suppress(SettledError):
            scipy.optimize.minimize(
                guarded, start, jac=True, method="L-BFGS-B", bounds=bounds, callback=arrive, options=options
            )
        # SciPy's own end may be where it was turned back.
        outbox.put(Ended(*guarded.best, guarded.first, guarded.is_barred))
    except _ClosedError:
        pass
    except BaseException as error:  # raised again where the run goes on
        outbox.put(error)
