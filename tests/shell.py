"""Commands of the shell, run in the process of the tests."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

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
