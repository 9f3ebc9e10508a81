"""A server of an exported model in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def served(
    model: Path, program: Sequence[str] = (sys.executable, str(ROOT / "scripts" / "serve.py"))
) -> Iterator[int]:
    """Serve a model, by scripts/serve.py or another program; give the port once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [*program, str(model), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            while process.poll() is None and not _listens(port):
                time.sleep(0.1)
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0
