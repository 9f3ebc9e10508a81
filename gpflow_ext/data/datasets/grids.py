"""Counts of events on a grid, for log Gaussian Cox processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpflow_ext.data.float_type import default_float

Array = npt.NDArray[Any]


class GridCounts(NamedTuple):
    """Events counted in the cells of a grid, the last input changing fastest."""

    X: Array  # centres of the cells, [N, D]
    Y: Array  # counts, [N, 1]
    cell: float  # length, area or volume of a cell: the exposure of each count
    shape: tuple[int, ...]  # cells along each input

    @property
    def exposed(self) -> Array:
        """Counts and exposures, [N, 2], as `likelihoods.PoissonLog` takes them."""
        return np.concatenate([self.Y, np.full_like(self.Y, self.cell)], axis=1)


def grid_counts(
    events: npt.ArrayLike,
    bins: int | Sequence[int],
    bounds: Sequence[tuple[float, float]] | None = None,
) -> GridCounts:
    """Count events in the cells of a regular grid.

    Parameters
    ----------
    events
        Places of the events, [E] or [E, D].
    bins
        Cells along each input, one number for all or D of them.
    bounds
        The observed interval of each input; by default from the first event to the last, which overestimates
        the intensity near the ends.

    Raises
    ------
    ValueError
        For events that are not finite or lie outside the bounds, or fewer than one cell.
    """
    points = np.asarray(events, np.float64)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not len(points) or not np.isfinite(points).all():
        raise ValueError(f"`events` must be finite places [E] or [E, D]; their shape is {points.shape}.")
    width = points.shape[1]
    numbers = np.asarray(bins)
    if numbers.dtype.kind not in "iu" or numbers.shape not in ((), (1,), (width,)) or numbers.min() < 1:
        raise ValueError(f"`bins` must be a whole number of at least 1, or {width} of them; got {bins!r}.")
    shape = tuple(np.broadcast_to(numbers, [width]).tolist())
    ends = np.stack([points.min(0), points.max(0)], axis=1) if bounds is None else np.asarray(bounds, float)
    if ends.shape != (width, 2) or not (ends[:, 0] < ends[:, 1]).all():
        raise ValueError(f"`bounds` must be {width} pairs (low, high) with low < high; got {ends.tolist()}.")
    outside = ((points < ends[:, 0]) | (points > ends[:, 1])).any(axis=1)
    if outside.any():
        raise ValueError(
            f"{int(outside.sum())} events lie outside of `bounds`, the first at "
            f"{points[outside][0].tolist()}: widen the bounds or drop them."
        )
    edges = [np.linspace(low, high, number + 1) for (low, high), number in zip(ends, shape, strict=True)]
    counts, _ = np.histogramdd(points, edges)
    centres = [0.5 * (edge[1:] + edge[:-1]) for edge in edges]
    dtype = default_float()
    mesh = np.meshgrid(*centres, indexing="ij")
    X = np.stack([part.ravel() for part in mesh], axis=1).astype(dtype)
    cell = float(np.prod([edge[1] - edge[0] for edge in edges]))
    return GridCounts(X, counts.reshape(-1, 1).astype(dtype), cell, shape)
