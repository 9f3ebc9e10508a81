"""Products of small matrices by entries: those of the matrices as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.sites import small
from gpflow_ext.sites.small import Entries

rng = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_entries_give_the_products_of_tensors(size: int) -> None:
    a, b = (tf.constant(rng.normal(size=[size, size, 2, 5])) for _ in range(2))
    x, y = (tf.constant(rng.normal(size=[size, 2, 5])) for _ in range(2))
    A, B, X, Y = Entries.of(a, 2), Entries.of(b, 2), Entries.of(x, 1), Entries.of(y, 1)
    for found, expected, as_numpy in [
        (small.matmul(A, B), small.matmul(a, b), np.einsum("ij...,jk...->ik...", a, b)),
        (small.matvec(A, X), small.matvec(a, x), np.einsum("ij...,j...->i...", a, x)),
        (small.outer(X, Y), small.outer(x, y), np.einsum("i...,j...->ij...", x, y)),
        (small.transpose(A), small.transpose(a), np.einsum("ij...->ji...", a)),
        (small.symmetric(A), small.symmetric(a), 0.5 * (a + np.einsum("ij...->ji...", a))),
        (A + B * y[0] - small.transpose(A), a + b * y[0] - small.transpose(a), None),
    ]:
        np.testing.assert_allclose(found.whole(), expected, rtol=1e-13, atol=1e-13)
        if as_numpy is not None:
            np.testing.assert_allclose(expected, as_numpy, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(small.dot(X, Y), np.einsum("i...,i...->...", x, y), rtol=1e-12)
    np.testing.assert_allclose(small.dot(x, y), small.dot(X, Y), rtol=1e-12)


def test_equal_entries_of_a_symmetric_matrix_are_one_tensor() -> None:
    mirrored = small.symmetric(Entries.of(tf.constant(rng.normal(size=[3, 3, 4])), 2))
    assert len({id(part) for part in mirrored.parts}) == 6
