"""L-BFGS on objectives that are not finite everywhere."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.training import climb, guarded, lbfgs
from gpflow_ext.training.log_space import LogSpace
from gpflow_ext.training.search import SettledError
from scripts.benchmarks import gpflow_models


@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
def test_the_search_comes_back_from_where_the_objective_is_not_finite(beyond: float) -> None:
    """log(1 − x) + 5x from -3: the first line search tries 2, and the maximum is at 0.8."""
    x, seen = tf.Variable(-3.0, dtype=tf.float64), []

    def objective() -> tuple[float, list[tf.Tensor]]:
        at = float(x)
        seen.append(at)
        if at >= 1.0:
            return beyond, [tf.constant(np.nan, tf.float64)]
        return np.log(1.0 - at) + 5.0 * at, [tf.constant(5.0 - 1.0 / (1.0 - at), tf.float64)]

    assert lbfgs.climb([x], objective, 100)
    assert max(seen) > 1.0
    assert abs(float(x) - 0.8) < 1e-5


def test_the_start_and_each_iterate_are_arrived_at_but_no_other_trial() -> None:
    """Sites wait where the start has brought them, so that the trials of the first line search are near."""
    x = tf.Variable(-3.0, dtype=tf.float64)
    seen: list[float] = []
    arrived: list[float] = []

    def objective() -> tuple[float, list[tf.Tensor]]:
        at = float(x)
        seen.append(at)
        value = np.log(1.0 - at) + 5.0 * at if at < 1.0 else -np.inf
        return value, [tf.constant(5.0 - 1.0 / (1.0 - at), tf.float64)]

    run = lbfgs.Run(LogSpace([x]), objective, 1e-8, arrived=lambda: arrived.append(seen[-1]))
    run.climb(2)
    assert arrived[0] == seen[0] == -3.0
    assert len(arrived) == 3
    assert max(arrived) < 1.0 < max(seen)
    run.climb(1)
    assert len(arrived) == 4  # the start but once
    assert arrived[-1] == float(x)


def test_a_start_that_is_not_finite_is_left_as_it_was() -> None:
    x = tf.Variable([2.0, 3.0], dtype=tf.float64)
    assert not lbfgs.climb([x], lambda: (np.nan, [tf.constant([1.0, np.nan], tf.float64)]), 10)
    np.testing.assert_array_equal(x, [2.0, 3.0])


def test_a_line_search_ends_in_the_noise_of_the_objective() -> None:
    """Where sites are brought near their fixed point only: 20 more trials would look for Wolfe's conditions."""
    x, evaluations = tf.Variable([3.0, -1.0], dtype=tf.float64), 0

    def objective() -> tuple[float, list[tf.Tensor]]:
        nonlocal evaluations
        evaluations += 1
        u, v = x.numpy()
        depth = np.cosh(u) + 2.0 * np.cosh(v - u) + 3e-8 * np.sin(1e7 * (u + v))
        slopes = np.sinh(u) - 2.0 * np.sinh(v - u), 2.0 * np.sinh(v - u)
        return -depth, [tf.constant([-slope - 3e-4 for slope in slopes], tf.float64)]

    run = lbfgs.Run(LogSpace([x]), objective, 1e-8)
    while not bool(run.ended):
        assert run.climb(20)
    assert evaluations <= 16
    np.testing.assert_allclose(x, [0.0, 0.0], atol=1e-3)


def test_a_short_step_on_a_slope_ends_no_run() -> None:
    """With a narrow direction and a gentle one the second iteration gains 1e-8, far below the top."""
    wide, narrow = (gpflow.Parameter(np.exp(at), transform=gpflow.utilities.positive()) for at in (9.0, 0.01))

    def objective() -> tuple[float, list[tf.Tensor]]:
        variables = [wide.unconstrained_variable, narrow.unconstrained_variable]
        with tf.GradientTape() as tape:
            u, v = tf.math.log(wide), tf.math.log(narrow)
            value = -750.0 - 1000.0 * v**2 - 3.0 * tf.math.log(tf.cosh((u - 2.0) / 40.0))
        return float(value), tape.gradient(value, variables)

    coordinates = LogSpace([wide.unconstrained_variable, narrow.unconstrained_variable], [wide, narrow])
    run = lbfgs.Run(coordinates, objective, 1e-8)
    while not bool(run.ended):
        assert run.climb(20)
    assert abs(np.log(wide) - 2.0) < 40.0**2 / 3.0 * guarded.STEEP


@pytest.mark.parametrize(("number", "valley", "gain"), [(20, True, 1e-8), (21, True, 1e-6), (100, True, 1e-6),
                                                        (101, True, 3e-5), (101, False, 1e-6)])  # fmt: skip
def test_the_more_numbers_move_the_sooner_a_flat_valley_ends(number: int, valley: bool, gain: float) -> None:
    variables = [tf.Variable(np.zeros(number - 1)), tf.Variable(0.0)]
    assert lbfgs.gain_of_a_step(variables, valley) == gain


@pytest.mark.slow
def test_free_inducing_points_do_not_climb_a_flat_valley_for_ever() -> None:
    found = gpflow_models.ours(gpflow_models.cases(300)["SVGP, free points"])
    assert found["evaluations"] < 400  # 1,101 to the last 0.0004 nats
    # Where GPflow's optimiser ends, nearly: rounding, which differs by processor, decides where in the valley, at most
    # 0.0012 nats below on those tried. There an end at gains of 1e-6 is 0.0019 and 0.0044 nats below.
    assert found["objective"] > -100.8443 - 1.5 * gpflow_models.NEAR


@pytest.mark.parametrize(
    ("depth", "slope", "step", "evaluated"),
    [
        (100.0, 9e-4, 1e-3, False),  # the tangent falls by 9e-7 of a loss of 100
        (100.0, 9e-4, 2e-3, True),  # by 1.8e-6
        (100.0, 1.1e-3, 5e-4, True),  # it is steep
        (1e5, 0.09, 0.01, False),  # by 9e-4, where 1e-3 counts as none
        (1e5, 0.09, 0.012, True),
        (1e5, 0.11, 0.005, True),  # it is steep there too
    ],
)
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_trial_from_which_nothing_is_to_be_gained_is_not_evaluated(
    depth: float, slope: float, step: float, evaluated: bool, in_graph: bool
) -> None:
    """A line of this slope through minus the depth, whose changes below 1e-8 of that count as none."""
    seen = []

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        seen.append(x)
        return depth - slope * float(x[0]), np.array([-slope])

    def in_tensors(x: tf.Tensor, promised: tf.Tensor) -> list[tf.Tensor]:
        wanted = slope * abs(float(x[0])) / (1.0 + depth)
        np.testing.assert_allclose(promised, wanted, rtol=1e-12)  # zero at the start
        return [tf.constant(part, tf.float64) for part in loss(x.numpy())]

    if in_graph:
        leap, ends = tf.constant([2.0], tf.float64), guarded.AtRest(1e-8)
        state = climb.turn(climb.fresh(tf.zeros([1], tf.float64), 5), in_tensors, leap, ends)[0]
        state = state._replace(search=state.search._replace(step=tf.constant(step / slope, tf.float64)))
        after, _, told, _ = climb.turn(state, in_tensors, leap, ends)
        assert bool(told) == evaluated
        assert int(after.status) == (climb.RUNNING if evaluated else climb.ENDED)
    else:
        guard = guarded.Guarded(loss, 1e-8, 2.0)
        guard(np.zeros(1))
        assert guard.promised == 0.0
        if evaluated:
            guard(np.array([step]))
            np.testing.assert_allclose(guard.promised, slope * step / (1.0 + depth), rtol=1e-12)
        else:
            with pytest.raises(SettledError):
                guard(np.array([step]))
            assert guard.best == (0.0, depth)
    assert len(seen) == 1 + evaluated


@pytest.mark.parametrize(
    ("offset", "first", "most"),
    [(0.02, 0.02, 5), (-0.02, 0.02, 5), (2.0, 1.0, 8)],
    ids=["near", "on the other side", "far"],
)
def test_a_first_step_is_short_near_an_optimum(offset: float, first: float, most: int) -> None:
    """Of a loss of a thousand, whose curvature in a logarithm is a fortieth of it."""
    seen = []

    def objective() -> tuple[float, list[tf.Tensor]]:
        x = float(variable) - 0.3
        seen.append(x)
        return -1000.0 - 12.5 * x**2, [tf.constant(-25.0 * x, tf.float64)]

    variable = tf.Variable(0.3 + offset, dtype=tf.float64)
    run = lbfgs.Run(LogSpace([variable], []), objective, 1e-8)
    run.climb(30)
    np.testing.assert_allclose(seen[1] - seen[0], -np.sign(offset) * first, rtol=0.05)
    assert len(seen) <= most
    assert abs(seen[-1]) < 1e-3


@pytest.mark.parametrize(
    ("gain", "move", "slope", "rests"),
    [
        (0.9, 1.0, 9e-4, True),  # a length scale that grows for ever
        (0.9, 1.0, 1.1e-3, False),
        (0.9, 2e-4, 1.1e-3, True),
        (1.1, 2e-4, 9e-4, False),
        (0.009, 1.0, 1.1e-3, True),
        (1.1, 1.0, 0.9e-5, True),
    ],
)
def test_an_iteration_is_the_last_one(gain: float, move: float, slope: float, rests: bool) -> None:
    assert guarded.is_at_rest(gain * 1e-6, move, slope, 1e-6) == rests
