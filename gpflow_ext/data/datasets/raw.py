"""Interface between the readers of data files and ``load``: a request, and the data as found."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading.cells import Floats
from gpflow_ext.data.reading.problems import Problem, TableError, listed, nearest
from gpflow_ext.data.reading.table import Place
from gpflow_ext.data.reading.treatment import Column

WHERE_FILES_ARE = "set GPFLOW_EXT_DATA (or data_dir=) to the folder that holds the file"


@dataclass(frozen=True)
class Request:
    """The user's request of a source, not yet checked."""

    name: Any  # a name, a path, or a data frame
    target: str | tuple[str, ...] | None = None
    task: str | None = None
    drop: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    decimal: str | None = None
    bins: int | tuple[int, ...] | None = None
    exposure: str | None = None
    weights: Any = None  # the name of a column, or numbers [N]
    test: str | os.PathLike[str] | None = None
    split: str | None = None
    data_dir: str | os.PathLike[str] | None = None
    offline: bool | None = None


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as its source holds it; NaN marks a missing value.

    ``y`` is [N, P] numbers or [N] words (dtype object, "" where missing). ``test`` marks the rows of a test
    part that comes with the source. ``columns`` are the raw columns of a table, in the order of their inputs.
    """

    name: str
    X: Floats
    y: NDArray[Any]
    feature_names: tuple[str, ...]
    target: str
    source: str
    sha256: str
    task: str | None = None
    labels: tuple[str, ...] | None = None
    order: tuple[str, ...] | None = None  # of the classes, where the source tells it
    exposure: Floats | None = None
    exposure_name: str = "exposure"
    weights: Floats | None = None
    weights_name: str = "weights"
    test: NDArray[np.bool_] | None = None
    place: Place = lambda row: f"row {row + 1}"
    notes: tuple[str, ...] = ()
    columns: tuple[Column, ...] | None = None
    problems: tuple[Problem, ...] = ()


def check_columns(table: str, asked: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """Raise a ``TableError`` that names what was asked for, by argument, and is not among the columns."""
    problems = [
        Problem(
            f"{argument} {name!r} is not a column",
            name,
            advice=f"the columns are {listed(names)}{nearest(name, names)}",
        )
        for argument, columns in asked.items()
        for name in columns
        if name not in names
    ]
    if problems:
        raise TableError(table, problems)


def without(raw: Raw, request: Request) -> Raw:
    """Leave out the inputs to be dropped, and refuse what a source of plain arrays does not offer."""
    for argument in ("one_hot", "categories", "dates", "decimal", "bins", "exposure"):
        if getattr(request, argument):
            raise ValueError(f"{argument}= is for the columns of a table; {raw.name!r} is not one.")
    if isinstance(request.weights, str):
        raise ValueError(
            f"weights={request.weights!r} is for the columns of a table; {raw.name!r} is not one."
        )
    if request.task == "events":
        raise ValueError(f"task='events' counts the rows of a table; {raw.name!r} is not one.")
    if request.target is not None and request.target != raw.target:
        raise ValueError(f"target {request.target!r} is unknown; {raw.name!r} has the target {raw.target}.")
    if not request.drop:
        return raw
    check_columns(raw.name, {"drop": request.drop}, raw.feature_names)
    keep = [column for column, name in enumerate(raw.feature_names) if name not in request.drop]
    if not keep:
        raise ValueError(f"{raw.name!r} has no input left; drop fewer columns.")
    notes = tuple(f"column {name} was dropped as asked" for name in request.drop)
    names = tuple(raw.feature_names[column] for column in keep)
    return replace(raw, X=raw.X[:, keep], feature_names=names, notes=raw.notes + notes)
