"""Methods that run compiled if that is of use to more than one object, and eagerly if not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record  # whether a tape records has no public name

from gpflow_ext.compiled.functions import Compiled


class Preferred:
    """Calls the methods of one object.

    They are compiled for batches of any length. Those that cannot be traced run eagerly, as do all methods of
    an object that shares its functions with no other, and all under a gradient tape: compiled functions are
    not to be differentiated.

    Parameters
    ----------
    owner, jit_compile
        As for `Compiled`.
    lasting
        Whether there will be enough calls that a function is worth compiling for this object alone.
    """

    def __init__(self, owner: Any, jit_compile: bool = False, lasting: bool = False) -> None:
        self._compiled = Compiled(owner, jit_compile, batches=True)
        self._lasting = lasting
        self._eager: set[str] = set()

    def __call__(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the owner with tensors and return its tensors."""
        return self.bound(method, *arguments)()

    def bound(self, method: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
        """Return that call; see `Compiled.bound`."""
        if not self._is_eager(method):
            try:
                return self._compiled.bound(method, *arguments)
            except Exception:  # of any kind: users' models and kernels may compute in NumPy
                self._eager.add(method.__name__)
        return lambda *others: method(*others, *arguments[len(others) :])

    def is_pure(self, method: Callable[..., Any], *arguments: Any) -> bool:
        """Tell whether the same call returns the same; no where it runs eagerly."""
        if self._is_eager(method):
            return False
        try:
            return self._compiled.is_pure(method, *arguments)
        except Exception:  # as above
            self._eager.add(method.__name__)
            return False

    def _is_eager(self, method: Callable[..., Any]) -> bool:
        useful = self._lasting or self._compiled.is_shared
        forced = tf.config.functions_run_eagerly() or record.could_possibly_record()
        return not useful or method.__name__ in self._eager or forced
