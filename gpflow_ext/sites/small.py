"""Small vectors and matrices whose entries are long rows: products, with the matrix's axes first.

They are tensors [i, ...] or [i, j, ...], or `Entries`, each a tensor of its own. XLA fuses arithmetic on
these to loops without a temporary, at twice the speed. As operations of a graph they would be too many.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

WRITTEN_OUT = 4  # the largest matrices whose products are written out term by term


class Entries:
    """A vector or a matrix of tensors [...]. It can be added to another, and multiplied by a tensor.

    Parameters
    ----------
    shape
        Its own, [i] or [i, j].
    parts
        The entries, those of the first row first.
    """

    def __init__(self, shape: Sequence[int], parts: Sequence[tf.Tensor]) -> None:
        self.shape, self.parts = tuple(shape), tuple(parts)

    @classmethod
    def of(cls, whole: tf.Tensor, rank: int) -> Entries:
        """Take a tensor [i, ...] or [i, j, ...] apart."""
        parts = [whole]
        for _ in range(rank):
            parts = [part for each in parts for part in tf.unstack(each)]
        return cls(whole.shape[:rank], parts)

    def whole(self) -> tf.Tensor:
        """Return it as one tensor [i, ...] or [i, j, ...]."""
        if len(self.shape) == 1:
            return tf.stack(self.parts)
        return tf.stack([tf.stack(row) for row in self.rows()])

    def rows(self) -> list[tuple[tf.Tensor, ...]]:
        """Return the rows of a matrix."""
        width = self.shape[-1]
        return [self.parts[start : start + width] for start in range(0, len(self.parts), width)]

    def __add__(self, other: Entries) -> Entries:
        return self._with(other, operator.add)

    def __sub__(self, other: Entries) -> Entries:
        return self._with(other, operator.sub)

    def __mul__(self, factor: tf.Tensor) -> Entries:
        return Entries(self.shape, [part * factor for part in self.parts])

    def _with(self, other: Entries, combine: Callable[[Any, Any], Any]) -> Entries:
        return Entries(self.shape, list(map(combine, self.parts, other.parts)))


Small: TypeAlias = Any
"""A tensor, or `Entries`."""


def matmul(a: Small, b: Small) -> Small:
    """Multiply [i, j, ...] by [j, k, ...] to [i, k, ...]."""
    if isinstance(a, Entries):
        columns = transpose(b).rows()
        return Entries(
            [a.shape[0], b.shape[1]], [_dot(row, column) for row in a.rows() for column in columns]
        )
    if a.shape[1] <= WRITTEN_OUT:
        return _sum([outer(x, y) for x, y in zip(tf.unstack(a, axis=1), tf.unstack(b), strict=True)])
    return tf.einsum("ij...,jk...->ik...", a, b)


def matvec(a: Small, x: Small) -> Small:
    """Multiply [i, j, ...] by [j, ...] to [i, ...]."""
    if isinstance(a, Entries):
        return Entries(a.shape[:1], [_dot(row, x.parts) for row in a.rows()])
    if a.shape[1] <= WRITTEN_OUT:
        return _sum([column * y for column, y in zip(tf.unstack(a, axis=1), tf.unstack(x), strict=True)])
    return tf.reduce_sum(a * x[None], axis=1)


def dot(a: Small, b: Small) -> tf.Tensor:
    """Multiply [j, ...] by [j, ...] to [...]."""
    if isinstance(a, Entries):
        return _dot(a.parts, b.parts)
    if a.shape[0] <= WRITTEN_OUT:
        return _dot(tf.unstack(a), tf.unstack(b))
    return tf.reduce_sum(a * b, axis=0)


def transpose(a: Small) -> Small:
    """Transpose [i, j, ...] to [j, i, ...]."""
    if isinstance(a, Entries):
        return Entries(a.shape[::-1], [part for column in zip(*a.rows(), strict=True) for part in column])
    return tf.transpose(a, [1, 0, *range(2, a.shape.rank)])


def symmetric(a: Small) -> Small:
    """Return the symmetric part of [i, i, ...]."""
    if isinstance(a, Entries):
        return _mirrored(a.rows())
    return (a + transpose(a)) * 0.5


def outer(a: Small, b: Small) -> Small:
    """Multiply [i, ...] by [j, ...] to [i, j, ...]."""
    if isinstance(a, Entries):
        return Entries([*a.shape, *b.shape], [x * y for x in a.parts for y in b.parts])
    return tf.expand_dims(a, 1) * tf.expand_dims(b, 0)


def _mirrored(rows: list[tuple[tf.Tensor, ...]]) -> Entries:
    """Return the symmetric part of a matrix, whose equal entries are the same tensors."""
    size = range(len(rows))
    upper: dict[tuple[int, int], tf.Tensor] = {}
    for i in size:
        upper |= {(i, j): 0.5 * (rows[i][j] + rows[j][i]) for j in size[i + 1 :]} | {(i, i): rows[i][i]}
    return Entries([len(rows)] * 2, [upper[min(i, j), max(i, j)] for i in size for j in size])


def _dot(a: Sequence[tf.Tensor], b: Sequence[tf.Tensor]) -> tf.Tensor:
    return _sum([x * y for x, y in zip(a, b, strict=True)])


def _sum(terms: list[tf.Tensor]) -> tf.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total
