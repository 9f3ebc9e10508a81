"""Regions of outdoor images in two classes: the set `image` of the sparse classification papers, as far as it is known."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
APART = ("class7", "uci_test", "duplicate", "y")  # columns that are not inputs
ABOUT = """\
2,086 distinct regions of images, 18 inputs, standardised on the training rows. The benchmark
merged seven kinds of region into two classes. Which ones is not known: the classes here have its numbers of rows, but scores
do not compare with the paper's to the digit."""


def distinct() -> tuple[Array, Array]:
    """Return the inputs [2086, 18] and labels [2086, 1] of all regions, without those that repeat an earlier one."""
    with gzip.open(Path(os.environ["GPFLOW_EXT_DATA"]) / "image.csv.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["duplicate"] != "1"]
    X = np.array([[float(value) for name, value in row.items() if name not in APART] for row in rows])
    return X, np.array([[float(row["y"])] for row in rows])


def parts(seed: int, training: int, testing: int) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return as many rows for training and for testing, drawn at random; inputs standardised by the former."""
    X, Y = distinct()
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:training], order[training : training + testing]
    middle, scale = X[train].mean(axis=0), X[train].std(axis=0)
    inputs = (X - middle) / np.where(scale > 0.0, scale, 1.0)
    return (inputs[train], Y[train]), (inputs[test], Y[test])
