"""Events on a line or in the plane, counted in the cells of a grid."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_BINS = {1: 100, 2: 32}  # cells along each column, by default


def load(options: argparse.Namespace) -> Any:
    """Return the counts of events [N, 1] with the exposures of their cells, at the centres of the cells.

    The columns of ``--target`` hold the places of the events, a line for each.
    """
    import numpy as np

    from gpflow_ext.data.datasets import Scaler, Split, grid_counts, tables
    from gpflow_ext.data.datasets.split import choose_rows

    path = Path(options.data).expanduser()
    table = tables.read_table(path)
    columns = options.target or list(table.names)
    columns = [columns] if isinstance(columns, str) else columns
    _check(columns, table.names, options)
    places = np.stack([tables.numbers(name, table.column(name), table.place) for name in columns], axis=1)
    bins = options.bins or _BINS[len(columns)]
    counted = grid_counts(places, bins[0] if isinstance(bins, list) and len(bins) == 1 else bins)
    train, test = choose_rows(None, len(counted.X), options.test_fraction, options.seed)
    scaler = Scaler.identity(len(columns)) if options.raw else Scaler.fit(counted.X[train])
    kind = np.float32 if getattr(options, "float32", False) else counted.X.dtype
    X = scaler.transform(counted.X).astype(kind)
    Y = np.concatenate([counted.Y, np.full_like(counted.Y, counted.cell)], axis=1).astype(kind)
    shape = " by ".join(map(str, counted.shape))
    return Split(
        train=(X[train], Y[train]),
        test=(X[test], Y[test]),
        name=path.name,
        task="events",
        feature_names=tuple(columns),
        target="events",
        labels=None,
        scaler=scaler,
        seed=options.seed,
        sha256=table.sha256,
        source=f"{path.name}; licence as stated: not stated (a file of the user)",
        notes=(
            f"{len(places)} events were counted in {shape} cells of {counted.cell:.4g} in size, from the "
            "first event to the last",
            "the mean that is predicted is the intensity: events in a cell of size one",
        ),
        rows=(train, test),
        exposure=(Y[train, 1:], Y[test, 1:]),
    )


def _check(columns: list[str], names: tuple[str, ...], options: argparse.Namespace) -> None:
    strange = [name for name in columns if name not in names]
    if strange:
        raise ValueError(f"--target {strange[0]} is no column; the columns are {', '.join(names)}.")
    if len(columns) > 2:
        raise ValueError(
            f"--task events takes one or two columns of places; name them by --target. There are "
            f"{', '.join(names)}."
        )
    if options.bins is not None and len(options.bins) not in (1, len(columns)):
        raise ValueError(f"--bins takes one number or {len(columns)}, one for each column of --target.")
