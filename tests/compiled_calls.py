"""Calls of compiled functions: how often the host hands work to TensorFlow."""

from __future__ import annotations

from typing import Any

import pytest

from gpflow_ext.compiled.functions import Entry


def record(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Return a list that grows by each call of a compiled function."""
    called: list[Entry] = []
    before = Entry.__call__

    def call(entry: Entry, *flat: Any) -> Any:
        called.append(entry)
        return before(entry, *flat)

    monkeypatch.setattr(Entry, "__call__", call)
    return called
