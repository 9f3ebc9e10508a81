"""What a long training writes on its way: scores of the test rows, and TensorBoard's files."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

TEST_FILE = "curve.jsonl"


class Curve:
    """Test scores during training, in a file; the time that they take is not counted.

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
            self._started = self._resumed(step)
        if step % self._every:
            return
        import gpflow_ext as gpx

        now = time.perf_counter()
        line = {"step": step, "seconds": now - self._started}
        line |= gpx.metrics.evaluate(self._model, self._data)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._started += time.perf_counter() - now

    def _resumed(self, step: int) -> float:
        """Return the start of a clock that goes on from the last line before this step; drop the later ones."""
        known = [line for line in self.lines() if line["step"] < step]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".tmp")
        partial.write_text("".join(json.dumps(line) + "\n" for line in known), encoding="utf-8")
        partial.replace(self._path)
        return time.perf_counter() - (known[-1]["seconds"] if known else 0.0)


def monitor(options: argparse.Namespace, model: Any, train: Any, test: Any) -> Any:
    """Return what is called after each step, or nothing."""
    calls: list[Any] = []
    if options.test_every is not None:
        calls.append(Curve(options.run_dir / TEST_FILE, model, test, options.test_every))
    if options.tensorboard is not None:
        rows = tuple(part[: options.minibatch_size] for part in train)
        calls.append(_board(str(options.tensorboard), model, rows, every=max(1, options.steps // 100)))
    return (lambda step: [call(step) for call in calls]) if calls else None


def _board(folder: str, model: Any, rows: Any, every: int) -> Any:
    """Return GPflow's monitor: the bound of some rows and the parameters, in TensorBoard's format."""
    import importlib.util

    import gpflow
    import tensorflow as tf

    if importlib.util.find_spec("tensorboard") is None:
        raise ImportError('--tensorboard needs TensorBoard: pip install "gpflow-ext[monitor]".')
    bound = tf.function(lambda: model.elbo(tuple(tf.constant(part) for part in rows)))
    tasks = [
        gpflow.monitor.ScalarToTensorBoard(folder, bound, "bound of the first rows"),
        gpflow.monitor.ModelToTensorBoard(folder, model, max_size=10),
    ]
    return gpflow.monitor.Monitor(gpflow.monitor.MonitorTaskGroup(tasks, period=every))
