"""Release cached kernels of operations: TensorFlow keeps one for each shape that a variable has had.

Outside graphs every operation leaves the kernel that has run it in a cache of the process, by its
attributes. The shape of a variable is one of them, so each variable of a new size costs some 70 KB for ever:
little for a model, whose sites have open shapes, but 0.7 MB for an export, which holds what is computed from
the rows.
"""

from __future__ import annotations

from tensorflow.python.eager import context  # the cache has no public name


def forget() -> None:
    """Empty the cache. What is called next is put into it again."""
    context.context().clear_kernel_cache()
