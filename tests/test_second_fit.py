"""A second fit of a model of the same structure compiles nothing, and repeats the first one bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import GPMC, GPR, SGPR, SVGP, VGP

import gpflow_ext as gpx
from gpflow_ext.compiled import Compiled, clear_compiled, trace_count
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import SVGPRobustMax
from gpflow_ext.training import lbfgs
from gpflow_ext.training.log_space import LogSpace

SLOW = pytest.mark.slow
Z = problems.inputs(5, seed=5)


def svgp(num_data: int) -> SVGP:
    return SVGP(problems.kernel(), BernoulliLogit(), Z.copy(), num_data=num_data)


def multiclass(num_data: int) -> SVGPRobustMax:
    return SVGPRobustMax(problems.kernel(2.0, 1.0), 3, Z.copy(), num_data=num_data)


def sgpr(num_data: int) -> SGPR:
    return SGPR(problems.continuous(num_data), problems.kernel(), Z.copy(), noise_variance=0.5)


def gpr(num_data: int) -> GPR:
    return GPR(problems.continuous(num_data), problems.kernel(), noise_variance=0.5)


def scheduled() -> tf_keras.optimizers.Optimizer:
    schedule = tf_keras.optimizers.schedules.CosineDecay(0.01, 4)
    return tf_keras.optimizers.SGD(schedule, momentum=0.9)


def adadelta() -> tf_keras.optimizers.Optimizer:
    return tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-4)


Build = Callable[[int], Any]
Data = Callable[[int], Any] | None
CASES: dict[str, tuple[Build, Data, dict[str, Any]]] = {
    "gpr": (gpr, None, {"recipe": "adam"}),
    "gpr, lbfgs": (gpr, None, {"recipe": "lbfgs", "iterations": 2}),
    "svgp": (svgp, problems.binary, {}),
    "sgpr, sgd with a schedule": (sgpr, None, {"optimizer": scheduled}),
    "svgp, adadelta": (svgp, problems.binary, {"optimizer": adadelta}),
    "svgp, minibatches": (svgp, problems.binary, {"minibatch_size": 7}),
    "robust_max": (multiclass, problems.classes, {}),
    "robust_max, held": (multiclass, problems.classes, {"hold": 2, "minibatch_size": 7, "decay_steps": 3}),
    "robust_max, adadelta": (multiclass, problems.classes, {"gamma": None, "optimizer": adadelta}),
    "robust_max, validation": (
        multiclass, problems.classes, {"validation": problems.classes(10, seed=9), "validate_every": 2}
    ),
    "vi_means of gpr": (gpr, None, {"recipe": "vi_means", "iterations": 2}),
    "vi_means of sgpr": (sgpr, None, {"recipe": "vi_means", "iterations": 2, "bounds": (0.1, 3.0)}),
    "newton": (sgpr, None, {"recipe": "vi_means", "optimizer": "projected_newton"}),
    "svi_natural": (svgp, problems.binary, {"recipe": "svi_natural"}),
    "dual": (svgp, problems.binary, {"recipe": "dual", "minibatch_size": 7}),
    "svi_natural, minibatches": (svgp, problems.binary, {"recipe": "svi_natural", "minibatch_size": 7}),
    "svi_lbfgsb": (svgp, problems.binary, {"recipe": "svi_lbfgsb", "iterations": 2}),
    "svi_fg": (svgp, problems.binary, {"recipe": "svi_fg"}),
    "svi_sag": (svgp, problems.binary, {"recipe": "svi_sag", "minibatch_size": 7}),
    "svi_classification": (svgp, problems.binary, {"recipe": "svi_classification", "minibatch_size": 7}),
}  # fmt: skip
QUICK = (
    "gpr",
    "gpr, lbfgs",
    "svgp, adadelta",
    "robust_max, held",
    "vi_means of sgpr",
    "svi_natural",
    "svi_sag",
)


def fitted(case: str, num_data: int) -> tuple[Any, gpx.FitResult, int]:
    """Return a new model, the result of its fit, and how many functions that has traced."""
    build, data, options = CASES[case]
    model = build(num_data)
    own = {name: value() if callable(value) else value for name, value in options.items()}
    given = () if data is None else (data(num_data),)
    before = trace_count()
    return model, gpx.fit(model, *given, steps=5, progress=False, seed=2, **own), trace_count() - before


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=SLOW) for case in CASES]
)
def test_a_second_fit_traces_nothing_and_repeats_the_first(case: str) -> None:
    clear_compiled()
    cold, first, traced = fitted(case, 24)
    other, _, for_other = fitted(case, 21)
    warm, second, again = fitted(case, 24)
    assert (for_other, again) == (0, 0)
    assert 0 < traced <= (5 if case == "dual" else 3)  # three of its last pass over all rows
    assert np.isfinite(other.training_loss(*(() if CASES[case][1] is None else (problems.binary(21),))))
    np.testing.assert_array_equal(first.objective, second.objective)
    pairs = zip(cold.trainable_variables, CASES[case][0](24).trainable_variables, strict=True)
    assert max(np.abs(a.numpy() - b.numpy()).max() for a, b in pairs) > 1e-3
    for a, b in zip(cold.variables, warm.variables, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("model_class", [VGP, GPMC])
def test_models_with_a_variable_for_each_datum_share_their_graphs_by_size(model_class: type) -> None:
    ends = []
    for count in (1, 0, 0):
        model, before = model_class(problems.binary(12), problems.kernel(), BernoulliLogit()), trace_count()
        ends.append(gpx.fit(model, steps=3, progress=False, recipe="adam").objective)
        assert trace_count() - before <= count
    np.testing.assert_array_equal(ends[0], ends[2])


@pytest.mark.parametrize("case", ["svgp, minibatches", pytest.param("robust_max, held", marks=SLOW)])
def test_resumes_exactly_on_a_warm_cache(case: str, tmp_path) -> None:
    """The graphs are those of another model, with other data: nothing of it is in them."""
    build, data, options = CASES[case]
    fitted(case, 21)
    before = trace_count()
    resuming.check(
        lambda: build(24), tmp_path, data(24), steps=6, cut=3, options=lambda: {"seed": 2} | options
    )
    assert trace_count() == before


def test_the_weight_of_a_minibatch_is_that_of_the_model_at_hand() -> None:
    """``num_data`` is an argument: the graph of one model gives the bound of another."""
    data = problems.binary(20)
    small, large = svgp(20), svgp(2000)
    values = [float(Compiled(model, batches=True)(model.elbo, data)) for model in (small, large)]
    np.testing.assert_allclose(values, [model.elbo(data) for model in (small, large)], rtol=1e-12)
    assert values[1] < 50.0 * values[0] < 0.0


class Counted(SVGP):
    """A user's model that needs its number of data as a plain number."""

    def _training_loss(self, data: Any) -> tf.Tensor:
        return -self.elbo(data) / float(self.num_data)


def test_a_model_that_needs_its_number_of_data_as_a_plain_number_gets_it() -> None:
    for num_data in (20, 2000):
        data = problems.binary(num_data)
        model = Counted(problems.kernel(), BernoulliLogit(), Z.copy(), num_data=num_data)
        expected = -float(model.training_loss(data))
        result = gpx.fit(model, data, steps=1, progress=False, recipe="adam")
        np.testing.assert_allclose(result.objective[0], expected, rtol=1e-12)


def test_a_loss_that_closes_over_its_model_is_minimised() -> None:
    """The variables that it holds are arguments of the graph too, which differentiates in them."""
    model = gpr(20)
    before = float(model.training_loss())
    found = lbfgs.minimize(lambda: model.training_loss(), model.trainable_variables)
    reference = gpr(20)
    gpflow.optimizers.Scipy().minimize(reference.training_loss, reference.trainable_variables)
    assert found < before - 1.0
    np.testing.assert_allclose(found, reference.training_loss(), rtol=1e-6)


def test_bounds_in_log_space_are_those_of_the_variables() -> None:
    parameter = gpflow.Parameter(2.0, transform=gpflow.utilities.positive(lower=1e-3))
    variable = parameter.unconstrained_variable
    space = LogSpace([variable], [parameter])
    low, high = space.at(np.array([[-np.inf], [3.0]]))
    assert (low[0], high[0]) == (-np.inf, np.log(np.log1p(np.exp(3.0))))
    space.assign(high)
    np.testing.assert_allclose(variable, 3.0, rtol=1e-14)
