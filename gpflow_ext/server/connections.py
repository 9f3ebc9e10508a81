"""Connections of uvicorn with time limits on receiving headers and on sending the answer.

At the maximum number of connections a new one replaces the one that has waited longest for a request; it is
refused only if all are serving one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import Limits

_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bounded(limits: Limits) -> type[H11Protocol]:
    """Return the protocol of connections with these limits."""
    idle: dict[Any, None] = {}  # those without a request, in the order in which they began to wait

    class Bounded(H11Protocol):
        """Limits the number of connections; ends those that send headers or take an answer too slowly."""

        _timer: asyncio.TimerHandle | None = None
        _waits = False  # for the end of the headers, rather than of the answer

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.connections:
                if not idle:
                    self._end(_BUSY)
                    return
                next(iter(idle))._end(_LATE)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            idle.pop(self, None)
            super().connection_lost(exc)

        def _wait(self) -> None:
            """Set the timer where none runs for what is awaited now."""
            waits = self.cycle is None or self.cycle.response_complete
            if self._timer is not None and waits == self._waits:
                return
            self._stop()
            self._waits = waits
            if waits:
                idle.setdefault(self)
            else:
                idle.pop(self, None)
            self._timer = (
                self.loop.call_later(limits.header_seconds, self._late)
                if waits
                else self.loop.call_later(2.0 * limits.seconds, self._leave)
            )

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _late(self) -> None:
            self._timer = None
            self._end(_LATE)

        def _leave(self) -> None:
            self._timer = None
            if self.cycle is not None and not self.cycle.response_complete:
                self.transport.abort()

        def on_response_complete(self) -> None:
            self._stop()  # from here uvicorn's own timer runs, until data come
            idle[self] = None
            super().on_response_complete()
            if not self.cycle.response_complete:
                self._wait()  # for a request that was already there

        def _end(self, answer: bytes) -> None:
            idle.pop(self, None)
            if not self.transport.is_closing():
                self.transport.write(answer)
                self.transport.close()

    return Bounded
