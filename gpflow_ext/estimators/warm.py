"""Trainings that begin at hyperparameters found on fewer rows."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.models import GPModel

Array = npt.NDArray[Any]
_FARTHEST = 100.0  # factor by which a positive value may differ from where a training begins by itself


def begin_at(model: GPModel, earlier: GPModel) -> None:
    """Give the kernel, the likelihood and the mean function of a model the values that an earlier one has.

    What is held, or has another shape there, stays. Positive values stay within a factor of 100 of where they
    are: a part of a kernel that few rows have switched off may be of use to more.
    """
    for part in ("kernel", "likelihood", "mean_function"):
        found = gpflow.utilities.parameter_dict(getattr(earlier, part))
        for path, own in gpflow.utilities.parameter_dict(getattr(model, part)).items():
            if own.trainable and path in found and found[path].shape == own.shape:
                own.assign(_near(own.numpy(), found[path].numpy()))


def _near(start: Array, value: Array) -> Array:
    """Return the value, or where both are positive what is nearest to it within reach of the start."""
    if (start > 0.0).all() and (value > 0.0).all():
        return np.clip(value, start / _FARTHEST, start * _FARTHEST)
    return value
