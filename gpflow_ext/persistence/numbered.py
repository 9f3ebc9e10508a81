"""Columns of the inputs that hold numbers of outputs, for GPflow's ``Coregion`` kernel.

A number that no output has ends a call of TensorFlow on a CPU in an error. Other devices and runtimes take
the covariance of another output for it and say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.features.kernel import Feature

Numbered = Mapping[int, int]
"""How many outputs each column numbers."""


def numbered_columns(model: tf.Module, width: int) -> Numbered:
    """Return the columns of inputs [N, D] that number outputs, D being ``width``."""
    on_features = {
        id(part)
        for kernel in model.submodules
        if isinstance(kernel, Feature)
        for part in (kernel.kernel, *kernel.kernel.submodules)
    }
    found: dict[int, int] = {}
    for part in model.submodules:
        if isinstance(part, gpflow.kernels.Coregion) and id(part) not in on_features:
            for column in np.arange(width)[part.active_dims]:
                found[int(column)] = min(part.output_dim, found.get(int(column), part.output_dim))
    return found


def are_known(X: tf.Tensor, ok: tf.Tensor, numbered: Numbered) -> tf.Tensor:
    """Tell which ``ok`` rows of X [N, D] number outputs that there are, after GPflow has cut off decimals."""
    for column, count in numbered.items():
        ok &= (X[:, column] > -1.0) & (X[:, column] < count)
    return ok


class Raw(NamedTuple):
    """What makes inputs in the units of the data of standardised rows, [n, D] or [n, 1].

    Columns that number outputs get the numbers in turn.
    """

    mean: np.ndarray[Any, Any]
    scale: np.ndarray[Any, Any]
    numbered: Numbered

    def __call__(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return inputs [n, D]."""
        rows = rows + np.zeros(len(self.mean))
        for column, count in self.numbered.items():
            rows[:, column] = np.arange(len(rows)) % count
        made: np.ndarray[Any, Any] = self.mean + self.scale * rows.astype(self.mean.dtype)
        return made
