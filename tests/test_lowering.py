"""What is compiled lowers to StableHLO, which another runtime of XLA runs with the same results, in exact products."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.compiled import Compiled, make_exact
from gpflow_ext.persistence import stablehlo
from gpflow_ext.sampling.target import Target
from gpflow_ext.sites.method import site_method
from gpflow_ext.svgp.natural_gradient import AscentUpdates
from gpflow_ext.training.site_iteration import SiteOptimum
from scripts.shared.journal import Journal
from scripts.tools import lower, lowered_models
from scripts.tools.budgets import BUDGETS

needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs the extra stablehlo")
QUICK = ("GPR",)
MODELS = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in lowered_models.RUNS
]
MORE = 1.02  # operations than were recorded: TensorFlow's versions write some differently
# XLA's own names, which each of its devices expands.
CUSTOM_CALLS = {"Qr", "ProductOfElementaryHouseholderReflectors", "Eigh"}


@pytest.fixture(autouse=True)
def tensorfloat():
    """TensorFlow's default, whatever another test has left."""
    tf.config.experimental.enable_tensor_float_32_execution(True)
    yield
    gpx.allow_tf32(False)


@needs_jax
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_pjrt_returns_what_tensorflow_returns(name: str, dtype: str, tmp_path: Path, record_property) -> None:
    rows, sizes = lower.measured(name, dtype, tmp_path), _recorded()
    assert rows
    for row in rows:
        assert "error" not in row, row
        assert set(row["custom_calls"]) <= CUSTOM_CALLS
        assert row["inexact"] == 0
        in_double = name in lower.IN_DOUBLE or row["function"] == "Climb.go_on"  # the memory of L-BFGS
        assert row["float64"] == (dtype == "float64" or in_double)
        record_property(row["function"], row["difference"])
        assert row["difference"] <= lower.bound(name, row["function"], dtype), row
        assert row["ops"] <= MORE * sizes[name, dtype, row["function"]]


def _sweep() -> None:
    model = gpx.models.GPLaplace(problems.binary(12), problems.kernel(), gpx.likelihoods.BernoulliProbit())
    SiteOptimum(model, site_method("ep"), ()).evaluate(1, 0.0)


def _natural_step() -> None:
    X, Y = problems.binary(12)
    model = gpx.models.SVGPRobustMax(problems.kernel(), 2, X[:4].copy(), num_data=len(X))
    updates = AscentUpdates(model, (), None, True, None)
    updates.start()
    Compiled(updates)(updates.step, X, Y, tf.constant(0.0, Y.dtype), tf.constant(0.5, Y.dtype))


class _Density:
    def __init__(self, target: Target) -> None:
        self._target = target

    def slope(self, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the log density and its gradient, which a sampler moves by."""
        return tfp.math.value_and_gradient(self._target, z)


def _density() -> None:
    X, Y = problems.binary(12)
    likelihood, points = gpx.likelihoods.BernoulliProbit(), X[:4].copy()
    model = gpx.models.SGPMCFreeForm((X, Y), problems.kernel(), likelihood, inducing_variable=points)
    gpflow.set_trainable(model.kernel, False)
    density = _Density(Target(model, model.density.log_likelihoods))
    z = np.random.default_rng(0).normal(size=(2, 4))
    Compiled(density)(density.slope, tf.constant(z, gpflow.default_float()))


EACH_TIME: dict[str, Callable[[], None]] = {
    "SiteUpdates.evaluate": _sweep,
    "AscentUpdates.step": _natural_step,
    "_Density.slope": _density,
}


@needs_jax
@pytest.mark.parametrize("function", EACH_TIME)
def test_pjrt_returns_a_sweep_a_natural_step_and_a_density(function: str, tmp_path: Path) -> None:
    """Those of `RUNS` are larger and take turns."""
    gpx.clear_compiled()
    with lower.harvest() as found:
        EACH_TIME[function]()
    (call,) = (call for call in found.values() if call.name == function)
    program, results, _ = lower.lowered(call)
    lower.save(program, results, tmp_path / "program")
    assert lower.run_pjrt(tmp_path)["program"]["difference"] <= 1e-12


def test_what_is_recorded_is_within_its_bound() -> None:
    records = Journal(lower.RECORDS).records
    assert {record["model"] for record in records} == set(lowered_models.RUNS)
    for record in records:
        for row in record["functions"]:
            assert row["difference"] <= lower.bound(record["model"], row["function"], record["dtype"]), row


def test_what_is_recorded_is_within_its_budget() -> None:
    sizes = _recorded()
    for (name, function), budget in BUDGETS.items():
        assert sizes[name, "float64", function] <= budget.most
        assert budget.reason or budget.most <= budget.wanted


@needs_jax
@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), BUDGETS)
def test_a_step_is_within_its_budget(name: str, function: str) -> None:
    found = [call for call in lower.calls(name) if call.name == function]
    programs = [stablehlo.lower(call.function, call.arguments) for call in found]
    sizes = [lower.contents(program.text)["ops"] for program in programs]
    assert 0 < max(sizes) <= BUDGETS[name, function].most


def _recorded() -> dict[tuple[str, str, str], int]:
    """Return the operations of each program of the record, by model, dtype and function."""
    records = Journal(lower.RECORDS).records
    return {
        (each["model"], each["dtype"], one["function"]): one["ops"]
        for each in records
        for one in each["functions"]
    }


@needs_jax
def test_a_program_has_nothing_that_it_does_not_need() -> None:
    """TensorFlow writes the body of a loop as a function too, which nothing calls, and what is reshaped in vain."""

    def function(x: tf.Tensor) -> tf.Tensor:
        _, x = tf.while_loop(lambda k, _: k < 5, lambda k, x: (k + 1, tf.sin(tf.reshape(x, [3])) + x), (0, x))
        return tf.sin(x) + tf.sin(x)

    x = tf.constant([0.1, 0.2, 0.3], tf.float64)
    concrete = tf.function(function, autograph=False).get_concrete_function(x)
    program = stablehlo.lower(concrete, [x])
    own = re.findall(r"func\.func private (@[\w.]+)", program.text)
    assert own == re.findall(r"call (@[\w.]+)", program.text)
    assert program.text.count("stablehlo.sine") == 2
    assert "stablehlo.reshape" not in program.text
    assert program.emitted.count("stablehlo.sine") > 2
    assert lower.contents(program.text)["ops"] < lower.contents(program.emitted)["ops"]


def _programs(inputs: tf.Tensor) -> str:
    model = gpflow.models.GPR((inputs, inputs[:, :1]), gpflow.kernels.SquaredExponential())
    gpx.clear_compiled()
    with lower.harvest() as found:
        gpx.fit(model, steps=1, progress=False)
    texts = [stablehlo.lower(call.function, call.arguments).text for call in found.values()]
    assert all(lower.contents(text)["products"] for text in texts)
    return "".join(texts)


@needs_jax
def test_products_of_float32_are_exact_unless_the_user_wants_speed() -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        inputs = tf.constant(np.linspace(0.0, 1.0, 12, dtype=np.float32)[:, None])
        assert lower.contents(_programs(inputs))["inexact"] == 0
        assert not tf.config.experimental.tensor_float_32_execution_enabled()
        gpx.allow_tf32()
        assert lower.contents(_programs(inputs))["inexact"] > 0
        gpx.allow_tf32(False)
        assert lower.contents(_programs(inputs))["inexact"] == 0


@needs_jax
def test_float64_leaves_the_switch_alone() -> None:
    _programs(tf.constant(np.linspace(0.0, 1.0, 12)[:, None]))
    assert tf.config.experimental.tensor_float_32_execution_enabled()


def test_a_device_that_rounds_is_told_once(monkeypatch) -> None:
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda *_: [gpu])
    with pytest.warns(UserWarning, match="allow_tf32"):
        make_exact()
    make_exact()  # a second warning would be an error


@needs_jax
def test_parameters_are_arguments_variables_and_captured_tensors_in_order() -> None:
    """Of equal shapes, one not used, and a number that decides a shape and is none."""
    first, second, held = (tf.Variable(value * np.ones([2, 2])) for value in (1.0, 2.0, 3.0))
    rest = tf.constant(4.0 * np.ones([2, 2]))

    def function(a, b, size, x, unused):
        b.assign_add(tf.matmul(a, x))
        return tf.reshape(x, [size]), held + rest

    specs = [first, second, tf.TensorSpec([], tf.int32), *[tf.TensorSpec([None, 2], tf.float64)] * 2]
    concrete = tf.function(function, autograph=False).get_concrete_function(*specs)
    x, unused = tf.constant(5.0 * np.ones([2, 2])), tf.constant(6.0 * np.ones([2, 2]))
    program = stablehlo.lower(concrete, [first, second, tf.constant(4), x, unused])
    assert [part[0, 0] for part in program.inputs] == [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]
    assert program.variables == [2, 3]
    assert program.updates == {2: 3}
    assert program.results == [("float64", (4,)), ("float64", (2, 2)), ("float64", (2, 2))]
    assert "loc" not in program.text
