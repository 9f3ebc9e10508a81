"""Limits on the requests of a client."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

ERRORS = 10  # that a refusal lists, at most
SAID = 200  # characters of a client's own text in an answer, at most


@dataclass(frozen=True)
class Limits:
    """Bounds of the requests.

    Attributes
    ----------
    rows
        Most rows of a request.
    bytes
        Largest size of its body.
    seconds
        Longest time from its first byte to its answer, including waiting for others.
    header_seconds
        Longest time from opening a connection, or from the first byte of its next request, to the end of the
        headers.
    connections
        Most connections open at once.
    """

    rows: int = 10_000
    bytes: int = 8 * 2**20
    seconds: float = 30.0
    header_seconds: float = 10.0
    connections: int = 100

    def __post_init__(self) -> None:
        """Check the ranges."""
        for field in fields(self):
            if not 0 < getattr(self, field.name) < math.inf:
                raise ValueError(f"{field.name} must be positive and finite; got {getattr(self, field.name)}")


class RefusedError(Exception):
    """A refused request, with the HTTP status and the reasons, of which some are sent."""

    def __init__(self, status: int, *reasons: str) -> None:
        super().__init__("; ".join(reasons))
        self.status = status
        self.reasons = reasons

    def __str__(self) -> str:
        more = len(self.reasons) - ERRORS
        return "; ".join(self.reasons[:ERRORS]) + (f"; and {more} more" if more > 0 else "")


def shown(value: object) -> str:
    """Return a client's value as a refusal shows it."""
    text = repr(value)
    return text if len(text) <= SAID else text[:SAID] + "…"
