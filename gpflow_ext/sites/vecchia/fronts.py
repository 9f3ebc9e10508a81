"""The Cholesky factor of a sparse precision in dense blocks, along the tree of a nested dissection.

A node eliminates the data of its own, o, and passes on what that says of its boundary b, from the leaves to
the root (the multifrontal method of Duff & Reid 1983):

    A_oo = RRᵀ    X = R⁻¹A_ob    A_bb ← A_bb − XᵀX

The nodes of a group go side by side, filled up to one size with ones on the diagonal; see `grouping`. The
inverse at all entries of the factor (Takahashi, Fagan & Chin 1973) goes back, from the root to the leaves:

    G = R⁻ᵀX    V_ob = −G V_bb    V_oo = R⁻ᵀR⁻¹ + G V_bb Gᵀ

A panel [nodes, L, o, o + b] is what a node holds of A, or of V: the rows of its own data, of which A needs
the lower triangle and the boundary. Panels of all groups, one after the other, are a vector, [entries, L].
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes
from gpflow_ext.sites.vecchia import steps


class GroupAt(NamedTuple):
    """`grouping.Group` as tensors."""

    own: tf.Tensor
    boundary: tf.Tensor
    row: tf.Tensor
    above: tf.Tensor
    begins: tf.Tensor
    widths: tf.Tensor
    below: tf.Tensor
    children: tuple[GroupAt, ...]


class Block(NamedTuple):
    """Blocks of the factor at the nodes of a group."""

    R: tf.Tensor  # [nodes, L, o, o]
    X: tf.Tensor  # [nodes, L, o, b]


def unpacked(shapes: Sequence[Sequence[Any]], children: Sequence[int], places: tf.Tensor) -> GroupAt:
    """Return the tree of what `grouping.packed` has made of it; the shapes may be tensors."""
    parts: list[list[Any]] = []
    for (nodes, o, b), number in zip(shapes, children, strict=True):
        front = o + b if number else 0
        parts += [nodes, o], [nodes, b], [nodes], [nodes, b], [nodes, 2], [nodes, 2], [nodes, 2, front]
    flat = iter(tf.split(places, [functools.reduce(operator.mul, shape) for shape in parts]))
    tables = (tf.reshape(next(flat), shape) for shape in parts)
    numbers = iter(children)

    def group() -> GroupAt:
        own, boundary, row, above, begins, widths, below = (next(tables) for _ in range(7))
        groups = tuple(group() for _ in range(next(numbers)))
        return GroupAt(own, boundary, row, above, begins, widths, below, groups)

    return group()


def in_order(root: GroupAt) -> list[GroupAt]:
    """Return all groups, each before those below it, in the order of their panels."""
    return [root, *(group for child in root.children for group in in_order(child))]


def factorise(root: GroupAt, values: tf.Tensor, added: tf.Tensor) -> tuple[Block, ...]:
    """Return the factor of A + Λ, a block for each group from the root; NaN if it has none.

    Parameters
    ----------
    root
        The tree.
    values
        A in the panels, [entries, L or 1].
    added
        The diagonal of Λ, [N, L].
    """
    # The padding has ones on its diagonal.
    added = tf.pad(added[..., None], [[0, 1], [0, 0], [0, 0]], constant_values=1.0)
    blocks: list[Block] = []
    passed: list[tf.Tensor] = []  # by groups whose parents are still to come
    for group, panel in reversed(list(zip(in_order(root), panels(root, values), strict=True))):
        below = [passed.pop() for _ in group.children]
        with _after(blocks):
            given = panel(), steps.columns(added, group.own)[..., 0]
            if below:
                flat = tf.concat(below, axis=0)
                R, X, rest = steps.eliminate(*given, flat, group.begins, group.widths, group.below)
            else:
                R, X, rest = steps.eliminate_leaves(*given)
        nodes, L, o = given[1].shape
        b = group.boundary.shape[1]
        blocks.append(Block(tf.ensure_shape(R, [nodes, L, o, o]), tf.ensure_shape(X, [nodes, L, o, b])))
        passed.append(rest)
    return tuple(blocks[::-1])


def _after(blocks: list[Block]) -> Any:
    """Return a context in which nothing is done before the last block is there.

    A graph would otherwise eliminate all leaves first, and hold what they pass on.
    """
    if tf.executing_eagerly() or not blocks:
        return contextlib.nullcontext()
    return tf.control_dependencies([blocks[-1].X])


def solve(root: GroupAt, blocks: tuple[Block, ...], b: tf.Tensor) -> tf.Tensor:
    """Return A⁻¹b for b [N, L]."""
    return solve_columns(root, blocks, b[..., None])[..., 0]


def solve_columns(root: GroupAt, blocks: tuple[Block, ...], b: tf.Tensor) -> tf.Tensor:
    """Return A⁻¹b for columns b [N, L, C]."""
    return _back(root, blocks, _forth(root, blocks, b), sizes(b)[0])


def draw(
    root: GroupAt,
    blocks: tuple[Block, ...],
    b: tf.Tensor,
    num_samples: int,
    normal: Callable[[Sequence[Any]], tf.Tensor],
) -> tf.Tensor:
    """Return draws of N(A⁻¹b, A⁻¹) for b [N, L], [N, L, S]; ``normal`` returns such numbers of a shape."""
    halves = [half + normal([*sizes(half)[:-1], num_samples]) for half in _forth(root, blocks, b[..., None])]
    return _back(root, blocks, halves, sizes(b)[0])


def _forth(root: GroupAt, blocks: tuple[Block, ...], b: tf.Tensor) -> list[tf.Tensor]:
    """Return what the lower factor leaves of b [N, L, C] in each group from the root, [nodes, L, o, C]."""
    rest = tf.pad(b, [[0, 1], [0, 0], [0, 0]])
    halves = []
    for group, (R, X) in reversed(list(zip(in_order(root), blocks, strict=True))):
        half, rest = steps.forth(rest, group.own, group.boundary, R, X)
        halves.append(tf.ensure_shape(half, [*R.shape[:3], b.shape[2]]))
    return halves[::-1]


def _back(root: GroupAt, blocks: tuple[Block, ...], halves: list[tf.Tensor], N: int | tf.Tensor) -> tf.Tensor:
    """Return what the upper factor makes of columns [nodes, L, o, S] in each group, [N, L, S]."""
    _, L, _, S = sizes(halves[0])
    found = tf.zeros([N + 1, L, S], halves[0].dtype)
    shape = found.shape
    for group, (R, X), half in zip(in_order(root), blocks, halves, strict=True):
        found = steps.back(found, half, group.own, group.boundary, R, X)
    return tf.ensure_shape(found, shape)[:-1]


def half_log_det(blocks: tuple[Block, ...]) -> tf.Tensor:
    """Return ½ log|A|, summed over the latent functions, []."""
    return tf.add_n([tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R))) for R, _ in blocks])


def inverse(root: GroupAt, blocks: tuple[Block, ...]) -> tf.Tensor:
    """Return A⁻¹ at the entries of the panels, [entries, L]."""
    return tf.concat(list(_inverse(root, iter(blocks), None)), axis=0)


def _inverse(group: GroupAt, blocks: Iterator[Block], above: tf.Tensor | None) -> Iterator[tf.Tensor]:
    """Yield the entries of A⁻¹ of a group and those below, [entries, L], from its parents' fronts."""
    R, X = next(blocks)
    if above is None:
        entries, front = steps.inverse_of_root(R)
    elif group.children:
        entries, front = steps.inverse(R, X, above, group.row, group.above)
    else:
        entries = steps.inverse_of_leaves(R, X, above, group.row, group.above)
    yield tf.ensure_shape(entries, [None, R.shape[1]])
    for child in group.children:
        yield from _inverse(child, blocks, front)


def panels(root: GroupAt, values: tf.Tensor) -> list[Callable[[], Any]]:
    """Return functions that return the panels, from the root, of their entries [entries, L]."""
    found: list[Callable[[], Any]] = []
    start = 0
    for group in in_order(root):
        (nodes, o), b = sizes(group.own), sizes(group.boundary)[1]
        shape, end = [nodes, o, o + b, sizes(values)[1]], start + nodes * o * (o + b)
        found.append(functools.partial(_panel, values, start, end, shape))
        start = end
    return found


def _panel(values: tf.Tensor, start: Any, end: Any, shape: list[Any]) -> tf.Tensor:
    """Return a panel; one function needs no copy to move its axis behind the first."""
    panel = tf.reshape(values[start:end], shape)
    return panel[:, None, ..., 0] if panel.shape[-1] == 1 else tf.transpose(panel, [0, 3, 1, 2])
