"""Commands of the shell, run in the process of the tests; code that must be quick, run in one of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import gpflow
import pytest

from gpflow_ext.cli.main import main


def command(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command in this process, which has TensorFlow loaded; return what it prints."""
    shown = io.StringIO()
    found = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(shown),
        gpflow.config.as_context(gpflow.config.config()),
    ):
        patch.chdir(folder)
        patch.delenv("GPFLOW_EXT_TRACEBACK", raising=False)
        try:
            main(arguments)
        except SystemExit as end:
            found = end.code or 0
    assert found == code, shown.getvalue()
    return shown.getvalue()


def timed(code: str, seconds: float, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python code that prints the seconds of the processor as its last word, and check them.

    The least of three runs counts: what else runs on the machine may only hinder one. Where the processor is so
    slow that NumPy alone takes more than a third of the seconds, three times as many as it takes are allowed.
    """

    def run(code: str) -> tuple[subprocess.CompletedProcess[str], float]:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, done.stderr
        return done, float(done.stdout.split()[-1])

    for _ in range(3):
        done, spent = run(code)
        if spent < max(seconds, 3.0 * run("import time, numpy; print(time.process_time())")[1]):
            return done
    raise AssertionError(f"{spent} seconds of the processor, more than {seconds}")
