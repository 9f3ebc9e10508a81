"""The estimators keep scikit-learn's rules, predict, weigh, and are exported with their scaling."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp
from marks import others_slow

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import r2_score
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import gpflow_ext as gpx
from gpflow_ext.estimators import (
    GPClassifier,
    GPCountRegressor,
    GPMultiOutputRegressor,
    GPOrdinal,
    GPRegressor,
    base,
    ladder,
)
from gpflow_ext.server import calls, limits

KINDS = [GPClassifier, GPRegressor, GPOrdinal, GPCountRegressor, GPMultiOutputRegressor]
QUICK = {  # of scikit-learn's checks, in every run
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimators_nan_inf",
    "check_sample_weight_equivalence_on_dense_data",
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) * [1.0, 10.0] + [3.0, 0.0]
F = np.sin(2.0 * X[:, 0]) + 0.1 * X[:, 1]
TARGETS: dict[str, Any] = {
    "GPClassifier": np.where(F > 0.0, "yes", "no"),
    "GPRegressor": 1e4 + 100.0 * (F + 0.1 * RNG.normal(size=60)),
    "GPOrdinal": 2 * np.digitize(F, [-0.5, 0.5]),
    "GPCountRegressor": RNG.poisson(np.exp(F)),
}
TARGETS["GPMultiOutputRegressor"] = np.column_stack(
    [TARGETS["GPRegressor"], 0.01 * F + 0.001 * RNG.normal(size=60)]
)


def _small(**parameters: object) -> GPClassifier:
    return GPClassifier(**{"num_inducing": 5, "steps": 1, **parameters})


def _iris() -> tuple[np.ndarray, np.ndarray]:
    data = load_iris()
    return data.data, data.target_names[data.target]


def _fitted(kind: type[BaseEstimator]) -> Any:
    return kind(steps=1).fit(X, TARGETS[kind.__name__])


def _checks() -> list[Any]:
    found = []
    for kind in KINDS:
        for estimator, check in estimator_checks_generator(kind(steps=1)):
            name = getattr(check, "func", check).__name__
            marks = [] if name in QUICK and kind in KINDS[:2] else pytest.mark.slow
            found.append(pytest.param(estimator, check, id=f"{kind.__name__}-{name}", marks=marks))
    return found


@pytest.mark.filterwarnings("ignore:kernel:UserWarning")  # the targets of some checks are pure noise
@pytest.mark.parametrize(("estimator", "check"), _checks())
def test_scikit_learn_accepts_the_estimators(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


@pytest.mark.parametrize("kind", others_slow(KINDS, GPRegressor, GPCountRegressor))
def test_weights_are_copies_to_the_digit(kind: type[BaseEstimator]) -> None:
    y = TARGETS[kind.__name__]
    copies = np.random.default_rng(1).integers(0, 3, len(X))
    weighted = kind(steps=1).fit(X, y, sample_weight=copies)
    copied = kind(steps=1).fit(np.repeat(X, copies, axis=0), np.repeat(y, copies, axis=0))
    method = "predict_proba" if hasattr(kind, "predict_proba") else "predict"
    ours, theirs = (getattr(each, method)(X) for each in (weighted, copied))
    np.testing.assert_array_equal(ours, theirs)
    assert not np.allclose(getattr(_fitted(kind), method)(X), ours, rtol=1e-4)


@pytest.mark.parametrize("kind", others_slow(KINDS, GPClassifier, GPRegressor))
def test_what_is_exported_answers_as_the_estimator(kind: type[BaseEstimator], tmp_path: Path) -> None:
    """From raw rows; the graph factorises by itself, hence the rounding."""
    pd = pytest.importorskip("pandas")
    estimator = kind(steps=1).fit(pd.DataFrame(X, columns=["age", "height"]), TARGETS[kind.__name__])
    served = gpx.load_exported(gpx.export(estimator, tmp_path / "model"))
    answer = served.predict(X)
    assert served.manifest["data"]["feature_names"] == ["age", "height"]
    rows = pd.DataFrame(X, columns=["age", "height"])
    if "probabilities" in answer:
        np.testing.assert_allclose(answer["probabilities"], estimator.predict_proba(rows), rtol=1e-8)
        np.testing.assert_array_equal(answer["label"], estimator.predict(rows).astype(str))
        return
    mean, deviation = estimator.predict(rows, return_std=True)
    np.testing.assert_allclose(np.squeeze(answer["mean"]), mean, rtol=1e-8)
    np.testing.assert_allclose(np.squeeze(np.sqrt(answer["variance"])), deviation, rtol=1e-8)
    density = served.predict_log_density(X, TARGETS[kind.__name__].reshape(len(X), -1))
    np.testing.assert_allclose(density, estimator.score_samples(rows, TARGETS[kind.__name__]), rtol=1e-7)


def test_an_export_of_an_estimator_takes_no_other_scaling(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are those of the estimator"):
        gpx.export(_fitted(GPRegressor), tmp_path / "model", labels=["a", "b"])


def test_iris_is_classified() -> None:
    X, y = _iris()
    train = np.random.default_rng(0).permutation(len(X)) < 100
    model = GPClassifier().fit(X[train], y[train])
    p = model.predict_proba(X[~train])
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert set(model.predict(X[~train])) == set(model.classes_)
    assert model.score(X[~train], y[~train]) >= 0.9
    assert -model.score_samples(X[~train], y[~train]).mean() < 0.25
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X[~train]), model.classes_[p.argmax(axis=1)])
    np.testing.assert_allclose(model.predict_log_proba(X[~train]), np.log(p))
    np.testing.assert_allclose(model.score_samples(X[~train]), np.log(p.max(axis=1)))
    with pytest.raises(ValueError, match="holds 'rose', which is none of the classes"):
        model.score_samples(X[:1], ["rose"])


def test_numbers_are_predicted_with_deviations_in_their_units() -> None:
    y = TARGETS["GPRegressor"]
    model = GPRegressor().fit(X, y)
    mean, deviation = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 12.0
    assert 5.0 < np.median(deviation) < 40.0
    density = model.score_samples(X, y)
    np.testing.assert_allclose(
        density, -0.5 * np.log(2 * np.pi) - np.log(deviation) - 0.5 * ((y - mean) / deviation) ** 2
    )
    assert (model.score_samples(X) >= density - 1e-9).all()


@pytest.mark.filterwarnings("ignore:kernel:UserWarning")  # Gaussian noise explains all by itself
def test_outliers_hardly_move_a_robust_regression() -> None:
    y = TARGETS["GPRegressor"].copy()
    y[::10] += 2000.0
    errors = [
        np.median(np.abs(GPRegressor(noise=noise).fit(X, y).predict(X) - 1e4 - 100.0 * F))
        for noise in ("gaussian", "student_t")
    ]
    assert errors[1] < 0.5 * errors[0]


def test_exposures_multiply_rates() -> None:
    exposure = np.random.default_rng(1).uniform(0.5, 20.0, len(X))
    counts = np.random.default_rng(2).poisson(exposure * np.exp(F))
    model = GPCountRegressor(scatter="poisson", steps=1).fit(X, counts, exposure=exposure)
    rate = model.predict(X)
    np.testing.assert_allclose(model.predict(X, exposure=exposure), exposure * rate)
    assert np.corrcoef(np.log(rate), F)[0, 1] > 0.9
    score = model.score(X, counts, exposure=exposure)
    assert score == pytest.approx(r2_score(counts, exposure * rate))
    density = model.score_samples(X, counts, exposure=exposure)
    assert density.mean() > model.score_samples(X, counts).mean() + 1.0
    with pytest.raises(ValueError, match="exposure was not given to fit"):
        _fitted(GPCountRegressor).score_samples(X, counts, exposure=exposure)


@pytest.mark.parametrize("wrong", [-1.0, 0.0, np.nan, np.inf])
def test_exposures_are_positive(wrong: float) -> None:
    """At a negative one the expected count would be negative."""
    exposure = np.r_[wrong, np.ones(len(X) - 1)]
    model = _fitted(GPCountRegressor)
    calls = (
        lambda: model.predict(X, exposure=exposure),
        lambda: model.fit(X, np.ones(len(X)), exposure=exposure),
    )
    for call in calls:
        with pytest.raises(ValueError, match="exposure must hold positive numbers; found"):
            call()


@pytest.mark.parametrize("scatter", ["poisson", "negative_binomial"])
def test_deviations_at_an_exposure_are_those_of_its_counts(scatter: Any) -> None:
    """By quadrature over the latent function: the noise of each count, and the spread of its mean."""
    exposure = np.random.default_rng(1).uniform(0.5, 20.0, len(X))
    counts = np.random.default_rng(2).poisson(exposure * np.exp(F))
    model = GPCountRegressor(scatter=scatter, steps=1).fit(X, counts, exposure=exposure)
    mean, variance = (np.asarray(part) for part in model.model_.predict_f(model.scaler_.transform(X)))
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    rates = exposure[:, None] * np.exp(mean + np.sqrt(variance) * nodes)
    weights = weights / weights.sum()
    excess = float(np.asarray(getattr(model.model_.likelihood, "dispersion", 0.0)))
    expected = rates @ weights
    noise = (rates + excess * rates**2) @ weights
    spread = (rates - expected[:, None]) ** 2 @ weights
    found = model.predict(X, exposure=exposure, return_std=True)
    np.testing.assert_allclose(found[0], expected, rtol=1e-9)
    np.testing.assert_allclose(found[1], np.sqrt(noise + spread), rtol=1e-9)


def test_counts_are_served_at_their_exposures(tmp_path: Path) -> None:
    """By the SavedModel, by the server's reader of calls, and in as many blocks as there are rows."""
    exposure = np.random.default_rng(1).uniform(0.5, 20.0, len(X))
    counts = np.random.default_rng(2).poisson(exposure * np.exp(F))
    model = GPCountRegressor(steps=1).fit(X, counts, exposure=exposure)
    served = gpx.load_exported(gpx.export(model, tmp_path / "counts"))
    mean, deviation = model.predict(X, exposure=exposure, return_std=True)
    found = served.predict(X, exposure)
    np.testing.assert_allclose(found["mean"][:, 0], mean, rtol=1e-9)
    np.testing.assert_allclose(np.sqrt(found["variance"][:, 0]), deviation, rtol=1e-9)
    np.testing.assert_allclose(served.predict(X)["mean"][:, 0], model.predict(X), rtol=1e-9)
    many = served.predict(np.tile(X, (300, 1)), np.tile(exposure, 300))
    np.testing.assert_allclose(many["mean"][:, 0], np.tile(mean, 300), rtol=1e-9)
    of_call = [{"inputs": list(map(float, x)), "exposure": [e]} for x, e in zip(X, exposure, strict=True)]
    body = json.dumps({"signature_name": "predict_counts", "instances": of_call}).encode()
    call = calls.read(body, served.manifest["signatures"], limits.Limits())
    answer = served._call(call.signature, **call.arrays)
    np.testing.assert_array_equal(answer["mean"], found["mean"])
    with pytest.raises(ValueError, match="positive numbers, one for each row"):
        served.predict(X, -exposure)
    blind = gpx.load_exported(gpx.export(_fitted(GPCountRegressor), tmp_path / "blind"))
    with pytest.raises(ValueError, match="trained with exposures"):
        blind.predict(X, exposure)


def test_wrong_labels_are_told_from_right_ones() -> None:
    flipped = np.random.default_rng(3).random(60) < 0.15
    y = np.where(flipped, F <= 0.0, F > 0.0)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1.5)
    noisy = GPClassifier(kernel, label_noise=0.1).fit(X, y)
    assert 0.03 < noisy.label_noise_ < 0.3
    assert GPClassifier(steps=0).fit(X, y).label_noise_ == 0.0
    with pytest.raises(ValueError, match="sample_weight does not go with label noise"):
        noisy.fit(X, y, sample_weight=np.ones(60))


def test_pipelines_and_cross_validation_work() -> None:
    X, y = _iris()
    scores = cross_val_score(make_pipeline(MinMaxScaler(), _small()), X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.min() >= 0.75


@pytest.mark.parametrize("state", [int, np.random.RandomState])
def test_random_state_decides_the_minibatches(state: type) -> None:
    X, y = (part[::5] for part in _iris())

    def fitted(seed: int) -> np.ndarray:
        model = _small(random_state=state(seed), minibatch_size=8, steps=3)
        return model.fit(X, y == "setosa").predict_proba(X[:5])

    first = fitted(3)
    np.testing.assert_array_equal(fitted(3), first)
    assert not np.allclose(fitted(4), first, atol=1e-6)


def test_the_kernel_given_is_copied() -> None:
    X, y = _iris()
    kernel = gpflow.kernels.Matern52(lengthscales=np.full(4, 2.0))
    estimator = clone(_small(kernel=kernel, standardise=False))
    model = estimator.fit(X, y == "virginica")
    assert model.scaler_ is None
    assert isinstance(model.model_.kernel, gpflow.kernels.Matern52)
    for untouched in (kernel, estimator.kernel):
        np.testing.assert_allclose(untouched.lengthscales, 2.0, rtol=1e-12)
    assert not np.allclose(model.model_.kernel.lengthscales, 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_predict_the_same_and_live_on_their_own(twin: Callable[[Any], Any]) -> None:
    """After graphs were traced, whose tensors stay in the caches of the kernel's transforms."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    one = gpflow.utilities.to_default_float(1.0)
    kernel.lengthscales.prior = tfp.distributions.Gamma(one, one)
    model = GPClassifier(kernel, steps=1).fit(X, TARGETS["GPClassifier"])
    before = model.predict_proba(X[::10])
    other = twin(model)
    np.testing.assert_array_equal(other.predict_proba(X[::10]), before)
    other.model_.nat1.assign(-other.model_.nat1)
    np.testing.assert_array_equal(model.predict_proba(X[::10]), before)


def test_many_rows_are_predicted_in_batches() -> None:
    model = _fitted(GPClassifier)
    many = np.tile(X, (20, 1))[:1050]
    seen: list[int] = []
    predict_f = model.model_.predict_f
    model.model_.predict_f = lambda batch: (seen.append(len(batch)), predict_f(batch))[1]
    p = model.predict_proba(many)
    assert seen == [1000, 50]
    np.testing.assert_allclose(p[1000:], p[40:90], atol=1e-9)


def test_the_number_of_rows_decides_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense, with inducing points, on minibatches."""
    y = TARGETS["GPClassifier"]
    dense = GPClassifier(steps=0).fit(X, y).model_
    assert isinstance(dense, gpx.models.VGPKMM)
    assert dense.inducing_variable is None
    monkeypatch.setitem(ladder.DENSE, "sites", 50)
    monkeypatch.setattr(ladder, "POINTS", 10)
    sparse = GPClassifier(steps=0).fit(X, y).model_
    assert isinstance(sparse, gpx.models.VGPKMM)
    assert sparse.inducing_variable.Z.shape == (10, 2)
    monkeypatch.setattr(ladder, "MINIBATCHES", 50)
    assert isinstance(GPClassifier(steps=0).fit(X, y).model_, gpflow.models.SVGP)
    numbers = np.unique(y, return_inverse=True)[1].reshape(-1, 1).astype(float)
    options = GPClassifier(steps=0).fit(X, y).model_of(X, numbers)[1]
    assert (options["recipe"], options["starts"]) == ("dual", 1)
    assert options["minibatch_size"] == len(X) < 200
    assert isinstance(GPClassifier(steps=0, label_noise=0.1).fit(X, y).model_, gpx.models.SparseEP)
    three = GPClassifier(steps=0, label_noise=0.1).fit(X, TARGETS["GPOrdinal"]).model_
    assert isinstance(three, gpx.models.SVGPRobustMax)


def test_a_failed_training_is_told() -> None:
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1e-200)
    gpflow.set_trainable(kernel.lengthscales, False)  # else a start at that of the inputs succeeds
    with pytest.warns(ConvergenceWarning, match="NaN or infinite"):
        GPClassifier(kernel, num_inducing=5).fit(*_iris())


def test_a_training_that_had_not_settled_when_its_seconds_were_over_warns(monkeypatch) -> None:
    """Those of the recipe: steps that are given end it in silence."""
    ended = gpx.FitResult(np.zeros(1), np.ones(1), 0, gpx.Status.OUT_OF_TIME, notes=("It was rising.",))
    monkeypatch.setattr(base, "fit", lambda *_, **__: ended)
    X = np.linspace(0.0, 1.0, 12)[:, None]
    with pytest.warns(ConvergenceWarning, match="It was rising"):
        GPRegressor().fit(X, X[:, 0])
    GPRegressor(steps=1).fit(X, X[:, 0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be at least 1"),
        ({"num_inducing": 2.5}, "`num_inducing` must be a whole number"),
        ({"minibatch_size": 2.5}, "`minibatch_size` must be a whole number"),
        ({"standardise": "no"}, "`standardise` must be True or False"),
        ({"label_noise": 0.9}, "epsilon must be in"),
        ({"steps": -1}, "`steps` must not be negative"),
        ({"minibatch_size": 0}, "minibatch_size must be at least 1"),
    ],
)
def test_wrong_parameters_are_named_by_fit(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _small(**parameters).fit(*_iris())


def test_other_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="noise must be one of gaussian, student_t"):
        GPRegressor(noise="cauchy").fit(X, F)
    with pytest.raises(ValueError, match="scatter must be one of"):
        GPCountRegressor(scatter="much").fit(X, TARGETS["GPCountRegressor"])
    with pytest.raises(ValueError, match="at least one non-zero"):
        GPRegressor().fit(X, F, sample_weight=np.zeros(60))
    with pytest.raises(ValueError, match="y must hold counts from 0; found -60"):
        GPCountRegressor().fit(X, np.arange(-60.0, 0.0))
    with pytest.raises(ValueError, match="exposure must have 60 numbers"):
        GPCountRegressor().fit(X, TARGETS["GPCountRegressor"], exposure=[1.0])


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two classes; y holds one class, 'a'"):
        _small().fit(np.eye(3), ["a", "a", "a"])
