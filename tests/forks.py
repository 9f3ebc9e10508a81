"""A forked child, for the tests that kill one while it writes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def child(task: Callable[[], None]) -> int:
    """Run ``task`` in a forked process and return its pid; the status is 1 when it raises."""
    pid = os.fork()
    if pid == 0:
        try:
            task()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid
