"""Heavy metals in the soil of the Swiss Jura (Goovaerts 1997), cadmium hidden at the validation sites."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
METALS = ("Cd", "Ni", "Zn")


class Sites(NamedTuple):
    """All sites of the survey."""

    X: Array  # places in km, [359, 2]
    log: Array  # logarithms of mg/kg, [359, 3]
    hidden: Array  # whether a site is one of the 100 for validation, [359]


class Problem(NamedTuple):
    """The same, standardised, as the field compares methods on it."""

    X: Array  # [359, 2]
    Y: Array  # NaN where cadmium is hidden, [359, 3]
    X_test: Array  # [100, 2]
    Y_test: Array  # cadmium, the other metals NaN, [100, 3]


def sites() -> Sites:
    """Return the survey, from the folder of GPFLOW_EXT_DATA."""
    with gzip.open(Path(os.environ["GPFLOW_EXT_DATA"]) / "jura.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    X = np.array([[float(row[name]) for name in ("x_km", "y_km")] for row in rows])
    metals = np.array([[float(row[name]) for name in METALS] for row in rows])
    return Sites(X, np.log(metals), np.array([float(row["validation"]) == 1.0 for row in rows]))


def problem() -> Problem:
    """Return cadmium at the validation sites as what is to be predicted from all else."""
    X, log, hidden = sites()
    Y = np.where(hidden[:, None] & (np.arange(3) == 0), np.nan, log)
    middle, scale = np.nanmean(Y, axis=0), np.nanstd(Y, axis=0)
    inputs = (X - X.mean(axis=0)) / X.std(axis=0)
    targets = np.where(np.arange(3) == 0, (log - middle) / scale, np.nan)
    return Problem(inputs, (Y - middle) / scale, inputs[hidden], targets[hidden])
