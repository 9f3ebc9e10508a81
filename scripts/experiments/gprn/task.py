"""What a network is trained on, and what it is to predict."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Task:
    """Training inputs [N, Q] and targets [N, D], NaN where missing, and what is to be predicted."""

    X: Array
    Y: Array
    X_test: Array
    Y_test: Array  # NaN where nothing is to be predicted
    floor: float = 1e-6  # least noise variance
    steps: int = 20
    seed: int = 0
    measured: Callable[[Array], Array] | None = None  # targets [N, D] in the units of the measurement
    nodes: type[gpflow.kernels.IsotropicStationary] = gpflow.kernels.SquaredExponential

    @property
    def complete(self) -> bool:
        """Whether no training target is missing."""
        return not np.isnan(self.Y).any()

    @property
    def imputes(self) -> bool:
        """Whether the targets to predict are those that the training rows lack."""
        return self.X_test is self.X


@contextlib.contextmanager
def small_jitter(task: Task) -> Iterator[None]:
    """Hold the jitter below the least noise of a task."""
    jitter = gpflow.default_jitter()
    gpflow.config.set_default_jitter(min(jitter, 0.1 * task.floor))
    try:
        yield
    finally:
        gpflow.config.set_default_jitter(jitter)
