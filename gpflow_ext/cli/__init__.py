"""The command `gpflow-ext`: train, compare, predict, export and serve models from the shell.

Flags, files and tables are checked before TensorFlow is imported, so that mistakes are reported at once.
"""

import sys

try:
    from gpflow_ext.cli.main import main
except KeyboardInterrupt:  # answered as `run` does, which is not there yet
    print("Interrupted.", file=sys.stderr)
    raise SystemExit(130) from None

__all__ = ["main"]
