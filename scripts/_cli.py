"""What the programs of this folder share with the command line."""

from gpflow_ext.cli.flags import above_zero, positive
from gpflow_ext.cli.report import describe, report, table
from gpflow_ext.cli.run import quiet, run

__all__ = ["above_zero", "describe", "positive", "report", "run", "table"]

quiet()
