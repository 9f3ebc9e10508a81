"""What a training strategy hands to `gpflow_ext.fit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.loop import Status, Update


@dataclass(frozen=True)
class Recipe:
    """A training strategy bound to a model, ready to run.

    Attributes
    ----------
    update
        One step.
    variables
        All that the update changes.
    steps, tolerance
        Defaults of `fit`.
    monotone
        Whether the objective can only rise.
    trackables
        What a checkpoint must hold besides the model.
    settings
        What a resumed run must share, as plain values.
    data
        Training data that the model does not hold.
    shards
        How the data are dealt to the replicas of a ``tf.distribute`` strategy.
    gather
        Makes the variables complete in each process where the data are dealt to several.
    settled
        How a run ends whose update says that it has settled.
    report
        What a progress bar shows beside the objective.
    finish
        Called once at the end, after the last checkpoint.
    """

    update: Update
    variables: Sequence[tf.Variable]
    steps: int
    tolerance: float | None
    monotone: bool
    trackables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: tuple[Any, Any] | None = None
    shards: Shards | None = None
    gather: Callable[[], None] = lambda: None
    settled: Status = Status.CONVERGED
    report: Callable[[], str] = lambda: ""
    finish: Callable[[], None] = lambda: None
