"""Serve an exported model over HTTP: see --help.

It needs neither gpflow nor the rest of gpflow_ext: only TensorFlow, Starlette, uvicorn, prometheus-client, and of the
package the folders ``server`` and ``persistence/verify`` and the file ``data/reading/marks.py``.
"""

import os
import sys
import types
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
PACKAGE = Path(__file__).resolve().parents[1] / "gpflow_ext"


def _import_bare() -> None:
    """Let the folders be imported without what the packages around them import."""
    for name in ("gpflow_ext", "gpflow_ext.persistence"):
        bare = sys.modules.setdefault(name, types.ModuleType(name))
        bare.__path__ = [str(PACKAGE.joinpath(*name.split(".")[1:]))]


if __name__ == "__main__":
    _import_bare()
    from gpflow_ext.server.command import main

    main()
