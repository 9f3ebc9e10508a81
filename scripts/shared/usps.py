"""Threes and fives of the USPS digits (Hull 1994)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Digits(NamedTuple):
    """All images."""

    X: Array  # pixels in [-1, 1], [1540, 256]
    Y: Array  # 1 of a three and 0 of a five, [1540, 1]
    half: (
        Array  # whether an image is in the second of two halves, with the class counts of the field's, [1540]
    )


def digits() -> Digits:
    """Return the images, from the folder of GPFLOW_EXT_DATA."""
    with np.load(Path(os.environ["GPFLOW_EXT_DATA"]) / "usps_3v5.npz") as file:
        return Digits(file["X"].astype(float), file["y"].astype(float)[:, None], file["split_test"] == 1)
