"""Catalogue of the named data sets: their targets, tasks, and columns that are not inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_UCI = "none in the source; original holder: UCI Machine Learning Repository"
_AIRLINE_NOTE = (
    "air_time holds recording errors (at least one value of 700 minutes or more), left as they are"
)


@dataclass(frozen=True)
class OpenML:
    """One pinned OpenML table; a data id belongs to exactly one version of a set."""

    data_id: int
    version: int
    shape: tuple[int, int]  # rows, input columns
    classes: tuple[str, ...] | None = None  # the table's own label names, in class order
    train_rows: int | None = None  # the set comes as a training part followed by a test part
    sha256: str | None = None  # of the parsed table; None: the first download is recorded and held to


@dataclass(frozen=True)
class Known:
    """How to read one named set from a folder of CSV and npz files, or from OpenML."""

    targets: Mapping[str, str]  # target column -> task; the first is the default, the others are never inputs
    licence: str
    labels: tuple[str, ...] | None = None  # class names of the default target
    exclude: tuple[str, ...] = ()
    exposure: str | None = None  # counts are Poisson(exposure * rate)
    published: tuple[str, int] | None = None  # the column that marks a published split, and its test value
    openml: OpenML | None = None
    file: str | None = None  # where the file has another name than the set
    inputs: str = "X"  # array of inputs in an npz file
    divisor: float = 1.0
    parity: bool = False  # labels are taken modulo 2
    bins: int | None = None  # the file lists event times, counted in this many equal bins
    notes: tuple[str, ...] = field(default=())


def _mnist(parity: bool) -> Known:
    classes = tuple(str(digit) for digit in range(10))
    return Known(
        {"y": "binary" if parity else "multiclass"},
        "LeCun, Cortes and Burges; none stated in the files",
        labels=("even", "odd") if parity else classes,
        openml=OpenML(554, 1, (70000, 784), classes, train_rows=60000),
        file="mnist",
        divisor=255.0,
        parity=parity,
        notes=("pixels were divided by 255",),
    )


KNOWN: dict[str, Known] = {
    "ionosphere": Known(
        {"y": "binary"}, _UCI, ("bad", "good"), openml=OpenML(59, 1, (351, 34), classes=("b", "g"))
    ),
    "sonar": Known(
        {"y": "binary"}, _UCI, ("rock", "mine"), openml=OpenML(40, 1, (208, 60), classes=("Rock", "Mine"))
    ),
    "pima": Known(
        {"y": "binary"},
        _UCI,
        ("negative", "positive"),
        openml=OpenML(37, 1, (768, 8), classes=("tested_negative", "tested_positive")),
        notes=("zeros stand for missing readings in several columns and are left as they are",),
    ),
    "breast_wisconsin": Known(
        {"y": "binary"},
        _UCI,
        ("benign", "malignant"),
        openml=OpenML(15, 1, (699, 9), classes=("benign", "malignant")),
    ),
    "vehicle": Known(
        {"y": "multiclass"},
        "none stated; Statlog, UCI Machine Learning Repository",
        ("bus", "opel", "saab", "van"),
        openml=OpenML(54, 1, (846, 18), classes=("bus", "opel", "saab", "van")),
    ),
    "new_thyroid": Known({"y": "multiclass"}, _UCI, ("normal", "hyperthyroid", "hypothyroid")),
    "stock_ord5": Known({"y": "ordinal"}, "none stated; Chu and Ghahramani ordinal benchmark"),
    "machine_cpu": Known({"prp": "regression", "y5_freq": "ordinal", "y10_freq": "ordinal"}, _UCI),
    "pyrim_ord10": Known({"y": "ordinal"}, "GPL-3 repository (ORCA)", published=("test0", 1)),
    "scotland_lip": Known(
        {"observed": "count"}, "GPL-2 (R package SpatialEpi)", exclude=("district",), exposure="expected"
    ),
    "finland_heart_deaths": Known({"observed": "count"}, "GPL-3 (GPstuff)", exposure="expected"),
    "coal_disasters": Known({"date": "count"}, "GPL-2 text in the source repository", bins=100),
    "boston_housing": Known(
        {"medv": "regression"},
        _UCI,
        openml=OpenML(531, 1, (506, 13)),
        notes=("column b is an ethically questionable variable: use the set for numerical comparison only",),
    ),
    "california_housing": Known({"median_house_value": "regression"}, "Apache-2.0 repository; StatLib"),
    "kin40k": Known({"y": "regression"}, "MIT repository", published=("fold", 0)),
    "kin8nm": Known({"y": "regression"}, "public domain (OpenML)", openml=OpenML(189, 1, (8192, 8))),
    "airline_2008": Known(
        {"y": "binary", "arr_delay": "regression"},
        "US DOT/BTS on-time records",
        ("on time", "late"),
        exclude=("chunk",),
        notes=(_AIRLINE_NOTE,),
    ),
    "airline_houston_2011": Known(
        {"y": "binary", "arr_delay": "regression"}, "CC0 (R package hflights)", ("on time", "late")
    ),
    "airline_bts": Known(
        {"y": "binary", "arr_delay": "regression"},
        "US DOT/BTS on-time records",
        ("on time", "late"),
        notes=("made by a user from the records of the Bureau; see scripts/tools/flights.py", _AIRLINE_NOTE),
    ),
    "mnist": _mnist(parity=False),
    "mnist_odd_even": _mnist(parity=True),
    "heat4096": Known({"Y": "regression"}, "MIT"),
    "sarcos_test4449": Known({"Y": "regression"}, "MIT repository; none stated for the data"),
    "germany_pm10": Known({"Y": "regression"}, "GPL-2 or later (R package spacetime)", inputs="day"),
    "arabidopsis800": Known({"Y": "regression"}, "GPL-3 or later (R package GeneNet)", inputs="hour"),
}

BUNDLED: dict[str, str] = {
    "breast_cancer": "binary",
    "wine": "multiclass",
    "digits": "multiclass",
    "iris": "multiclass",
    "diabetes": "regression",
    "linnerud": "regression",
}

# Published splits in files of their own, with the class names for labels below and above 0: the ionosphere
# files count the bad returns as positive, the other way round than the set itself.
SPLIT_FILES: dict[str, tuple[str, tuple[str, str]]] = {
    "ionosphere": ("ionosphere.data", ("good", "bad")),
    "sonar": ("sonar.all-data", ("rock", "mine")),
}


def known_names() -> tuple[str, ...]:
    """Return the names that ``load`` knows without a file of the user's own, in alphabetical order."""
    return tuple(sorted({*KNOWN, *BUNDLED}))
