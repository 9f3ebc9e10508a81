"""The moment after which a step of training ends early, as what takes long inside a step asks for it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from contextvars import ContextVar


class Deadline:
    """A moment that some work observes: what is not begun by then is left out.

    Parameters
    ----------
    seconds
        From now until then.

    Attributes
    ----------
    has_cut
        Whether anything was left out.
    """

    def __init__(self, seconds: float) -> None:
        self._begin, self.has_cut = time.perf_counter(), False
        self._end = self._begin + seconds

    def limit(self, seconds: float) -> None:
        """Let one that never comes come so many seconds after it was set."""
        self._end = self._begin + seconds if math.isinf(self._end) else self._end

    def bring_forward(self) -> None:
        """Let the moment be now."""
        self._end = -math.inf

    @property
    def is_over(self) -> bool:
        """Whether the moment is past."""
        return time.perf_counter() > self._end

    def cuts(self) -> bool:
        """Tell whether the moment is past, and take note that what follows is left out then."""
        self.has_cut |= self.is_over
        return self.has_cut

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Let `current` return it inside the context, in this thread, unless steps are to be whole."""
        before = _CURRENT.set(Deadline(math.inf) if _WHOLE.get() else self)
        try:
            yield
        finally:
            _CURRENT.reset(before)


_CURRENT: ContextVar[Deadline] = ContextVar("deadline", default=Deadline(math.inf))  # noqa: B039
_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)


def current() -> Deadline:
    """Return the deadline of the step that this thread is in; outside of any it never comes."""
    return _CURRENT.get()


@contextlib.contextmanager
def whole_steps() -> Iterator[None]:
    """Let no step end early inside the context, in this thread."""
    before = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(before)
