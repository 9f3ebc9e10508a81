"""Signals that ask a run to end: after the step that it is in, with a checkpoint, or early in that step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager that records SIGINT and SIGTERM, unless the user's program handles them.

    A second signal has the usual effect at once. It does nothing outside the main thread, to which Python
    delivers all signals.

    Parameters
    ----------
    cut
        Called by SIGINT, to end the step early in a run without checkpoints; SIGTERM has its usual effect.
    """

    def __init__(self, cut: Callable[[], None] | None = None) -> None:
        self._cut = cut
        self._asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        """Begin to take note."""
        if threading.current_thread() is threading.main_thread():
            usual = (signal.default_int_handler, signal.SIG_DFL)
            for number in _SIGNALS if self._cut is None else _SIGNALS[:1]:
                if signal.getsignal(number) in usual:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the signals to whoever had them before."""
        self._let_go()

    def __bool__(self) -> bool:
        """Tell whether a signal has come."""
        return self._asked is not None

    def end(self, said: str) -> None:
        """Do what the signal asks for: raise ``KeyboardInterrupt``, or ``SystemExit`` for SIGTERM."""
        if self._asked == signal.SIGINT:
            raise KeyboardInterrupt(said)
        if self._asked is not None:
            print(said, flush=True)
            raise SystemExit(128 + self._asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = number
        self._let_go()
        if self._cut is not None:
            self._cut()

    def _let_go(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
