"""Where networks start: common factors of outputs of which some are missing, and the best of all starts."""

from __future__ import annotations

import itertools

import gpflow
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.compiled import Preferred
from gpflow_ext.gprn import factors, network, scales, starts, suited, updates
from gpflow_ext.gprn.coregionalised import Coregionalised
from gpflow_ext.models import GPRNTensor
from gpflow_ext.training.starts import OWN


def outputs(seed: int = 0, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """One rough function in four outputs, with noise."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0.0, 10.0, (rows, 1)), axis=0)
    f = np.linalg.cholesky(np.exp(-0.5 * (X - X.T) ** 2 / 0.3**2) + 1e-8 * np.eye(rows)) @ rng.normal(
        size=rows
    )
    Y = f[:, None] * [1.0, 1.2, -0.9, 0.8] + 0.2 * rng.normal(size=(rows, 4))
    return X, Y


def log_likelihood(Y: np.ndarray, loadings: np.ndarray, noise: float) -> float:
    total = 0.0
    for y in Y:
        known = ~np.isnan(y)
        cov = (loadings @ loadings.T + noise * np.eye(len(y)))[np.ix_(known, known)]
        total += scipy.stats.multivariate_normal.logpdf(y[known], cov=cov)
    return total


def test_factors_of_complete_outputs_are_principal_components() -> None:
    """The closed form of Tipping and Bishop (1999): σ² is the mean of the eigenvalues that are left out.

    To the two digits with which a start is content.
    """
    Y = outputs()[1]
    F, loadings, noise = factors.factors(Y, 2)
    explained = np.mean(np.sum(loadings**2, axis=1))
    values, vectors = np.linalg.eigh(Y.T @ Y / len(Y))
    np.testing.assert_allclose(noise, values[:2].mean(), rtol=0.02)
    np.testing.assert_allclose(explained, (values[2:] - noise).sum() / 4, rtol=0.02)
    first = Y @ vectors[:, -1]
    assert abs(np.corrcoef(F[:, 0], first)[0, 1]) > 0.999
    assert (F[:, 0] ** 2).sum() > (F[:, 1] ** 2).sum()


def test_factors_beyond_the_outputs_are_zero() -> None:
    F, _, _ = factors.factors(outputs()[1][:, :2], 3)
    np.testing.assert_allclose(F[:, 2], 0.0, atol=1e-12)


def test_factors_of_missing_outputs_have_the_highest_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    Y = outputs()[1]
    Y[np.random.default_rng(1).uniform(size=Y.shape) < 0.3] = np.nan
    kept: list[tuple[np.ndarray, float]] = []
    posterior = factors._posterior

    def watched(seen: np.ndarray, filled: np.ndarray, loadings: np.ndarray, noise: float) -> tuple:
        kept.append((loadings, noise))
        return posterior(seen, filled, loadings, noise)

    monkeypatch.setattr(factors, "_posterior", watched)
    factors.factors(Y, 1)
    loadings, noise = kept[-1]
    best = log_likelihood(Y, loadings, noise)
    for move in (0.98, 1.02):
        assert log_likelihood(Y, move * loadings, noise) < best
        assert log_likelihood(Y, loadings, move**2 * noise) < best
        for d in range(4):
            other = loadings.copy()
            other[d] *= move
            assert log_likelihood(Y, other, noise) < best + 1e-6


@pytest.mark.parametrize("held", [False, True])
def test_the_start_by_factors_predicts_a_hidden_output_from_the_others(held: bool) -> None:
    """With the variance of either kernel held; the own start is always tried, and the best one goes on."""
    X, Y = outputs()
    hidden = np.arange(len(X)) % 3 == 1
    seen = np.where(hidden[:, None] & (np.arange(4) == 0), np.nan, Y)
    kernel = gpflow.kernels.SquaredExponential(lengthscales=5.0)
    weight_kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0)
    gpflow.set_trainable((kernel if held else weight_kernel).variance, False)
    model = gpx.models.GPRNTensor((X, seen), kernel, weight_kernel, 1)
    result = gpx.fit(model, steps=1, progress=False)
    tried = {start.name: start.objective for start in result.starts}
    names = OWN, starts.INDEPENDENT, starts.MOMENTS, starts.SUITED, starts.DRAWN, starts.FACTORS
    assert tuple(tried) == names
    assert tried[starts.FACTORS] > tried[OWN] + 5.0
    assert result.objective[-1] >= max(tried.values())
    error = np.std((model.predict_f(X)[0].numpy() - Y)[hidden, 0])
    assert error < 0.5 * np.std(Y[hidden, 0])


def test_more_outputs_than_data_have_no_factors_to_find() -> None:
    X, Y = outputs()
    kernels = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential()
    model = gpx.models.GPRNTensor((X[:3], Y[:3]), *kernels, 1)
    assert not starts._has_factors(model)
    assert starts._has_factors(gpx.models.GPRNTensor((X[:4], Y[:4]), *kernels, 1))


def test_the_evidence_of_coregionalisation_is_that_of_the_dense_gaussian() -> None:
    """Known weights: one Gaussian of all targets that are known, with noise of each output's own."""
    rng = np.random.default_rng(0)
    X, Y, loadings = rng.uniform(-2.0, 2.0, (7, 2)), rng.normal(size=(7, 3)), rng.normal(size=(3, 2))
    Y[rng.uniform(size=Y.shape) < 0.3] = np.nan
    kernels = gpflow.kernels.SquaredExponential(1.3, 0.8), gpflow.kernels.SquaredExponential()
    model = GPRNTensor((X, Y), *kernels, 2, nugget=0.2)
    model.output_noise.assign([0.5, 2.0, 1.0])
    near = Coregionalised(model, Y, loadings)
    chol = model.prior().nodes.numpy()
    cov = np.kron(chol @ chol.T, loadings @ loadings.T) + np.kron(np.eye(7), np.diag(model.noise().numpy()))
    known = ~np.isnan(Y.ravel())
    expected = scipy.stats.multivariate_normal.logpdf(Y.ravel()[known], cov=cov[np.ix_(known, known)])
    np.testing.assert_allclose(near.log_evidence(tf.constant(chol)), expected, rtol=1e-9)
    q = network.nodes(tf.constant(chol), *near.sites())
    prior = np.kron(chol @ chol.T, loadings.T)  # of the nodes with the targets
    means = prior[:, known] @ np.linalg.solve(cov[np.ix_(known, known)], Y.ravel()[known])
    np.testing.assert_allclose(q.mean, means.reshape(7, 2), rtol=1e-8)


@pytest.mark.parametrize("posterior", ["collapsed", pytest.param("tensor", marks=pytest.mark.slow)])
def test_starts_are_as_many_as_were_asked_for(posterior: str) -> None:
    """First the known ones in their order, then random ones, within the bounds of noise and nugget."""
    rng = np.random.default_rng(0)
    X = np.linspace(0.0, 1.0, 12)[:, None]
    Y = np.sin(5.0 * X) * [1.0, -2.0, 0.5] + 0.1 * rng.standard_normal((12, 3))
    for number, tried in ((1, 0), (8, 8)):
        model = gpx.models.GPRNTensor(
            (X, Y),
            gpflow.kernels.SquaredExponential(lengthscales=0.5),
            gpflow.kernels.SquaredExponential(),
            1,
            posterior=posterior,
            noise_variance=0.9,
            noise_bounds=(0.5, 1.0),
        )
        result = gpx.fit(model, steps=1, starts=number)
        assert len(result.starts) == tried
        assert np.isfinite([start.objective for start in result.starts]).all()
    names = [start.name for start in result.starts]
    assert names[0] == "the model's own"
    assert names[-1].startswith("random")


def _network(lengthscale: float, posterior: str) -> gpx.models.GPRNTensor:
    """Return a network whose two nodes have the length scales 0.1 and 0.3 in truth."""
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(0.0, 1.0, (30, 1)), axis=0)

    def drawn(lengthscale: float, number: int) -> np.ndarray:
        cov = gpflow.kernels.SquaredExponential(lengthscales=lengthscale)(X) + 1e-8 * np.eye(30)
        return np.linalg.cholesky(cov) @ rng.standard_normal((30, number))

    F, W = np.hstack([drawn(0.1, 1), drawn(0.3, 1)]), drawn(0.6, 120).reshape(30, 60, 2)
    Y = np.sum(W * F[:, None], axis=-1) + 0.1 * rng.standard_normal((30, 60))
    kernels = [gpflow.kernels.SquaredExponential(lengthscales=lengthscale) for _ in range(2)]
    weight_kernel = gpflow.kernels.SquaredExponential(lengthscales=0.5)
    return gpx.models.GPRNTensor((X, Y), kernels, weight_kernel, 2, posterior=posterior)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_the_end_does_not_hang_on_the_first_length_scales_of_nodes(posterior: str) -> None:
    """From 0.5 it was 270 below that from 0.2: kernels that suit the moments of the targets are tried."""
    near, far = (
        gpx.fit(_network(length, posterior), steps=5, progress=False).objective[-1] for length in (0.2, 0.5)
    )
    assert abs(near - far) < 5.0


@pytest.mark.parametrize("kind", ["free", "held", "product"])
def test_the_kernel_of_nodes_is_the_most_probable_of_a_grid(kind: str) -> None:
    """Against dense densities, of the kernel as it is after each length scale and each variance."""
    X = np.linspace(0.0, 4.0, 25)[:, None]
    F = np.stack([np.sin(3.0 * X[:, 0]), np.cos(2.0 * X[:, 0])], axis=1)
    F += 0.25 * np.random.default_rng(3).standard_normal(F.shape)

    def made() -> gpflow.kernels.Kernel:
        kernel = gpflow.kernels.Matern52(variance=0.8)
        gpflow.set_trainable(kernel.variance, kind != "held")
        return kernel * gpflow.kernels.SquaredExponential() if kind == "product" else kernel

    variance, own, densities = float(np.mean(F**2)), 0.8, {}
    for length, share in itertools.product(suited.LENGTHS, suited.SHARES):
        kernel = made()
        suited.stretch(kernel, tf.constant(X), length)
        suited.rescale(kernel, (1.0 - share) * variance / own)
        covariance = kernel(X).numpy() + (share * variance + gpflow.default_jitter()) * np.eye(len(X))
        density = scipy.stats.multivariate_normal(cov=covariance).logpdf(F.T).sum()
        densities[length, share] = density, gpflow.utilities.read_values(kernel)
    best = max(densities, key=lambda each: densities[each][0])
    kernel = made()
    assert suited.suit(kernel, tf.constant(X), F) == best[1] * variance
    for name, value in gpflow.utilities.read_values(kernel).items():
        np.testing.assert_allclose(value, densities[best][1][name], rtol=1e-12)
    assert suited.LENGTHS[0] < best[0] < suited.LENGTHS[-1]


def test_a_kernel_is_varied_by_one_function_and_stays_as_it_is() -> None:
    X, before = np.linspace(0.0, 4.0, 25)[:, None], gpx.trace_count()
    for rows, length in ((25, 0.7), (20, 1.3)):
        kernel = gpflow.kernels.Matern52(variance=0.8, lengthscales=length)
        varied, values = suited.Varied(kernel), [variable.numpy() for variable in kernel.variables]
        compiled, there = Preferred(varied), tf.constant(X[:rows])
        expected = gpflow.kernels.Matern52(variance=0.8, lengthscales=2.0)(there)
        gram = compiled(varied.gram, there, [tf.constant(2.0, tf.float64)])
        np.testing.assert_allclose(gram, expected, rtol=1e-12, atol=1e-14)
        variance = compiled(varied.variance, there, tf.constant(3.0, tf.float64))
        np.testing.assert_allclose(variance, 2.4, rtol=1e-14)
        for variable, value in zip(kernel.variables, values, strict=True):
            np.testing.assert_array_equal(variable, value)
    assert gpx.trace_count() == before + 2


def test_nodes_by_the_method_of_moments_are_found_once_for_two_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, own = [], updates.Updates.begun
    monkeypatch.setattr(updates.Updates, "begun", lambda self, kind: found.append(kind) or own(self, kind))
    X, Y = outputs(rows=12)
    model = GPRNTensor((X, Y), *(gpflow.kernels.SquaredExponential() for _ in range(2)), 2)
    gpx.fit(model, steps=1, progress=False, hyper_updates=1, factor_start=False)
    assert found.count("moments") == len(starts._STRETCHES)
    assert (found.count("own"), found.count("drawn")) == (1, 1)


def test_outputs_that_are_zero_everywhere_are_fitted() -> None:
    """As constant targets are once they are standardised: they have no factors."""
    X = np.random.default_rng(0).normal(size=(12, 1))
    model = GPRNTensor((X, np.zeros((12, 2))), *(gpflow.kernels.SquaredExponential() for _ in range(2)), 2)
    gpx.fit(model, steps=2, progress=False)
    mean, variance = model.predict_y(X)
    np.testing.assert_allclose(mean, 0.0, atol=1e-6)
    assert (variance.numpy() > 0.0).all()


def test_the_noise_of_an_output_of_zeros_stays_at_its_bound() -> None:
    """Where it falls to in a climb: the inverse transform of the bound itself is infinite."""
    X, Y = np.arange(6.0)[:, None], np.column_stack([np.zeros(6), np.arange(6.0)])
    model = GPRNTensor((X, Y), *(gpflow.kernels.SquaredExponential() for _ in range(2)), 2)
    model.output_noise.unconstrained_variable.assign([-60.0, 0.5])
    assert model.output_noise.numpy()[0] == scales.LEAST
    starts._raise_noise(model, np.mean(Y**2, axis=0))
    common = model.likelihood.variance.numpy()
    expected = [scales.LEAST, starts._LEAST_NOISE * np.mean(Y[:, 1] ** 2) / common]
    np.testing.assert_allclose(model.output_noise, expected, rtol=2e-6)


def test_the_prior_of_nodes_is_at_its_optimum_although_the_outputs_are_many() -> None:
    """It is worth tens of nats of some thousand, and decides how uncertain all outputs are."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(-2.0, 2.0, (12, 1)), axis=0)
    kernel, nodes = gpflow.kernels.SquaredExponential(), gpflow.kernels.SquaredExponential(lengthscales=3.0)
    root = np.linalg.cholesky(kernel(X) + 1e-9 * np.eye(12))
    Y = root @ rng.normal(size=(12, 200)) + 1e-3 * rng.normal(size=(12, 200))
    gpflow.set_trainable(nodes.variance, False)
    model = GPRNTensor((X, Y), nodes, kernel, 1, nugget=1e-4)
    reached = gpx.fit(model, progress=False).objective[-1]
    of_nodes = updates.node_variables(model)
    run = updates.Updates(model, of_nodes).climb(of_nodes)
    run.climb(50)
    assert run.best - reached < 0.1


def test_the_weights_kernel_and_the_noise_are_at_their_optimum_although_the_sites_are_stiff() -> None:
    """With almost no noise they were left nats below it, by few iterations on everything at once."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0.0, 6.0, (20, 1)), axis=0)
    F, W = (np.exp(-0.5 * (X - X.T) ** 2 / length**2) + 1e-8 * np.eye(20) for length in (1.5, 2.5))
    F = np.linalg.cholesky(F) @ rng.normal(size=(20, 2))
    W = np.einsum("nm,mdk->ndk", np.linalg.cholesky(W), rng.normal(size=(20, 30, 2)))
    Y = np.einsum("ndk,nk->nd", W, F) + 1e-3 * rng.normal(size=(20, 30))
    nodes, kernel = gpflow.kernels.SquaredExponential(lengthscales=2.0), gpflow.kernels.SquaredExponential()
    gpflow.set_trainable(nodes.variance, False)
    model = GPRNTensor((X, Y), nodes, kernel, 2, noise_bounds=(1e-8, 10.0))
    reached = gpx.fit(model, steps=10, starts=2, progress=False).objective[-1]
    of_targets = updates.independent_variables(model)
    run = updates.Updates(model, of_targets).climb(of_targets)
    run.climb(50)
    assert run.best - reached < 0.1
