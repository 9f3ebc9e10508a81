"""The nodes of an elimination tree in groups, each eliminated at once in dense blocks of one size.

A group holds nodes of one level whose parents are in one group. They are divided by their sizes as far as
that saves operations, for all are filled up to the largest, and until their fronts are few enough for memory
that is used again and again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST = 7 * 2**19  # entries of the fronts of a group of several nodes; more than 32 MiB is slow to allocate
SAVING = 3e8  # operations that a further group must save
_BLOCK = 2**22  # entries of cliques that are looked up at once
_ENTRY = 200.0  # operations that take as long as an entry of a front is moved about


class Group(NamedTuple):
    """Nodes of one level that are alike in size, with those below; N stands for no datum.

    The last place of a boundary is none, so that what is not there has a place too; the root has no boundary.
    """

    own: Array  # the data that a node eliminates, [nodes, o]
    boundary: Array  # those of nodes above that it is coupled to, [nodes, b]
    row: Array  # the place of its parent in the group above, [nodes]
    above: Array  # the places of the boundary in the parent's own and boundary, [nodes, b]
    begins: Array  # where the matrix b × b of each child begins among those of all groups below, [nodes, 2]
    widths: Array  # b of each child, [nodes, 2]
    below: Array  # the places of own and boundary in each child's boundary, [nodes, 2, o + b]
    children: tuple[Group, ...]


class Tree(NamedTuple):
    """The elimination tree, as the factorisation needs it."""

    root: Group
    entries: Array  # where each pair of a clique lies in the panels, one beyond where none, [N, pairs]


def pairs(size: int) -> tuple[Array, Array]:
    """Return the members of each pair in a clique of a size, the first being that of a datum with itself."""
    return np.tril_indices(size)


def squared(size: int) -> Array:
    """Return which of the `pairs` each entry of a symmetric matrix is, row by row, [size · size]."""
    low = np.zeros((size, size), int)
    low[pairs(size)] = np.arange(size * (size + 1) // 2)
    return np.maximum(low, low.T).ravel()


def grouped(level: Array, node: Array, place: Array, keys: list[Array], cliques: Array) -> Tree:
    """Return the tree.

    Parameters
    ----------
    level, node, place
        Where each datum is eliminated: the level, the node there, and the place in it, [N] each.
    keys
        The boundaries at each level, sorted: node · N + datum.
    cliques
        Each datum and its neighbours, [N, m + 1], −1 where there are fewer.
    """
    groups = _Groups(level, node, place, keys)
    root = groups.group(0, np.zeros(1, int), np.zeros(1, int))
    return Tree(root, groups.entries(cliques))


def packed(root: Group) -> tuple[list[list[int]], list[int], Array]:
    """Return nodes, o and b of each group, in their order, their numbers of children, and all places."""
    *parts, below = root
    shapes, children = [[*root.own.shape, root.boundary.shape[1]]], [len(below)]
    places = [np.ravel(part) for part in parts]
    for child in below:
        more, numbers, at = packed(child)
        shapes += more
        children += numbers
        places.append(at)
    return shapes, children, np.concatenate(places)


class _Level:
    """The nodes of a level, and what is known of their groups."""

    def __init__(self, members: Array, node: Array, keys: Array, count: int, N: int) -> None:
        self.members, self.keys = members, keys
        nodes = np.arange(count)
        self.first = np.searchsorted(node[members], nodes)
        self.own = np.diff(self.first, append=len(members))
        self.starts = np.searchsorted(keys, nodes * N)
        self.boundary = np.diff(self.starts, append=len(keys)) + (count > 1)
        self.o, self.b, self.offset = (np.zeros(count, int) for _ in range(3))


class _Groups:
    """Groups from the root, each before those below it, with the places of data in the fronts of nodes."""

    def __init__(self, level: Array, node: Array, place: Array, keys: list[Array]) -> None:
        self.N = N = len(level)
        self.levels = []
        for k, found in enumerate(keys):
            members = np.flatnonzero(level == k)
            members = members[np.lexsort((place[members], node[members]))]
            self.levels.append(_Level(members, node, found, 2**k, N))
        self.level, self.node, self.place = (np.append(part, 0) for part in (level, node, place))
        self.total = 0

    def group(self, k: int, nodes: Array, row: Array) -> Group:
        """Return the group of some nodes at level k, in rows of their parents' group."""
        here = self.levels[k]
        o, b = max(1, int(here.own[nodes].max())), int(here.boundary[nodes].max())
        here.o[nodes], here.b[nodes] = o, b
        here.offset[nodes] = self.total + np.arange(len(nodes)) * o * (o + b)
        self.total += len(nodes) * o * (o + b)
        own = _table(here.members, here.first[nodes], here.own[nodes], o, self.N)
        places: Array = here.boundary[nodes] - (k > 0)
        boundary = _table(here.keys, here.starts[nodes], places, b, -1) % self.N
        boundary = np.where(np.arange(b) < places[:, None], boundary, self.N)
        above = self._find(k - 1, nodes[:, None] // 2, boundary) if k else boundary
        if k + 1 == len(self.levels):
            none = np.zeros((len(nodes), 2), int)
            return Group(own, boundary, row, above, none, none, np.zeros((len(nodes), 2, 0), int), ())
        nodes_below = (2 * nodes[:, None] + [0, 1]).ravel()
        begins, widths, children = self._children(k + 1, nodes_below)
        front = np.concatenate([own, boundary], axis=1)
        below = self._boundary(k + 1, nodes_below.reshape(-1, 2, 1), front[:, None])
        return Group(own, boundary, row, above, begins, widths, below, children)

    def _children(self, k: int, nodes: Array) -> tuple[Array, Array, tuple[Group, ...]]:
        """Return where matrices of nodes begin and how wide they are, [nodes / 2, 2], and the groups."""
        there = self.levels[k]
        begins, widths, groups, total = np.zeros(len(nodes), int), np.zeros(len(nodes), int), [], 0
        for part in alike(there.own[nodes], there.boundary[nodes]):
            groups.append(self.group(k, nodes[part], part // 2))
            b = groups[-1].boundary.shape[1]
            begins[part], widths[part] = total + np.arange(len(part)) * b**2, b
            total += len(part) * b**2
        return begins.reshape(-1, 2), widths.reshape(-1, 2), tuple(groups)

    def _boundary(self, k: int, node: Array, datum: Array) -> Array:
        """Return the places of data in the boundaries of nodes at level k, the last where not there."""
        there, wanted = self.levels[k], node * self.N + datum
        at = np.searchsorted(there.keys, wanted)
        found = (datum < self.N) & (np.append(there.keys, -1)[at] == wanted)
        return np.where(found, at - there.starts[node], there.b[node] - 1)

    def _find(self, k: int, node: Array, datum: Array) -> Array:
        """Return the places of data in the fronts of nodes at level k, 0 for none."""
        own = self.level[datum] == k
        there = np.where(own, self.place[datum], self.levels[k].o[node] + self._boundary(k, node, datum))
        return np.where(datum < self.N, there, 0)

    def entries(self, cliques: Array) -> Array:
        """Return `Tree.entries`, of one block of the data after the other."""
        blocks = np.array_split(cliques, -(-cliques.size * cliques.shape[1] // _BLOCK))
        return np.concatenate([self._entries(block) for block in blocks])

    def _entries(self, cliques: Array) -> Array:
        i, j = (np.where(cliques < 0, self.N, cliques)[:, side] for side in pairs(cliques.shape[1]))
        there = (i < self.N) & (j < self.N)
        i, j = i[there], j[there]
        deeper = (self.level[i] - self.level[j]) * (self.N + 1) + self.place[j] - self.place[i]
        first, second = np.where(deeper >= 0, i, j), np.where(deeper >= 0, j, i)
        at, level = np.empty(len(first), int), self.level[first]
        for k, here in enumerate(self.levels):
            pairs_here = np.flatnonzero(level == k)
            e, d = first[pairs_here], second[pairs_here]
            node = self.node[e]
            column = self._find(k, node, d)
            # Of two of its own data the later is the row: the lower triangle.
            inside = column < here.o[node]
            row, column = (
                np.where(inside, column, self.place[e]),
                np.where(inside, self.place[e], column),
            )
            at[pairs_here] = here.offset[node] + row * (here.o[node] + here.b[node]) + column
        found = np.full(there.shape, self.total, np.int32)
        found[there] = at
        return found


def alike(o: Array, b: Array) -> list[Array]:
    """Divide nodes into groups by the sizes of own data and boundaries, [nodes]; return places."""
    count = len(o)
    whole, best, parts = count * _cost(o.max(), b.max()), 0.0, [np.arange(count)]
    for sizes in (b, o):
        order = np.argsort(sizes, kind="stable")
        low = [np.maximum.accumulate(part[order]) for part in (o, b)]
        high = [np.maximum.accumulate(part[order][::-1])[::-1] for part in (o, b)]
        cuts = np.arange(1, count)
        costs = cuts * _cost(*(part[:-1] for part in low))
        costs += (count - cuts) * _cost(*(part[1:] for part in high))
        if count > 1 and whole - costs.min() > best:
            cut = int(costs.argmin()) + 1
            best, parts = whole - costs.min(), [np.sort(order[:cut]), np.sort(order[cut:])]
    if best < SAVING:
        if count == 1 or count * int(o.max() + b.max()) ** 2 <= MOST:
            return [np.arange(count)]
        if best == 0.0:
            parts = np.array_split(np.arange(count), 2)
    return [part[some] for part in parts for some in alike(o[part], b[part])]


def _cost(o: Any, b: Any) -> Any:
    """Return about how many operations a node takes."""
    o, b = np.asarray(o, float), np.asarray(b, float)
    return o**3 / 3.0 + o**2 * b + 2.0 * o * b**2 + _ENTRY * (o + b) ** 2


def _table(values: Array, starts: Array, counts: Array, width: int, filler: int) -> Array:
    """Return runs of values as rows of a table [runs, width], filled up."""
    at = starts[:, None] + np.arange(width)
    there = np.arange(width) < counts[:, None]
    return np.where(there, np.append(values, filler)[np.where(there, at, -1)], filler)
