"""GPflow's default float type, for code that runs before GPflow is imported."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np


def default_float() -> type[Any]:
    """Return ``gpflow.default_float()``; before GPflow is imported, what it will be."""
    gpflow = sys.modules.get("gpflow")
    if gpflow is not None:
        return gpflow.default_float()
    return np.dtype(os.environ.get("GPFLOW_FLOAT", "float64")).type
