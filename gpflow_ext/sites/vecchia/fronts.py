"""The Cholesky factor of a sparse precision in dense blocks, along the tree of a nested dissection.

A node eliminates the data of its own, o, and passes on what that says of its boundary b, from the leaves to
the root (the multifrontal method of Duff & Reid 1983):

    A_oo = RRᵀ    X = R⁻¹A_ob    A_bb ← A_bb − XᵀX

All nodes of a level go side by side, filled up to one size with ones on the diagonal. The inverse at all
entries of the factor (Takahashi, Fagan & Chin 1973) goes back, from the root to the leaves:

    G = R⁻ᵀX    V_bo = −V_bb Gᵀ    V_oo = R⁻ᵀR⁻¹ + G V_bb Gᵀ

A panel [nodes, L, o + b, o] is what a node holds of A, or of V: the columns of its own data, of which A needs
the lower triangle. Panels of all levels, one after the other, are a vector, [entries, L].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes


class LevelAt(NamedTuple):
    """`dissection.Level` as tensors."""

    own: tf.Tensor
    boundary: tf.Tensor
    above: tf.Tensor
    below: tf.Tensor


class Block(NamedTuple):
    """Blocks of the factor at the nodes of a level."""

    R: tf.Tensor  # [nodes, L, o, o]
    X: tf.Tensor  # [nodes, L, o, b]


def factorise(levels: tuple[LevelAt, ...], values: tf.Tensor) -> tuple[Block, ...]:
    """Return the factor of the matrix with these entries [entries, L], from the root; NaN if it has none."""
    blocks: list[Block] = []
    passed = None
    for level, panel in reversed(list(zip(levels, panels(levels, values), strict=True))):
        o = sizes(level.own)[1]
        b = sizes(level.boundary)[1]
        rest: tf.Tensor | float = 0.0
        if passed is not None:
            (_, L, inner, _), nodes = sizes(passed), sizes(level.own)[0]
            padded = tf.pad(passed, [[0, 0], [0, 0], [0, 1], [0, 1]])
            both = tf.reshape(padded, [nodes, 2, L, inner + 1, inner + 1])
            front = sum(_symmetric_part(both[:, child], level.below[:, child]) for child in (0, 1))
            panel += front[..., :o]
            rest = front[..., o:, o:]
        R = tf.linalg.cholesky(panel[..., :o, :])
        X = tf.linalg.triangular_solve(R, tf.linalg.matrix_transpose(panel[..., o:, :]))
        blocks.append(Block(R, tf.ensure_shape(X, [*X.shape[:3], b if isinstance(b, int) else None])))
        passed = rest - tf.matmul(X, X, transpose_a=True)
    return tuple(blocks[::-1])


def solve(levels: tuple[LevelAt, ...], blocks: tuple[Block, ...], b: tf.Tensor) -> tf.Tensor:
    """Return A⁻¹b for b [N, L]."""
    return solve_columns(levels, blocks, b[..., None])[..., 0]


def solve_columns(levels: tuple[LevelAt, ...], blocks: tuple[Block, ...], b: tf.Tensor) -> tf.Tensor:
    """Return A⁻¹b for columns b [N, L, C]."""
    return _back(levels, blocks, _forth(levels, blocks, b), sizes(b)[0])


def draw(
    levels: tuple[LevelAt, ...],
    blocks: tuple[Block, ...],
    b: tf.Tensor,
    num_samples: int,
    normal: Callable[[Sequence[Any]], tf.Tensor],
) -> tf.Tensor:
    """Return draws of N(A⁻¹b, A⁻¹) for b [N, L], [N, L, S]; ``normal`` returns such numbers of a shape."""
    halves = [
        half + normal([*sizes(half)[:-1], num_samples]) for half in _forth(levels, blocks, b[..., None])
    ]
    return _back(levels, blocks, halves, sizes(b)[0])


def _forth(levels: tuple[LevelAt, ...], blocks: tuple[Block, ...], b: tf.Tensor) -> list[tf.Tensor]:
    """Return what the lower factor leaves of b [N, L, C] at each level from the root, [nodes, L, o, C]."""
    rest = tf.pad(b, [[0, 1], [0, 0], [0, 0]])
    halves = []
    for level, (R, X) in zip(levels[::-1], blocks[::-1], strict=True):
        half = tf.linalg.triangular_solve(R, _columns(rest, level.own))
        halves.append(half)
        rest = tf.tensor_scatter_nd_sub(
            rest, level.boundary[..., None], _rows(tf.matmul(X, half, transpose_a=True))
        )
    return halves[::-1]


def _back(
    levels: tuple[LevelAt, ...], blocks: tuple[Block, ...], halves: list[tf.Tensor], N: int | tf.Tensor
) -> tf.Tensor:
    """Return what the upper factor makes of columns [nodes, L, o, S] at each level, [N, L, S]."""
    _, L, _, S = sizes(halves[0])
    found = tf.zeros([N + 1, L, S], halves[0].dtype)
    for level, (R, X), half in zip(levels, blocks, halves, strict=True):
        seen = half - tf.matmul(X, _columns(found, level.boundary))
        own = tf.linalg.triangular_solve(R, seen, adjoint=True)
        found = tf.tensor_scatter_nd_update(found, level.own[..., None], _rows(own))
    return found[:-1]


def half_log_det(blocks: tuple[Block, ...]) -> tf.Tensor:
    """Return ½ log|A|, summed over the latent functions, []."""
    return tf.add_n([tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R))) for R, _ in blocks])


def inverse(levels: tuple[LevelAt, ...], blocks: tuple[Block, ...]) -> tf.Tensor:
    """Return A⁻¹ at the entries of the panels, [entries, L]."""
    found = []
    front = None
    for level, (R, X) in zip(levels, blocks, strict=True):
        o = sizes(level.own)[1]
        eye = tf.eye(o, dtype=R.dtype)
        half = tf.linalg.triangular_solve(R, eye + tf.zeros_like(R))
        own = tf.matmul(half, half, transpose_a=True)
        if front is None:
            panel = front = own
        else:
            G = tf.matmul(half, X, transpose_a=True)
            V = _seen_from_below(front, level)
            across = -tf.matmul(V, G, transpose_b=True)
            panel = tf.concat([own - tf.matmul(G, across), across], axis=2)
            if level is not levels[-1]:
                right = tf.concat([tf.linalg.matrix_transpose(across), V], axis=2)
                front = tf.concat([panel, right], axis=3)
        found.append(tf.reshape(_latent_last(panel), [-1, sizes(panel)[1]]))
    return tf.concat(found, axis=0)


def panels(levels: tuple[LevelAt, ...], values: tf.Tensor) -> list[tf.Tensor]:
    """Return the panels, from the root, of their entries [entries, L]."""
    found, start = [], 0
    for level in levels:
        (nodes, o), b = sizes(level.own), sizes(level.boundary)[1]
        end = start + nodes * (o + b) * o
        found.append(_latent_first(tf.reshape(values[start:end], [nodes, o + b, o, sizes(values)[1]])))
        start = end
    return found


def _seen_from_below(front: tf.Tensor, level: LevelAt) -> tf.Tensor:
    """Return what the fronts [nodes, L, f, f] say of their children's boundaries, [2 nodes, L, b, b]."""
    nodes, L, _, _ = sizes(front)
    b = sizes(level.boundary)[1]
    above = tf.reshape(level.above, [nodes, 2, b])
    children = [_symmetric_part(front, above[:, child]) for child in (0, 1)]
    return tf.reshape(tf.stack(children, axis=1), [2 * nodes, L, b, b])


def _symmetric_part(matrices: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
    """Return the rows and columns ``at`` [nodes, k] of matrices [nodes, L, f, f], [nodes, L, k, k].

    By one list of numbers, twice as fast as rows first and then columns.
    """
    nodes, L, f, _ = sizes(matrices)
    start = tf.reshape(tf.range(nodes * L) * f * f, [nodes, L, 1, 1])
    numbers = start + (at[:, :, None] * f + at[:, None])[:, None]
    return tf.gather(tf.reshape(matrices, [-1]), numbers)


def _latent_first(panel: tf.Tensor) -> tf.Tensor:
    """Move the last axis of [nodes, f, o, L] behind the first; one function needs no copy."""
    return panel[:, None, ..., 0] if panel.shape[-1] == 1 else tf.transpose(panel, [0, 3, 1, 2])


def _latent_last(panel: tf.Tensor) -> tf.Tensor:
    """Undo `_latent_first`."""
    return panel[:, 0, ..., None] if panel.shape[1] == 1 else tf.transpose(panel, [0, 2, 3, 1])


def _columns(values: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
    """Return values [N + 1, L, S] at [nodes, k] as [nodes, L, k, S]."""
    return tf.transpose(tf.gather(values, at), [0, 2, 1, 3])


def _rows(columns: tf.Tensor) -> tf.Tensor:
    """Undo what `_columns` does to the axes, [nodes, k, L, S]."""
    return tf.transpose(columns, [0, 2, 1, 3])
