"""What is done with a group of nodes: graphs that are traced once, and called for each group of any size.

All are functions of the blocks, the matrices that nodes pass on, and the places of `fronts.GroupAt`; the
equations are those of `fronts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from gpflow_ext.numerics.batched import sizes


def _called(**axes: int) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator: a graph has the function once, and calls it.

    Given are the numbers of axes of each argument, those of real numbers first; negative for places.
    """
    kinds = [(tf.float64, n) if n > 0 else (tf.int32, -n) for n in axes.values()]
    specs = [tf.TensorSpec([None] * n, dtype) for dtype, n in kinds]
    attributes = {"_noinline": True}
    return lambda function: tf.function(function, specs, autograph=False, experimental_attributes=attributes)


@_called(panel=4, added=3)
def eliminate_leaves(panel: tf.Tensor, added: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Return R, X, and what is passed on, flat, from panels [nodes, L, o, o + b] and Λ [nodes, L, o]."""
    R, X = _block(panel, added)
    return R, X, tf.reshape(tf.matmul(-X, X, transpose_a=True), [-1])


@_called(panel=4, added=3, passed=1, begins=-2, widths=-2, below=-3)
def eliminate(
    panel: tf.Tensor,
    added: tf.Tensor,
    passed: tf.Tensor,
    begins: tf.Tensor,
    widths: tf.Tensor,
    below: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Return the same for nodes to which those below have passed on matrices, one after the other."""
    _, L, o, _ = sizes(panel)

    def received(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Return the sum of what both children say of places [nodes, 2, k], [nodes, L, k, k']."""
        found = []
        for child in (0, 1):
            width = widths[:, child, None, None, None]
            start = begins[:, child, None, None, None] * L + tf.range(L)[:, None, None] * width**2
            numbers = start + (rows[:, child, :, None] * width[:, 0] + columns[:, child, None])[:, None]
            found.append(tf.gather(passed, numbers))
        return found[0] + found[1]

    R, X = _block(panel + received(below[..., :o], below), added)
    rest = received(below[..., o:], below[..., o:]) - tf.matmul(X, X, transpose_a=True)
    return R, X, tf.reshape(rest, [-1])


def _block(panel: tf.Tensor, added: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    o = sizes(panel)[2]
    A = panel[..., :o]
    R = tf.linalg.cholesky(tf.linalg.set_diag(A, tf.linalg.diag_part(A) + added))
    return R, tf.linalg.triangular_solve(R, panel[..., o:])


@_called(rest=3, own=-2, boundary=-2, R=4, X=4)
def forth(
    rest: tf.Tensor, own: tf.Tensor, boundary: tf.Tensor, R: tf.Tensor, X: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return R⁻¹ of the own rows of what is left [N + 1, L, C], [nodes, L, o, C], and what it leaves."""
    half = tf.linalg.triangular_solve(R, columns(rest, own))
    explained = tf.transpose(tf.matmul(X, half, transpose_a=True), [0, 2, 1, 3])
    return half, tf.tensor_scatter_nd_sub(rest, boundary[..., None], explained)


@_called(found=3, half=4, own=-2, boundary=-2, R=4, X=4)
def back(
    found: tf.Tensor, half: tf.Tensor, own: tf.Tensor, boundary: tf.Tensor, R: tf.Tensor, X: tf.Tensor
) -> tf.Tensor:
    """Return a solution [N + 1, L, C] with R⁻ᵀ(half − X·boundary) in the own rows."""
    mine = tf.linalg.triangular_solve(R, half - tf.matmul(X, columns(found, boundary)), adjoint=True)
    return tf.tensor_scatter_nd_update(found, own[..., None], tf.transpose(mine, [0, 2, 1, 3]))


@_called(R=4)
def inverse_of_root(R: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the entries of the panel of V, [entries, L], and the fronts of V, [1, L, o, o]."""
    _, own = _own(R)
    return _entries(own), own


@_called(R=4, X=4, above=4, row=-1, at=-2)
def inverse(
    R: tf.Tensor, X: tf.Tensor, above: tf.Tensor, row: tf.Tensor, at: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the same from the fronts above [nodes, L, f, f], the rows of parents, and boundaries."""
    panel, across, V = _panel(R, X, above, row, at)
    low = tf.concat([tf.linalg.matrix_transpose(across), V], axis=3)
    return _entries(panel), tf.concat([panel, low], axis=2)


@_called(R=4, X=4, above=4, row=-1, at=-2)
def inverse_of_leaves(
    R: tf.Tensor, X: tf.Tensor, above: tf.Tensor, row: tf.Tensor, at: tf.Tensor
) -> tf.Tensor:
    """Return the entries of `inverse` alone."""
    return _entries(_panel(R, X, above, row, at)[0])


def _own(R: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return R⁻¹ and R⁻ᵀR⁻¹."""
    half = tf.linalg.triangular_solve(R, tf.eye(sizes(R)[2], dtype=R.dtype) + tf.zeros_like(R))
    return half, tf.matmul(half, half, transpose_a=True)


def _panel(
    R: tf.Tensor, X: tf.Tensor, above: tf.Tensor, row: tf.Tensor, at: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the panel of V, V_ob, and V_bb."""
    _, L, f, _ = sizes(above)
    half, own = _own(R)
    G = tf.matmul(half, X, transpose_a=True)
    start = (row[:, None] * L + tf.range(L)) * f**2
    numbers = start[:, :, None, None] + (at[:, :, None] * f + at[:, None])[:, None]
    V = tf.gather(tf.reshape(above, [-1]), numbers)
    across = tf.matmul(-G, V)
    return tf.concat([own - tf.matmul(across, G, transpose_b=True), across], axis=3), across, V


def _entries(panel: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.transpose(panel, [0, 2, 3, 1]), [-1, sizes(panel)[1]])


def columns(values: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
    """Return values [N + 1, L, C] at [nodes, k] as [nodes, L, k, C]."""
    return tf.transpose(tf.gather(values, at), [0, 2, 1, 3])
