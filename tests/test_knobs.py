"""The knobs of the recipes bite: another value of an option gives another run."""

from __future__ import annotations

import re
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit
from gpflow_ext.models import VGPKMM, GPRNTensor, SparseEP, SVGPRobustMax
from gpflow_ext.svgp.gpflow_models import gpflow_model
from gpflow_ext.training import scale, starts
from gpflow_ext.training.gradient_descent import gradient_descent
from gpflow_ext.training.scale import scale_failure
from gpflow_ext.training.schedules import Schedule, ScheduleOptions
from gpflow_ext.training.starts import further_starts

DATA = problems.binary(24, variance=40.0, lengthscale=1.0)
Z = problems.inputs(5, seed=5)
SGD = tf_keras.optimizers.SGD(0.01)


def _kmm() -> VGPKMM:
    return VGPKMM(DATA, problems.kernel(), BernoulliLogit())


def _ep() -> SparseEP:
    return SparseEP(DATA, problems.kernel(), BernoulliProbit(), inducing_variable=Z)


def _robust_max() -> SVGPRobustMax:
    return SVGPRobustMax(problems.kernel(), 2, Z, num_data=24)


def _svgp() -> gpflow.models.SVGP:
    return gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z.copy(), num_data=24)


def _tensor() -> GPRNTensor:
    X, Y = problems.continuous(12)
    return GPRNTensor((X, Y), problems.kernel(), problems.kernel(), 2, posterior="tensor")


def _gprn() -> GPRNTensor:
    X, Y = problems.continuous(12)
    return GPRNTensor((X, Y * np.linspace(0.5, 1.5, 6)), problems.kernel(), problems.kernel(), 2)


RUNS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "kmm": (_kmm, None, {"hyper_updates": 3}),
    "ep": (_ep, None, {}),
    "ep lbfgs": (_ep, None, {"optimizer": "lbfgs", "hyper_updates": 3}),
    "robust_max": (_robust_max, DATA, {"minibatch_size": 8}),
    "gradient_descent": (_svgp, DATA, {"recipe": "adam", "minibatch_size": 8}),
    "gprn": (_gprn, None, {"hyper_updates": 3, "factor_start": False}),
    "gprn, its own start": (
        _gprn,
        None,
        {"hyper_updates": 3, "factor_start": False, "independent_start": False, "moment_start": False},
    ),
}
KNOBS = [
    ("kmm", {"hyper_updates": 5}),
    ("kmm", {"site_updates": 1}),
    ("ep", {"damping": 0.3}),
    ("ep", {"minibatch_size": 8}),
    pytest.param("ep lbfgs", {"site_updates": 1}, marks=pytest.mark.slow),
    ("robust_max", {"gamma": 0.5}),
    ("robust_max", {"gamma": None}),
    ("robust_max", {"rate": 0.1}),
    ("robust_max", {"decay_steps": 4}),
    ("robust_max", {"schedule": "constant"}),
    ("robust_max", {"hold": 3}),
    ("robust_max", {"seed": 1}),
    ("gradient_descent", {"decay_steps": 4}),
    ("gradient_descent", {"seed": 1}),
    ("gprn", {"sweeps": 0}),
    pytest.param("gprn", {"joint": False}, marks=pytest.mark.slow),
    pytest.param("gprn, its own start", {"factor_start": True}, marks=pytest.mark.slow),
    pytest.param("gprn", {"independent_start": False}, marks=pytest.mark.slow),
    pytest.param("gprn", {"moment_start": False}, marks=pytest.mark.slow),
]
STEPS = {"gprn": 1, "gprn, its own start": 1, "ep lbfgs": 1}  # of a run; 4 of the others


def _trace(run: str, **changed: Any) -> np.ndarray:
    build, data, options = RUNS[run]
    result = gpx.fit(build(), data, steps=STEPS.get(run, 4), **{**options, **changed})
    assert np.isfinite(result.objective).all()
    return result.objective


@pytest.fixture(scope="module")
def plain() -> dict[str, np.ndarray]:
    return {}


@pytest.mark.parametrize(("run", "changed"), KNOBS)
def test_another_value_gives_another_run(plain, run: str, changed: dict[str, Any]) -> None:
    if run not in plain:
        plain[run] = _trace(run)
    found = _trace(run, **changed)
    assert len(found) != len(plain[run]) or np.abs(found - plain[run]).max() > 1e-6 * np.abs(found).max()


UNUSED = {
    "a schedule of another optimiser": (
        _svgp,
        DATA,
        {"optimizer": SGD, "schedule": "root"},
        "`schedule` would",
    ),
    "the same by its recipe": (
        _svgp,
        DATA,
        {"recipe": "adam", "optimizer": SGD, "decay_steps": 9},
        "`decay_steps`",
    ),
    "a start of another optimiser": (_svgp, DATA, {"optimizer": SGD, "start": "labels"}, "start_from_labels"),
    "a schedule of L-BFGS": (_svgp, DATA, {"schedule": "root"}, "L-BFGS finds its step lengths"),
    "a rate of another optimiser": (_robust_max, DATA, {"optimizer": SGD, "rate": 0.1}, "`rate` would"),
    "patience without rows": (_robust_max, DATA, {"patience": 3, "validate_every": 9}, "give `validation`"),
    "sweeps of minibatches": (_ep, None, {"minibatch_size": 8, "site_updates": 9}, "`site_updates` would"),
    "L-BFGS beside Adam": (_ep, None, {"optimizer": SGD, "hyper_updates": 9}, "`hyper_updates` would"),
    "sweeps of a tensor": (_tensor, None, {"sweeps": 3}, "`sweeps` would not be used: they are of the coll"),
    "starts of a tensor by Adam": (_tensor, None, {"optimizer": SGD, "joint": False}, "`joint` would"),
}


@pytest.mark.parametrize(("build", "data", "options", "text"), UNUSED.values(), ids=UNUSED)
def test_options_that_nothing_would_follow_are_refused(
    build: Any, data: Any, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        gpx.fit(build(), data, **options)


@pytest.mark.parametrize(
    ("recipe", "options", "last"),
    [
        (gradient_descent, {}, 0.01),
        (gradient_descent, {"decay_steps": 500}, 0.0005),
        (gpflow_model, {}, 0.0005),
        (gpflow_model, {"schedule": "constant"}, 0.01),
    ],
)
def test_the_rate_of_adam_on_minibatches(recipe: Any, options: dict[str, Any], last: float) -> None:
    """After a thousand: as it was by its own recipe, and fallen for a model of GPflow's that goes by it."""
    model = gpflow.models.SVGP(problems.kernel(), BernoulliLogit(), Z.copy(), q_diag=True, num_data=24)
    plan = recipe(model, DATA, minibatch_size=8, steps=1000, **options)
    rate = plan.trackables["optimizer"]._learning_rate
    rates = [float(rate(step) if callable(rate) else rate) for step in (0, 1000)]
    np.testing.assert_allclose(rates, [0.01, last], rtol=1e-5)


def test_the_lengths_of_natural_gradient_steps_rise_and_then_fall_by_a_cosine() -> None:
    lengths = np.array([Schedule("cosine", 100).lengths(0.4)(step) for step in range(121)])
    assert (np.diff(lengths[:9]) > 0.0).all()
    assert (np.diff(lengths[10:100]) < 0.0).all()
    np.testing.assert_allclose(lengths[50], 0.4 * (0.05 + 0.95 * 0.5), rtol=1e-12)
    np.testing.assert_allclose(lengths[100:], 0.4 * 0.05, rtol=1e-12)
    np.testing.assert_allclose([Schedule().lengths(0.4)(step) for step in (9, 500)], 0.4, rtol=1e-12)


def test_lengths_fall_by_a_root_whatever_the_number_of_steps() -> None:
    """At step 150 to a half; to no less than 0.01, unless they begin below."""
    schedule = Schedule("root")
    lengths, rate = schedule.lengths(0.4), schedule.rate(0.1)
    np.testing.assert_allclose([lengths(step) for step in (0, 150, 10**6)], [0.04, 0.2, 0.01], rtol=1e-12)
    np.testing.assert_allclose(schedule.lengths(0.001)(10**6), 0.001, rtol=1e-12)
    np.testing.assert_allclose([float(rate(step)) for step in (0, 150)], [0.1, 0.05], rtol=1e-6)


def test_the_default_rate_decays_after_the_hold() -> None:
    rate = Schedule("cosine", 100).rate(0.01, 20)
    values = [float(rate(step)) for step in (0, 40, 80, 500)]
    np.testing.assert_allclose(values, 0.01 * np.array([1.0, 0.05 + 0.95 * 0.5, 0.05, 0.05]), rtol=1e-5)
    assert Schedule().rate(0.01, 20) == 0.01


def test_the_schedule_is_the_recipes_own_and_a_cosine_where_its_steps_are_given() -> None:
    own = Schedule("root")
    assert ScheduleOptions().falling(own) == own
    assert ScheduleOptions(schedule="constant").falling(own).name == "constant"
    for options in (ScheduleOptions(decay_steps=7), ScheduleOptions("cosine", 7)):
        assert options.falling(own) == Schedule("cosine", 7)
    for options, text in (
        ({"schedule": "linear"}, "`schedule` must be one of"),
        ({"schedule": "cosine"}, "goes with schedule"),
        ({"schedule": "root", "decay_steps": 7}, "goes with schedule"),
    ):
        with pytest.raises(ValueError, match=text):
            ScheduleOptions(**options)


def test_further_starts_differ_from_the_models_own_and_from_each_other() -> None:
    model = _kmm()
    starts = [[part.numpy() for part in start.values] for start in further_starts(model, 3, seed=4)]
    own = [variable.numpy() for variable in model.trainable_variables]
    everything = np.array([own, *starts])
    apart = np.abs(everything[:, None] - everything[None]).min(axis=-1)
    assert apart[~np.eye(4, dtype=bool)].min() > 1e-3
    again = [[part.numpy() for part in start.values] for start in further_starts(model, 3, seed=4)]
    np.testing.assert_array_equal(again, starts)
    assert np.abs(np.array(further_starts(model, 1, seed=5)[0].values) - starts[0]).max() > 1e-3


def test_one_start_computes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(starts, "_from_data", lambda model, *known: asked.append(known) or [])
    assert further_starts(_kmm(), 0, seed=4, X=DATA[0]) == []
    assert asked == []
    assert [start.name for start in further_starts(_kmm(), 1, seed=4, X=DATA[0])] == ["random 1"]
    assert len(asked) == 1


@pytest.mark.parametrize(("distance", "warned"), [(3.0, False), (4.5, True)])
def test_the_warning_of_the_scale_comes_where_correlations_are_below_a_thousandth(distance, warned) -> None:
    """exp(−3²/2) = 0.011 still tells something of the neighbour, exp(−4.5²/2) = 4e-5 does not."""
    X = distance * np.arange(6.0)[:, None]
    kernel = gpflow.kernels.SquaredExponential()
    model = VGPKMM((X, (X > 8.0).astype(float)), kernel, BernoulliLogit())
    failure = scale_failure(model)
    assert (failure is not None and "relates no input" in failure) == warned


FALLING = ("Exponential", "Matern12", "Matern32", "Matern52", "SquaredExponential")


@pytest.mark.parametrize("kind", FALLING)
@pytest.mark.parametrize(
    ("distance", "known"), [(0.0019, False), (0.0021, True), (3.69, True), (3.71, False)]
)
def test_what_distances_alone_clear_covariances_clear_too(kind, distance, known, monkeypatch) -> None:
    """Between 2 · 10⁻³, twice the root of the jitter, and 3.7 length scales no covariance is computed."""
    X = np.array([[0.0, 7.0], [0.0, 7.0], [2.0 * distance, -5.0]])
    kernel = getattr(gpflow.kernels, kind)(30.0, 2.0, active_dims=[0])
    model = VGPKMM((X, np.array([[0.0], [1.0], [1.0]])), kernel, BernoulliLogit())
    computed: list[int] = []
    covariance = scale.covariance
    monkeypatch.setattr(scale, "covariance", lambda *given: computed.append(1) or covariance(*given))
    by_distance = scale_failure(model)
    assert (not computed) == known
    monkeypatch.setattr(scale, "_suits", lambda *_: False)
    assert by_distance == scale_failure(model)
    assert by_distance is None or not known


@pytest.mark.parametrize(
    ("nodes", "weights", "found"),
    [
        (1e6, 1.0, None),
        (1.0, 1e6, None),
        (1e6, 1e6, "does not tell the inputs apart"),
        (1e-3, 1.0, "^kernel: it relates no"),
        (1e6, 1e-3, "^weight_kernel: it relates no"),
    ],
)
def test_a_network_is_flat_where_neither_its_nodes_nor_its_weights_vary(nodes, weights, found) -> None:
    X = np.linspace(0.0, 3.0, 8)[:, None]
    kernels = (gpflow.kernels.SquaredExponential(lengthscales=length) for length in (nodes, weights))
    failure = scale_failure(GPRNTensor((X, np.sin([1.0, 2.0] * X)), *kernels, 1))
    assert failure is None if found is None else re.search(found, failure)


@pytest.mark.parametrize(
    ("first", "second", "flat"), [(1.0, 2.0, False), (1e6, 2.0, False), (1e6, 2e6, True)]
)
def test_a_network_with_a_kernel_for_each_node_is_flat_where_none_of_them_varies(first, second, flat) -> None:
    X = np.linspace(0.0, 3.0, 8)[:, None]
    nodes = [gpflow.kernels.SquaredExponential(lengthscales=length) for length in (first, second)]
    weights = gpflow.kernels.SquaredExponential(lengthscales=1e6)
    failure = scale_failure(GPRNTensor((X, np.sin([1.0, 2.0] * X)), nodes, weights, 2))
    assert (failure is not None and "does not tell the inputs apart" in failure) == flat


def test_an_optimiser_of_ones_own_is_used() -> None:
    slow = _trace("robust_max", optimizer=tf_keras.optimizers.SGD(0.0), gamma=None)
    assert np.ptp(slow) < np.ptp(_trace("robust_max", gamma=None))
