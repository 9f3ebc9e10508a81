"""Python's garbage collector while a graph is traced or modules are imported.

Both make many objects, nearly all of which live on. They trigger collections, which find nothing and scan all
that TensorFlow's modules hold: a fifth of the time of a first fit, and a quarter of that of the imports.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_FROZEN = 1000  # objects: a process has some thousands, and Python 3.12 freezes some hundreds itself


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the collector, if it runs. Where two threads trace at once, the first to begin resumes it."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@contextlib.contextmanager
def settled() -> Iterator[None]:
    """Pause the collector; afterwards what there is counts as old, as if it had survived collections.

    So the next collections do not scan it, until one of all objects is due. Where the user has frozen objects
    of their own nothing is made old, as that would thaw them.
    """
    if not gc.isenabled():
        yield
        return
    with paused():
        try:
            yield
        finally:
            if gc.get_freeze_count() < _FROZEN:
                gc.freeze()
                gc.unfreeze()
