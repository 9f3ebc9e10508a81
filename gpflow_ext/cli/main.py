"""The command and its subcommands."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from gpflow_ext._version import __version__
from gpflow_ext.cli.flags import Parser
from gpflow_ext.cli.run import run

COMMANDS = {  # a module each
    "train": "train a model on a table, and export it",
    "compare": "cross-validate the models that suit a table, side by side",
    "predict": "predict every row of a file with an exported model",
    "export": "export the newest checkpoint of a training",
    "serve": "serve an exported model over HTTP",
    "zoo": "list or check trained models in a folder, or fetch one from the web",
    "cite": "print the paper behind a model, as BibTeX",
}
EPILOG = """\
from a table to a served model
  gpflow-ext compare --data patients.csv --target ill
  gpflow-ext train   --data patients.csv --target ill --run-dir runs/ill
  gpflow-ext export  runs/ill saved_models/ill
  gpflow-ext predict --model saved_models/ill --data new.csv --out predictions.csv
  gpflow-ext serve   saved_models/ill

Each has a --help of its own.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command itself."""
    lines = "\n".join(f"  {name:9s} {about}" for name, about in COMMANDS.items())
    new = Parser(
        prog="gpflow-ext",
        usage="gpflow-ext [-h] [--version] COMMAND ...",
        description=f"Gaussian processes with non-conjugate likelihoods.\n\ncommands\n{lines}",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("--version", action="version", version=f"gpflow-ext {__version__}")
    new.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help=argparse.SUPPRESS)
    return new


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; by default that of the shell."""
    given = list(sys.argv[1:] if arguments is None else arguments)

    def command() -> None:
        name = parser().parse_args(given[:1]).command
        importlib.import_module(f"gpflow_ext.cli.{name}").main(given[1:])

    run(command)
