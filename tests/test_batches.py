"""Compiled predictions: those of `predict_f`, in graphs that models of one structure share."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.models import GPR, SGPR, SVGP, VGP

import gpflow_ext as gpx
from gpflow_ext.compiled import Preferred, clear_compiled, trace_count
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM, GPLaplace, GPRNTensor, SGPMCFreeForm, SVGPRobustMax
from gpflow_ext.prediction import batches
from gpflow_ext.prediction.average import ModelAverage
from gpflow_ext.prediction.batches import Predicted
from gpflow_ext.prediction.rescaled import RescaledTargets
from gpflow_ext.sites import Sites

Z = problems.inputs(5, seed=5)
MODELS: dict[str, Callable[[int], Any]] = {
    "dense sites": lambda n: GPLaplace(problems.binary(n), problems.kernel(), BernoulliLogit()),
    "sparse sites": lambda n: VGPKMM(
        problems.binary(n), problems.kernel(), BernoulliLogit(), inducing_variable=Z.copy()
    ),
    "classes": lambda n: SVGPRobustMax(problems.kernel(), 3, Z.copy(), num_data=n),
    "VGP": lambda n: VGP(problems.binary(12), problems.kernel(), gpflow.likelihoods.Bernoulli()),
    "SVGP": lambda n: SVGP(problems.kernel(), gpflow.likelihoods.Bernoulli(), Z.copy(), num_data=n),
    "GPR": lambda n: GPR(problems.continuous(n), problems.kernel()),
    "SGPR": lambda n: SGPR(problems.continuous(n), problems.kernel(), Z.copy()),
}
CLASSIFIERS = [name for name in MODELS if name not in ("GPR", "SGPR")]


def scattered(name: str, rows: int, seed: int) -> Any:
    """Return a model with values of its own."""
    model, rng = MODELS[name](rows), np.random.default_rng(seed)
    if hasattr(model, "nat1"):
        model.nat1.assign(rng.normal(size=model.nat1.numpy().shape))
        model.prec.assign(rng.uniform(0.1, 1.0, size=model.prec.numpy().shape))
    if hasattr(model, "q_mu"):
        model.q_mu.assign(rng.normal(size=model.q_mu.numpy().shape))
    model.kernel.variance.assign(1.0 + rng.uniform())
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_second_model_of_a_structure_traces_nothing(name: str) -> None:
    test = (problems.continuous if name in ("GPR", "SGPR") else problems.binary)(17)
    gpx.metrics.evaluate(scattered(name, 12, 0), test)
    model, before = scattered(name, 15, 1), trace_count()
    scores = gpx.metrics.evaluate(model, tuple(part[:9] for part in test), batch_size=5)
    assert trace_count() == before
    X, Y = (tf.constant(part[:9]) for part in test)
    density = model.likelihood.predict_log_density(X, *model.predict_f(X), Y)
    np.testing.assert_allclose(scores["nlpd"], -np.mean(density), rtol=1e-9)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_predictors_share_the_graphs_of_posteriors(name: str) -> None:
    X, _ = problems.binary(17)
    gpx.ClassPredictor(scattered(name, 12, 0)).probabilities(X)
    model, before = scattered(name, 15, 1), trace_count()
    p = gpx.ClassPredictor(model, batch_size=7).probabilities(X)
    assert trace_count() == before
    np.testing.assert_allclose(p[:, 1:], model.predict_y(X)[0][:, -p.shape[1] + 1 :], rtol=1e-7)


def test_a_predictor_keeps_its_cache() -> None:
    X, _ = problems.binary(17)
    model = scattered("dense sites", 12, 0)
    predictor = gpx.ClassPredictor(model)
    before = predictor.probabilities(X)
    model.assign_sites(Sites(model.nat1 + 1.0, model.prec + 0.0))
    np.testing.assert_array_equal(predictor.probabilities(X), before)
    assert np.abs(gpx.ClassPredictor(model).probabilities(X) - before).max() > 0.01


class InNumPy(GPR):
    """A model that no graph can hold."""

    def predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> Any:
        """Return the prior mean and variance."""
        size = np.asarray(Xnew).shape[0]
        return tf.zeros([size, 1], tf.float64), tf.ones([size, 1], tf.float64)


def test_a_model_that_computes_in_numpy_is_evaluated() -> None:
    X, Y = problems.continuous(9)
    scores = gpx.metrics.evaluate(InNumPy((X, Y), problems.kernel()), (X, Y))
    np.testing.assert_allclose(scores["rmse"], np.sqrt(np.mean(Y**2)), rtol=1e-12)


def test_a_target_that_is_no_class_is_named_before_it_is_scored() -> None:
    X, _ = problems.binary(4)
    for wrong in (3.0, -1.0, 0.5, np.nan):
        with pytest.raises(ValueError, match="class numbers 0 to 2"):
            gpx.metrics.evaluate(MODELS["classes"](9), (X, np.array([[0.0], [wrong], [2.0], [1.0]])))
    with pytest.raises(ValueError, match="for indicators use"):
        gpx.metrics.evaluate(MODELS["classes"](9), (X, np.eye(3)[[0, 1, 2, 0]]))


def test_an_own_predict_f_is_called() -> None:
    model = scattered("dense sites", 12, 0)
    model.predict_f = lambda X: (tf.zeros([len(X), 1], tf.float64), tf.ones([len(X), 1], tf.float64))
    predict = Predicted(model)
    p = predict(predict.of.probabilities, tf.zeros([3, problems.inputs(3).shape[1]], tf.float64))
    np.testing.assert_allclose(p, 0.5, rtol=1e-9)


def test_graphs_are_made_anew_where_all_are_dropped() -> None:
    model = scattered("dense sites", 12, 0)
    first = gpx.metrics.evaluate(model, problems.binary(6))
    clear_compiled()
    assert gpx.metrics.evaluate(model, problems.binary(6)) == first


def test_a_preferred_method_runs_eagerly_where_no_other_object_shares_it() -> None:
    class Owner(tf.Module):
        def __init__(self, held: Any) -> None:
            super().__init__()
            self.held, self.eager = held, []

        def double(self, x: tf.Tensor) -> tf.Tensor:
            self.eager.append(tf.executing_eagerly())
            return 2.0 * x

    shared, alone, lasting = Owner(None), Owner(n for n in ()), Owner(n for n in ())
    for owner, call in (
        (shared, Preferred(shared)),
        (alone, Preferred(alone)),
        (lasting, Preferred(lasting, lasting=True)),
    ):
        np.testing.assert_array_equal(call(owner.double, tf.ones([3, 1])), 2.0 * np.ones([3, 1]))
    assert (shared.eager, alone.eager) == ([], [True])  # a graph is traced on a copy,
    assert lasting.eager == [False]  # but for what cannot be copied


@pytest.mark.parametrize("name", MODELS)
def test_batches_share_what_a_posterior_computes_of_many_data(name: str, monkeypatch) -> None:
    monkeypatch.setattr(batches, "_MANY", 12)
    model = scattered(name, 12, 0)
    kind, calls = type(model.posterior(None)), []
    computed = kind._precompute

    def counted(self: Any) -> Any:
        calls.extend([1] * tf.executing_eagerly())  # a graph may hold it too
        return computed(self)

    monkeypatch.setattr(kind, "_precompute", counted)
    X, Y = (problems.continuous if name in ("GPR", "SGPR") else problems.binary)(17)
    found = gpx.metrics.evaluate(model, (X, Y), batch_size=5)
    assert len(calls) == (name not in ("classes", "SVGP"))  # which hold no data
    density = model.likelihood.predict_log_density(X, *model.predict_f(X), Y)
    np.testing.assert_allclose(found["nlpd"], -np.mean(density), rtol=1e-9)
    calls.clear()
    gpx.metrics.evaluate(model, (X, Y))  # in one batch
    monkeypatch.setattr(batches, "_MANY", 13)
    gpx.metrics.evaluate(model, (X, Y), batch_size=5)
    assert not calls


def _network() -> GPRNTensor:
    outputs = np.random.default_rng(0).normal(size=(12, 3))
    return GPRNTensor((problems.inputs(12), outputs), problems.kernel(), problems.kernel(), 2)


def _free_form() -> SGPMCFreeForm:
    model = SGPMCFreeForm(
        problems.binary(12), problems.kernel(), BernoulliLogit(), inducing_variable=Z.copy()
    )
    model.V.assign(np.random.default_rng(0).normal(size=model.V.shape))
    return model


COMPUTING: dict[str, tuple[Callable[[], Any], list[str]]] = {  # and whose posteriors a batch asks for
    "network": (_network, ["ApproximatePosterior"]),
    "free form": (_free_form, ["DrawsPosterior"]),
    "average": (
        lambda: ModelAverage(
            [scattered("dense sites", 12, 0), scattered("SVGP", 12, 0), _free_form()], np.ones(3)
        ),
        ["DenseSitePosterior", "DrawsPosterior"],
    ),
    "other units": (
        lambda: RescaledTargets(_network(), [1.0, 0.0, 2.0], [1.0, 2.0, 0.5]),
        ["ApproximatePosterior"],
    ),
}


@pytest.mark.parametrize("name", COMPUTING)
def test_batches_of_what_runs_eagerly_share_it_at_any_number_of_data(name: str, monkeypatch) -> None:
    build, computed = COMPUTING[name]
    model, calls = build(), []
    for kind in {
        type(part.posterior(None))
        for part in (model, *getattr(model, "parts", list)())
        if hasattr(part, "posterior")
    }:
        own = kind._precompute
        monkeypatch.setattr(
            kind, "_precompute", lambda self, own=own: calls.append(type(self).__name__) or own(self)
        )
    X, Y = problems.binary(17)
    Y = Y if name in ("free form", "average") else np.random.default_rng(1).normal(size=(17, 3))
    found = gpx.metrics.evaluate(model, (X, Y), batch_size=5)
    assert sorted(calls) == computed
    one = gpx.metrics.evaluate(model, (X, Y))
    assert {score: one[score] for score in found} == pytest.approx(found, rel=1e-12)


class Shifted(GPLaplace):
    def predict_f(self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False) -> Any:
        mean, var = super().predict_f(Xnew, full_cov, full_output_cov)
        return mean + 3.0, var


def test_a_predictor_of_a_subclass_calls_its_predict_f() -> None:
    model = Shifted(problems.binary(12), problems.kernel(), BernoulliLogit())
    X = problems.inputs(5)
    of_predictor = gpx.ClassPredictor(model).probabilities(X)
    np.testing.assert_allclose(of_predictor[:, 1:], model.predict_y(X)[0], rtol=1e-9)


def test_a_predictor_of_an_average_has_its_probabilities() -> None:
    model = ModelAverage([scattered("dense sites", 12, seed) for seed in range(2)], [0.2, 0.8])
    X = problems.inputs(7)
    p = gpx.ClassPredictor(model, batch_size=4).probabilities(X)
    np.testing.assert_allclose(p[:, 1:], model.predict_y(X)[0], rtol=1e-9)


def test_predictions_of_a_subclass_are_its_own_in_any_batches(monkeypatch) -> None:
    monkeypatch.setattr(batches, "_MANY", 1)
    model = Shifted(problems.binary(12), problems.kernel(), BernoulliLogit())
    data = problems.binary(17)
    one, several = (gpx.metrics.evaluate(model, data, batch_size=size)["nlpd"] for size in (17, 5))
    assert one == pytest.approx(several, rel=1e-12)


def test_a_posterior_that_has_predictions_of_its_own_makes_them_from_the_cache() -> None:
    """That of draws averages probabilities over them."""
    posterior = SimpleNamespace(cache=None, predictions=lambda X: (X, posterior.cache))
    of = batches.Predicting(SimpleNamespace(posterior=lambda _: posterior))
    X, cache = tf.ones([3, 2]), tf.ones([1, 4, 4])
    asked, (given,) = of._at(X, (cache,))
    assert asked is X
    np.testing.assert_array_equal(given, cache[0])


def test_rows_without_probabilities_have_no_label() -> None:
    """The index of the largest of NaN is that of the first class."""
    model = gpx.models.GPLaplace(problems.binary(12), problems.kernel(), gpx.likelihoods.BernoulliLogit())
    predictor = gpx.ClassPredictor(model)
    rows = np.zeros((3, 2))
    rows[1, 0] = np.nan
    assert np.isnan(predictor.probabilities(rows)[1]).all()
    for call in (predictor.labels, lambda given: predictor.top(given, 1)):
        with pytest.raises(ValueError, match=r"row 1 of X .* has no finite probabilities, and 1 in all"):
            call(rows)
    wrong: Any
    for wrong in ("1", 1.5, None):
        with pytest.raises(ValueError, match="`k` must be a whole number"):
            predictor.top(rows[:1], wrong)
