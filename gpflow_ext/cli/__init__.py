"""The command `gpflow-ext`: train, compare, predict, export and serve models from the shell.

Flags, files and tables are looked at before TensorFlow is imported, so that what is wrong is told at once.
"""

from gpflow_ext.cli.main import main

__all__ = ["main"]
