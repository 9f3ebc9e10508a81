"""Data that models hold: they follow variables as GPflow's do, and can be replaced with the sites kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import others_slow

import gpflow_ext as gpx
from conformance.holders import CONTROLS, FREE, HOLDERS, NETWORKS, SITES, Holder, points, variables
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, StickBreaking
from gpflow_ext.models import VGPKMM, GPLaplace, GPRNTensor, SGPMCFreeForm, SparseEP
from gpflow_ext.sites import site_method

FOLLOWERS = {**SITES, **FREE}
FIRST, MORE = 12, 20
XNEW = points()


def rows(data: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
    X, Y = (np.asarray(part)[:number] for part in data)
    return X, Y


def assign(held: tuple[tf.Variable, tf.Variable], data: Any) -> None:
    for variable, part in zip(held, data, strict=True):
        variable.assign(part)


def set_sites(model: Any, number: int) -> None:
    """Sites of the first rows, which tell them apart, and none of the others."""
    for scale, part in ((0.3, model.nat1), (0.5, model.prec)):
        values = np.zeros(part.numpy().shape)
        values[:number] = scale * (1.0 + np.arange(number)).reshape([-1] + [1] * (values.ndim - 1)) / number
        part.assign(values)


def assert_same(found: Any, expected: Any) -> None:
    for mine, its in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "name", others_slow(FOLLOWERS, "VGPKMM", "GPLaplace-sparse", "SparseEP-classes", "SGPMCFreeForm")
)
def test_a_model_follows_the_variables_of_its_data(name: str) -> None:
    """Also with more rows and with fewer: eagerly, in a graph that was traced before, and from a cache."""
    holder = HOLDERS[name]
    data = holder.sample(MORE, 0)
    held = variables(rows(data, FIRST))
    model = holder.build(held)
    set_sites(model, FIRST)
    cached, in_graph = model.posterior(), tf.function(model.predict_f, autograph=False)
    before = cached.predict_f(XNEW)
    in_graph(XNEW)
    for number, now in ((MORE, data), (9, holder.sample(9, 3))):
        assign(held, now)
        expected = holder.build(now)
        set_sites(expected, FIRST) if number > FIRST else None
        if number < FIRST:
            kept = (tf.convert_to_tensor(part)[:number] for part in (model.nat1, model.prec))
            for part, value in zip((expected.nat1, expected.prec), kept, strict=True):
                part.assign(value)
        assert_same(model.predict_f(XNEW), expected.predict_f(XNEW))
        assert_same(in_graph(XNEW), expected.predict_f(XNEW))
        assert_same(cached.predict_f(XNEW), before)  # of GPflow's caches until they are updated
        cached.update_cache()
        before = cached.predict_f(XNEW)
        assert_same(before, expected.predict_f(XNEW))
        assert_same(model.data, now)


@pytest.mark.parametrize("name", others_slow(SITES, "VGPKMM", "GPTaylor-sparse", "SparseEP"))
def test_training_follows_the_variables(name: str) -> None:
    holder = HOLDERS[name]
    data = holder.sample(MORE, 0)
    held = variables(rows(data, FIRST))
    model = holder.build(held)
    gpflow.set_trainable(model, False)
    gpx.fit(model, progress=False)
    assert len(model.sites.nat1) == FIRST
    for now in (data, holder.sample(9, 3)):
        assign(held, now)
        fresh = holder.build(now)
        gpflow.set_trainable(fresh, False)
        warm, cold = gpx.fit(model, progress=False), gpx.fit(fresh, progress=False)
        assert warm.objective[-1] == pytest.approx(cold.objective[-1], rel=1e-7)
        np.testing.assert_allclose(model.predict_f(XNEW)[0], fresh.predict_f(XNEW)[0], rtol=1e-3, atol=1e-4)


def test_a_compiled_loss_follows_the_variables() -> None:
    data = problems.binary(MORE)
    held = variables(rows(data, FIRST))
    model = VGPKMM(held, problems.kernel(), BernoulliLogit())
    loss = tf.function(model.training_loss, autograph=False)
    loss()
    assign(held, data)
    expected = VGPKMM(data, problems.kernel(), BernoulliLogit()).training_loss()
    np.testing.assert_allclose(loss(), expected, rtol=1e-9)


def test_a_trained_model_predicts_by_new_rows_in_variables() -> None:
    """What is compiled for one number of rows serves the next."""
    data = problems.binary(MORE)
    held = variables(data)
    model = VGPKMM(held, problems.kernel(), BernoulliLogit())
    gpx.fit(model, progress=False)
    scores = gpx.metrics.evaluate(model, data)
    assign(held, rows(data, FIRST))
    again = gpx.metrics.evaluate(model, data)
    fresh = VGPKMM(rows(data, FIRST), model.kernel, BernoulliLogit())
    fresh.assign_sites(model.sites)
    assert again == gpx.metrics.evaluate(fresh, data) != scores


def test_a_posterior_in_variables_follows_other_numbers_of_rows() -> None:
    data = problems.binary(MORE)
    held = variables(rows(data, FIRST))
    model = GPLaplace(held, problems.kernel(), BernoulliLogit())
    posterior = model.posterior("variable")
    predict = tf.function(posterior.predict_f, autograph=False)
    predict(XNEW)
    assign(held, data)
    set_sites(model, FIRST)
    model.follow_data()
    posterior.update_cache()
    assert_same(predict(XNEW), model.predict_f(XNEW))


@pytest.mark.parametrize("name", [*FOLLOWERS, *CONTROLS])
def test_variables_are_where_those_of_gpflow_are(name: str) -> None:
    held = variables(problems.binary(FIRST) if name in CONTROLS else HOLDERS[name].sample(FIRST, 0))
    model = {**HOLDERS, **CONTROLS}[name].build(held)
    listed = gpflow.utilities.parameter_dict(model)
    assert listed[".data[0]"] is held[0]
    assert listed[".data[1]"] is held[1]
    assert {id(variable) for variable in held} <= {id(variable) for variable in model.variables}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_data_are_never_trained(name: str) -> None:
    held = tuple(tf.Variable(part) for part in HOLDERS[name].sample(FIRST, 0))
    model = HOLDERS[name].build(held)
    assert not {id(variable) for variable in held} & {id(variable) for variable in model.trainable_variables}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_other_data_keep_the_sites_of_rows_that_stay(name: str) -> None:
    """At their places, or where the index names them; those of new rows are zero."""
    holder = HOLDERS[name]
    data = holder.sample(MORE, 0)
    model = holder.build(rows(data, FIRST))
    set_sites(model, FIRST)
    old = model.nat1.numpy(), model.prec.numpy()
    model.update_data(data)
    assert_same(model.data, data)
    for now, before in zip((model.nat1.numpy(), model.prec.numpy()), old, strict=True):
        np.testing.assert_array_equal(now[:FIRST], before)
        np.testing.assert_array_equal(now[FIRST:], 0.0)
    index = np.array([11, -1, 0, 5, -1])
    X, Y = (part[[11, 15, 0, 5, 16]] for part in data)
    model.update_data((X, Y), index)
    for now, before in zip((model.nat1.numpy(), model.prec.numpy()), old, strict=True):
        np.testing.assert_array_equal(now[[0, 2, 3]], before[[11, 0, 5]])
        np.testing.assert_array_equal(now[[1, 4]], 0.0)
    assert np.isfinite(model.predict_f(XNEW)[0]).all()


@pytest.mark.parametrize("name", others_slow(SITES, "VGPKMM-sparse", "GPLaplace", "SparseEP"))
def test_training_goes_on_to_the_optimum_of_the_new_data(name: str) -> None:
    """From closer by than the start is, in no more steps, or, where these mix the last ones, one or two more."""
    holder = HOLDERS[name]
    data = holder.sample(60, 0)
    models = model, fresh = holder.build(rows(data, 56)), holder.build(data)
    for each in models:
        gpflow.set_trainable(each, False)
    gpx.fit(model, progress=False)
    model.update_data(data)
    method = site_method(model.site_method)
    begun = [float(method.objective(each, each.prior(), each.sites)) for each in models]
    warm, cold = gpx.fit(model, progress=False), gpx.fit(fresh, progress=False)
    assert warm.objective[-1] == pytest.approx(cold.objective[-1], rel=1e-7)
    to_warm, to_cold = (abs(value - cold.objective[-1]) for value in begun)
    assert to_warm < 0.2 * to_cold
    assert warm.steps <= cold.steps + 2 * isinstance(model, SparseEP)


def test_other_data_go_into_the_variables() -> None:
    data = problems.binary(MORE)
    held = variables(rows(data, FIRST))
    model = VGPKMM(held, problems.kernel(), BernoulliLogit())
    model.update_data(data)
    assert_same([part.numpy() for part in held], data)
    fixed = tuple(map(tf.Variable, rows(data, FIRST)))
    model = VGPKMM(fixed, problems.kernel(), BernoulliLogit())
    with pytest.raises(ValueError, match=r"shape=\[None"):
        model.update_data(data)
    assert_same(model.data, rows(data, FIRST))


def test_a_dataset_is_replaced_by_a_dataset() -> None:
    data = problems.binary(MORE)
    stream, longer = (tf.data.Dataset.from_tensor_slices(rows(data, number)) for number in (FIRST, MORE))
    model = SparseEP(stream, problems.kernel(), BernoulliProbit(), inducing_variable=points())
    set_sites(model, FIRST)
    model.update_data(longer)
    expected = SparseEP(data, problems.kernel(), BernoulliProbit(), inducing_variable=points())
    set_sites(expected, FIRST)
    assert_same(model.predict_f(XNEW), expected.predict_f(XNEW))
    with pytest.raises(ValueError, match="same kind"):
        model.update_data(data)


WRONG: dict[str, tuple[Any, Any, str]] = {
    "NaN": (lambda X, Y: (X * np.nan, Y), None, "Drop or fill"),
    "labels": (lambda X, Y: (X, Y + 1.0), None, "0 and 1"),
    "width": (lambda X, Y: (X[:, :1], Y), None, "1 columns and had 2"),
    "length": (lambda X, Y: (X, Y[:-1]), None, "number of rows"),
    "short index": (lambda X, Y: (X, Y), [0, 1], "index"),
    "index out of range": (lambda X, Y: (X, Y), np.full(MORE, FIRST), "0 to 11"),
    "no index": (lambda X, Y: (X, Y), np.full(MORE, 0.5), "whole number"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("name", ["VGPKMM", "SparseEP", "SGPMCFreeForm"])
def test_wrong_data_change_nothing(name: str, case: str) -> None:
    data = problems.binary(MORE)
    model = HOLDERS[name].build(rows(data, FIRST))
    set_sites(model, FIRST)
    before = model.predict_f(XNEW)
    changed, index, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        model.update_data(changed(*data), index)
    assert_same(model.data, rows(data, FIRST))
    assert_same(model.predict_f(XNEW), before)


@pytest.mark.parametrize("name", others_slow(NETWORKS, "GPRN-tensor"))
def test_a_network_goes_on_with_other_data(name: str) -> None:
    holder = HOLDERS[name]
    data = holder.sample(MORE, 0)
    model = holder.build(rows(data, FIRST))
    gpx.fit(model, steps=30, progress=False)
    mean, _ = model.predict_f(XNEW)
    model.update_data(rows(data, FIRST))  # the same: what is kept predicts the same
    np.testing.assert_allclose(model.predict_f(XNEW)[0], mean, atol=5e-3)
    model.update_data(data)
    begin = float(model.elbo())
    result = gpx.fit(model, steps=20, progress=False)
    assert result.objective[-1] > begin
    model.update_data(tuple(part[::-1][:7] for part in data), np.arange(MORE)[::-1][:7])
    assert np.isfinite(model.elbo())
    with pytest.raises(ValueError, match="columns"):
        model.update_data((data[0], data[1][:, :1]))


def test_a_network_keeps_the_sites_of_rows_that_stay() -> None:
    holder = HOLDERS["GPRN"]
    data = holder.sample(MORE, 0)
    model = holder.build(rows(data, FIRST))
    location, prec = model.q.location.numpy(), model.q.prec.numpy()
    index = np.r_[-1, np.arange(FIRST)[::-1]]
    X, Y = (part[np.r_[15, np.arange(FIRST)[::-1]]] for part in data)
    model.update_data((X, Y), index)
    for now, before in ((model.q.location.numpy(), location), (model.q.prec.numpy(), prec)):
        np.testing.assert_array_equal(now[1:], before[::-1])
        np.testing.assert_array_equal(now[0], 0.0)


def take_parameters(model: Any, other: Any) -> None:
    """Assign to all parameters of a model those of another one."""
    values = gpflow.utilities.read_values(other)
    named = {name for name in gpflow.utilities.parameter_dict(model) if "data[" not in name}
    gpflow.utilities.multiple_assign(model, {name: values[name] for name in named})


@pytest.mark.parametrize("name", others_slow(NETWORKS, "GPRN-sparse"))
def test_a_network_follows_the_variables_of_its_data(name: str) -> None:
    """Eagerly, in a graph that was traced before, in training, and where `update_data` assigns to them."""
    holder = HOLDERS[name]
    data, now = holder.sample(FIRST, 0), holder.sample(FIRST, 3)
    held = variables(data)
    model = holder.build(held)
    in_graph = tf.function(lambda: (model.predict_f(XNEW), model.elbo()), autograph=False)
    in_graph()
    assert model.predict_f(XNEW)[0].shape == (len(XNEW), data[1].shape[1])
    assign(held, now)
    expected = holder.build(now)
    take_parameters(expected, model)
    assert_same(model.predict_f(XNEW), expected.predict_f(XNEW))
    found, elbo = in_graph()
    assert_same(found, expected.predict_f(XNEW))
    np.testing.assert_allclose([elbo, model.elbo()], expected.elbo(), rtol=1e-9)
    result = gpx.fit(model, steps=5, progress=False)
    assert result.objective[-1] > elbo
    take_parameters(expected, model)
    np.testing.assert_allclose(model.elbo(), expected.elbo(), rtol=1e-9)
    assert not {id(part) for part in held} & {id(part) for part in model.trainable_variables}
    model.update_data(data)
    assert_same([part.numpy() for part in held], data)


@pytest.mark.parametrize("name", ["GPRN", "GPRN-sparse"])
def test_a_network_follows_other_numbers_of_rows(name: str) -> None:
    holder = HOLDERS[name]
    data = holder.sample(MORE, 0)
    held = variables(rows(data, FIRST))
    model, reference = holder.build(held), holder.build(rows(data, FIRST))
    assign(held, data)
    reference.update_data(data)
    assert_same(model.predict_f(XNEW), reference.predict_f(XNEW))
    assert model.q.location.shape[0] == MORE
    held[0].assign(data[0][:5])
    with pytest.raises(ValueError, match="assign to both"):
        model.predict_f(XNEW)


def test_what_variables_of_a_network_cannot_hold() -> None:
    data = HOLDERS["GPRN"].sample(MORE, 0)
    held = variables(rows(data, FIRST))
    model = HOLDERS["GPRN-tensor"].build(held)
    assign(held, data)
    with pytest.raises(ValueError, match="update_data"):
        model.elbo()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with pytest.raises(NotImplementedError, match="strategy"):
        GPRNTensor(variables(data), problems.kernel(), problems.kernel(), 2, strategy=strategy)
    data[1][2, 0] = np.nan
    with pytest.raises(ValueError, match="finite"):
        HOLDERS["GPRN"].build(variables(data))


def test_what_a_variable_must_be() -> None:
    X, Y = problems.binary(FIRST)
    with pytest.raises(ValueError, match=r"Y is a tf.Variable of int64"):
        VGPKMM((X, tf.Variable(Y.astype(np.int64))), problems.kernel(), BernoulliLogit())
    held = variables((X, Y))
    model = VGPKMM(held, problems.kernel(), BernoulliLogit())
    held[0].assign(X[:5])
    with pytest.raises(ValueError, match="assign to both"):
        gpx.fit(model, progress=False)


def test_growing_data_are_compiled_once_for_each_doubling() -> None:
    data = problems.binary(560)
    clear_compiled()
    model = VGPKMM(rows(data, 500), problems.kernel(), BernoulliLogit(), inducing_variable=points())
    gpflow.set_trainable(model, False)
    gpx.fit(model, progress=False)
    clear_before = trace_count()
    traces = []
    for number in range(505, 560, 9):
        model.update_data(rows(data, number))
        gpx.fit(model, progress=False)
        traces.append(trace_count() - clear_before)
    assert traces[0] == 0  # up to 512
    assert traces[1] == traces[-1] > 0  # from there to 1024


@pytest.mark.parametrize("binary", [BernoulliLogit(), BernoulliProbit(), gpflow.likelihoods.Bernoulli()])
def test_one_hot_targets_of_a_binary_likelihood_are_refused(binary: Any) -> None:
    X, Y = problems.binary(FIRST)
    for holder in (
        Holder(lambda data: VGPKMM(data, problems.kernel(), binary)),
        Holder(lambda data: SGPMCFreeForm(data, problems.kernel(), binary, inducing_variable=points())),
    ):
        with pytest.raises(ValueError, match=r"one-hot.*use Y\[:, 1:\]"):
            holder.build((X, np.c_[1.0 - Y, Y]))
        with pytest.raises(ValueError, match=r"one-hot.*argmax"):
            holder.build((X, np.eye(3)[np.arange(FIRST) % 3]))


def test_labels_of_several_binary_outputs_are_no_one_hot_targets() -> None:
    X, Y = problems.binary(FIRST)
    both = np.c_[Y, problems.binary(FIRST, seed=9)[1]]
    both[0] = 1.0
    assert VGPKMM((X, both), problems.kernel(), BernoulliLogit()).num_latent_gps == 2
    one_hot = np.eye(3)[np.arange(FIRST) % 3]
    with pytest.raises(ValueError, match="one column"):
        VGPKMM((X, one_hot), problems.kernel(), StickBreaking(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "first", "share", "tolerance"),
    [
        (lambda data: VGPKMM(data, problems.kernel(), BernoulliLogit()), 100, 0.15, 1e-8),
        (lambda data: _sparse(data, 300), 1000, 0.1, 1e-4),
        (lambda data: _sparse(data, 8), 100, 0.2, 1e-4),  # a fit from the start takes some ten updates' time
    ],
    ids=["VGPKMM", "SparseEP-300", "SparseEP-8"],
)
def test_a_hundred_updates_cost_little_beside_as_many_fits(
    build: Callable[[Any], Any], first: int, share: float, tolerance: float
) -> None:
    """With the hyperparameters held until the end, which is that of a fit from the start. Of CPU seconds."""
    updates = 100
    last = first + 10 * updates
    data = problems.binary(last)
    model = build(rows(data, first))
    gpx.fit(model, progress=False)
    gpflow.set_trainable(model.kernel, False)
    begin = time.process_time()
    for number in range(first + 10, last + 1, 10):
        model.update_data(rows(data, number))
        gpx.fit(model, progress=False)
    gpflow.set_trainable(model.kernel, True)
    warm = gpx.fit(model, progress=False)
    online, fits = time.process_time() - begin, []
    for number in np.linspace(first, last, 5, dtype=int)[1:]:
        fresh = build(rows(data, number))
        begin = time.process_time()
        cold = gpx.fit(fresh, progress=False)
        fits.append(time.process_time() - begin)
    assert warm.objective[-1] == pytest.approx(cold.objective[-1], rel=tolerance)
    assert online <= share * updates * np.mean(fits)


def _sparse(data: Any, number: int) -> SparseEP:
    at = np.random.default_rng(0).uniform(-2.0, 2.0, (number, 2))
    model = SparseEP(data, problems.kernel(), BernoulliProbit(), inducing_variable=at)
    gpflow.set_trainable(model.inducing_variable, False)
    return model
