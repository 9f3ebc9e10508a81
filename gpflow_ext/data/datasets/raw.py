"""What passes between the readers of data files and ``load``: a request, and the data as it was found."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.tables import Floats, Place

WHERE_FILES_ARE = "set GPFLOW_EXT_DATA (or data_dir=) to the folder that holds the file"


@dataclass(frozen=True)
class Request:
    """What the user asked of a source, checked by nobody yet."""

    name: str | os.PathLike[str]
    target: str | tuple[str, ...] | None = None
    task: str | None = None
    drop: tuple[str, ...] = ()
    one_hot: tuple[str, ...] = ()
    test: str | os.PathLike[str] | None = None
    split: str | None = None
    data_dir: str | os.PathLike[str] | None = None
    offline: bool | None = None


@dataclass(frozen=True, eq=False)
class Raw:
    """A data set as its source holds it; NaN marks a missing value.

    ``y`` is [N, P] numbers or [N] words (dtype object, "" where missing). ``test`` marks the rows of a test
    part that comes with the source.
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
    exposure: Floats | None = None
    test: NDArray[np.bool_] | None = None
    place: Place = lambda row: f"row {row + 1}"
    notes: tuple[str, ...] = ()


def check_columns(argument: str, asked: Sequence[str], names: Sequence[str]) -> None:
    """Raise a ``ValueError`` that lists the columns if one that was asked for is not among them."""
    for name in asked:
        if name not in names:
            raise ValueError(f"{argument} {name!r} is not a column; the columns are {', '.join(names)}.")


def without(raw: Raw, request: Request) -> Raw:
    """Leave out the inputs to be dropped, and refuse what a source of plain arrays does not offer."""
    if request.one_hot:
        raise ValueError(f"one_hot= encodes text columns of a CSV file; {raw.name!r} has none.")
    if request.target is not None and request.target != raw.target:
        raise ValueError(f"target {request.target!r} is unknown; {raw.name!r} has the target {raw.target}.")
    if not request.drop:
        return raw
    check_columns("drop", request.drop, raw.feature_names)
    keep = [column for column, name in enumerate(raw.feature_names) if name not in request.drop]
    if not keep:
        raise ValueError(f"{raw.name!r} has no input left; drop fewer columns.")
    notes = tuple(f"column {name} was dropped as asked" for name in request.drop)
    names = tuple(raw.feature_names[column] for column in keep)
    return replace(raw, X=raw.X[:, keep], feature_names=names, notes=raw.notes + notes)
