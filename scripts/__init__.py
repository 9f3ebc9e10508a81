"""The commands of the repository, and packages that are run as ``python -m scripts.<package>``.

A command is run by its path, ``python scripts/<command>.py``, and finds `_cli` beside it. Where the packages import a
command, it finds the same module under the same name.
"""

import sys

from . import _cli

sys.modules.setdefault("_cli", _cli)
