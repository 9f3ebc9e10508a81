"""State-space priors: the sweep and every site method equal the dense model's, on any times."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import (
    Constant,
    Cosine,
    Exponential,
    Kernel,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    SeparateIndependent,
    SquaredExponential,
    White,
)

import gpflow_ext as gpx
from gpflow_ext.compiled import trace_count
from gpflow_ext.sites import Sites, chunked, markov_posterior, markov_prior, state_space
from gpflow_ext.sites.markov import Markov
from gpflow_ext.sites.markov_posterior import Joint, Smoothing
from gpflow_ext.sites.method import site_method
from gpflow_ext.training import site_iteration
from gpflow_ext.training.scale import scale_failure
from gpflow_ext.training.site_iteration import SiteOptimum
from scripts.benchmarks import state_space as state_space_benchmark

RNG = np.random.default_rng(0)
TIMES = np.concatenate([RNG.uniform(0.0, 10.0, 114), np.full(5, 3.3), [3.3 + 1e-9]])
N = len(TIMES)
PREC = RNG.gamma(1.0, 3.0, (N, 1))
SIGNED = np.where(np.arange(N)[:, None] % 7 == 0, -0.02, PREC)
B = 3.0 * RNG.standard_normal((N, 1))


class Functions:
    """What `markov_prior.at` reads from a model."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.num_latent_gps = kernel, 1
        self.mean_function = gpflow.functions.Constant(0.3)


def _prior(kernel: Kernel, chunks: int | None = None, times: np.ndarray = TIMES) -> Markov:
    if chunks is None:
        return markov_prior.at(Functions(kernel), tf.constant(times[:, None]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "chunk_count", lambda _: chunks)
        return markov_prior.at(Functions(kernel), tf.constant(times[:, None]))


def _matern(kernel: Any, order: int, r: tf.Tensor) -> tf.Tensor:
    """Return a Matérn kernel of exact distances; GPflow's lose half of the digits where times are close."""
    z = np.sqrt(2 * order + 1.0) * r / kernel.lengthscales
    return kernel.variance * tf.exp(-z) * [1.0, 1.0 + z, 1.0 + z + z**2 / 3.0][order]


ORDERS = {Matern12: 0, Matern32: 1, Matern52: 2}


def _dense(kernel: Any) -> tf.Tensor:
    """Return the covariances of `TIMES`."""
    if isinstance(kernel, gpflow.kernels.Sum):
        return tf.add_n([_dense(part) for part in kernel.kernels])
    if isinstance(kernel, gpflow.kernels.Product):
        return tf.reduce_prod(tf.stack([_dense(part) for part in kernel.kernels]), axis=0)
    if type(kernel) in ORDERS:
        return _matern(kernel, ORDERS[type(kernel)], tf.constant(np.abs(TIMES[:, None] - TIMES)))
    return kernel(tf.constant(TIMES[:, None]))


KERNELS: dict[str, Callable[[], Kernel]] = {
    "Matern12": lambda: Matern12(2.0, 1.5),
    "Matern32": lambda: Matern32(2.0, 1.5),
    "Matern52": lambda: Matern52(2.0, 1.5),
    "sum": lambda: Matern32(2.0, 1.5) * Cosine(1.0, 0.7) + Matern52(2.0, 1.5) + Constant(4.0),
}
FAMILIES: dict[str, Callable[[], Kernel]] = {
    **KERNELS,
    "Exponential": lambda: Exponential(0.7, 1.2),
    "Periodic": lambda: Periodic(SquaredExponential(1.3, 0.9), 2.5),
    "White": lambda: White(0.3) + Matern32(),
    "trend": lambda: Linear(0.3) + Constant(2.0),
    "growing": lambda: Linear(0.3) * Matern12(),
    "quasi-periodic": lambda: Periodic(SquaredExponential(1.0, 1.1), 2.5) * Matern12(1.0, 5.0),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_states_have_the_covariances_of_the_kernel(name: str) -> None:
    """hᵀF(Δ)P h at all pairs of times is the kernel; a periodic one is cut off after some harmonics."""
    kernel = FAMILIES[name]()
    (space,) = markov_prior.spaces_of(kernel)
    late, early = np.maximum.outer(TIMES, TIMES).ravel(), np.minimum.outer(TIMES, TIMES).ravel()
    F = space.transition(tf.constant((late - early)[:, None]))[..., 0]
    ahead, behind = (space.observation(tf.constant(t[:, None]))[..., 0] for t in (late, early))
    found = tf.reshape(tf.einsum("ni,nij,jk,nk->n", ahead, F, space.covariance, behind), [N, N])
    expected = _dense(kernel).numpy()
    if name == "White":  # equal times have noise of their own in the kernel
        apart = TIMES[:, None] != TIMES
        found, expected = tf.where(apart, found, 0.0), np.where(apart, expected, 0.0)
    cut = 1e-7 if name == "quasi-periodic" else 1e-8 if name in ("Exponential", "Periodic") else 1e-12
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=cut * np.abs(expected).max())


@tf.function(autograph=False)
def _swept(prior: Markov, prec: tf.Tensor) -> tuple[tf.Tensor, ...]:
    factor, b = prior.factorise(prec), tf.constant(B) + tf.zeros_like(prec)
    reduced = prior.unlay(factor.adjoint().reduced)
    return *factor.solve(b), factor.variance(), reduced, factor.half_log_det(), prior.product(b)


def _reference(kernel: Kernel, prec: np.ndarray) -> tuple[np.ndarray, ...]:
    K = _dense(kernel).numpy()
    inverse = np.linalg.inv(np.eye(N) + prec * K)
    alpha = inverse @ B
    reduced = np.diag(inverse * prec.T)[:, None]
    log_det = np.linalg.slogdet(np.eye(N) + prec * K)[1]
    return alpha, K @ alpha, np.diag(K @ inverse)[:, None], reduced, 0.5 * log_det, K @ B


@pytest.mark.parametrize("chunks", [1, 8, pytest.param(N, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_a_sweep_is_dense_algebra(name: str, chunks: int) -> None:
    """α, Σα, variances, diag Λ^½B⁻¹Λ^½, ½ log|I + ΛΣ| and Σb: rounding apart, also for negative precisions."""
    kernel = KERNELS[name]()
    prior = _prior(kernel, chunks)
    for prec in (PREC, SIGNED):
        for found, expected in zip(_swept(prior, tf.constant(prec)), _reference(kernel, prec), strict=True):
            np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())
    assert prior.factorise(tf.constant(PREC)).finite
    assert not prior.factorise(tf.constant(-PREC)).finite


@pytest.mark.parametrize("chunks", [1, 8])
def test_later_data_make_up_for_negative_precisions(chunks: int) -> None:
    """Σ⁻¹ + Λ is positive definite although some s are not positive, up to where an eigenvalue is zero."""
    kernel, prec = Matern32(2.0, 1.5), PREC.copy()
    K, prior = _dense(kernel).numpy(), _prior(kernel, chunks)
    for k in range(5, 70, 15):  # each takes 0.9 of what the others give
        prec[k] = 0.0
        lowest = -1.0 / np.diag(K @ np.linalg.inv(np.eye(N) + prec * K))[k]
        prec[k] = 0.9 * lowest
    assert np.sum(prior.factorise(tf.constant(prec)).s < 0.0) > 3
    for found, expected in zip(_swept(prior, tf.constant(prec)), _reference(kernel, prec), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-8 * np.abs(expected).max())
    for share, sound in ((0.999, True), (1.001, False)):
        prec[k] = share * lowest
        factor = prior.factorise(tf.constant(prec))
        assert bool(factor.finite) == bool(tf.math.is_finite(factor.half_log_det())) == sound


@pytest.mark.parametrize(
    "name",
    [
        "Matern32",
        "separate",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("Matern52", "shared")),
    ],
)
def test_a_sweep_by_entries_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As XLA computes it: small matrices are taken apart, also where functions share a kernel or have their own."""
    several = {
        "separate": SeparateIndependent([Matern32(2.0, 1.5), Matern12()]),
        "shared": Matern52(2.0, 1.5),
    }
    functions = Functions(several[name] if name in several else KERNELS[name]())
    functions.num_latent_gps = 1 + (name in several)
    prior = markov_prior.at(functions, tf.constant(TIMES[:, None]))
    prec = tf.constant(np.concatenate([PREC, SIGNED], axis=1)[:, : functions.num_latent_gps])
    whole, taken = _swept(prior, prec), []
    monkeypatch.setattr(chunked, "_LONG", 1)
    monkeypatch.setattr(chunked, "graphs_for_xla", lambda: taken.append(1) or [1])
    for found, expected in zip(tf.function(_swept.python_function)(prior, prec), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-12 * np.abs(expected).max())
    assert taken


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Matern32", "Matern52", "sum"])
def test_xla_gives_the_same_sweep(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At chunks of the default number; the sum has more states than are taken apart."""
    monkeypatch.setattr(chunked, "_LONG", 1)
    prior = _prior(KERNELS[name]())
    compiled = tf.function(_swept.python_function, jit_compile=True, autograph=False)
    given = prior, tf.constant(PREC)
    for found, expected in zip(compiled(*given), _swept(*given), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-10 * np.abs(expected).max())


@pytest.mark.parametrize(
    "name", ["Matern32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sum", "trend"))]
)
def test_gradients_are_those_of_the_dense_covariance(name: str) -> None:
    """log ∫ p ∏ tₙ by the adjoint rule, and bᵀΣα, in all hyperparameters."""
    kernel = FAMILIES[name]()
    sites, a = Sites(tf.constant(B), tf.constant(SIGNED)), tf.constant(B[::-1].copy())
    functions = Functions(kernel)
    X = tf.constant(TIMES[:, None])

    @tf.function(autograph=False)
    def by_states() -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True) as tape:
            prior = markov_prior.at(functions, X)
            values = prior.log_normaliser(sites), tf.reduce_sum(sites.nat1 * prior.product(a))
        variables = [*kernel.trainable_variables, *functions.mean_function.trainable_variables]
        return [tape.gradient(value, variables, unconnected_gradients="zero") for value in values]

    def by_matrices() -> list[list[tf.Tensor]]:
        with tf.GradientTape(persistent=True) as tape:
            K, mu = _dense(kernel), functions.mean_function(X)
            inner = tf.eye(N, dtype=K.dtype) + sites.prec * K
            shift = tf.matmul(K, tf.linalg.solve(inner, sites.nat1 - sites.prec * mu))
            quadratic = 0.5 * (sites.nat1 - sites.prec * mu) * shift + sites.nat1 * mu
            quadratic -= 0.5 * sites.prec * mu**2
            value = tf.reduce_sum(quadratic) - 0.5 * tf.linalg.slogdet(inner)[1]
            values = value, tf.reduce_sum(sites.nat1 * tf.matmul(K, a))
        variables = [*kernel.trainable_variables, *functions.mean_function.trainable_variables]
        return [tape.gradient(value, variables, unconnected_gradients="zero") for value in values]

    for found, expected in zip(by_states(), by_matrices(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


X = np.random.default_rng(1).uniform(0.0, 12.0, (80, 1))
F = np.sin(X) + 0.3 * np.random.default_rng(2).standard_normal(X.shape)
TARGETS = {
    "poisson": np.random.default_rng(3).poisson(np.exp(F)).astype(float),
    "logit": (np.random.default_rng(4).random(X.shape) < 1.0 / (1.0 + np.exp(-2.0 * F))).astype(float),
    "student": F + 0.2 * np.random.default_rng(5).standard_t(3.0, X.shape),
}
LIKELIHOODS: dict[str, Callable[[], Any]] = {
    "poisson": gpflow.likelihoods.Poisson,
    "logit": lambda: gpx.likelihoods.BernoulliLogit(bound="jaakkola"),
    "student": lambda: gpflow.likelihoods.StudentT(scale=0.5, df=4.0),
}
NEW = np.linspace(-2.0, 20.0, 50)[:, None]  # before, between and after the data
slow = pytest.mark.slow


def _model(kind: str, likelihood: str, kernel: Kernel | None = None, **how: Any) -> Any:
    made = getattr(gpx.models, kind)(
        (X, TARGETS[likelihood]),
        Matern32(1.0, 2.0) if kernel is None else kernel,
        LIKELIHOODS[likelihood](),
        mean_function=gpflow.functions.Constant(0.1),
        **how,
    )
    gpflow.set_trainable(made.likelihood, False)
    if likelihood == "student":
        made.likelihood.quadrature = gpflow.quadrature.NDiagGHQuadrature(1, 60)
    return made


@pytest.fixture
def no_jitter() -> Any:
    """The dense model adds a jitter to the covariances, which the state space has no need of."""
    before = gpflow.config.default_jitter()
    gpflow.config.set_default_jitter(0.0)
    yield
    gpflow.config.set_default_jitter(before)


@pytest.mark.parametrize(
    ("kind", "likelihood", "recipe"),
    [
        ("GPLaplace", "poisson", None),
        pytest.param("VGPKMM", "poisson", None, marks=slow),
        pytest.param("GPLaplace", "logit", None, marks=slow),
        pytest.param("GPTaylor", "logit", None, marks=slow),
        pytest.param("GPJaakkola", "logit", None, marks=slow),
        pytest.param("VGPKMM", "logit", "ep", marks=slow),
        pytest.param("VGPKMM", "student", "ep", marks=slow),
    ],
)
def test_every_method_is_that_of_the_dense_model(
    kind: str, likelihood: str, recipe: str | None, no_jitter: None
) -> None:
    """Objective and predictions to 1e-8, gradients to 1e-6; a Student-t has sites with negative precisions."""
    how = {} if recipe is None else {"recipe": recipe}
    markov = _model(kind, likelihood, prior="markov")
    if likelihood == "student":  # in the dense model EP keeps precisions positive
        dense = _model("SparseEP", likelihood, inducing_variable=X.copy())
        gpflow.set_trainable(dense.inducing_variable, False)
    else:
        dense = _model(kind, likelihood)
    found = []
    for model in (dense, markov):
        for part in (model.kernel, model.mean_function):
            gpflow.set_trainable(part, False)
        result = gpx.fit(model, **how)
        assert result.status is gpx.Status.CONVERGED
        for part in (model.kernel, model.mean_function):
            gpflow.set_trainable(part, True)
        with tf.GradientTape() as tape:
            value = model.maximum_log_likelihood_objective()
        gradient = np.stack(tape.gradient(value, model.trainable_variables))
        found.append((value, gradient, *model.predict_f(NEW), *model.predict_y(NEW)))
    (one, slope, *predicted), (other, other_slope, *others) = found
    np.testing.assert_allclose(other, one, rtol=1e-8)
    np.testing.assert_allclose(other_slope, slope, atol=1e-6 * np.abs(slope).max())
    for mine, its in zip(others, predicted, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-8 if recipe is None else 1e-6)
    if likelihood == "student":
        assert markov.prec.numpy().min() < 0.0


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model with its hyperparameters learnt, and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("markov") / "run"
    model = _model("GPLaplace", "poisson", prior="markov")
    result = gpx.fit(model, checkpoint_dir=folder)
    assert result.status is gpx.Status.CONVERGED
    return model, folder


def test_hyperparameters_are_learnt_as_by_the_dense_model(fitted: tuple[Any, Path], no_jitter: None) -> None:
    """One optimum of Laplace's evidence."""
    model, _ = fitted
    dense = _model("GPLaplace", "poisson")
    gpx.fit(dense)
    for mine, its in zip(model.trainable_variables, dense.trainable_variables, strict=True):
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)
    for found, expected in zip(model.predict_f(NEW), dense.predict_f(NEW), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_model_is_cached_and_rebuilt_from_its_checkpoints(fitted: tuple[Any, Path]) -> None:
    """A cached posterior predicts the same, in batches as well; so does the model of the checkpoints."""
    model, folder = fitted
    expected = model.predict_f(NEW)
    cached = model.posterior().predict_f(np.stack([NEW, NEW[::-1]]))
    again = gpx.load_checkpoint(folder).predict_f(NEW)
    for mine, batch, rebuilt in zip(expected, cached, again, strict=True):
        np.testing.assert_allclose(batch[0], mine, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(batch[1], mine[::-1], rtol=1e-12, atol=1e-14)
        np.testing.assert_array_equal(rebuilt, mine)


def test_an_exported_model_predicts_at_any_time(fitted: tuple[Any, Path], tmp_path: Path) -> None:
    """What is served needs neither the kernel's matrices nor a sweep."""
    model, _ = fitted
    saved = tf.saved_model.load(str(gpx.export(model, tmp_path / "model", example=NEW[:3])))
    found = saved.signatures["predict_f"](inputs=tf.constant(NEW))
    for mine, name in zip(model.predict_f(NEW), ("mean", "variance"), strict=True):
        np.testing.assert_allclose(found[name], mine, rtol=1e-12, atol=1e-12)


def test_what_predictions_need_of_the_data_is_compiled_once_and_differentiable() -> None:
    """A second model compiles nothing; under a tape the slope in each parameter is that of its differences."""
    models = [_model("GPLaplace", "poisson", prior="markov") for _ in range(2)]
    for model in models:
        before = trace_count()
        gpx.fit(model, steps=1, progress=False)
        model.predict_f(NEW)
        model.posterior().predict_f(NEW)
    assert trace_count() == before
    model = models[0]

    def total() -> tf.Tensor:
        mean, var = model.predict_f(NEW)
        return tf.reduce_sum(mean**2 + 3.0 * var)

    with tf.GradientTape() as tape:
        value = total()
    np.testing.assert_allclose(value, total(), rtol=1e-12)
    for variable, slope in zip(
        model.trainable_variables, tape.gradient(value, model.trainable_variables), strict=True
    ):
        ends = []
        for move in (1e-5, -2e-5, 1e-5):
            variable.assign_add(move)
            ends.append(total())
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-6)


@slow
@pytest.mark.parametrize(
    "kernel", [Matern32(1.2, 2.0), SeparateIndependent([Matern12(1.0, 2.0), Matern52() + Constant()])]
)
def test_covariances_between_new_times_are_those_of_the_dense_model(
    kernel: Kernel, no_jitter: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any sites, at times before, between, after and of the data, and of members of a batch."""
    rng = np.random.default_rng(6)
    Y = rng.integers(0, 3, X.shape).astype(float)
    new = np.concatenate([NEW[::4], X[:3], X[:1]]).reshape(1, -1, 1) + np.array([0.0, 0.5])[:, None, None]
    prec = np.where(rng.random((80, 2)) < 0.2, 0.0, rng.gamma(1.0, 2.0, (80, 2)))
    found = []
    for prior in (None, "markov"):
        model = gpx.models.VGPKMM((X, Y), kernel, gpx.likelihoods.StickBreaking(3), prior=prior)
        model.assign_sites(Sites(tf.constant(3.0 * np.cos(X + np.arange(2.0))), tf.constant(prec)))
        cached = model.posterior().predict_f(new[0], full_cov=True, full_output_cov=True)
        found.append((*model.predict_f(new, full_cov=True), *cached))
        assert model.predict_f_samples(NEW[:5], 3).shape == (3, 5, 2)
    for dense, markov in zip(*found, strict=True):
        np.testing.assert_allclose(markov, dense, rtol=0.0, atol=1e-9)
    monkeypatch.setattr(markov_posterior, "COLUMNS", 300)  # three columns at a time
    times, *_, lam = Smoothing(model).parts()
    blocks = tf.function(Joint(kernel).covariances)(tf.constant(new[0]), times, lam)
    np.testing.assert_allclose(blocks, found[0][1][0], rtol=0.0, atol=1e-9)


@slow
def test_latent_functions_have_kernels_of_their_own(no_jitter: None) -> None:
    """With different numbers of states, on the sites of two functions to a datum."""
    Y = np.random.default_rng(6).integers(0, 3, X.shape).astype(float)
    found = []
    for prior in (None, "markov"):
        kernel = SeparateIndependent([Matern12(1.0, 2.0), Matern52() + Constant()])
        model = gpx.models.VGPKMM((X, Y), kernel, gpx.likelihoods.StickBreaking(3), prior=prior)
        gpflow.set_trainable(model.kernel, False)
        gpx.fit(model)
        found.append((model.elbo(), *model.predict_f(NEW)))
    for dense, markov in zip(*found, strict=True):
        np.testing.assert_allclose(markov, dense, rtol=1e-7, atol=1e-7)


@slow
def test_single_precision_keeps_its_digits(fitted: tuple[Any, Path]) -> None:
    """The recursions run in double precision: a fine grid of times does not cancel."""
    model, _ = fitted
    expected = model.predict_f(NEW)
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32)):
        single = gpx.models.GPLaplace(
            (X.astype(np.float32), TARGETS["poisson"].astype(np.float32)),
            Matern32(model.kernel.variance.numpy(), model.kernel.lengthscales.numpy()),
            gpflow.likelihoods.Poisson(),
            mean_function=gpflow.functions.Constant(model.mean_function.c.numpy()),
            prior="markov",
        )
        gpflow.set_trainable(single, False)
        gpx.fit(single, stationarity=1e-5)
        for mine, its in zip(single.predict_f(NEW.astype(np.float32)), expected, strict=True):
            assert mine.dtype == tf.float32
            np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-4)


def test_unsuitable_models_are_refused_by_name() -> None:
    """With what to use instead."""
    poisson = gpflow.likelihoods.Poisson
    data = X, TARGETS["poisson"]
    cases: list[tuple[Any, Kernel, dict[str, Any], type[Exception], str]] = [
        ((np.c_[X, X], data[1]), Matern32(), {}, ValueError, "2 columns: use `inducing_variable`"),
        (data, SquaredExponential(), {}, NotImplementedError, "use Matern52 for smooth"),
        (data, Matern52() * Matern52() * Matern52(), {}, NotImplementedError, "at most 16 states.*has 27"),
        (data, Periodic(Matern52()), {}, NotImplementedError, r"takes Periodic\(SquaredExponential"),
        (data, Matern32(), {"inducing_variable": X[:5].copy()}, ValueError, "not both"),
        (
            data,
            Matern12() + Matern32(lengthscales=[1.0, 2.0]),
            {},
            ValueError,
            "Matern32 has 2 length scales",
        ),
    ]
    for given, kernel, how, error, text in cases:
        with pytest.raises(error, match=text):
            gpx.models.VGPKMM(given, kernel, poisson(), prior="markov", **how)
    with pytest.raises(ValueError, match='`prior` must be None, "markov"'):
        gpx.models.VGPKMM(data, Matern32(), poisson(), prior="makrov")
    model = gpx.models.VGPKMM(data, Matern32(), poisson(), prior="markov")
    with pytest.raises(NotImplementedError, match=r'prior="markov".*use "parallel"'):
        gpx.fit(model, method="algorithm1")
    with pytest.raises(NotImplementedError, match="no whitened q"):
        model.whitened()
    with pytest.raises(NotImplementedError, match="takes no `damping`"):
        gpx.fit(model, recipe="ep", damping=0.5)


class _Kinked(gpflow.likelihoods.ScalarLikelihood):
    """One with an infinite slope where f = y."""

    def _scalar_log_prob(self, X: Any, F: Any, Y: Any) -> Any:
        return -tf.sqrt(tf.abs(Y - F))


def test_sites_that_are_not_finite_end_a_fit_in_words() -> None:
    """Of their matrices TensorFlow's solver says that none is invertible."""
    model = gpx.models.GPLaplace((X, np.zeros_like(X)), Matern32(), _Kinked(), prior="markov")
    with pytest.warns(gpx.FitWarning, match="became NaN or infinite"):
        assert gpx.fit(model).status is gpx.Status.NON_FINITE


def test_new_inputs_of_several_columns_are_refused(fitted: tuple[Any, Path]) -> None:
    with pytest.raises(ValueError, match="Inputs have 2 columns, where those of the model have 1"):
        fitted[0].predict_f(np.ones((3, 2)))


def test_a_kernel_is_checked_without_its_state_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes eager operations, at each construction of a model."""
    built: list[Kernel] = []
    monkeypatch.setattr(state_space, "build", lambda kernel, harmonics: built.append(kernel))
    kernel = Matern32() * gpflow.kernels.Cosine() + Periodic(SquaredExponential())
    gpx.models.VGPKMM((X, TARGETS["poisson"]), kernel, gpflow.likelihoods.Poisson(), prior="markov")
    assert built == []


def test_harmonics_are_as_many_as_fit() -> None:
    """Of a periodic kernel alone 7, beside others fewer."""
    one = Periodic(SquaredExponential())
    assert [state_space.harmonics(each) for each in (one, one + Matern52(), one * Matern32())] == [7, 6, 3]


@pytest.mark.parametrize("length", [0.05, 0.2, 0.5])
def test_the_variance_that_is_cut_off_is_that_of_the_kernel(length: float) -> None:
    """By the Fourier coefficients of its values over a period."""
    kernel = Periodic(SquaredExponential(1.0, length), 1.0)
    values = kernel(np.linspace(0.0, 1.0, 1024, endpoint=False)[:, None], np.zeros((1, 1))).numpy()[:, 0]
    q = np.abs(np.fft.fft(values)) / 1024
    for product in (kernel, kernel * Matern32() + Matern12()):
        number = state_space.harmonics(product)
        lost = 1.0 - q[0] - 2.0 * q[1 : number + 1].sum()
        np.testing.assert_allclose(state_space.cut_off(product, number), lost, rtol=1e-6, atol=1e-12)


def test_a_periodic_kernel_that_is_cut_off_is_named() -> None:
    for length, text in ((0.05, "room for 7 harmonics .* leave out 0.45 of its variance"), (0.3, None)):
        kernel = Periodic(SquaredExponential(1.0, length), 2.5)
        model = gpx.models.VGPKMM(
            (X, TARGETS["poisson"]), kernel, gpflow.likelihoods.Poisson(), prior="markov"
        )
        found = scale_failure(model)
        assert found is None if text is None else re.search(text, str(found))


def test_times_that_span_many_length_scales_are_no_failure() -> None:
    """Neighbours are related; where not even these are, the fit says so."""
    steps = np.arange(4000.0)[:, None]
    for gap, text in ((100.0, "relates no input"), (0.5, None)):
        data = gap * steps, np.ones_like(steps)
        model = gpx.models.VGPKMM(data, Matern32(), gpflow.likelihoods.Poisson(), prior="markov")
        found = scale_failure(model)
        assert found is None if text is None else text in str(found)


def test_the_benchmark_judges_its_records() -> None:
    """Targets are those of a million data, the slope of those from 100,000 on."""
    records = [
        {
            "size": size,
            "method": "sweep",
            "by": "gpflow_ext",
            "cpu": 3e-7 * size,
            "gradient": {"cpu": 4e-7 * size},
        }
        for size in (10**3, 10**5, 10**6)
    ]
    by_target = {target: (measured, met) for target, measured, met in state_space_benchmark.verdicts(records)}
    assert by_target["sweep, N = 1,000,000: CPU seconds"] == ("0.3 of 0.25", "no")
    assert by_target["gradient in the hyperparameters, in sweeps"][1] == "yes"
    assert by_target["sweep: slope of log CPU seconds"] == ("1.000 of 1 ± 0.05", "yes")


@pytest.mark.parametrize(("flip", "long"), [(0.0, 5_000), (0.05, 3_000)])
def test_series_are_compiled_by_xla_from_where_it_pays(
    flip: float, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Label noise needs more updates of the sites in an evaluation, so that it pays earlier."""
    monkeypatch.setattr(site_iteration, "resolve_jit", bool)  # as without an accelerator
    for number, compiled in ((long - 1, False), (long, True)):
        data = np.arange(float(number))[:, None], np.arange(number)[:, None] % 2.0
        likelihood = gpx.likelihoods.BernoulliLogit(flip=flip)
        model = gpx.models.VGPKMM(data, Matern32(), likelihood, prior="markov")
        optimum = SiteOptimum(model, site_method("kmm"), model.trainable_variables)
        assert optimum.jit_compile is compiled
