"""Full-scale priors: with all neighbours the dense model, without any FITC, else what dense algebra makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Kernel, Matern32

import gpflow_ext as gpx
from gpflow_ext.sites import Sites
from gpflow_ext.sites.vecchia import blocks, conditionals, dissection, ordering, residual
from gpflow_ext.sites.vecchia.full_scale import FullScale
from gpflow_ext.sites.vecchia.structure import Structure, VecchiaOptions

RNG = np.random.default_rng(0)
N, M = 60, 8
X = RNG.uniform(0.0, 1.0, (N, 2))
Y = RNG.poisson(np.exp(np.sin(5.0 * X[:, :1]))).astype(float)
NEW = RNG.uniform(0.0, 1.0, (7, 2))
PREC = RNG.gamma(1.0, 3.0, (N, 1))
B = RNG.standard_normal((N, 1))
SCALES = np.array([0.3, 0.5])
NONE, SOME, ALL = (VecchiaOptions(neighbours=most, inducing=M) for most in (0, 5, N))


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several levels of the tree, and several blocks of rows."""
    monkeypatch.setattr(dissection, "LEAF", 12)
    monkeypatch.setattr(blocks, "ENTRIES", 9 * 6 * (M + 1))


class Functions:
    """What `conditionals.at` reads from a model."""

    def __init__(self) -> None:
        self.kernel, self.num_latent_gps = _kernel(), 1
        self.mean_function = gpflow.functions.Constant(0.3)


def _kernel() -> Kernel:
    return Matern32(1.3, SCALES)


def _prior(options: VecchiaOptions) -> tuple[Any, Structure]:
    structure = Structure(X, SCALES, options, _kernel())
    return conditionals.at(Functions(), structure, tf.constant(X)), structure


def _features(Z: np.ndarray) -> np.ndarray:
    """Return K_fu L⁻ᵀ."""
    K = _kernel()(Z).numpy() + gpflow.default_jitter() * np.eye(len(Z))
    return np.linalg.solve(np.linalg.cholesky(K), _kernel()(Z, X).numpy()).T


def _dense(structure: Structure) -> np.ndarray:
    """Return ΦΦᵀ + (BᵀD⁻¹B)⁻¹, each row of B by dense algebra."""
    smooth = _features(structure.Z.numpy()) @ _features(structure.Z.numpy()).T
    K = _kernel()(X).numpy() - smooth + gpflow.default_jitter() * np.eye(N)
    rows, D = np.eye(N), np.empty(N)
    for clique in structure.cliques.numpy():
        n, c = clique[0], clique[1:][clique[1:] < N]
        a = np.linalg.solve(K[np.ix_(c, c)], K[c, n])
        rows[n, c], D[n] = -a, K[n, n] - a @ K[c, n]
    return smooth + np.linalg.inv(rows.T @ (rows / D[:, None]))


@pytest.mark.parametrize("neighbours", [0, 5])
def test_the_factor_is_dense_algebra(neighbours: int) -> None:
    """Solutions, variances, log determinant, products and couplings; FITC without neighbours."""
    prior, structure = _prior(VecchiaOptions(neighbours=neighbours, inducing=M))
    assert isinstance(prior, FullScale)
    cov = _dense(structure)
    if neighbours == 0:
        smooth = _features(structure.Z.numpy()) @ _features(structure.Z.numpy()).T
        fitc = smooth + np.diag(np.diag(_kernel()(X).numpy() - smooth) + gpflow.default_jitter())
        np.testing.assert_allclose(cov, fitc, atol=1e-12)
    factor = prior.factorise(tf.constant(PREC))
    alpha = np.linalg.solve(np.eye(N) + PREC * cov, B)
    post = np.linalg.inv(np.linalg.inv(cov) + np.diag(PREC[:, 0]))
    log_det = np.linalg.slogdet(np.eye(N) + PREC * cov)[1]
    expected = alpha, cov @ alpha, np.diag(post)[:, None], 0.5 * log_det, cov @ B
    pair = factor.solve(tf.constant(B))
    found = *pair, factor.variance(), factor.half_log_det(), prior.product(tf.constant(B))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-9 * np.abs(other).max())
    np.testing.assert_allclose(prior.coupling(pair, pair), alpha.T @ cov @ alpha, rtol=1e-9)
    assert factor.finite
    assert not prior.factorise(tf.constant(-9.0 * PREC)).finite


@pytest.mark.parametrize("which", ["normaliser", "product", "coupling"])
def test_gradients_are_those_of_central_differences(which: str) -> None:
    """In the variance, a length scale and the mean; a coupling's with its pairs held."""
    structure, functions = Structure(X, SCALES, SOME, _kernel()), Functions()
    sites = Sites(tf.constant(B), tf.constant(PREC))
    known = conditionals.at(functions, structure, tf.constant(X))
    pair = known.factorise(sites.prec).solve(sites.nat1)

    @tf.function(autograph=False)
    def value() -> tf.Tensor:
        prior = conditionals.at(functions, structure, tf.constant(X))
        if which == "normaliser":
            return prior.log_normaliser(sites)
        if which == "product":
            return tf.reduce_sum(tf.sin(prior.product(tf.constant(B))))
        return prior.coupling(pair, pair)

    def moved() -> float:
        if which != "coupling":
            return float(value())
        prior = conditionals.at(functions, structure, tf.constant(X))
        return float(tf.reduce_sum(pair.alpha * prior.product(pair.alpha)))

    with tf.GradientTape() as tape:
        found = value()
    kernel = functions.kernel
    variables = [kernel.variance, kernel.lengthscales, functions.mean_function.c]
    variables = variables[: 3 if which == "normaliser" else 2]
    slopes = tape.gradient(found, [each.unconstrained_variable for each in variables])
    for variable, slope in zip(variables, slopes, strict=True):
        raw, step = variable.unconstrained_variable, 1e-5
        at, unit = raw.numpy(), np.eye(1, raw.numpy().size).reshape(raw.shape)
        ends = []
        for sign in (1.0, -1.0):
            raw.assign(at + sign * step * unit)
            ends.append(moved())
        raw.assign(at)
        np.testing.assert_allclose(
            np.ravel(slope)[0], (ends[0] - ends[1]) / (2.0 * step), rtol=2e-6, atol=1e-7
        )


LIKELIHOODS: dict[str, Any] = {
    "GPJaakkola": lambda: gpx.likelihoods.BernoulliLogit(bound="jaakkola"),
    "probit": gpx.likelihoods.BernoulliProbit,  # whose moments are in closed form
}
METHODS = pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("GPLaplace", None),
        ("VGPKMM", None),
        pytest.param("GPTaylor", None, marks=pytest.mark.slow),
        pytest.param("GPJaakkola", None, marks=pytest.mark.slow),
        pytest.param("VGPKMM", "ep", marks=pytest.mark.slow),
    ],
)


def _found(name: str, recipe: str | None, kernel: Kernel, prior: Any) -> tuple[Any, list[tf.Tensor]]:
    """Return a model with its sites at rest; its objective, moments at new places, and gradient."""
    kind = "probit" if recipe == "ep" else name
    likelihood = LIKELIHOODS.get(kind, gpflow.likelihoods.Poisson)()
    targets = np.minimum(Y, 1.0) if kind in LIKELIHOODS else Y
    model = getattr(gpx.models, name)((X, targets), kernel, likelihood, prior=prior)
    gpflow.set_trainable(model.kernel, False)
    gpx.fit(model, progress=False, **({} if recipe is None else {"recipe": recipe, "stationarity": 1e-12}))
    gpflow.set_trainable(model.kernel, True)
    with tf.GradientTape() as tape:
        value = model.maximum_log_likelihood_objective()
    return model, [value, *model.predict_f(NEW), *tape.gradient(value, model.trainable_variables)]


@METHODS
def test_with_all_neighbours_every_method_is_that_of_the_dense_model(name: str, recipe: str | None) -> None:
    """Objective, predictions at new places, and the objective's gradient."""
    (_, dense), (_, full) = (_found(name, recipe, _kernel(), prior) for prior in (None, ALL))
    for number, (one, other) in enumerate(zip(full, dense, strict=True)):
        tolerance = 1e-8 if number < 3 else 1e-6
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


class FITC(Kernel):
    """Q + diag(K − Q) at the data, Q = K_xu K_uu⁻¹ K_ux from them to other places, by dense algebra."""

    def __init__(self, exact: Kernel, Z: np.ndarray) -> None:
        super().__init__()
        self.exact, self.Z = exact, tf.constant(Z)

    def K(self, X: tf.Tensor, X2: tf.Tensor | None = None) -> tf.Tensor:
        """Return covariances [N, N'], those of the data among themselves where X2 is none."""
        gram = self.exact(self.Z)
        gram = tf.linalg.set_diag(gram, tf.linalg.diag_part(gram) + gpflow.default_jitter())
        Q = tf.matmul(
            self.exact(X, self.Z), tf.linalg.solve(gram, self.exact(self.Z, X if X2 is None else X2))
        )
        return tf.linalg.set_diag(Q, self.exact.K_diag(X)) if X2 is None else Q

    def K_diag(self, X: tf.Tensor) -> tf.Tensor:
        """Return the variances, [N]."""
        return self.exact.K_diag(X)


@METHODS
def test_without_neighbours_every_method_is_that_of_a_dense_fitc(name: str, recipe: str | None) -> None:
    """Objective, predictions at new places, and the objective's gradient."""
    model, found = _found(name, recipe, _kernel(), NONE)
    _, expected = _found(name, recipe, FITC(_kernel(), model.structure.Z.numpy()), None)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_without_neighbours_and_with_gaussian_noise_it_is_fitc() -> None:
    """GPflow's, with the jitter of the data, which theirs has not, in its noise."""
    noise = 0.3
    model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Gaussian(noise), prior=NONE)
    gpflow.set_trainable(model, False)
    gpx.fit(model, progress=False)
    twin = gpflow.models.GPRFITC(
        (X, Y),
        _kernel(),
        model.structure.Z.numpy(),
        noise_variance=noise + gpflow.default_jitter(),
    )
    found = []
    for each in (model, twin):
        gpflow.set_trainable(each.kernel, True)
        with tf.GradientTape() as tape:
            value = each.maximum_log_likelihood_objective()
        sources = [each.kernel.variance, each.kernel.lengthscales]
        slopes = tape.gradient(value, [source.unconstrained_variable for source in sources])
        found.append((value, *each.predict_f(NEW), *slopes))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_draws_of_fitc_have_its_moments() -> None:
    """At new places, of 4,000 draws; beyond five standard errors once in 1e5 runs."""
    model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=NONE)
    gpflow.set_trainable(model.kernel, False)
    gpx.fit(model, progress=False)
    mean, var = (part.numpy() for part in model.predict_f(NEW))
    values = gpx.sample_functions(model, 4000, seed=1)(NEW).numpy()
    assert np.abs((values.mean(axis=0) - mean) / np.sqrt(var / 4000)).max() < 5.0
    assert np.abs((values.var(axis=0) / var - 1.0) / np.sqrt(2.0 / 4000)).max() < 5.0


def test_inducing_points_that_say_nothing_leave_vecchia(monkeypatch: pytest.MonkeyPatch) -> None:
    """Points far from all data: normaliser, variances and predictions are those without them."""
    monkeypatch.setattr(
        "gpflow_ext.data.inducing.conditional_variance",
        lambda *_, **__: np.array([[90.0, 90.0], [99.0, 90.0]]),
    )
    found = []
    for options in (VecchiaOptions(neighbours=5), SOME):
        model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=options)
        sites = Sites(tf.constant(B), tf.constant(PREC))
        prior = model.prior()
        variance = prior.factorise(sites.prec).variance()
        found.append((prior.log_normaliser(sites), variance, *model.predict_f(NEW)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-12)


def test_neighbours_are_those_of_the_largest_residual_correlation() -> None:
    """Of all before a datum, where all are candidates."""
    structure = Structure(X, SCALES, SOME, _kernel())
    order = ordering.order(X / SCALES, "random", 0)
    smooth = _features(structure.Z.numpy()) @ _features(structure.Z.numpy()).T
    K = _kernel()(X).numpy() - smooth
    near = ordering.nearest_before((X / SCALES)[order], N - 1)
    found = residual.closest(_kernel(), structure.Z.numpy(), X[order], near, 5)
    own = np.maximum(np.diag(K), gpflow.default_jitter())
    for place, n in enumerate(order):
        before = order[:place]
        best = before[np.argsort(-(K[n, before] ** 2) / own[before])[:5]]
        assert {order[m] for m in found[place] if m >= 0} == set(best)


@pytest.mark.parametrize("prior", [pytest.param(NONE, marks=pytest.mark.slow), SOME], ids=["none", "some"])
def test_it_serves_resumes_and_takes_other_data(prior: VecchiaOptions, tmp_path: Path) -> None:
    """An export predicts the same, a checkpoint rebuilds the model, points and neighbours follow new data."""
    model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=prior)
    gpx.fit(model, steps=1, progress=False, checkpoint_dir=tmp_path / "steps")
    expected = model.predict_f(NEW)
    for one, other in zip(model.posterior().predict_f(NEW[None]), expected, strict=True):
        np.testing.assert_allclose(one[0], other, atol=1e-12)
    served = tf.saved_model.load(str(gpx.export(model, tmp_path / "served", example=X[:3])))
    again = served.signatures["predict_f"](inputs=tf.constant(NEW))
    rebuilt: Any = gpx.load_checkpoint(tmp_path / "steps")
    same = getattr(rebuilt, "model", rebuilt).predict_f(NEW)
    for name, one, other in zip(("mean", "variance"), same, expected, strict=True):
        np.testing.assert_allclose(again[name], other, rtol=0.0, atol=1e-12)
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-12)
    model.update_data((np.concatenate([X, NEW]), np.concatenate([Y, Y[:7]])))
    assert model.structure is not None
    assert model.structure.num_data == N + 7
    assert np.isfinite(float(model.maximum_log_likelihood_objective()))


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options out of range, single precision, memory."""
    with pytest.raises(ValueError, match="`inducing` must be at least 0; got -1"):
        VecchiaOptions(inducing=-1)
    with pytest.raises(ValueError, match="`neighbours` must be at least 0; got -1"):
        VecchiaOptions(neighbours=-1, inducing=3)
    with pytest.raises(ValueError, match="use float64"):
        Structure(X.astype(np.float32), SCALES, SOME, _kernel())
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.LARGEST", 10**5)
    with pytest.raises(ValueError, match="fewer neighbours"):
        Structure(X, SCALES, ALL, _kernel())
