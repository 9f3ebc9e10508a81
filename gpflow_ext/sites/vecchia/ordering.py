"""The order of the data in a Vecchia approximation, and the nearest of those before each."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

Array = npt.NDArray[Any]
ORDERINGS = ("random", "maximin", "coordinate")


def order(points: Array, ordering: str, seed: int) -> Array:
    """Return the data in the order of a Vecchia approximation, [N].

    Parameters
    ----------
    points
        Places [N, D], in units of the length scales.
    ordering
        ``"random"``; ``"maximin"``, each as far as it can be from all before it (Guinness 2018), O(N²);
        or ``"coordinate"``, by the sum of the coordinates.
    seed
        Of the random order, and of the first place of the maximin order.
    """
    if ordering == "random":
        return np.random.default_rng(seed).permutation(len(points))
    if ordering == "coordinate":
        return np.argsort(points.sum(axis=1), kind="stable")
    found = np.empty(len(points), int)
    found[0] = np.random.default_rng(seed).integers(len(points))
    distance = ((points - points[found[0]]) ** 2).sum(axis=1)
    for n in range(1, len(points)):
        distance[found[n - 1]] = -1.0
        found[n] = distance.argmax()
        np.minimum(distance, ((points - points[found[n]]) ** 2).sum(axis=1), out=distance)
    return found


def nearest_before(points: Array, most: int) -> Array:
    """Return the nearest points before each, nearest first, [N, most], −1 where they are fewer.

    O(N log N): a tree of the first points serves the next ones, as many again.
    """
    N = len(points)
    found = np.full((N, most), -1)
    for n in range(1, min(most + 1, N)):
        by_distance = ((points[:n] - points[n]) ** 2).sum(axis=1).argsort(kind="stable")
        found[n, :n] = by_distance
    low = most + 1
    while low < N:
        high = min(2 * low, N)
        tree, rows, asked = cKDTree(points[:high]), np.arange(low, high), 2 * most + 2
        while len(rows):
            asked = min(asked, high)
            near = tree.query(points[rows], k=asked)[1].reshape(len(rows), asked)
            before = near < rows[:, None]
            enough = before.sum(axis=1) >= most
            done = np.argsort(~before[enough], axis=1, kind="stable")[:, :most]
            found[rows[enough]] = np.take_along_axis(near[enough], done, axis=1)
            rows, asked = rows[~enough], 2 * asked
        low = high
    return found
