"""The length scales that inputs suggest: their standard deviations times √D."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.kernels import Combination, Kernel, Linear, MultioutputKernel, Periodic, Stationary

from gpflow_ext.data import on_host

_PASS_INPUTS_ON = Combination, MultioutputKernel, Periodic  # others may show their parts patches or features


def stationary(module: tf.Module) -> Iterator[Stationary]:
    """Yield the stationary kernels in a kernel or a model that see its inputs, each once.

    A kernel within another one of its own kind, such as ``Convolutional``, sees something else.
    """
    yield from {id(part): part for part in _found(module) if isinstance(part, Stationary)}.values()


def linear(module: tf.Module) -> Iterator[Linear]:
    """Yield the linear and polynomial kernels; see `stationary`."""
    yield from {id(part): part for part in _found(module) if isinstance(part, Linear)}.values()


def _found(module: tf.Module) -> Iterator[Stationary | Linear]:
    if isinstance(module, Stationary | Linear):
        yield module
    elif not isinstance(module, Kernel) or isinstance(module, _PASS_INPUTS_ON):
        for part in module._flatten(recursive=False, predicate=lambda part: isinstance(part, tf.Module)):
            yield from _found(part)


def moves(part: Stationary) -> bool:
    """Tell whether the length scales of a kernel are trainable."""
    length = part.lengthscales
    return isinstance(length, gpflow.Parameter) and length.transform is not None and length.trainable


def suggested(part: Stationary, X: Any) -> tf.Tensor | None:
    """Return the length scales [] or [D'] that inputs X [N, D] suggest, by the columns that a kernel reads.

    ``None`` where its length scales are held, or no input varies.
    """
    if not moves(part):
        return None
    columns = on_host.columns(part, np.asarray(X))
    varies = np.ptp(columns, axis=0) > 0.0  # the deviation of what does not may be rounding
    if not varies.any():
        return None
    spread = np.where(varies, np.std(columns, axis=0), 1.0) * np.sqrt(len(varies))
    return tf.constant(spread if part.ard else np.sqrt(np.mean(spread**2)), part.lengthscales.dtype)


def with_suggested(kernel: Kernel, X: Any) -> Kernel:
    """Return a copy of a kernel with the length scales that inputs X [N, D] suggest, where they do."""
    copied: Kernel = gpflow.utilities.deepcopy(kernel)
    for part in stationary(copied):
        value = suggested(part, X)
        if value is not None:
            part.lengthscales.assign(value)
    return copied
