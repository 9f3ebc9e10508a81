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
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from gpflow_ext.sites.vecchia import grouping

Array = npt.NDArray[Any]
LEAF = 160  # data of a node that is not divided


def dissect(
    points: Array, cliques: Array, check: Callable[[int, int], None] = lambda *_: None
) -> grouping.Tree:
    """Return the tree of the data.

    Parameters
    ----------
    points
        Places [N, D], in units of the length scales.
    cliques
        Each datum and its neighbours, [N, m + 1], −1 where there are fewer.
    check
        Called with the numbers of entries of all panels, and of the largest front, from the leaves as far as
        they are known; it may raise.
    """
    N = len(points)
    graph = _couplings(cliques)
    level, node = _divided(points, graph)
    depth = int(level.max())
    place = np.zeros(N, int)  # among those of its node
    keys: list[Array] = []
    above: Array = np.zeros(0, int)
    panels, front = 0, 0
    for k in range(depth, -1, -1):
        members = np.flatnonzero(level == k)
        members = members[np.argsort(node[members], kind="stable")]
        place[members] = np.arange(len(members)) - np.searchsorted(node[members], node[members])
        rows = graph[members]
        found = np.repeat(node[members], np.diff(rows.indptr)) * N + rows.indices
        found = np.concatenate([found, (above // N // 2) * N + above % N])
        above = np.unique(found[level[found % N] < k])
        keys.append(above)
        o, b = np.bincount(node[members], minlength=2**k), np.bincount(above // N, minlength=2**k)
        panels, front = panels + int((o * (o + b)).sum()), max(front, int(((o + b) ** 2).max()))
        check(panels, front)
    return grouping.grouped(level, node, place, keys[::-1], cliques)


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
