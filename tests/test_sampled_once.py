"""Sampling compiled once for a structure, in calls that leave no trace in the draws."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import gpflow_ext as gpx
from gpflow_ext.compiled.functions import Compiled, Entry
from gpflow_ext.persistence import stablehlo
from gpflow_ext.sampling import iterations
from gpflow_ext.sampling.tuning import Setting

SAMPLED = ("SGPMCFreeForm", "GPLaplace", "GPflow's GPMC")


def _model(name: str, num_data: int = 20, seed: int = 0) -> gpflow.models.BayesianModel:
    X, Y = problems.binary(num_data, seed=seed)
    kernel = gpflow.kernels.SquaredExponential()
    for parameter in kernel.parameters:
        parameter.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(1.0))
    likelihood = gpx.likelihoods.BernoulliLogit()
    if name == "SGPMCFreeForm":
        return gpx.models.SGPMCFreeForm((X, Y), kernel, likelihood, inducing_variable=X[:5].copy())
    if name == "GPLaplace":
        return gpx.models.GPLaplace((X, Y), kernel, likelihood)
    return gpflow.models.GPMC((X, Y), kernel, likelihood)


def _draws(model: gpflow.models.BayesianModel, number: int, **options: object) -> gpx.Draws:
    settings = {"num_chains": 2, "seed": 3, "warm_up": 2, "progress": False, "check": False, **options}
    return gpx.sample(model, number, tuner=Setting(0.1, 3), **settings)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_second_model_traces_nothing_whatever_the_number_of_draws(name: str) -> None:
    _draws(_model(name), 3)
    before = gpx.trace_count()
    _draws(_model(name, seed=1), 5)
    assert gpx.trace_count() == before
    if name != "GPflow's GPMC":  # its parameters have a row for each datum
        _draws(_model(name, num_data=17), 4)
        assert gpx.trace_count() == before


@pytest.mark.parametrize("name", SAMPLED)
def test_the_first_draws_of_a_longer_run_are_those_of_a_shorter_one(name: str) -> None:
    short, long = (_draws(_model(name), number) for number in (5, 12))
    chunked = _draws(_model(name), 12, chunk=5)
    for parameter, values in short.values.items():
        np.testing.assert_array_equal(values, long.values[parameter][:, :5])
        np.testing.assert_array_equal(chunked.values[parameter], long.values[parameter])


@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("thin", [1, 3])
def test_calls_are_no_part_of_the_chain(jit_compile: bool, thin: int) -> None:
    def gaussian(z: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(z**2, axis=-1)

    run = iterations.runner(gaussian, jit_compile=jit_compile)
    z, setting = tf.ones([3, 2], tf.float64), Setting(0.3, 4)
    _, whole = iterations.call(run, z, setting, [1, 2], 70, thin)
    parts, done = [], 0
    for number in (7, 60, 3):
        z, trace = iterations.call(run, z, setting, [1, 2], number, thin, done)
        parts.append(trace)
        done += number
    for together, *apart in zip(whole, *parts, strict=True):
        np.testing.assert_array_equal(together, np.concatenate(apart))


@pytest.mark.slow
@pytest.mark.parametrize("tuner", ["bayesopt", "dual_averaging"])
def test_a_whole_sampling_is_one_program_of_xla(tuner: str, monkeypatch) -> None:
    """It tunes, warms up, and draws more than one call has room for; no number in it is a constant."""
    pytest.importorskip("jax", reason="needs the extra stablehlo")
    programs: dict[int, tuple[object, tuple[object, ...]]] = {}
    traced: list[object] = []  # to lower a function asks for the variables it was traced with
    call, copied = Entry.__call__, Compiled._copied

    def copy(self: Compiled, given: object, rows: object) -> object:
        traced.append(given)
        return copied(self, given, rows)

    def kept(entry: Entry, *flat: object) -> object:
        if entry.function.function_def.attr["_XlaMustCompile"].b:
            programs.setdefault(id(entry.function), (entry.function, flat))
        return call(entry, *flat)

    gpx.clear_compiled()
    monkeypatch.setattr(Compiled, "_copied", copy)
    monkeypatch.setattr(Entry, "__call__", kept)
    few = {"trials": 6, "samples": 9} if tuner == "bayesopt" else {"iterations": 7}
    for number, thin in ((iterations.BLOCK + 11, 2), (3, 1)):
        model = _model("SGPMCFreeForm")
        gpx.gaussian_approximation(model, steps=2, free_inducing=False)
        options = {"num_chains": 2, "warm_up": 4, "chunk": 30, "thin": thin, "approximate": False}
        gpx.sample(
            model, number, tuner=tuner, tuning=few, jit_compile=True, check=False, progress=False, **options
        )
    ((function, flat),) = programs.values()
    program = stablehlo.lower(function, flat)
    # Each shape is static, and each argument a parameter: nothing is left for which XLA would compile again.
    assert len(program.inputs) == len(function.inputs)
    assert all(spec.shape.is_fully_defined() for spec in function.inputs)


@pytest.mark.slow
@pytest.mark.parametrize("setting", [Setting(0.1, 3), Setting(0.1, 3, 0.2)], ids=["hmc", "gibbs"])
def test_xla_draws_the_same(setting: Setting) -> None:
    """Five iterations: further on the leapfrog steps amplify rounding."""
    options = {"num_chains": 2, "approximate": False, "precondition": None, "warm_up": 0, "progress": False}
    plain, compiled = (
        gpx.sample(_model("SGPMCFreeForm"), 5, tuner=setting, seed=3, check=False, jit_compile=jit, **options)
        for jit in (False, True)
    )
    for name, values in plain.values.items():
        np.testing.assert_allclose(compiled.values[name], values, rtol=0.0, atol=1e-10)


@pytest.mark.slow
def test_under_xla_one_compilation_serves_every_number_of_draws() -> None:
    def gaussian(z: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(z**2, axis=-1)

    run, before = iterations.runner(gaussian, jit_compile=True), gpx.trace_count()
    kept = [
        iterations.call(run, tf.ones([2, 2]), Setting(0.3, 4), [1, 2], number)[1].position.numpy()
        for number in (64, 100, 1000)
    ]
    assert gpx.trace_count() == before + 1
    for positions in kept[1:]:
        np.testing.assert_array_equal(positions[:64], kept[0])
