"""The public tables of the benchmark of defaults, each as a training and a test part."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..shared import jura, usps

Array = npt.NDArray[Any]
_MOST_TEST = 1000  # rows that are predicted
ARD = ", ARD"  # ends the name of a model with a length scale for each input
GP, LINEAR = "scikit-learn GP", "linear"  # what our models may not be behind


class Part(NamedTuple):
    """A table in two parts.

    Inputs are standardised, and so are real targets, on the training rows. Targets are [N, 1]; of counts [N, 2] with
    the exposure where there is one; of several outputs [N, P], NaN where missing.
    """

    task: str
    X: Array
    Y: Array
    X_test: Array
    Y_test: Array

    @property
    def num_classes(self) -> int:
        """How many classes or levels the targets have."""
        return 1 + int(max(self.Y.max(), self.Y_test.max()))


def _named(task: str, name: str, **options: Any) -> Callable[[int], Part]:
    def load(seed: int) -> Part:
        from gpflow_ext import datasets

        return part_of(datasets.load(name, seed=seed, task=task, **options), task)

    return load


def part_of(split: Any, task: str) -> Part:
    """Return data of the package as the peers take them, exposures beside the counts if they are not yet."""
    (X, Y), (X_test, Y_test) = split.train, split.test
    if split.exposure is not None and Y.shape[1] == 1:
        Y, Y_test = (np.concatenate(pair, axis=1) for pair in zip((Y, Y_test), split.exposure, strict=True))
    return Part(task, X, Y, X_test, Y_test)


def _file(task: str, name: str, **options: Any) -> Callable[[int], Part]:
    """Return how a file of the data folder is read that has no name of its own."""
    return lambda seed: _named(task, str(_folder() / name), **options)(seed)


def _usps(seed: int) -> Part:
    from sklearn.model_selection import train_test_split

    X, y, _ = usps.digits()
    X, X_test, Y, Y_test = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y)
    return Part("binary", (X - X.mean()) / X.std(), Y, (X_test - X.mean()) / X.std(), Y_test)


def _jura(seed: int) -> Part:
    """Return the logarithms of three metals at 359 places, with cadmium hidden at the 100 validation sites."""
    return Part("outputs", *jura.problem())


def _folder() -> Path:
    return Path(os.environ["GPFLOW_EXT_DATA"])


TABLES: dict[str, Callable[[int], Part]] = {
    "ionosphere": _named("binary", "ionosphere"),
    "sonar": _named("binary", "sonar"),
    "pima": _named("binary", "pima"),
    "breast_wisconsin": _named("binary", "breast_wisconsin", missing="drop"),
    "breast_cancer": _named("binary", "breast_cancer"),
    "usps_3v5": _usps,
    "image": _file("binary", "image.csv.gz", target="y", drop=("class7", "uci_test", "duplicate")),
    "airline_houston": _named("binary", "airline_houston_2011", missing="drop"),
    "iris": _named("multiclass", "iris"),
    "wine": _named("multiclass", "wine"),
    "new_thyroid": _named("multiclass", "new_thyroid"),
    "glass": _file("multiclass", "glass.csv.gz", target="y"),
    "vehicle": _named("multiclass", "vehicle"),
    "pyrim_ord10": _named("ordinal", "pyrim_ord10"),
    "machine_cpu_ord5": _named("ordinal", "machine_cpu", target="y5_freq"),
    "stock_ord5": _named("ordinal", "stock_ord5"),
    "coal_disasters": _named("count", "coal_disasters"),
    "scotland_lip": _named("count", "scotland_lip"),
    "finland_heart": _named("count", "finland_heart_deaths"),
    "machine_cpu": _named("regression", "machine_cpu", target="prp"),
    "diabetes": _named("regression", "diabetes"),
    "boston_housing": _named("regression", "boston_housing"),
    "california_housing": _named("regression", "california_housing", missing="drop"),
    "kin40k": _named("regression", "kin40k", split="random"),
    "linnerud": _named("regression", "linnerud"),
    "sarcos": _named("regression", "sarcos_test4449"),
    "jura": _jura,
}
LARGE: dict[str, Callable[[int], Part]] = {"airline_2008": _named("binary", "airline_2008")}
FIXED = ("jura",)  # have one published split


def load(name: str, seed: int, rows: int, most_test: int = _MOST_TEST) -> Part:
    """Return a table, at most so many rows of its training part drawn by the split, and of its test part."""
    part = (TABLES | LARGE)[name](seed)
    cut = slice(None) if name in FIXED else slice(0, rows)
    part = part._replace(
        X=part.X[cut], Y=part.Y[cut], X_test=part.X_test[:most_test], Y_test=part.Y_test[:most_test]
    )
    if part.task != "regression":
        return part
    middle, scale = part.Y.mean(axis=0), part.Y.std(axis=0)
    task = "outputs" if part.Y.shape[1] > 1 else "regression"
    return part._replace(task=task, Y=(part.Y - middle) / scale, Y_test=(part.Y_test - middle) / scale)
