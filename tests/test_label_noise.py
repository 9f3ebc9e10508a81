"""Likelihoods with a share of wrong labels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import gpflow
import likelihood_contract as contract
import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import every_pair, others_slow
from scipy.integrate import trapezoid
from scipy.special import expit, ndtr

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, MultinomialLogit
from gpflow_ext.models import GPJaakkola, SparseEP

LINKS: dict[str, tuple[Callable, Callable, float]] = {
    "logit": (BernoulliLogit, expit, 1e-8),
    "probit": (BernoulliProbit, ndtr, 2e-7),
}
MAKE = {
    "logit": lambda: BernoulliLogit(flip=0.07, learn_flip=True),
    "probit": lambda: BernoulliProbit(flip=0.07, learn_flip=True),
    "multinomial": lambda: MultinomialLogit(3, flip=0.07, learn_flip=True),
}
each_and_some_dtypes = pytest.mark.parametrize(
    ("name", "dtype"),
    others_slow(
        itertools.product(MAKE, (tf.float32, tf.float64)),
        *(("logit", tf.float32), ("probit", tf.float64), ("multinomial", tf.float32)),
    ),
)
WIDTH = {"logit": 1, "probit": 1, "multinomial": 3}
MEANS, VARIANCES = [0.0, 1.3, -4.0, 9.0, -30.0], [1e-4, 0.3, 4.0, 100.0, 1e4]
M, V = (part.reshape(-1, 1) for part in np.meshgrid(MEANS, VARIANCES))
NO_X = np.zeros_like(M)


def labels(name: str, number: int) -> np.ndarray:
    return (np.arange(number) % (3 if name == "multinomial" else 2))[:, None].astype(float)


def of_normal(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """E[function(f)], f ~ N(M, V), by the trapezoid rule on a grid dense about zero and about the mean."""
    found = []
    for m, v in zip(M[:, 0], V[:, 0], strict=True):
        fine = np.sinh(np.linspace(-np.arcsinh(2e3), np.arcsinh(2e3), 200_001))
        x = np.union1d(fine, m + np.sqrt(v) * np.linspace(-12.0, 12.0, 200_001))
        density = np.exp(-0.5 * (x - m) ** 2 / v) / np.sqrt(2.0 * np.pi * v)
        found.append(trapezoid(function(x) * density, x))
    return np.array(found)


@pytest.mark.parametrize(("name", "flip", "label"), every_pair(list(LINKS), [1e-4, 0.01, 0.3], [0.0, 1.0]))
def test_binary_densities_are_those_of_the_mixture(name: str, flip: float, label: float) -> None:
    make, link, tolerance = LINKS[name]
    likelihood, sign, Y = make(flip=flip), 2.0 * label - 1.0, np.full_like(M, label)

    def p(f: np.ndarray) -> np.ndarray:
        return flip + (1.0 - 2.0 * flip) * link(sign * f)

    expected = of_normal(p)
    np.testing.assert_allclose(np.exp(likelihood.log_prob(NO_X, M, Y)), p(M)[:, 0], rtol=1e-12)
    density = np.exp(likelihood.predict_log_density(NO_X, M, V, Y))
    np.testing.assert_allclose(density, expected, rtol=0, atol=1e-9)
    probability = likelihood.class_probabilities(NO_X, M, V)[:, int(label)]
    np.testing.assert_allclose(probability, expected, rtol=0, atol=1e-9)
    mean, variance = likelihood.predict_mean_and_var(NO_X, M, V)
    np.testing.assert_allclose(mean[:, 0], probability if label else 1.0 - probability, rtol=1e-12)
    np.testing.assert_allclose(variance, mean * (1.0 - mean), rtol=1e-12)
    bound = likelihood.variational_expectations(NO_X, M, V, Y)
    np.testing.assert_allclose(bound, of_normal(lambda f: np.log(p(f))), rtol=0, atol=tolerance)


def test_two_classes_are_the_binary_likelihood() -> None:
    """Of the difference of their latent functions, whose variances add up."""
    binary, multinomial = BernoulliLogit(flip=0.1), MultinomialLogit(2, flip=0.1)
    m, v = np.c_[0.0 * M, M][V[:, 0] < 10.0], np.c_[0.3 * V, 0.7 * V][V[:, 0] < 10.0]
    for y in (0.0, 1.0):
        Y = np.full_like(m[:, :1], y)
        for method in ("predict_log_density", "variational_expectations"):
            of_two = getattr(multinomial, method)(Y, m, v, Y)
            of_one = getattr(binary, method)(Y, m[:, 1:], v.sum(axis=1, keepdims=True), Y)
            np.testing.assert_allclose(of_two, of_one, rtol=1e-7, atol=1e-7)


def test_wrong_classes_share_what_is_wrong() -> None:
    likelihood = MultinomialLogit(4, flip=0.3)
    far = np.array([[200.0, 0.0, -5.0, 7.0]])
    p = [float(np.exp(likelihood.log_prob(far, far, [[float(k)]])[0])) for k in range(4)]
    np.testing.assert_allclose(p, [0.7, 0.1, 0.1, 0.1], rtol=1e-12)
    np.testing.assert_allclose(
        likelihood.class_probabilities(far, far, np.full_like(far, 1e-6))[0], p, rtol=1e-9
    )


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("size", [300.0, 1e4])
def test_large_means_do_not_cancel_in_single_precision(name: str, size: float) -> None:
    """The expectation is bounded by log(1 - flip) and log(flip) there, so its rounding is too."""
    Y = labels(name, 6)
    signs = np.array([[1.0], [-1.0], [-1.0], [-1.0], [1.0], [1.0]])
    m = size * signs * np.linspace(1.0, 0.3, WIDTH[name])
    found = [
        MAKE[name]().variational_expectations(
            *(tf.constant(part, dtype) for part in (Y, m, 0.0 * m + 0.1, Y))
        )
        for dtype in (tf.float32, tf.float64)
    ]
    np.testing.assert_allclose(*found, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", MAKE)
def test_gradients_and_batches(name: str) -> None:
    likelihood, Y = MAKE[name](), labels(name, 6)
    contract.check_gradients(likelihood, *contract.moments(WIDTH[name]), Y)
    contract.check_batches(likelihood, WIDTH[name], Y)


@each_and_some_dtypes
def test_xla(name: str, dtype: tf.DType) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype.as_numpy_dtype)):
        contract.check_xla(MAKE[name](), WIDTH[name], labels(name, 6), dtype)


@each_and_some_dtypes
def test_in_gpflow_models(name: str, dtype: tf.DType) -> None:
    X = problems.binary(20)[0]
    contract.check_in_gpflow_models(MAKE[name], (X, labels(name, 20)), WIDTH[name], dtype.as_numpy_dtype)


def noisy_labels(number: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (number, 1))
    Y = (np.sin(2.0 * X) > 0.0) ^ (rng.uniform(size=X.shape) < share)
    return X, Y.astype(float)


@pytest.mark.parametrize("name", others_slow(LINKS, "logit"))
def test_the_share_of_wrong_labels_is_learnt(name: str, tmp_path) -> None:
    """Of 400 labels, 15 % of which are wrong; the exported model predicts with the share.

    Of few inducing points the evidence has another optimum, at a length scale below their distance.
    """
    train, (X, _) = noisy_labels(400, 0.15), noisy_labels(1000, 0.0)
    scores, models = [], []
    for options in ({"flip": 0.05, "learn_flip": True}, {}):
        likelihood = LINKS[name][0](**options)
        kernel = gpflow.kernels.SquaredExponential()
        model = SparseEP(train, kernel, likelihood, inducing_variable=np.linspace(-3.0, 3.0, 30)[:, None])
        gpflow.set_trainable(model.inducing_variable, False)
        result = gpx.fit(model, progress=False)
        scores.append(result.objective[-1])
        models.append(model)
    assert scores[0] > scores[1] + 3.0
    assert abs(models[0].likelihood.flip.numpy() - 0.15) < 0.05
    gpx.export(models[0], tmp_path / "noisy")
    served = gpx.load_exported(tmp_path / "noisy").predict(X)
    np.testing.assert_allclose(served["mean"], models[0].predict_y(X)[0], rtol=1e-9)


def test_without_wrong_labels_nothing_changes() -> None:
    for make in (BernoulliLogit, BernoulliProbit, lambda **options: MultinomialLogit(3, **options)):
        assert make(flip=0.0).flip == 0.0
        assert not make(flip=0.0).trainable_variables


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"flip must be in \[0, 1 - 1/K\) = \[0, 0\.5\); got 0\.5"):
        BernoulliLogit(flip=0.5)
    with pytest.raises(ValueError, match=r"got 0\.7"):
        MultinomialLogit(3, flip=0.7)
    with pytest.raises(ValueError, match="learn_flip needs a positive flip"):
        BernoulliProbit(learn_flip=True)
    with pytest.raises(ValueError, match="jaakkola"):
        GPJaakkola(problems.binary(9), problems.kernel(), BernoulliLogit(flip=0.1))


@pytest.mark.parametrize(
    ("make", "default", "bounds"),
    [
        (BernoulliLogit, "piecewise", ("piecewise", "jaakkola")),
        (functools.partial(MultinomialLogit, 3), "log", ("log", "bouchard", "best")),
    ],
)
def test_a_bound_beside_wrong_labels_is_refused(
    make: Callable, default: str, bounds: tuple[str, ...]
) -> None:
    assert make().bound == default
    assert make(flip=0.1).bound is None
    assert make(None, flip=0.1, learn_flip=True).bound is None
    for bound in bounds:
        assert make(bound).bound == bound
        with pytest.raises(ValueError, match=rf"bound='{bound}' does not bound .* with flip=0\.1.*leave out"):
            make(bound, flip=0.1)
    with pytest.raises(ValueError, match="jj"):
        make("jj")


def test_probit_with_wrong_labels_is_fitted() -> None:
    """The function of its derivatives calls itself; what is released after tracing is looked for in it."""
    X = np.linspace(-1.0, 1.0, 8)[:, None]
    model = gpflow.models.VGP((X, 1.0 * (X > 0)), gpflow.kernels.Matern32(), BernoulliProbit(flip=0.1))
    gpflow.set_trainable(model.kernel, False)
    assert gpx.fit(model, progress=False).status is gpx.Status.CONVERGED
