"""The command `gpflow-ext`: train, compare, predict, export and serve models from the shell.

Flags, files and tables are checked before TensorFlow is imported, so that mistakes are reported at once.
"""

from gpflow_ext.cli.main import main

__all__ = ["main"]
