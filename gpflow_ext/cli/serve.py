"""Serve an exported model over HTTP: `gpflow-ext serve`."""

from __future__ import annotations

from collections.abc import Sequence

from gpflow_ext.cli.flags import Parser
from gpflow_ext.cli.run import import_tensorflow
from gpflow_ext.server import command


def main(arguments: Sequence[str]) -> None:
    """Serve from the command line."""
    command.main(arguments, "gpflow-ext serve", import_tensorflow, Parser)
