"""Test scores during training, in a file that a resumed run goes on with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class Curve:
    """Takes scores after every so many steps; the time that takes is not counted.

    Called with the number of each step, as the ``monitor`` of `gpflow_ext.fit`. A run that resumes from a
    checkpoint drops the lines that its lost steps have written.
    """

    def __init__(self, path: Path, model: Any, data: tuple[Any, Any], every: int) -> None:
        self._path, self._model, self._data, self._every = path, model, data, every
        self._started: float | None = None  # what the clock would have shown at the start of all training

    def lines(self) -> list[dict[str, float]]:
        """Return what was taken so far: step, seconds of training, nlpd, error, ece."""
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]

    def __call__(self, step: int) -> None:
        """Take the scores if it is time."""
        if self._started is None:
            self._resume(step)
        if step % self._every:
            return
        import gpflow_ext as gpx

        now = time.perf_counter()
        line = {"step": step, "seconds": now - self._started}
        line |= gpx.metrics.evaluate(self._model, self._data)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._started += time.perf_counter() - now

    def _resume(self, step: int) -> None:
        """Begin at the seconds of the last line before this step."""
        known = [line for line in self.lines() if line["step"] < step]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".tmp")
        partial.write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
        partial.replace(self._path)
        self._started = time.perf_counter() - (known[-1]["seconds"] if known else 0.0)
