"""Models whose hyperparameters are learnt in the graph, q at its optimum, end where those do whose search is on the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import compiled_calls
import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from gpflow.models import SVGP, VGP

import gpflow_ext as gpx
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.ep.recipe import ep
from gpflow_ext.laplace.recipe import laplace
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor, SparseEP, SVGPRobustMax
from gpflow_ext.svgp import whole_data
from gpflow_ext.svgp.recipe import robust_max
from gpflow_ext.training import lbfgs_in_graph, site_recipe
from gpflow_ext.training.lbfgs_in_graph import GraphRun

SLOW = pytest.mark.slow
ROWS = 24


def _data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return problems.binary(rows, variance=9.0, lengthscale=1.0)


def _points() -> gpflow.inducing_variables.InducingPoints:
    return gpflow.inducing_variables.InducingPoints(problems.inputs(5, seed=5))


def _sparse_ep(rows: int, likelihood: Any = None) -> SparseEP:
    model = SparseEP(
        _data(rows), problems.kernel(), likelihood or BernoulliProbit(), inducing_variable=_points()
    )
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _taylor(rows: int) -> GPTaylor:
    model = GPTaylor(_data(rows), problems.kernel(), BernoulliLogit(), inducing_variable=_points())
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _svgp(rows: int) -> SVGP:
    likelihood = gpflow.likelihoods.Bernoulli()
    model = SVGP(problems.kernel(), likelihood, _points(), num_data=rows, whiten=True)
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def _robust_max(rows: int) -> SVGPRobustMax:
    model = SVGPRobustMax(problems.kernel(), 2, problems.inputs(5, seed=5), num_data=rows)
    gpflow.set_trainable(model.inducing_variable, False)
    return model


MODELS: dict[str, Callable[[int], Any]] = {
    "kmm": lambda rows: VGPKMM(_data(rows), problems.kernel(), BernoulliLogit()),
    "laplace": lambda rows: GPLaplace(_data(rows), problems.kernel(), BernoulliLogit()),
    "taylor": _taylor,
    "jaakkola": lambda rows: GPJaakkola(_data(rows), problems.kernel(), BernoulliLogit(bound="jaakkola")),
    "ep": _sparse_ep,
}
OF_SITES = list(MODELS)
MODELS |= {
    "svgp": _svgp,
    "robust max": _robust_max,
    "vgp": lambda rows: VGP(_data(rows), problems.kernel(), gpflow.likelihoods.Bernoulli()),
}
EACH = [name if name == "laplace" else pytest.param(name, marks=SLOW) for name in MODELS]


def _held_outside(model: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the data of a model that does not hold them."""
    return _data(model.num_data) if isinstance(model, SVGP) else None


def _fit(model: Any, in_graph: bool = True, **options: Any) -> gpx.FitResult:
    data = _held_outside(model)
    return gpx.fit(model, data, in_graph=in_graph, progress=False, **{"starts": 1, **options})


@pytest.mark.parametrize("name", EACH)
def test_it_ends_where_the_host_does_and_traces_one_function_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = compiled_calls.record(monkeypatch)
    on_host = MODELS[name](ROWS)
    expected, evaluations = _fit(on_host, in_graph=False), len(called)
    clear_compiled()
    before = trace_count()
    called.clear()
    model = MODELS[name](ROWS)
    result = _fit(model)
    traced = trace_count() - before
    assert traced == 1 + (name == "vgp")  # whose q is computed at the end
    assert result.status is expected.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(result.objective[-1], expected.objective[-1], rtol=1e-7, atol=1e-6)
    assert evaluations > 5
    assert len(called) <= result.steps + evaluations // lbfgs_in_graph.CALL + 1
    _fit(MODELS[name](ROWS - 3))
    again = MODELS[name](ROWS)
    np.testing.assert_array_equal(_fit(again).objective, result.objective)
    assert trace_count() == before + traced
    for a, b in zip(again.variables, model.variables, strict=True):
        np.testing.assert_array_equal(a, b)
    data = _held_outside(model)
    loss = model.training_loss() if data is None else model.training_loss(data)
    np.testing.assert_allclose(-loss, result.objective[-1], rtol=1e-7)


@SLOW
def test_bounds_of_transforms_hold() -> None:
    """The optimum is below that of a softplus above a bound, and above both ends of a sigmoid."""
    free = MODELS["laplace"](ROWS)
    _fit(free)
    variance, scale = (float(part.numpy()) for part in (free.kernel.variance, free.kernel.lengthscales))
    ends = []
    for in_graph in (False, True):
        model = MODELS["laplace"](ROWS)
        above = gpflow.utilities.positive(lower=1.5 * variance)
        between = tfp.bijectors.Sigmoid(*(tf.constant(part * scale, tf.float64) for part in (0.4, 0.8)))
        model.kernel.variance = gpflow.Parameter(2.0 * variance, transform=above)
        model.kernel.lengthscales = gpflow.Parameter(0.5 * scale, transform=between)
        ends.append(_fit(model, in_graph).objective[-1])
        np.testing.assert_allclose(model.kernel.variance, 1.5 * variance, rtol=0.01)
        np.testing.assert_allclose(model.kernel.lengthscales, 0.8 * scale, rtol=0.01)
        assert model.kernel.variance >= 1.5 * variance
        assert model.kernel.lengthscales <= 0.8 * scale
    np.testing.assert_allclose(*ends, rtol=1e-6)


@pytest.mark.parametrize("name", [each for each in EACH if each == "laplace" or each.values[0] in OF_SITES])
def test_a_run_resumes_exactly(name: str, tmp_path: Path) -> None:
    options = {"in_graph": True, "starts": 1, "hyper_updates": 2, "progress": False}
    resuming.check(lambda: MODELS[name](ROWS), tmp_path, steps=4, cut=2, options=lambda: options)


@SLOW
@pytest.mark.parametrize("name", ["svgp", "robust max"])
def test_a_run_on_data_held_outside_resumes_exactly(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_data, "_ITERATIONS", 2)
    options = {"in_graph": True, "starts": 1, "progress": False}
    resuming.check(lambda: MODELS[name](ROWS), tmp_path, _data(ROWS), steps=4, cut=2, options=lambda: options)


@pytest.mark.parametrize("name", ["laplace", pytest.param("svgp", marks=SLOW)])
def test_it_climbs_from_several_starts(name: str) -> None:
    """On copies, whose sites are their own."""
    ends = [_fit(MODELS[name](ROWS), in_graph, starts=3) for in_graph in (False, True)]
    for one, other in zip(*(end.starts for end in ends), strict=True):
        assert one.name == other.name
        np.testing.assert_allclose(other.objective, one.objective, rtol=1e-6)
    np.testing.assert_allclose(ends[1].objective[-1], ends[0].objective[-1], rtol=1e-7)


@SLOW
def test_inducing_inputs_of_another_scale_share_the_function() -> None:
    clear_compiled()
    ends = []
    for scale in (1.0, 1024.0):
        X, Y = _data(ROWS)
        kernel = problems.kernel(lengthscale=0.7 * scale)
        model = SparseEP((scale * X, Y), kernel, BernoulliProbit(), inducing_variable=scale * X[:5])
        before = trace_count()
        ends.append(_fit(model, steps=1, hyper_updates=3).objective[-1])
    assert trace_count() == before
    np.testing.assert_allclose(*ends, rtol=1e-6)


@SLOW
@pytest.mark.parametrize("name", ["kmm", "ep"])
def test_xla_compiles_it(name: str) -> None:
    ends = [_fit(MODELS[name](ROWS), jit_compile=jit).objective[-1] for jit in (False, True)]
    np.testing.assert_allclose(*ends, rtol=1e-7)


def test_it_is_the_default_on_accelerators_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for accelerator in (False, True):
        monkeypatch.setattr(site_recipe, "has_accelerator", lambda: accelerator)  # noqa: B023
        for name, recipe in (("laplace", laplace), ("ep", ep), ("robust max", robust_max)):
            model = MODELS[name](ROWS)
            plan = recipe(model, _held_outside(model), starts=1, jit_compile=False)
            assert isinstance(plan.solver.run, GraphRun) == accelerator
            assert plan.settings.get("in_graph", False) == accelerator


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strategy": tf.distribute.get_strategy()}, NotImplementedError, "adds up the shards"),
        ({"minibatch_size": 8}, ValueError, "leave out `minibatch_size`"),
        ({"optimizer": "sign_agreement"}, ValueError, "`optimizer`"),
    ],
)
def test_what_comes_back_to_the_host_is_refused(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gpx.fit(_sparse_ep(ROWS), in_graph=True, **options)


@pytest.mark.parametrize("name", ["laplace", "ep"])
def test_without_hyperparameters_there_is_nothing_to_do_in_the_graph(name: str) -> None:
    model = MODELS[name](ROWS)
    gpflow.set_trainable(model, False)
    with pytest.raises(ValueError, match="none is trainable"):
        gpx.fit(model, in_graph=True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("svgp", {"minibatch_size": 8}, "leave out `minibatch_size`"),
        ("svgp", {"optimizer": tf_keras.optimizers.Adam()}, "and `optimizer`"),
        ("robust max", {"gamma": 0.5}, "leave out all options but"),
        ("robust max", {"minibatch_size": 8}, "leave out all options but"),
    ],
)
def test_first_order_steps_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _fit(MODELS[name](ROWS), **options)


@pytest.mark.parametrize("name", ["svgp", "robust max"])
def test_a_dataset_of_minibatches_is_refused(name: str) -> None:
    batches = tf.data.Dataset.from_tensor_slices(_data(ROWS)).batch(8).repeat()
    with pytest.raises(ValueError, match="leave it out for a dataset"):
        gpx.fit(MODELS[name](ROWS), batches, in_graph=True)


def test_an_objective_that_is_an_estimate_is_refused() -> None:
    class Sampled(gpflow.likelihoods.MonteCarloLikelihood):
        def __init__(self) -> None:
            super().__init__(input_dim=None, latent_dim=1, observation_dim=1)

        def _log_prob(self, X: Any, F: Any, Y: Any) -> Any:
            return -tf.reduce_sum((F - Y) ** 2, axis=-1)

    model = SVGP(problems.kernel(), Sampled(), _points(), num_data=ROWS, q_diag=True)
    with pytest.raises(ValueError, match="the objective is an estimate"):
        gpx.fit(model, _data(ROWS), in_graph=True)
