"""The density of a model in the coordinates that a precondition stands for."""

from __future__ import annotations

from typing import Any

from gpflow_ext.sampling.coordinates import Placed, coordinates_from
from gpflow_ext.sampling.sampleable import sampleable


def placed(model: Any, precondition: Any) -> Placed:
    """Return the density, and where standard normals start its chains."""
    sampled = sampleable(model)
    return coordinates_from(precondition, sampled, "hmc").place(sampled)
