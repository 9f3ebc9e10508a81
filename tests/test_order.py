"""The order of minibatches depends on the seed of the fit alone."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.data.order import shuffled
from gpflow_ext.data.rows import DatasetRows
from gpflow_ext.gprn.recipe import OutputBatches
from gpflow_ext.training.gradient import Minibatches

N = 17
NUMBERS = np.arange(float(N))[:, None]
OUTPUTS = SimpleNamespace(num_outputs=N, gather=lambda indices: NUMBERS.T)


def dataset_rows(seed: int) -> np.ndarray:
    rows = DatasetRows(tf.data.Dataset.from_tensor_slices((NUMBERS, NUMBERS)), lambda Y: None)
    return np.concatenate([X for epoch in (0, 1) for _, X, _ in rows.batches(5, seed, epoch)])


ORDERS: dict[str, Callable[[int], np.ndarray]] = {
    "arrays": lambda seed: np.concatenate(
        [X for X, _ in islice(Minibatches((NUMBERS, NUMBERS), 5, seed), 7)]
    ),
    "dataset": dataset_rows,
    "outputs": lambda seed: np.concatenate(
        [next(batches)[0] for batches in [OutputBatches(OUTPUTS, 5, seed)] for _ in range(7)]
    ),
}


@pytest.mark.parametrize("kind", ORDERS)
def test_minibatches_do_not_depend_on_the_seed_of_the_process(kind: str) -> None:
    found = []
    for of_process in (1, 2):
        tf.random.set_seed(of_process)
        found.append(ORDERS[kind](3))
    np.testing.assert_array_equal(*found)
    first, second = (np.ravel(found[0])[part] for part in (slice(N), slice(N, 2 * N)))
    assert len(set(first)) == N
    assert not np.array_equal(first[: len(second)], second)
    assert not np.array_equal(found[0], ORDERS[kind](4))


@pytest.mark.parametrize("repeated", [False, True])
def test_the_order_is_that_of_tensorflow(repeated: bool) -> None:
    own = shuffled(tf.data.Dataset.range(N), 6, 3, repeated=repeated).repeat(2)
    tf.random.set_seed(87654321)
    of_tensorflow = tf.data.Dataset.range(N).shuffle(6, 3, reshuffle_each_iteration=repeated).repeat(2)
    np.testing.assert_array_equal(list(own), list(of_tensorflow))
