"""In what steps a triangular system is solved whose rows have few entries: level by level, in blocks.

Row n of B has entries at the neighbours of datum n. Data of one level depend on data of lower levels alone,
so that blocks of them are eliminated side by side. Each datum has a slot; a level begins a new block, and
slots that are left over are empty. Steps of one shape, [W, w] entries, make a loop of arrays: a block of rows
with many entries takes several of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
WIDTH = 32  # rows of a block
PART = 8  # entries of a row of Bᵀ in a step; most rows have few, some have hundreds


class Steps(NamedTuple):
    """Steps that solve with B or Bᵀ, in their order; P − 1 slots stand before an empty last one."""

    first: Array  # the first slot of the block, [T]
    near: Array  # the slots of what its rows depend on, P − 1 for none, [T, W, w]
    entries: Array  # which coefficient that has, one beyond all for none, [T, W, w]


class Schedule(NamedTuple):
    """Slots of the data, and the steps."""

    slots: Array  # [N]
    owner: Array  # the datum of each slot, N for none, [P]
    forth: Steps
    back: Steps


def levels(near: Array) -> Array:
    """Return the number of links of the longest chain of neighbours before each datum, [N].

    ``near`` [N, m] are places in the order, −1 for none; the nearest in it come later than these.
    """
    found = np.full(len(near) + 1, -1)  # the last is none
    for n, some in enumerate(near):
        found[n] = found[some].max() + 1
    return found[:-1]


def schedule(near: Array, order: Array) -> Schedule:
    """Return the steps for data in an order [N], whose neighbours [N, m] are places in it, −1 for none."""
    N, m = near.shape
    there = near >= 0
    level, seen = levels(near), np.bincount(near[there], minlength=N)
    by_level = np.lexsort((-seen, level))  # rows of Bᵀ that are alike in length lie in one block
    sizes = np.bincount(level)
    blocks = -(-sizes // WIDTH)
    begins = np.cumsum(blocks) - blocks
    place = np.empty(N, int)
    place[by_level] = np.arange(N) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    slot = begins[level] * WIDTH + place
    number = int(blocks.sum())
    row, k = np.nonzero(there)
    entry, lower = order[row] * m + k, slot[near[row, k]]
    forth = _steps(slot[row], lower, entry, np.arange(number), m, N * m)
    back = _steps(lower, slot[row], entry, np.arange(number)[::-1], PART, N * m)
    slots, owner = np.empty(N, int), np.full(number * WIDTH + 1, N)
    slots[order], owner[slot] = slot, order
    return Schedule(slots, owner, forth, back)


def _steps(into: Array, out: Array, entry: Array, blocks: Array, width: int, none: int) -> Steps:
    """Return the steps of blocks in their order for entries of rows ``into`` and columns ``out``."""
    empty = len(blocks) * WIDTH
    sort = np.argsort(into, kind="stable")
    into, out, entry = into[sort], out[sort], entry[sort]
    counts = np.bincount(into, minlength=empty).reshape(-1, WIDTH)
    steps = -(-counts.max(axis=1) // width)[blocks]
    begins = np.empty(len(blocks), int)
    begins[blocks] = np.cumsum(steps) - steps
    place = np.arange(len(into)) - np.searchsorted(into, into)
    at = begins[into // WIDTH] + place // width, into % WIDTH, place % width
    near, entries = np.full((steps.sum(), WIDTH, width), empty), np.full((steps.sum(), WIDTH, width), none)
    near[at], entries[at] = out, entry
    return Steps(np.repeat(blocks, steps) * WIDTH, near, entries)
