"""Seconds per iteration of distributed SparseEP against the number of worker processes on this machine.

Run as a program it is one worker: it reads its place from TF_CONFIG, trains, and prints what it measured.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...shared import report
from ...shared.journal import Journal, Record

STEPS = 10
MARK = "measured: "
LIMIT = 3600.0  # seconds that the workers of one count may take together

TEXT = """\
## Seconds per iteration against the number of workers

MNIST odd against even, {rows:,} images, M = {inducing}, float32, batch: each worker is a process of its own on this machine
(`MultiWorkerMirroredStrategy`, CPU, one thread), and holds its share of the images. Medians over {steps} iterations of
the slowest worker, after two untimed ones. The machine has {cores} cores: more workers than cores cannot help.
"""


def run(journal: Journal, counts: Sequence[int], rows: int | None, inducing: int) -> None:
    """Measure what the journal lacks."""
    for count in counts:
        key = {"experiment": "workers", "workers": count, "asked": rows or 0, "inducing": inducing}
        journal.once(key, functools.partial(_launch, count, rows, inducing))
        print(f"{count} workers: done", flush=True)


def _launch(count: int, rows: int | None, inducing: int) -> Record:
    """Run the workers to their end; return the slowest one's median."""
    addresses = [f"localhost:{port}" for port in _free_ports(count)]
    command = [sys.executable, "-m", __name__, str(rows or 0), str(inducing)]
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"worker{index}.txt" for index in range(count)]
        processes = []
        try:
            for index, log in enumerate(logs):
                cluster = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
                environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CONFIG": json.dumps(cluster)}
                if count == 1:
                    del environment["TF_CONFIG"]
                with log.open("w") as file:
                    processes.append(
                        subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
                    )
            _wait(processes, logs)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        found = [_measured(log) for log in logs]
    return {
        "rows": found[0]["rows"],
        "seconds": max(one["seconds"] for one in found),
        "objective": found[0]["objective"],
        "steps": STEPS,
        "cores": os.cpu_count() or 1,
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], logs: Sequence[Path]) -> None:
    """Wait until all are done; raise with the last lines of one that failed, for which the others would wait."""
    begin = time.monotonic()
    while any(process.poll() is None for process in processes):
        time.sleep(0.2)
        for process, log in zip(processes, logs, strict=True):
            if process.poll() or time.monotonic() - begin > LIMIT:
                raise ValueError(f"A worker of {len(processes)} failed or took too long:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _measured(log: Path) -> Record:
    """Return what a worker printed."""
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(MARK):
            return json.loads(line.removeprefix(MARK))
    raise ValueError(f"A worker failed:\n{_tail(log)}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def work(rows: int | None, inducing: int) -> Record:
    """Train as one worker; return its median seconds of an iteration."""
    report.set_threads(1)
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else None
    import gpflow
    import numpy as np

    gpflow.config.set_default_float(np.float32)
    import gpflow_ext as gpx
    from gpflow_ext.ep.sign_agreement import SignAgreement

    from . import rivals, traces

    train, *_ = traces.load("mnist_odd_even", rows)
    Z = train[0][np.random.default_rng(0).choice(len(train[0]), inducing, replace=False)]
    model = gpx.models.SparseEP(
        train, rivals.starting_kernel(Z), gpx.likelihoods.BernoulliProbit(), inducing_variable=Z.copy()
    )
    options: dict[str, Any] = {} if strategy is None else {"strategy": strategy}
    result = gpx.fit(
        model, steps=STEPS + 2, optimizer=SignAgreement(1e-3), damping=0.5, progress=False, **options
    )
    return {
        "rows": len(train[0]),
        "seconds": float(np.median(np.diff(result.times)[1:])),
        "objective": float(result.objective[-1]),
    }


def document(journal: Journal) -> list[str]:
    """Return the table of what the journal holds, as Markdown."""
    records = sorted(journal.find(experiment="workers"), key=lambda record: record["workers"])
    if not records:
        return []
    first = records[0]["seconds"]
    rows = [
        [
            str(record["workers"]),
            report.number(record["seconds"]),
            f"{first / record['seconds']:.2f}",
            f"{record['objective']:.6g}",
        ]
        for record in records
    ]
    columns = ("workers", "seconds per iteration", "times as fast", f"log Z after {STEPS + 2} iterations")
    return [TEXT.format(**records[0]), report.table(columns, rows)]


if __name__ == "__main__":
    print(MARK + json.dumps(work(int(sys.argv[1]) or None, int(sys.argv[2]))))
