"""Treat what models cannot: infinite, missing and constant values; each treatment returns a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.raw import Raw
from gpflow_ext.data.datasets.split import Floats, Rows

MISSING = ("error", "drop", "mean", "keep")
_LISTED = 20  # places and columns named in one note


def refuse_infinite(raw: Raw) -> None:
    """Raise a ``ValueError`` that names the first infinite cell of the inputs or of the target."""
    for values, names in ((raw.X, raw.feature_names), (raw.y, (raw.target,))):
        if values.dtype != object and np.isinf(values).any():
            row, column = np.argwhere(np.isinf(values))[0]
            name = names[min(column, len(names) - 1)]
            raise ValueError(f"{raw.place(row)}, column {name!r} is infinite; correct or remove the row.")


def treat_missing(raw: Raw, missing: str) -> tuple[Raw, Rows]:
    """Refuse or drop rows with missing values, and return the rows that were kept.

    With ``missing="mean"`` inputs keep their NaN: the mean is that of a training part not yet chosen.
    """
    in_X = np.isnan(raw.X)
    in_y = raw.y == "" if raw.y.dtype == object else np.isnan(raw.y).any(axis=1)
    affected = np.flatnonzero(in_y | in_X.any(axis=1))
    everything = np.arange(len(in_y))
    if not affected.size:
        return raw, everything
    columns = [name for name, hit in zip(raw.feature_names, in_X.any(axis=0), strict=True) if hit]
    columns += [raw.target] if in_y.any() else []
    if missing == "keep" and raw.y.ndim == 2 and raw.y.shape[1] > 1 and not in_X.any():
        note = f"{int(np.isnan(raw.y).sum())} missing targets are kept as NaN"
        return replace(raw, notes=(*raw.notes, note)), everything
    if missing in ("error", "keep"):
        first = affected[0]
        column = raw.feature_names[int(np.argmax(in_X[first]))] if in_X[first].any() else raw.target
        raise ValueError(
            f"{in_X.sum() + in_y.sum()} values are missing in {affected.size} rows (columns: "
            f"{_listed(columns)}), the first in {raw.place(first)}, column {column!r}; pass missing='drop' "
            "to leave these rows out, or missing='mean' to fill in the mean of the training part; "
            "missing='keep' is for several targets."
        )
    if missing == "mean":
        if in_y.any():
            raise ValueError(
                f"missing='mean' fills inputs only, and the target {raw.target!r} is missing in "
                f"{raw.place(int(np.argmax(in_y)))}; use missing='drop'."
            )
        return raw, everything
    return _drop_rows(raw, affected, columns)


def _drop_rows(raw: Raw, dropped: Rows, columns: Sequence[str]) -> tuple[Raw, Rows]:
    kept = np.delete(np.arange(len(raw.X)), dropped)
    if kept.size < 2:
        raise ValueError(
            f"missing='drop' leaves {kept.size} of {len(raw.X)} rows (missing: {_listed(columns)}); "
            "use missing='mean', or drop= the columns."
        )
    places = _listed([raw.place(row) for row in dropped])
    note = f"{dropped.size} rows with missing {_listed(columns)} were dropped ({places})"
    place = raw.place
    return replace(
        raw,
        X=raw.X[kept],
        y=raw.y[kept],
        exposure=None if raw.exposure is None else raw.exposure[kept],
        test=None if raw.test is None else raw.test[kept],
        place=lambda row: place(kept[row]),
        notes=(*raw.notes, note),
    ), kept


def fill_with_mean(train: Floats, test: Floats, names: Sequence[str]) -> list[str]:
    """Replace NaN in both parts, in place, by the training mean of the column."""
    notes = []
    for column in np.flatnonzero(np.isnan(train).any(axis=0) | np.isnan(test).any(axis=0)):
        gaps: list[NDArray[np.bool_]] = [np.isnan(part[:, column]) for part in (train, test)]
        if gaps[0].all():
            raise ValueError(
                f"column {names[column]!r} has no value in the training part; leave it out with drop=."
            )
        mean = train[~gaps[0], column].mean()
        train[gaps[0], column] = mean
        test[gaps[1], column] = mean
        filled = gaps[0].sum() + gaps[1].sum()
        notes.append(f"{filled} missing values of {names[column]} were set to its training mean {mean:.6g}")
    return notes


def note_constant(train: Floats, names: Sequence[str]) -> list[str]:
    """Tell which columns take a single value over the training part."""
    constant = np.flatnonzero(np.ptp(train, axis=0) == 0.0)
    if constant.size == 0:
        return []
    if constant.size == 1:
        column = constant[0]
        return [
            f"column {names[column]} is constant ({train[0, column]}): kept, centred to 0 by standardising"
        ]
    listed = _listed([names[column] for column in constant])
    return [f"{constant.size} columns are constant: kept, centred to 0 by standardising ({listed})"]


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_LISTED]) + (f", ... {len(items)} in all" if len(items) > _LISTED else "")
