"""Several starts: which are tried, what is reported of them, and that the best one goes on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.data import length_scales
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, StudentT
from gpflow_ext.models import VGPKMM, GPLaplace, SGPMCFreeForm, SparseEP, SVGPRobustMax
from gpflow_ext.training import trials
from gpflow_ext.training.findings import findings
from gpflow_ext.training.recipe import Plan, Run
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import FROM_DATA, FROM_TARGETS, OWN, assign, further_starts, number_of_starts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 12)) * np.linspace(0.5, 3.0, 12)
Y = (X[:, :1] / 0.5 + X[:, 1:2] / 0.7 > 0.3 * RNG.normal(size=(60, 1))).astype(float)


def ard(length: float) -> gpflow.kernels.Kernel:
    return gpflow.kernels.SquaredExponential(lengthscales=np.full(12, length))


def laplace(kernel: gpflow.kernels.Kernel) -> GPLaplace:
    return GPLaplace((X, Y), kernel, BernoulliLogit())


def test_inputs_that_do_not_vary_suggest_no_length_scale() -> None:
    """The mean of 0.1 is not 0.1: the deviation was 1e-17, and so was the length scale."""
    X = np.column_stack([np.arange(10.0), np.full(10, 0.1)])
    kernel = gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0])
    np.testing.assert_allclose(
        length_scales.suggested(kernel, X), np.sqrt(2.0) * np.array([X[:, 0].std(), 1.0])
    )
    assert length_scales.suggested(kernel, X[:, [1, 1]]) is None


def test_length_scales_of_the_inputs_are_their_deviations_times_the_root_of_their_number() -> None:
    model = laplace(ard(1.0) + gpflow.kernels.Matern32(active_dims=[2, 3]))
    [start] = further_starts(model, 1, 0, X)
    for variable, value in zip(model.trainable_variables, start.values, strict=True):
        variable.assign(value)
    first, second = model.kernel.kernels
    np.testing.assert_allclose(first.lengthscales, X.std(axis=0) * np.sqrt(12.0), rtol=1e-12)
    isotropic = np.sqrt(2.0 * np.mean(X[:, 2:4].var(axis=0)))
    np.testing.assert_allclose(second.lengthscales, isotropic, rtol=1e-12)
    np.testing.assert_allclose([first.variance.numpy(), second.variance.numpy()], 1.0, rtol=1e-12)
    assert [each.name for each in further_starts(model, 3, 0, X)] == [FROM_DATA, "random 1", "random 2"]
    assert [each.name for each in further_starts(model, 2, 0)] == ["random 1", "random 2"]
    gpflow.set_trainable(first.lengthscales, False)
    gpflow.set_trainable(second.lengthscales, False)
    assert [each.name for each in further_starts(model, 1, 0, X)] == ["random 1"]


def test_a_length_scale_for_each_input_is_started_twice() -> None:
    assert number_of_starts(laplace(problems.kernel()), None) == 1
    held = ard(1.0)
    assert number_of_starts(laplace(held), None) == 2
    assert number_of_starts(laplace(problems.kernel()), None, several_optima=True) == 2
    two = laplace(gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0]))
    assert number_of_starts(two, None, np.zeros([500, 2])) == 2
    several = laplace(gpflow.kernels.SquaredExponential(lengthscales=[1.0, 1.0, 1.0]))
    assert number_of_starts(several, None, np.zeros([500, 3])) == 5
    assert number_of_starts(several, None, np.zeros([501, 3])) == 2
    assert number_of_starts(laplace(held), 1) == 1
    gpflow.set_trainable(held.lengthscales, False)
    assert number_of_starts(laplace(held), None) == 1


def _of_numbers(unit: float) -> VGPKMM:
    """Targets in some unit, with outliers."""
    inputs = np.linspace(-2.0, 2.0, 60)[:, None]
    targets = np.sin(2.0 * inputs) + 0.1 * np.random.default_rng(1).normal(size=(60, 1))
    targets[::9] += 2.0
    return VGPKMM((inputs, unit * targets), gpflow.kernels.Matern32(), StudentT(df=4.0))


def test_the_end_does_not_hang_on_the_unit_of_the_targets() -> None:
    """At a variance of one noise explains targets of thousands: with one start it ended there, 37 nats below."""
    ends = []
    for unit in (1.0, 1e4):
        result = gpx.fit(_of_numbers(unit), progress=False)
        ends.append(result.objective[-1] + 60 * np.log(unit))
    np.testing.assert_allclose(ends[1], ends[0], atol=0.02)
    assert [tried.name for tried in result.starts] == [OWN, FROM_TARGETS]


def test_a_slope_of_inputs_in_thousands_is_started_from_functions_of_the_targets_size() -> None:
    """With a variance of one all labels are certain; GPflow's likelihood is flat there, and nothing moved."""
    inputs = np.linspace(1990.0, 2020.0, 40)[:, None]
    labels = (np.sin(inputs / 4.0) > 0.0).astype(float)
    kernel = gpflow.kernels.Matern32(lengthscales=4.0) + gpflow.kernels.Linear()
    model = gpflow.models.VGP((inputs, labels), kernel, gpflow.likelihoods.Bernoulli())
    before = findings(model)
    said = "kernel.kernels[1].variance: 1, 4.02e+06 of functions at the inputs, has run away"
    assert len(before) == 1
    assert before[0].startswith(said)
    result = gpx.fit(model, progress=False)
    assert [tried.name for tried in result.starts] == [OWN, FROM_TARGETS]
    assert result.objective[-1] > 40 * np.log(0.5)
    slope = kernel.kernels[1].variance
    slope.assign(1e-7)  # 0.4 at the inputs
    assert not findings(model)
    slope.assign(0.0025)
    assert number_of_starts(model, None, inputs, labels) == 2
    slope.assign(2e-4)
    assert number_of_starts(model, None, inputs, labels) == 1


def test_a_polynomial_is_started_by_its_degree_and_a_regression_by_the_mean_square() -> None:
    inputs = 100.0 * X
    model = gpflow.models.GPR((inputs, 10.0 * Y - 5.0), gpflow.kernels.Polynomial(degree=2, offset=1e-6))
    start = further_starts(model, 1, 0, *model.data)[0]
    assign(model.trainable_variables, start.values)
    found = np.mean(model.kernel(inputs, full_cov=False))
    np.testing.assert_allclose(found, np.mean(model.data[1] ** 2), rtol=1e-3)
    assert further_starts(gpflow.models.GPR((0.0 * X, Y), gpflow.kernels.Linear()), 1, 0, 0.0 * X, Y)


@pytest.mark.parametrize("road", ["lbfgs", "whole data", "ep", "vi_means", "adam"])
def test_every_recipe_starts_from_the_variance_of_the_targets_too(road: str) -> None:
    inputs, targets = _of_numbers(1e4).data
    kernel, noise = gpflow.kernels.Matern32(), gpflow.likelihoods.Gaussian()
    points = inputs.numpy()[::6].copy()
    options: dict[str, Any] = {}
    data = None
    if road == "ep":
        model = SparseEP((inputs, targets), kernel, noise, inducing_variable=points)
    elif road in ("whole data", "adam"):
        model = gpflow.models.SVGP(kernel, noise, points, num_data=60)
        data, options = (inputs, targets), {"recipe": "adam", "starts": 2} if road == "adam" else {}
    else:
        model = gpflow.models.SGPR((inputs, targets), kernel, points, likelihood=noise)
        options = {"recipe": road, "starts": 2}
    result = gpx.fit(model, data, steps=1, progress=False, **options)
    assert [tried.name for tried in result.starts][:2] == [OWN, FROM_TARGETS]


def test_variances_and_noise_of_a_start_are_those_of_the_targets() -> None:
    model = _of_numbers(1e4)
    targets = model.data[1].numpy()
    assert number_of_starts(_of_numbers(1.0), None, *_of_numbers(1.0).data) == 1
    assert number_of_starts(model, None, *model.data) == 2
    [start] = further_starts(model, 1, 0, *model.data)
    for variable, value in zip(model.trainable_variables, start.values, strict=True):
        variable.assign(value)
    np.testing.assert_allclose(model.kernel.variance, np.mean(targets**2), rtol=1e-6)
    np.testing.assert_allclose(model.likelihood.scale, np.sqrt(np.mean(targets**2)), rtol=1e-6)
    assert number_of_starts(model, None, *model.data) == 1
    linked = VGPKMM(problems.counts(), gpflow.kernels.Matern32(1e-6), gpflow.likelihoods.Poisson())
    assert number_of_starts(linked, None, *linked.data) == 1
    with_mean = gpflow.models.GPR(
        (X, Y + 1e3), gpflow.kernels.Matern32(lengthscales=3.0), gpflow.functions.Constant()
    )
    assert number_of_starts(with_mean, None, *with_mean.data) == 1


@pytest.mark.parametrize("build", [laplace, lambda kernel: gpr(kernel)])
def test_one_length_scale_far_from_those_of_the_inputs_is_started_twice(build: Any) -> None:
    """Where no two rows are related, or all are alike, the objective is flat at the model's own start."""
    middle = float(np.sqrt(12.0 * np.mean(X.var(axis=0))))
    near, far = (gpflow.kernels.SquaredExponential(lengthscales=middle / times) for times in (7.0, 100.0))
    assert number_of_starts(laplace(near), None, X) == 1
    assert number_of_starts(laplace(far), None, X) == 2
    assert number_of_starts(laplace(far), 1, X) == number_of_starts(laplace(far), None) == 1
    result = gpx.fit(build(far), progress=False)
    best = gpx.fit(build(gpflow.kernels.SquaredExponential(lengthscales=middle)), progress=False)
    assert [tried.name for tried in result.starts] == [OWN, FROM_DATA]
    assert best.starts == ()
    assert result.objective[-1] > best.objective[-1] - 1e-3
    gpflow.set_trainable(far.lengthscales, False)
    assert number_of_starts(laplace(far), None, X) == 1


def gpr(kernel: gpflow.kernels.Kernel) -> gpflow.models.GPR:
    return gpflow.models.GPR((X, np.sin(X[:, :1]) + 0.1 * Y), kernel, noise_variance=0.1)


def sparse_ep(kernel: gpflow.kernels.Kernel) -> SparseEP:
    model = SparseEP((X, Y), kernel, BernoulliProbit(), inducing_variable=X[:15])
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def vgp(kernel: gpflow.kernels.Kernel) -> gpflow.models.VGP:
    return gpflow.models.VGP((X, Y), kernel, BernoulliLogit())


def test_starts_stay_above_lower_bounds() -> None:
    """Of targets of unit size a variance of 1e7 suggests noise far below the bound 1e-6 that GPflow sets."""
    inputs = np.linspace(0.0, 1.0, 20)[:, None]
    kernel = gpflow.kernels.SquaredExponential(1e7)
    model = gpflow.models.GPR((inputs, np.sin(6.0 * inputs)), kernel, noise_variance=1.1e-6)
    for start in further_starts(model, 10, 0, *model.data):
        assert all(np.isfinite(value).all() for value in start.values), start.name


@pytest.mark.parametrize(
    "build",
    [
        laplace,
        gpr,
        pytest.param(sparse_ep, marks=pytest.mark.slow),
        pytest.param(vgp, marks=pytest.mark.slow),
    ],
)
def test_the_best_of_the_starts_goes_on(build: Any, tmp_path: Path) -> None:
    """From length scales at which no two rows are related, the model's own start climbs nowhere."""
    alone, several, resumed = build(ard(0.05)), build(ard(0.05)), build(ard(0.05))
    poor = gpx.fit(alone, starts=1, progress=False)
    result = gpx.fit(several, progress=False)
    assert [tried.name for tried in result.starts] == [OWN, FROM_DATA, "random 1", "random 2", "random 3"]
    assert poor.starts == ()
    np.testing.assert_allclose(result.starts[0].objective, poor.objective[0], rtol=1e-9)
    assert result.objective[0] == pytest.approx(max(tried.objective for tried in result.starts), rel=1e-9)
    assert result.objective[-1] > poor.objective[-1] + 1.0
    gpx.fit(build(ard(0.05)), steps=1, checkpoint_dir=tmp_path, progress=False)
    again = gpx.fit(resumed, checkpoint_dir=tmp_path, progress=False)
    assert again.first_step == 1
    for a, b in zip(resumed.trainable_variables, several.trainable_variables, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(a), tf.convert_to_tensor(b))


def test_a_fit_from_a_sound_start_makes_no_others(monkeypatch) -> None:
    made = []
    monkeypatch.setattr("gpflow_ext.training.starts.further_starts", lambda *arguments: made.append(1) or [])
    gpx.fit(laplace(gpflow.kernels.SquaredExponential()), progress=False)
    assert made == []


def free_form(length: float) -> SGPMCFreeForm:
    kernel = ard(length)
    gpflow.set_trainable(kernel.variance, False)
    return SGPMCFreeForm((X, Y), kernel, BernoulliProbit(), inducing_variable=X[:15])


def test_a_gaussian_approximation_goes_on_from_the_best_of_its_starts() -> None:
    alone, several = free_form(0.05), free_form(0.05)
    poor = gpx.gaussian_approximation(alone, starts=1, free_inducing=False)
    result = gpx.gaussian_approximation(several, free_inducing=False)
    assert poor.starts == ()
    assert [tried.name for tried in result.starts] == [OWN, FROM_DATA, "random 1", "random 2", "random 3"]
    np.testing.assert_allclose(result.starts[0].objective, poor.objective[-1], rtol=1e-9)
    assert result.objective[-1] >= max(tried.objective for tried in result.starts) > poor.objective[-1] + 1.0
    assert result.status is poor.status is gpx.Status.CONVERGED
    assert len(result.times) == result.steps == len(result.objective)
    svgp = gpflow.models.SVGP(
        several.kernel, several.likelihood, X[:15], q_mu=several.q_mu, q_sqrt=several.q_sqrt
    )
    np.testing.assert_allclose(result.objective[-1], svgp.elbo((X, Y)) + svgp.log_prior_density(), rtol=1e-9)
    again = gpx.gaussian_approximation(free_form(0.05), free_inducing=False, seed=1, starts=3).starts
    assert [tried.name for tried in again] == [OWN, FROM_DATA, "random 1"]
    assert again[:2] == result.starts[:2]
    assert again[2].objective != result.starts[2].objective
    with pytest.raises(ValueError, match="`starts` must be at least 1; got 0"):
        gpx.gaussian_approximation(several, starts=0)


def test_a_gaussian_approximation_that_still_rises_says_so(monkeypatch) -> None:
    monkeypatch.setattr("gpflow_ext.sampling.approximation.STEPS", 10)
    with pytest.warns(gpx.FitWarning, match=r"still rising when the 10 steps were over.*Give more `steps`"):
        result = gpx.gaussian_approximation(free_form(2.0), starts=1, free_inducing=False)
    assert result.status is gpx.Status.MAX_STEPS
    assert "kernel.lengthscales" in result.notes[0]
    gpx.gaussian_approximation(free_form(2.0), steps=10, starts=1, free_inducing=False)


def svgp(kernel: gpflow.kernels.Kernel) -> gpflow.models.SVGP:
    return gpflow.models.SVGP(kernel, BernoulliLogit(), X[:15], num_data=len(X))


def robust_max(kernel: gpflow.kernels.Kernel) -> SVGPRobustMax:
    return SVGPRobustMax(kernel, 2, X[:15], num_data=len(X))


SMALL_STEPS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ep": (sparse_ep, {"minibatch_size": 20}),
    "ep, several in a call": (sparse_ep, {"minibatch_size": 10, "steps_per_call": 3}),
    "ep, signs": (sparse_ep, {"optimizer": "sign_agreement"}),
    "robust max": (robust_max, {"minibatch_size": 10}),
    "gpflow": (svgp, {"minibatch_size": 10}),
    "dual": (svgp, {"recipe": "dual", "minibatch_size": 10}),
    "adam": (svgp, {"recipe": "adam", "minibatch_size": 10, "starts": 2}),
    "svi_natural": (svgp, {"recipe": "svi_natural", "minibatch_size": 10, "starts": 2}),
    "svi_sag": (svgp, {"recipe": "svi_sag", "starts": 2, "steps": 600}),
    "svi_fg": (svgp, {"recipe": "svi_fg", "starts": 2}),
    "svi_classification": (svgp, {"recipe": "svi_classification", "minibatch_size": 20, "starts": 2}),
}


@pytest.mark.parametrize("name", others_slow(SMALL_STEPS, "ep"))
def test_small_steps_begin_at_the_best_of_several_starts(name: str, tmp_path) -> None:
    """A run from the best start is the run of a model that was built there."""
    build, options = SMALL_STEPS[name]
    options = {"steps": 30} | options
    alone, several, there, resumed = (build(ard(0.05)) for _ in range(4))
    data = (X, Y) if isinstance(alone, gpflow.models.SVGP) else None
    poor = gpx.fit(alone, data, **options | {"starts": 1}, progress=False)
    result = gpx.fit(several, data, **options, progress=False)
    assert poor.starts == ()
    assert [tried.name for tried in result.starts[:2]] == [OWN, FROM_DATA]
    assert len(result.starts) == options.get("starts", 5)
    best = np.argmax([tried.objective for tried in result.starts])
    assert best > 0
    for variable, value in zip(
        there.trainable_variables, further_starts(there, best, 0, X)[-1].values, strict=True
    ):
        variable.assign(value)
    by_hand = gpx.fit(there, data, **options | {"starts": 1}, progress=False)
    np.testing.assert_allclose(result.objective, by_hand.objective, rtol=1e-9)
    assert np.mean(result.objective[-5:]) > np.mean(poor.objective[-5:]) + 1.0
    cut = options["steps"] - 1  # by which trials are as long
    for steps in (cut, cut + 1):
        again = gpx.fit(resumed, data, **options | {"steps": steps}, checkpoint_dir=tmp_path, progress=False)
    assert again.first_step == cut
    for a, b in zip(resumed.trainable_variables, several.trainable_variables, strict=True):
        np.testing.assert_array_equal(tf.convert_to_tensor(a), tf.convert_to_tensor(b))


def test_an_optimizer_of_the_users_forgets_the_trials() -> None:
    runs = []
    for starts in (1, 2):
        model = svgp(gpflow.kernels.SquaredExponential(lengthscales=[2.0, 2.0, *[100.0] * 10]))
        adam = tf_keras.optimizers.Adam(0.05)
        result = gpx.fit(
            model, (X, Y), optimizer=adam, minibatch_size=10, steps=20, starts=starts, progress=False
        )
        assert int(adam.iterations) == 20
        runs.append(result.objective)
    assert result.starts[0].objective > result.starts[1].objective
    np.testing.assert_array_equal(*runs)


class Counting:
    """A solver that counts its steps, and fails in one of them."""

    def __init__(self, fails: int = 0) -> None:
        self.done, self.fails = 0, fails

    def step(self) -> Progress:
        self.done += 1
        return Progress(np.nan if self.done == self.fails else float(self.done))


@pytest.mark.parametrize(
    ("run", "most", "fails", "done"),
    [
        (Run(steps=1000), np.inf, 0, 20),  # a tenth of the plan's steps
        (Run(steps=150), np.inf, 0, 15),
        (Run(steps=1), np.inf, 0, 10),
        (Run(), np.inf, 0, 8),  # the first, and those begun within six seconds after it
        (Run(seconds=45.0), np.inf, 0, 6),
        (Run(seconds=45.0, steps=1000), np.inf, 0, 6),
        (Run(seconds=0.0), np.inf, 0, 2),
        (Run(), 3, 0, 3),
        (Run(), np.inf, 4, 4),
        (Run(), np.inf, 1, 1),
    ],
)
def test_a_trial_ends_with_its_steps_or_its_seconds(run, most, fails, done, monkeypatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(trials, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    plan = Plan(Counting(fails), [], 200, None)
    found = trials._objectives(plan, most, run)
    assert plan.solver.done == len(found) == done
    assert np.isnan(found[-1]) == bool(fails)


def test_the_seconds_of_a_fit_bound_its_trials(monkeypatch) -> None:
    taken, objectives = [], trials._objectives

    def counted(*arguments: Any) -> list[float]:
        found = objectives(*arguments)
        taken.append(len(found))
        return found

    monkeypatch.setattr(trials, "_objectives", counted)
    result = gpx.fit(svgp(ard(1.0)), (X, Y), minibatch_size=10, starts=3, seconds=1e-9, progress=False)
    assert taken == [2]
    assert [tried.name for tried in result.starts] == [OWN]


def test_starts_on_datasets_and_several_devices() -> None:
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().batch(10)
    by_default = gpx.fit(svgp(ard(0.05)), dataset, steps=3, progress=False)
    assert by_default.starts == ()
    asked = gpx.fit(svgp(ard(0.05)), dataset, steps=3, starts=2, progress=False)
    assert [tried.name for tried in asked.starts] == [OWN, "random 1"]
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    options = {"recipe": "dual", "strategy": strategy, "minibatch_size": 10, "steps": 3}
    assert gpx.fit(svgp(ard(0.05)), (X, Y), **options, progress=False).starts == ()
    with pytest.raises(ValueError, match="`starts` are for one device"):
        gpx.fit(svgp(ard(0.05)), (X, Y), **options, starts=2)


@pytest.mark.parametrize("optimizer", ["lbfgs", "projected_newton"])
def test_starts_of_the_review(optimizer: str) -> None:
    model = gpr(ard(0.05))
    result = gpx.fit(model, recipe="vi_means", optimizer=optimizer, starts=2, progress=False)
    assert [tried.name for tried in result.starts] == [OWN, FROM_DATA]
    assert result.objective[-1] > result.starts[0].objective + 1.0
    if optimizer == "lbfgs":
        options = {"recipe": "svi_lbfgsb", "starts": 2, "bounds": (1e-3, 1e3), "steps": 3}
        result = gpx.fit(svgp(ard(0.05)), (X, Y), **options, progress=False)
        assert result.objective[-1] >= max(tried.objective for tried in result.starts)


def test_numbers_of_starts_are_checked() -> None:
    for build in (laplace, gpr):
        with pytest.raises(ValueError, match="`starts` must be at least 1; got 0"):
            gpx.fit(build(ard(1.0)), starts=0)


@pytest.mark.parametrize(
    ("build", "options"),
    [
        (laplace, {"hyper_updates": 1}),
        (gpr, {"recipe": "lbfgs", "iterations": 1}),
        (sparse_ep, {"optimizer": "sign_agreement"}),
    ],
)
def test_a_run_goes_on_from_where_one_start_would_do(build: Any, options: Any, tmp_path: Path) -> None:
    """A far length scale has two starts, what it has become has one: the same call goes on all the same."""
    far = gpflow.kernels.SquaredExponential(lengthscales=2000.0)
    model, whole = build(far), build(gpflow.kernels.SquaredExponential(lengthscales=2000.0))
    first = gpx.fit(model, steps=2, **options, checkpoint_dir=tmp_path, progress=False)
    assert len(first.starts) == 2
    assert number_of_starts(model, None, X) == 1
    again = gpx.fit(model, steps=4, **options, checkpoint_dir=tmp_path, progress=False)
    assert again.first_step == 2
    expected = gpx.fit(whole, steps=4, **options, progress=False)
    np.testing.assert_array_equal(again.objective, expected.objective[2:])
