"""Places of events, on a line or in the plane, counted in equal bins."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpflow_ext.data.datasets.catalogue import Known
from gpflow_ext.data.datasets.raw import Raw, Request, check_columns
from gpflow_ext.data.reading.inference import Asked, infer
from gpflow_ext.data.reading.problems import Problem, Remedy, TableError, listed
from gpflow_ext.data.reading.table import Table

_BINS = {1: 100, 2: 20}  # along each axis


def count_events(table: Table, request: Request, known: Known) -> Raw:
    """Count the rows of a table, one event each, in bins: inputs are centres, exposures the size of a bin.

    Without ``target`` all columns that are not dropped give the place of an event. The bins cover the events
    from the first to the last along each axis: a longer interval of observation is not known here, and the
    intensity at its ends is that of where events were.
    """
    if request.exposure is not None:
        raise ValueError(f"exposure={request.exposure!r} is for counts: that of an event's bin is its size.")
    if request.weights is not None:
        raise ValueError("weights= is for rows that are data of their own: events are counted, once each.")
    names = [name for name in table.names if name not in (*request.drop, *known.exclude)]
    if request.target is not None:
        names = [request.target] if isinstance(request.target, str) else list(request.target)
        check_columns(table.name, {"target": names}, table.names)
    found = infer(table, names, Asked(request.one_hot, request.categories, request.dates, request.decimal))
    problems = list(found.problems)
    places = np.concatenate([np.empty((len(table), 0)), *found.values], axis=1)
    if not problems and places.shape[1] not in _BINS:
        what = f"events lie on a line or in the plane; the columns are {listed(names)}"
        problems.append(Problem(what, remedies=(Remedy("target", names[:2]),)))
    wrong = np.flatnonzero(~np.isfinite(places).all(axis=1))
    if wrong.size:
        what = f"{table.place(wrong[0])} has no place for an event ({wrong.size} such rows)"
        problems.append(Problem(what, rows=tuple(map(int, wrong)), advice="correct or remove the rows"))
    if not problems and (np.ptp(places, axis=0) == 0.0).any():
        problems.append(Problem("all events lie in one place"))
    if problems:
        raise TableError(table.name, problems)
    bins = request.bins if request.bins is not None else known.bins or _BINS[places.shape[1]]
    _check_bins(bins, places.shape[1])
    counts, edges = np.histogramdd(places, bins)
    centres = np.meshgrid(*((edge[:-1] + edge[1:]) / 2 for edge in edges), indexing="ij")
    size = float(np.prod([(edge[-1] - edge[0]) / (len(edge) - 1) for edge in edges]))
    shape = " by ".join(map(str, counts.shape))
    note = f"{len(places)} event times were counted in {shape} bins of width {size:.4g}"
    if places.shape[1] == 2:
        note = f"{len(places)} events were counted in {shape} bins of area {size:.4g}"
    return Raw(
        table.name,
        X=np.stack([centre.ravel() for centre in centres], axis=1),
        y=counts.reshape(-1, 1).astype(np.float64),
        feature_names=tuple(names),
        target="events",
        source=f"{table.name}; licence as stated: {known.licence}",
        sha256=table.sha256,
        task="count",
        exposure=np.full(counts.size, size),
        notes=(*table.notes, *found.notes, note),
        columns=found.columns,
    )


def _check_bins(bins: Any, axes: int) -> None:
    """Raise ``ValueError`` unless the bins are one positive whole number, or one for each axis."""
    each = bins if isinstance(bins, tuple) else (bins,) * axes
    if len(each) != axes or not all(isinstance(n, int | np.integer) and n > 0 for n in each):
        raise ValueError(
            f"bins={bins!r} must be a positive whole number, or {axes} of them, one for each axis."
        )
