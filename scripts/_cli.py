"""What the programs of this folder share with the command line."""

import argparse
from collections.abc import Collection

from gpflow_ext.cli.flags import above_zero, positive
from gpflow_ext.cli.report import describe, report, table
from gpflow_ext.cli.run import quiet, run

__all__ = ["above_zero", "describe", "named", "positive", "report", "run", "table"]

quiet()


def named(parser: argparse.ArgumentParser, names: Collection[str], known: Collection[str]) -> Collection[str]:
    """Return what was named of what is known, all where nothing was; end where something is unknown."""
    if unknown := sorted({*names} - {*known}):
        parser.error(f"nothing is named {', '.join(unknown)}; there are {', '.join(known)}")
    return names or known
