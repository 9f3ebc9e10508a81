"""Runs by small steps without a number of them: they go on while the objective rises."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.ep.minibatches import _first_look
from gpflow_ext.fitting import _BY_NAME
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.training import open_end
from gpflow_ext.training.line import Line
from gpflow_ext.training.solver import Steps

Z = problems.inputs(5, seed=5)
ROWS = 30


def climbing(model: Any, run: gpx.Run, *, scale: float = 40.0) -> gpx.Plan:
    """A recipe whose objective rises towards zero, by 1/e in so many steps."""
    done = tf.Variable(0.0, dtype=tf.float64)

    def step() -> float:
        done.assign_add(1.0)
        return -100.0 * math.exp(-float(done) / scale) - 100.0

    return gpx.Plan(Steps(step, [done]), [done], 20, None, trackables={"done": done}, period=1)


def fit(**options: Any) -> gpx.FitResult:
    model = gpflow.models.GPR(problems.continuous(), problems.kernel())
    return gpx.fit(model, recipe=climbing, progress=False, **options)


def test_a_line_through_sums_is_that_of_least_squares() -> None:
    values = 5.0 + 0.5 * np.arange(200.0) + np.random.default_rng(0).normal(size=200)
    slope = np.polyfit(np.arange(200), values, 1)[0]
    assert Line.through(values).rise == pytest.approx(200 * slope, rel=1e-9)
    assert Line.through(values - 2e6).rise is None  # under 1e-4 of it


def test_the_noise_of_minibatches_cancels_over_a_pass() -> None:
    """A rise of a third of the noise of a minibatch in two hundred of them; each pass has the same rows."""
    rng = np.random.default_rng(0)
    noise = np.concatenate([rng.permutation(np.linspace(-3.0, 3.0, 20)) for _ in range(10)])
    values = 100.0 + 0.5 * np.arange(200.0) / 200.0 + noise
    assert Line.through(values).rise is None
    assert Line.through(values, block=20).rise == pytest.approx(0.5, abs=0.1)


def test_noise_that_may_hide_a_rise_of_a_thousandth_has_not_settled() -> None:
    """Passes so long that the last third has less than one, as those of 200 rows among 40,000."""
    noise = np.random.default_rng(1).normal(size=300)
    rising = 1000.0 + 0.02 * np.arange(300.0)
    assert Line.through(rising + 20.0 * noise).rise is None
    assert Line.through(rising + 20.0 * noise).may_rise
    still = Line.through(1000.0 + noise)
    assert (still.rise, still.may_rise) == (None, False)


def test_a_run_whose_noise_hides_the_rise_goes_on() -> None:
    noise = 5.0 * np.random.default_rng(3).normal(size=6000)

    def noisy(model: Any, run: gpx.Run) -> gpx.Plan:
        done = tf.Variable(0, dtype=tf.int64)

        def step() -> float:
            done.assign_add(1)
            return 1000.0 + noise[int(done)]

        return gpx.Plan(Steps(step, [done]), [done], 20, None, trackables={"done": done}, period=1)

    model = gpflow.models.GPR(problems.continuous(), problems.kernel())
    result = gpx.fit(model, recipe=noisy, progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert 100 < result.steps < 6000


def test_a_run_goes_on_until_it_has_settled_and_given_steps_are_as_given() -> None:
    result = fit()
    assert result.status is gpx.Status.CONVERGED
    assert result.objective[-1] > -100.1
    assert fit(scale=1.0).steps == 20
    given = fit(steps=20)
    assert (given.steps, given.status) == (20, gpx.Status.MAX_STEPS)


def test_a_run_that_does_not_settle_ends_after_some_seconds_and_says_so(monkeypatch) -> None:
    monkeypatch.setattr(open_end, "SECONDS", 0.1)
    with pytest.warns(gpx.FitWarning, match=r"seconds were over.*`fit` the model again"):
        result = fit(scale=1e4)
    assert result.status is gpx.Status.OUT_OF_TIME
    asked = fit(scale=1e4, seconds=0.3)  # no warning: the seconds are those asked for
    assert asked.seconds > 0.2


def test_a_resumed_run_settles_where_the_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = fit()
    for steps in (25, 47):
        fit(steps=steps, checkpoint_dir=tmp_path)
    resumed = fit(checkpoint_dir=tmp_path)
    assert (resumed.first_step, resumed.steps) == (47, whole.steps)
    assert len(fit(checkpoint_dir=tmp_path).objective) == 0


@pytest.mark.parametrize(
    ("recipe", "options", "period"),
    [
        ("adam", {}, 1),
        ("adam", {"minibatch_size": 5}, 6),
        ("gpflow", {"minibatch_size": 5}, 6),
        ("dual", {"minibatch_size": 5, "steps_per_call": 3}, 2),
        ("svi_natural", {"minibatch_size": 4}, 8),
        ("svi_classification", {"minibatch_size": 5}, 6),
        ("svi_sag", {"minibatch_size": 5}, 6),
        ("svi_fg", {}, 1),
    ],
)
def test_recipes_by_small_steps_have_an_open_end(recipe: str, options: dict[str, Any], period: int) -> None:
    model = gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z.copy(), num_data=ROWS)
    assert _BY_NAME[recipe](model, problems.binary(ROWS), **options).period == period


def test_minibatches_of_robust_max_have_an_open_end() -> None:
    model = gpx.models.SVGPRobustMax(problems.kernel(), 3, Z.copy(), num_data=ROWS)
    plan = _BY_NAME["robust_max"](model, problems.classes(ROWS), minibatch_size=10)
    assert plan.period == 3


def test_steps_of_expectation_propagation_by_an_optimiser_have_an_open_end() -> None:
    kernel = gpflow.kernels.SquaredExponential()
    model = gpx.models.SparseEP(problems.binary(ROWS), kernel, BernoulliLogit(), inducing_variable=Z.copy())
    recipe = _BY_NAME["ep"]
    assert recipe(model, minibatch_size=7, steps_per_call=2).period == 3
    assert recipe(model, minibatch_size=7).steps == 50
    assert recipe(model, optimizer="sign_agreement").period == 1
    assert recipe(model).period == 0  # L-BFGS, which ends by itself
    for part in (kernel, model.inducing_variable):
        gpflow.set_trainable(part, False)
    assert recipe(model, minibatch_size=7).period == 0  # the sites settle


def test_expectation_propagation_looks_after_ten_epochs_or_a_thousand_steps_and_two() -> None:
    assert _first_look(25, 1) == 250
    assert _first_look(300, 1) == 1000
    assert _first_look(866, 1) == 1732
    assert _first_look(30, 10) == 100  # calls of ten


def test_first_order_steps_of_networks_have_an_open_end() -> None:
    X, Y = problems.inputs(ROWS), np.random.default_rng(0).normal(size=(ROWS, 3))
    adam = tf_keras.optimizers.Adam(0.1)

    def period(posterior: str, **options: Any) -> int:
        kernels = (gpflow.kernels.SquaredExponential() for _ in range(2))
        return _BY_NAME["gprn"](
            gpx.models.GPRNTensor((X, Y), *kernels, 1, posterior=posterior), **options
        ).period

    assert period("tensor", minibatch_size=2) == 2
    assert period("tensor", optimizer=adam) == period("collapsed", optimizer=adam) == 1
    assert period("tensor") == period("collapsed") == 0  # L-BFGS, which ends by itself


def test_lengths_fall_along_a_cosine_only_where_the_steps_are_given() -> None:
    """At its end any objective is at rest: nothing would tell that a run has settled."""
    model = gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z.copy(), num_data=ROWS)
    names = [
        _BY_NAME["gpflow"](model, problems.binary(ROWS), minibatch_size=5, steps=end).settings["name"]
        for end in (None, 5)
    ]
    assert names == ["root", "cosine"]
