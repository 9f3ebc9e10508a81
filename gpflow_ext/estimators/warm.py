"""Trainings that begin at hyperparameters found on fewer rows, or keep them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.models import GPModel

Array = npt.NDArray[Any]
_FARTHEST = 100.0  # factor by which a positive value may differ from where a training begins by itself
_PARTS = ("kernel", "likelihood", "mean_function")  # of a model, which have its hyperparameters


@contextlib.contextmanager
def begun(model: GPModel, earlier: GPModel | None = None, *, held: bool = False) -> Iterator[None]:
    """Let a training begin at the hyperparameters of an earlier model, if there is one, or keep them.

    Parameters
    ----------
    model, earlier
        See `begin_at`.
    held
        Whether all hyperparameters are as in the earlier model, and not trained within this context.
    """
    if earlier is not None:
        begin_at(model, earlier, farthest=np.inf if held else _FARTHEST)
    own = [each for part in _PARTS for each in getattr(model, part).trainable_parameters] if held else []
    for parameter in own:
        gpflow.set_trainable(parameter, False)
    try:
        yield
    finally:
        for parameter in own:
            gpflow.set_trainable(parameter, True)


def begin_at(model: GPModel, earlier: GPModel, farthest: float = _FARTHEST) -> None:
    """Give the kernel, the likelihood and the mean function of a model the values that an earlier one has.

    What is held, or has another shape there, stays. Positive values stay within a factor of where they are,
    by default 100: a part of a kernel that few rows have switched off may be of use to more.
    """
    for part in _PARTS:
        found = gpflow.utilities.parameter_dict(getattr(earlier, part))
        for path, own in gpflow.utilities.parameter_dict(getattr(model, part)).items():
            if own.trainable and path in found and found[path].shape == own.shape:
                own.assign(_near(own.numpy(), found[path].numpy(), farthest))


def _near(start: Array, value: Array, farthest: float) -> Array:
    """Return the value, or where both are positive what is nearest to it within reach of the start."""
    if (start > 0.0).all() and (value > 0.0).all():
        return np.clip(value, start / farthest, start * farthest)
    return value
