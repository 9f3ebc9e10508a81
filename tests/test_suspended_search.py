"""A run of L-BFGS that is done in parts is that which is done at once."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.training import lbfgs
from gpflow_ext.training.log_space import LogSpace

PARTS = 12


class Valley:
    """Minus Rosenbrock's function in four dimensions; counts its evaluations, and fails in one of them."""

    def __init__(self) -> None:
        self.x = tf.Variable([-1.2, 1.0, -0.5, 0.8], dtype=tf.float64)
        self.evaluations, self.failing = 0, -1

    def __call__(self) -> tuple[float, list[tf.Tensor]]:
        self.evaluations += 1
        if self.evaluations == self.failing:
            raise KeyboardInterrupt
        with tf.GradientTape() as tape:
            rise = self.x[1:] - self.x[:-1] ** 2
            value = -tf.reduce_sum(100.0 * rise**2 + (1.0 - self.x[:-1]) ** 2)
        return float(value), [tape.gradient(value, self.x)]

    def run(self) -> lbfgs.Run:
        return lbfgs.Run(LogSpace([self.x]), self, 1e-12)


def _searches() -> set[threading.Thread]:
    gc.collect()
    return {thread for thread in threading.enumerate() if thread.name == "L-BFGS"}


@pytest.fixture(scope="module")
def whole() -> tuple[np.ndarray, np.ndarray]:
    """Return where one part of `PARTS` iterations ends, and its record."""
    valley = Valley()
    run = valley.run()
    assert run.climb(PARTS)
    assert not bool(run.ended)
    return valley.x.numpy(), run.record.numpy()


def _assert_is(valley: Valley, run: lbfgs.Run, whole: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(valley.x, whole[0])
    np.testing.assert_array_equal(run.record, whole[1])


def test_nothing_is_repeated(whole: tuple[np.ndarray, np.ndarray]) -> None:
    """Neither an evaluation nor the search itself: that of a run waits in one thread."""
    valley, before = Valley(), _searches()
    run = valley.run()
    threads = set()
    for _ in range(PARTS):
        run.climb(1)
        threads |= _searches() - before
    _assert_is(valley, run, whole)
    assert valley.evaluations == len(whole[1])
    assert len(threads) == 1


def test_a_run_that_is_dropped_ends_its_thread() -> None:
    before = _searches()
    run = Valley().run()
    run.climb(1)
    [search] = _searches() - before
    del run
    search.join(timeout=10.0)
    assert not search.is_alive()


def test_an_interrupted_part_leaves_the_run_where_it_was(whole: tuple[np.ndarray, np.ndarray]) -> None:
    valley = Valley()
    run = valley.run()
    run.climb(5)
    record, valley.failing = run.record.numpy(), valley.evaluations + 3
    with pytest.raises(KeyboardInterrupt):
        run.climb(PARTS - 5)
    np.testing.assert_array_equal(run.record, record)
    run.climb(PARTS - 5)
    _assert_is(valley, run, whole)
    assert valley.evaluations == len(whole[1]) + 3


def test_a_checkpoint_takes_a_run_back_and_on(whole: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    """In an object that has gone elsewhere meanwhile, and in a new one; no evaluation is repeated."""
    valley = Valley()
    run = valley.run()
    run.climb(5)
    path = tf.train.Checkpoint(run=run, x=valley.x).save(str(tmp_path / "run"))
    run.climb(4)
    fresh = Valley()
    for each, its in ((valley, run), (fresh, fresh.run())):
        tf.train.Checkpoint(run=its, x=each.x).restore(path).assert_consumed()
        kept, each.evaluations = len(its.record.numpy()), 0
        its.climb(PARTS - 5)
        _assert_is(each, its, whole)
        assert each.evaluations == len(whole[1]) - kept


def test_a_failure_of_the_search_itself_is_raised_where_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ValueError("no memory for 50 pairs")

    monkeypatch.setattr("scipy.optimize.minimize", broken)
    with pytest.raises(ValueError, match="50 pairs"):
        Valley().run().climb(1)


def test_a_run_against_a_bound_ends() -> None:
    """The gradient there points outwards: that is no slope on which another run should begin."""
    variance, evaluations = gpflow.Parameter(1.0, transform=gpflow.utilities.positive()), 0

    def objective() -> tuple[float, list[tf.Tensor]]:
        nonlocal evaluations
        evaluations += 1
        with tf.GradientTape() as tape:
            value = 3.0 * tf.math.log(variance)
        return float(value), [tape.gradient(value, variance.unconstrained_variable)]

    variables = [variance.unconstrained_variable]
    run = lbfgs.Run(LogSpace(variables, [variance]), objective, 1e-9, [(-5.0, 2.0)])
    while not bool(run.ended):
        run.climb(20)
    np.testing.assert_allclose(variables[0], 2.0, rtol=1e-12)
    assert evaluations <= 2


@pytest.mark.parametrize("start", [(0.0, 0.0), (0.5, -0.3), (-0.3, 0.4)])
def test_a_run_ends_at_a_point_that_it_has_evaluated(start: tuple[float, float]) -> None:
    """A plane that is NaN outside of a disc: the line search fails where the loss has turned it back."""
    x, values = tf.Variable(start, dtype=tf.float64), []

    def evaluate() -> tuple[float, list[tf.Tensor]]:
        values.append(float(x[0] + 2.0 * x[1]) if tf.norm(x) <= 1.0 else np.nan)
        return values[-1], [tf.constant([1.0, 2.0], tf.float64)]

    run = lbfgs.Run(LogSpace([x]), evaluate, 1e-8)
    assert run.climb(100)
    assert float(run.best) == float(x[0] + 2.0 * x[1])
    assert float(run.best) in values
