"""L-BFGS in the graph is SciPy's: the same evaluations, the same end, in parts as at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import compiled_calls
import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Compiled
from gpflow_ext.training import climb, lbfgs, lbfgs_in_graph, lbfgs_recipe, loop
from gpflow_ext.training.lbfgs_in_graph import Climb, GraphRun
from gpflow_ext.training.log_space import LogSpace
from gpflow_ext.training.loss import Loss as Lowered

Loss = Callable[[tf.Tensor], tf.Tensor]
PARTS = 12


def valley(x: tf.Tensor) -> tf.Tensor:
    """Rosenbrock's function."""
    return tf.reduce_sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def wall(x: tf.Tensor) -> tf.Tensor:
    """Not finite from one on, where the first trial is; least at 0.8."""
    return -tf.math.log(1.0 - x[0]) - 5.0 * x[0]


def edge(x: tf.Tensor) -> tf.Tensor:
    """Falls to where it is not finite, all the way."""
    return 0.01 * (x[1] - 5.0) ** 2 - x[0] + 0.0 * tf.sqrt(2.0 - x[0])


def rough(x: tf.Tensor) -> tf.Tensor:
    """A bowl with noise of which the gradient knows nothing: no line search can find what it wants."""
    depth, tilt = tf.cosh(x[0]) + 2.0 * tf.cosh(x[1] - x[0]), 3e-4 * tf.reduce_sum(x)
    noise = 3e-8 * tf.sin(1e7 * (x[0] + x[1])) - tilt
    return depth + tilt + tf.stop_gradient(noise)


def narrow(x: tf.Tensor) -> tf.Tensor:
    """Of a thousand scales: Powell's singular function and quadratic ones."""
    scales = tf.constant(np.geomspace(1.0, 1e3, x.shape[0]))
    return tf.reduce_sum(scales * x**2) + (x[0] - 2.0 * x[1]) ** 4 + tf.reduce_sum(tf.exp(0.1 * x))


PROBLEMS: dict[str, tuple[Loss, Any, float]] = {
    "valley": (valley, [-1.2, 1.0, -0.5, 0.8], 1e-12),
    "wall": (wall, [-3.0], 1e-9),
    "edge": (edge, [-3.0, 0.0], 1e-9),
    "noise": (rough, [3.0, -1.0], 1e-8),
    "narrow": (narrow, np.linspace(-1.0, 2.0, 30), 1e-9),
    "near the optimum": (lambda x: 1e3 + 12.5 * x[0] ** 2 + 3.0 * x[1] ** 4, [0.02, 0.5], 1e-9),
    "flat": (lambda x: 0.0 * tf.reduce_sum(x), [1.0, 2.0], 1e-9),
    "nowhere finite": (lambda x: tf.reduce_sum(tf.math.log(x)), [-1.0, -2.0], 1e-9),
}


def host(loss: Loss, start: Any, tolerance: float) -> tuple[lbfgs.Run, tf.Variable]:
    x = tf.Variable(start, dtype=tf.float64)
    return lbfgs.Run(LogSpace([x]), lbfgs.Evaluation(lambda: loss(x), [x]), tolerance), x


def graph(loss: Loss, start: Any, tolerance: float) -> tuple[GraphRun, tf.Variable]:
    x = tf.Variable(start, dtype=tf.float64)
    return GraphRun(Climb(Lowered(lambda: loss(x), [x]), LogSpace([x]), tolerance)), x


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_evaluates_where_scipy_does(name: str) -> None:
    (one, at), (other, its) = (build(*PROBLEMS[name]) for build in (host, graph))
    raised = [run.climb(60) for run in (one, other)]
    record = one.record.numpy()[:, at.shape[0]]
    assert len(record) == len(other.record.numpy())
    np.testing.assert_allclose(other.record, record, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(its, at, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(other.best, one.best, rtol=1e-12)
    assert raised[0] == raised[1]
    assert bool(one.ended) == bool(other.ended)


@pytest.mark.parametrize("pause", [0, 4])
@pytest.mark.parametrize("name", PROBLEMS)
def test_without_the_guard_it_iterates_as_scipy_does(name: str, pause: int) -> None:
    loss, start, _ = PROBLEMS[name]
    at, its = (tf.Variable(start, dtype=tf.float64) for _ in range(2))
    expected: list[float] = []
    found: list[float] = []
    lbfgs.climb([at], lbfgs.Evaluation(lambda: loss(at), [at]), 30, arrived=expected.append)
    climbing = Climb(Lowered(lambda: loss(its), [its]), LogSpace([its]), lbfgs.GAIN, guard=False)
    run = GraphRun(climbing)
    run.go_on(pause, found.append)
    assert len(found) == min(pause, len(expected))
    run.go_on(30 - pause, found.append)
    assert len(found) == len(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(its, at, rtol=1e-6, atol=1e-7)


def _gpr() -> gpflow.models.GPR:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3))
    Y = np.sin(2.0 * X[:, :1]) + 0.2 * rng.normal(size=(40, 1))
    return gpflow.models.GPR((X, Y), gpflow.kernels.SquaredExponential(lengthscales=[1.5] * 3))


def test_positive_parameters_move_in_log_space_as_on_the_host() -> None:
    """By 20 iterations of a model, and to its end: a leap of a length scale is turned back in both."""
    runs = []
    for build in (lbfgs.Run, GraphRun):
        model = _gpr()
        model.likelihood.variance.assign(30.0)  # from where the first line search leaps
        variables = model.trainable_variables
        coordinates = LogSpace(variables, model.trainable_parameters)
        if build is GraphRun:
            run = GraphRun(Climb(Lowered(model.training_loss, variables), coordinates, 1e-8))
        else:
            run = lbfgs.Run(coordinates, lbfgs.Evaluation(model.training_loss, variables), 1e-8)
        run.climb(20)
        record = run.record.numpy()
        runs.append(
            (record if build is GraphRun else record[:, len(coordinates.is_log)], coordinates.vector())
        )
    np.testing.assert_allclose(runs[1][0], runs[0][0], rtol=1e-9)
    np.testing.assert_allclose(runs[1][1], runs[0][1], rtol=1e-8)


@pytest.fixture(scope="module")
def whole() -> tuple[np.ndarray, np.ndarray]:
    """Return where one part of `PARTS` iterations ends, and its record."""
    run, x = graph(*PROBLEMS["valley"])
    assert run.climb(PARTS)
    assert not bool(run.ended)
    return x.numpy(), run.record.numpy()


def _assert_is(run: GraphRun, x: tf.Variable, whole: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(x, whole[0])
    np.testing.assert_array_equal(run.record, whole[1])


@pytest.mark.parametrize("call", [1, 3, 50])
def test_parts_and_calls_are_the_whole(call: int, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs_in_graph, "CALL", call)
    run, x = graph(*PROBLEMS["valley"])
    for part in (1, 4, PARTS - 5):
        run.climb(part)
    _assert_is(run, x, whole)


def test_an_interrupt_between_two_calls_loses_nothing(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs_in_graph, "CALL", 3)
    run, x = graph(*PROBLEMS["valley"])
    before, calls = Compiled.__call__, 0

    def interrupted(self: Any, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return before(self, *arguments)

    monkeypatch.setattr(Compiled, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.climb(PARTS)
    assert run.record.numpy().shape == (6,)
    run.climb(PARTS)
    _assert_is(run, x, whole)


def test_a_checkpoint_takes_a_run_back_and_on(whole: Any, tmp_path: Path) -> None:
    run, x = graph(*PROBLEMS["valley"])
    run.climb(5)
    path = tf.train.Checkpoint(run=run, x=x).save(str(tmp_path / "run"))
    run.climb(4)
    fresh = graph(*PROBLEMS["valley"])
    for its, at in ((run, x), fresh):
        tf.train.Checkpoint(run=its, x=at).restore(path).assert_consumed()
        its.climb(PARTS - 5)
        _assert_is(its, at, whole)


def test_a_new_run_begins_without_memory() -> None:
    run, x = graph(*PROBLEMS["valley"])
    run.climb(PARTS)
    x.assign(PROBLEMS["valley"][1])
    run.restart()
    run.climb(PARTS)
    other, at = graph(*PROBLEMS["valley"])
    other.climb(PARTS)
    _assert_is(run, x, (at.numpy(), other.record.numpy()))


class Remembering:
    """The valley, where an evaluation at x leaves a variable at x and half of what it has found there."""

    def __init__(self, x: tf.Variable, memory: tf.Variable) -> None:
        self._loss, self._x, self._memory = Lowered(lambda: valley(x), [x]), x, memory

    def value_and_gradient(self) -> tuple[tf.Tensor, list[tf.Tensor]]:
        self._memory.assign(self._x + 0.5 * self._memory)
        return self._loss.value_and_gradient()


def test_what_an_evaluation_moves_goes_with_the_iterate() -> None:
    x, memory = (tf.Variable(PROBLEMS["valley"][1], dtype=tf.float64) for _ in range(2))
    expected = 1.5 * x.numpy()
    run = GraphRun(Climb(Remembering(x, memory), LogSpace([x]), 1e-12, [memory]))
    for _ in range(3 * PARTS):
        run.climb(1)
        expected = x.numpy() + 0.5 * expected
        np.testing.assert_allclose(memory, expected, rtol=1e-12)
    assert len(run.record.numpy()) > 3 * PARTS + 1  # some trials were turned down


@pytest.mark.parametrize("pairs", [0, 1, 3, 5])
def test_the_direction_is_that_of_the_two_loops(pairs: int) -> None:
    """Of m = 5 pairs at most, written out in NumPy."""
    rng = np.random.default_rng(pairs)
    steps, changes, g = rng.normal(size=(pairs, 7)), rng.normal(size=(pairs, 7)), rng.normal(size=7)
    changes += 3.0 * steps  # so that sᵀy > 0
    q, a = g.copy(), np.zeros(pairs)
    for k in reversed(range(pairs)):
        a[k] = steps[k] @ q / (steps[k] @ changes[k])
        q -= a[k] * changes[k]
    r = q * (steps[-1] @ changes[-1] / (changes[-1] @ changes[-1]) if pairs else 1.0)
    for k in range(pairs):
        r += steps[k] * (a[k] - changes[k] @ r / (steps[k] @ changes[k]))
    S, Y = (np.concatenate([np.zeros((5 - pairs, 7)), part]) for part in (steps, changes))
    memory = climb.Memory(*map(tf.constant, (S, Y, np.triu(S @ Y.T), pairs)))
    np.testing.assert_allclose(climb.descent(memory, tf.constant(g)), r, rtol=1e-12)


def test_a_fit_is_that_of_the_host_and_the_host_waits_once_for_fifty_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen, ends = compiled_calls.record(monkeypatch), []
    for in_graph in (False, True):
        model = _gpr()
        seen.clear()
        result = gpx.fit(model, recipe="lbfgs", in_graph=in_graph, steps=5, starts=1, progress=False)
        ends.append((result.status, result.steps, result.objective[-1], len(seen)))
    assert ends[0][:2] == ends[1][:2]
    np.testing.assert_allclose(ends[1][2], ends[0][2], rtol=1e-9)
    assert ends[0][3] > 20
    assert ends[1][3] <= 4
    graphs = [entry.function.graph.as_graph_def() for entry in seen]
    ops = {node.op for each in graphs for part in (each, *each.library.function) for node in _nodes(part)}
    assert "EagerPyFunc" not in ops
    assert "PyFunc" not in ops


def _nodes(part: Any) -> Any:
    return part.node_def if hasattr(part, "node_def") else part.node


def test_seconds_end_a_fit_in_the_graph() -> None:
    result = gpx.fit(
        _gpr(), recipe="lbfgs", in_graph=True, iterations=1, starts=1, seconds=1e-9, progress=False
    )
    assert result.status is gpx.Status.OUT_OF_TIME
    assert result.steps == 1


def test_bounds_are_for_the_host() -> None:
    model = _gpr()
    with pytest.raises(ValueError, match="without bounds"):
        lbfgs_recipe.LBFGSSteps(
            model, (), model.trainable_variables, 5, None, [(-1.0, 1.0)] * 5, in_graph=True
        )


@pytest.mark.parametrize("accelerator", [False, True])
def test_it_is_the_default_on_accelerators_alone(accelerator: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs_in_graph, "has_accelerator", lambda: accelerator)
    model = _gpr()
    steps = lbfgs_recipe.LBFGSSteps(model, (), model.trainable_variables, 5, False)
    assert isinstance(steps.run, GraphRun) == accelerator
    assert loop.resolve_jit(None) is False


def test_a_loss_that_cannot_be_traced_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lbfgs_in_graph, "has_accelerator", lambda: True)

    class InNumPy(gpflow.models.GPR):
        def maximum_log_likelihood_objective(self) -> tf.Tensor:
            return super().maximum_log_likelihood_objective() + 0.0 * float(self.likelihood.variance.numpy())

    model = InNumPy(_gpr().data, gpflow.kernels.SquaredExponential())
    steps = lbfgs_recipe.LBFGSSteps(model, (), model.trainable_variables, 5, False)
    assert isinstance(steps.run, lbfgs.Run)


@pytest.mark.parametrize("build", [host, graph])
def test_a_run_ends_before_an_edge(build: Any) -> None:
    """It would go half of the way again and again, a new run from wherever one ends."""
    run, x = build(*PROBLEMS["edge"])
    run.climb(1000)
    assert bool(run.ended)
    assert run.barred
    assert 1.9 < x.numpy()[0] <= 2.0
    assert len(run.record.numpy()) < 30
