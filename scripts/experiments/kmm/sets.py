"""The sets of Khan, Mohamed & Murphy (2012), each with the likelihood that it is fitted by."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from ...shared import usps as images

ROWS = 200  # of vehicle, for training


class Halves(NamedTuple):
    """A set that is split in two, its inputs as they are."""

    train: tuple[Any, Any]
    test: tuple[Any, Any]


def load(name: str, **options: Any) -> Any:
    """Load a set by name, with its published split where there is one; say what is missing."""
    from gpflow_ext import datasets

    try:
        return datasets.load(name, offline=True, **options)
    except (FileNotFoundError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{error}\nSet GPFLOW_EXT_DATA to the folder that holds {name} (see --help)."
        ) from error


def binary(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a binary set with its published split, raw, and the likelihood with 20 pieces."""
    from gpflow_ext.likelihoods import BernoulliLogit

    return load(name, split="published", standardise=False), BernoulliLogit


def usps() -> tuple[Any, Callable[[], Any]]:
    """Return images of threes and fives, raw, in halves, and the likelihood with 20 pieces."""
    from gpflow_ext.likelihoods import BernoulliLogit

    if "GPFLOW_EXT_DATA" not in os.environ:
        raise ValueError("Set GPFLOW_EXT_DATA to the folder that holds usps_3v5.npz (see --help).")
    X, Y, second = images.digits()
    return Halves((X[~second], Y[~second]), (X[second], Y[second])), BernoulliLogit


def classes(name: str) -> Any:
    """Return a set with several classes, standardised; of vehicle the first training rows."""
    split = load(name, seed=0, task="multiclass")
    if name != "vehicle":
        return split
    X, Y = split.train
    return replace(split, train=(X[:ROWS], Y[:ROWS]))


def multiclass(name: str) -> tuple[Any, Callable[[], Any]]:
    """Return a set with several classes and the stick-breaking likelihood with 20 pieces."""
    from gpflow_ext.likelihoods import StickBreaking

    split = classes(name)
    return split, functools.partial(StickBreaking, num_classes=len(split.labels))
