"""GPflow's default float type, for code that runs before GPflow is imported, and how large numbers may be."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

_ROOM = 1e-4  # for sums over as many rows as there may be


def default_float() -> type[Any]:
    """Return ``gpflow.default_float()``; before GPflow is imported, what it will be."""
    gpflow = sys.modules.get("gpflow")
    if gpflow is not None:
        return gpflow.default_float()
    return np.dtype(os.environ.get("GPFLOW_FLOAT", "float64")).type


def largest(dtype: np.dtype[Any] | type[Any]) -> float:
    """Return the size up to which sums of the squares of many numbers of a floating type are finite."""
    return float(np.sqrt(np.finfo(dtype).max)) * _ROOM
