"""The classifier keeps scikit-learn's rules, and classifies."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from marks import others_slow

pytest.importorskip("sklearn")

from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import gpflow_ext as gpx
from gpflow_ext.estimators.classifier import GPClassifier

pytestmark = pytest.mark.filterwarnings("ignore:Even though the `tf.config:UserWarning")  # see eager


@pytest.fixture
def eager() -> Iterator[None]:
    """No graphs: to trace one takes seconds, and the many fits here are of two or three steps."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def _small(**parameters: object) -> GPClassifier:
    return GPClassifier(**{"num_inducing": 5, "steps": 2, **parameters})


def _iris() -> tuple[np.ndarray, np.ndarray]:
    data = load_iris()
    return data.data, data.target_names[data.target]


@pytest.mark.usefixtures("eager")
@parametrize_with_checks([_small()])
def test_scikit_learn_accepts_the_estimator(
    estimator: BaseEstimator, check: Callable[[BaseEstimator], None]
) -> None:
    check(estimator)


def test_iris_is_classified() -> None:
    X, y = _iris()
    train = np.random.default_rng(0).permutation(len(X)) < 100
    model = GPClassifier(num_inducing=20, steps=100, minibatch_size=50).fit(X[train], y[train])
    p = model.predict_proba(X[~train])
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    assert set(model.predict(X[~train])) == set(model.classes_)
    assert model.score(X[~train], y[~train]) >= 0.9
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(model.predict(X[~train]), model.classes_[p.argmax(axis=1)])
    assert isinstance(model.model_, gpx.models.SVGPRobustMax)
    assert model.result_.steps == 100
    assert model.result_.objective[-1] > model.result_.objective[0]


@pytest.mark.usefixtures("eager")
def test_pipelines_and_cross_validation_work() -> None:
    X, y = _iris()
    scores = cross_val_score(make_pipeline(MinMaxScaler(), _small(steps=5)), X, y, cv=3)
    assert scores.shape == (3,)
    assert scores.min() >= 0.75


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "parameters", [{}, {"num_inducing": 30, "minibatch_size": 8}], ids=["points", "steps"]
)
@pytest.mark.parametrize("state", others_slow([int, np.random.RandomState], np.random.RandomState))
def test_random_state_decides_the_fit(state: type, parameters: dict[str, int]) -> None:
    """It chooses the inducing points, and where all rows are such points the minibatches."""
    X, y = (part[::5] for part in _iris())

    def fitted(seed: int) -> np.ndarray:
        return _small(random_state=state(seed), **parameters).fit(X, y).predict_proba(X[:5])

    first = fitted(3)
    np.testing.assert_array_equal(fitted(3), first)
    assert not np.allclose(fitted(4), first, atol=1e-6)


@pytest.mark.usefixtures("eager")
def test_the_kernel_given_is_copied() -> None:
    X, y = _iris()
    kernel = gpflow.kernels.Matern52(lengthscales=np.full(4, 2.0))
    estimator = clone(_small(kernel=kernel, standardise=False))
    model = estimator.fit(X, y)
    assert model.scaler_ is None
    assert isinstance(model.model_.kernel, gpflow.kernels.Matern52)
    for untouched in (kernel, estimator.kernel):
        np.testing.assert_allclose(untouched.lengthscales, 2.0, rtol=1e-12)
    assert not np.allclose(model.model_.kernel.lengthscales, 2.0, rtol=1e-6)


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["deepcopy", "pickle"]
)
def test_copies_predict_the_same_and_live_on_their_own(twin: Callable[[GPClassifier], GPClassifier]) -> None:
    """After graphs were traced, whose tensors stay in the caches of the kernel's transforms."""
    X, y = _iris()
    kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    one = gpflow.utilities.to_default_float(1.0)
    kernel.lengthscales.prior = tfp.distributions.Gamma(one, one)
    model = _small(kernel=kernel, steps=1).fit(X, y)
    before = model.predict_proba(X[::10])
    other = twin(model)
    np.testing.assert_array_equal(other.predict_proba(X[::10]), before)
    other.model_.q_mu.assign(-other.model_.q_mu)
    np.testing.assert_array_equal(model.predict_proba(X[::10]), before)


@pytest.mark.usefixtures("eager")
def test_many_rows_are_predicted_in_batches() -> None:
    X, y = _iris()
    model = _small().fit(X, y)
    many = np.tile(X, (8, 1))[:1050]
    seen: list[int] = []
    predict_f = model.model_.predict_f
    model.model_.predict_f = lambda batch: (seen.append(len(batch)), predict_f(batch))[1]
    p = model.predict_proba(many)
    assert seen == [1000, 50]
    np.testing.assert_allclose(p[1000:], p[100:150], atol=1e-9)


@pytest.mark.usefixtures("eager")
def test_few_rows_limit_inducing_points_and_minibatches() -> None:
    X = np.repeat(np.arange(6.0)[:, None], 3, axis=0)
    model = _small(num_inducing=100, minibatch_size=500).fit(X, X[:, 0] > 2)
    assert model.model_.inducing_variable.Z.shape == (6, 1)
    np.testing.assert_array_equal(model.predict([[0.0], [5.0]]), [False, True])


@pytest.mark.usefixtures("eager")
def test_a_failed_training_is_told() -> None:
    X, y = _iris()
    with pytest.warns(ConvergenceWarning, match="NaN or infinite"):
        _small(kernel=gpflow.kernels.SquaredExponential(lengthscales=1e-200)).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"num_inducing": 0}, "num_inducing must be from 1"),
        ({"epsilon": 0.9}, "epsilon must be in"),
        ({"steps": -1}, "`steps` must not be negative"),
        ({"minibatch_size": 0}, "`minibatch_size` must be from 1"),
    ],
)
def test_wrong_parameters_are_named_by_fit(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _small(**parameters).fit(*_iris())


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two classes; y holds one class, 'a'"):
        _small().fit(np.eye(3), ["a", "a", "a"])
