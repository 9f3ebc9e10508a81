"""Nested dissection of the data: in what order and dense blocks a sparse precision is factorised.

The precision BᵀD⁻¹B of a Vecchia approximation couples the members of each clique, a datum with its
neighbours. Halving the data by a coordinate again and again leaves sets that only the separators between them
couple (George 1973); a separator is a smallest vertex cover of the couplings that cross (König's theorem). A
node of the tree has data of its own, which are eliminated in it, and a boundary: the data of nodes above to
which elimination couples them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

Array = npt.NDArray[Any]
LEAF = 160  # data of a node that is not divided


class Level(NamedTuple):
    """The nodes of one level of the tree, from the root; N stands for no datum."""

    own: Array  # the data that a node eliminates, [nodes, o]
    boundary: Array  # those of nodes above that it is coupled to, [nodes, b]
    above: Array  # the places of the boundary in the parent's own and boundary, [nodes, b]
    below: (
        Array  # those of own and boundary in each child's boundary, its width if not there, [nodes, 2, o + b]
    )


class Tree(NamedTuple):
    """The elimination tree, as the factorisation needs it."""

    levels: tuple[Level, ...]
    entries: Array  # where each pair of a clique lies in the panels, one beyond where none, [N, pairs]
    diagonal: Array  # where the padding of ``own`` has its diagonal, [padded]


def pairs(size: int) -> tuple[Array, Array]:
    """Return the members of each pair in a clique of a size, the first being that of a datum with itself."""
    return np.tril_indices(size)


def dissect(
    points: Array, cliques: Array, check: Callable[[list[tuple[int, int, int]]], None] = lambda _: None
) -> Tree:
    """Return the tree of the data.

    Parameters
    ----------
    points
        Places [N, D], in units of the length scales.
    cliques
        Each datum and its neighbours, [N, m + 1], −1 where there are fewer.
    check
        Called with (nodes, o, b) of each level from the leaves, as far as they are known; it may raise.
    """
    N = len(points)
    graph = _couplings(cliques)
    level, node = _divided(points, graph)
    depth = int(level.max())
    place = np.zeros(N, int)  # among those of its node
    own, boundaries, keys = [], [], []
    above_keys: Array = np.zeros(0, int)
    for k in range(depth, -1, -1):
        members = np.flatnonzero(level == k)
        members = members[np.argsort(node[members], kind="stable")]
        table = _table(node[members], members, 2**k, N)
        place[members] = np.arange(len(members)) - np.searchsorted(node[members], node[members])
        rows = graph[members]
        found = np.repeat(node[members], np.diff(rows.indptr)) * N + rows.indices
        found = np.concatenate([found, (above_keys // N // 2) * N + above_keys % N])
        above_keys = np.unique(found[level[found % N] < k])
        own.append(table)
        keys.append(above_keys)
        boundaries.append(_table(above_keys // N, above_keys % N, 2**k, N))
        check([(len(o), o.shape[1], b.shape[1]) for o, b in zip(own, boundaries, strict=True)])
    own, boundaries, keys = own[::-1], boundaries[::-1], keys[::-1]
    places = _Places(level, node, place, own, keys, N)
    levels = []
    for k in range(depth + 1):
        nodes = np.arange(2**k)
        above = places.find(k - 1, nodes[:, None] // 2, boundaries[k]) if k else boundaries[k]
        front = np.concatenate([own[k], boundaries[k]], axis=1)
        children = 2 * nodes[:, None, None] + np.array([0, 1])[:, None]
        below = places.boundary(k + 1, children, front[:, None]) if k < depth else np.zeros((2**k, 2, 0), int)
        levels.append(Level(own[k], boundaries[k], above, below))
    return Tree(tuple(levels), *_entries(cliques, places))


def _couplings(cliques: Array) -> csr_matrix:
    """Return which data share a clique, [N, N]."""
    N, there = len(cliques), cliques >= 0
    starts = np.concatenate([[0], there.sum(axis=1).cumsum()])
    B = csr_matrix((np.ones(starts[-1], np.int32), cliques[there], starts), (N, N))
    return (B.T @ B).tocsr()


def _divided(points: Array, graph: csr_matrix) -> tuple[Array, Array]:
    """Return the level of each datum, and its node there, [N] each."""
    N = len(points)
    depth = max(0, int(np.ceil(np.log2(N / LEAF))))
    level, part = np.full(N, depth), np.zeros(N, int)
    left = np.repeat(np.arange(N), np.diff(graph.indptr))
    upper = left < graph.indices
    edges = np.stack([left[upper], graph.indices[upper]])
    for k in range(depth):
        side = _halves(points, np.where(level == depth, part, -1), 2**k)
        crossing = side[edges[0]] != side[edges[1]]
        cover = _smallest_cover(edges[:, crossing], side, N)
        level[cover] = k
        free = level == depth
        part = np.where(free, 2 * part + side, part)
        kept = free[edges[0]] & free[edges[1]]
        edges = edges[:, kept & ~crossing]
    return level, part


def _halves(points: Array, part: Array, parts: int) -> Array:
    """Return on which side of the median of its part's longest coordinate each datum is, 0 or 1, [N]."""
    side = np.zeros(len(points), int)
    members = np.argsort(part, kind="stable")
    ends = np.searchsorted(part[members], np.arange(parts + 1))
    for start, end in itertools.pairwise(ends):
        some = members[start:end]
        if len(some) > 1:
            along = points[some][:, np.ptp(points[some], axis=0).argmax()]
            side[some[np.argpartition(along, len(some) // 2)[len(some) // 2 :]]] = 1
    return side


def _smallest_cover(edges: Array, side: Array, N: int) -> Array:
    """Return the fewest data that touch all edges between the two sides, by a largest matching."""
    if not edges.shape[1]:
        return np.zeros(0, int)
    swapped = side[edges[0]] == 1
    first, second = np.where(swapped, edges[::-1], edges)
    graph = csr_matrix((np.ones(len(first), np.int8), (first, second)), (N, N))
    partner = maximum_bipartite_matching(graph, perm_type="column")  # of each on side 0
    back = np.full(N, -1)
    back[partner[partner >= 0]] = np.flatnonzero(partner >= 0)
    reached = np.zeros(N, bool)  # from the unmatched of side 0, by alternating paths
    rows = np.unique(first)
    frontier = rows[partner[rows] < 0]
    while len(frontier):
        reached[frontier] = True
        ahead = np.unique(graph[frontier].indices)
        ahead = ahead[~reached[ahead]]
        reached[ahead] = True
        frontier = back[ahead]
        frontier = frontier[frontier >= 0]
        frontier = frontier[~reached[frontier]]
    return np.flatnonzero(np.isin(np.arange(N), rows) & ~reached | (side == 1) & reached)


def _table(rows: Array, values: Array, count: int, filler: int) -> Array:
    """Return values with sorted row numbers as a table [count, longest], filled up."""
    sizes = np.bincount(rows, minlength=count)
    table = np.full((count, sizes.max(initial=0)), filler)
    table[rows, np.arange(len(rows)) - (sizes.cumsum() - sizes)[rows]] = values
    return table


class _Places:
    """Positions of data in the fronts of nodes."""

    def __init__(
        self, level: Array, node: Array, place: Array, own: list[Array], keys: list[Array], N: int
    ) -> None:
        self.level, self.node, self.place = (np.append(part, 0) for part in (level, node, place))
        self.own, self.keys, self.N = own, keys, N
        self.starts = [np.searchsorted(found, np.arange(2**k) * N) for k, found in enumerate(keys)]
        self.most = [int(np.diff(np.append(s, len(f))).max()) for s, f in zip(self.starts, keys, strict=True)]
        widths = [table.shape[1] for table in own]
        self.widths = np.array(widths)
        sizes = [2**k * (o + b) * o for k, (o, b) in enumerate(zip(widths, self.most, strict=True))]
        self.offsets = np.concatenate([[0], np.cumsum(sizes)])

    def boundary(self, k: int, node: Array, datum: Array) -> Array:
        """Return the places of data in the boundaries of nodes at level k, the width where not there."""
        wanted = node * self.N + datum
        at = np.searchsorted(self.keys[k], wanted)
        there = (datum < self.N) & (np.append(self.keys[k], -1)[at] == wanted)
        return np.where(there, at - self.starts[k][node], self.most[k])

    def find(self, k: int, node: Array, datum: Array) -> Array:
        """Return the places of data in the fronts of nodes at level k, 0 for none."""
        own = self.level[datum] == k
        there = np.where(own, self.place[datum], self.widths[k] + self.boundary(k, node, datum))
        return np.where(datum < self.N, there, 0)


def _entries(cliques: Array, places: _Places) -> tuple[Array, Array]:
    """Return `Tree.entries` and `Tree.diagonal`."""
    total = places.offsets[-1]
    i, j = (np.where(cliques < 0, places.N, cliques)[:, side] for side in pairs(cliques.shape[1]))
    there = (i < places.N) & (j < places.N)
    deeper = (places.level[i] - places.level[j]) * (places.N + 1) + places.place[j] - places.place[i]
    first, second = np.where(deeper >= 0, i, j)[there], np.where(deeper >= 0, j, i)[there]
    at = np.empty(len(first), int)
    level = places.level[first]
    for k in range(len(places.own)):
        rows = np.flatnonzero(level == k)
        e, node = first[rows], places.node[first[rows]]
        o, front = places.widths[k], places.widths[k] + places.most[k]
        row = places.find(k, node, second[rows])
        at[rows] = places.offsets[k] + (node * front + row) * o + places.place[e]
    found = np.full(i.shape, total)
    found[there] = at
    padding = []
    for k, own in enumerate(places.own):
        node, place = np.nonzero(own == places.N)
        front = own.shape[1] + places.most[k]
        padding.append(places.offsets[k] + (node * front + place) * own.shape[1] + place)
    return found, np.concatenate(padding)
