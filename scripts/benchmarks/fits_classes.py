"""One class of models in a process of its own: its first fit and later ones, predictions, and what is compiled.

    python -m scripts.benchmarks.fits_classes '{"kind": "SparseEP"}'

The last line of the output is the record, as JSON. Times are CPU seconds of the process, all threads together.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Entry

from ..shared.every_class import KINDS


class Stopwatch:
    """CPU seconds while at least one compiled function runs, in whatever thread, and how many were called."""

    def __init__(self) -> None:
        self.seconds, self.calls = 0.0, 0
        self._running, self._begin, self._lock = 0, 0.0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if not self._running:
                self._begin = time.process_time()
            self._running += 1
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self.seconds += time.process_time() - self._begin


@contextlib.contextmanager
def watched() -> Iterator[Stopwatch]:
    """Yield a stopwatch of all compiled functions that are called within."""
    watch, call = Stopwatch(), Entry.__call__

    def timed(entry: Entry, *flat: Any) -> Any:
        with watch:
            return call(entry, *flat)

    Entry.__call__ = timed  # type: ignore[assignment, method-assign]
    try:
        yield watch
    finally:
        Entry.__call__ = call  # type: ignore[method-assign]


def measure(name: str) -> dict[str, Any]:
    """Train and score three new models, see `every_class.Kind.others`; return what each took and traced."""
    kind = KINDS[name]
    record: dict[str, Any] = {"kind": name, "by_rows": kind.by_rows}
    record |= {what: [] for what in ("seconds", "compiled", "calls", "scored", "traces")}
    with watched() as watch:
        for rows, seed in kind.others():
            before, compiled, calls = gpx.trace_count(), watch.seconds, watch.calls
            begin = time.process_time()
            model, data = kind.trained(rows, seed)
            trained = time.process_time()
            record["compiled"].append(watch.seconds - compiled)
            record["calls"].append(watch.calls - calls)
            kind.scores(model, data)
            record["seconds"].append(trained - begin)
            record["scored"].append(time.process_time() - trained)
            record["traces"].append(gpx.trace_count() - before)
    return record


def main() -> None:
    print(json.dumps(measure(json.loads(sys.argv[1])["kind"])))


if __name__ == "__main__":
    main()
