"""What the programs of this folder share with the command line."""

from gpflow_ext.cli.report import describe, report, table
from gpflow_ext.cli.run import quiet, run

__all__ = ["describe", "report", "run", "table"]

quiet()
