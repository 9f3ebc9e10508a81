"""Grid priors: with as many probes as cells the dense model, with few the exact derivatives of what they estimate."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import (
    Constant,
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
from kept_models import served_and_rebuilt

import gpflow_ext as gpx
from gpflow_ext.cli import kernels as shell
from gpflow_ext.numerics import grids, lanczos
from gpflow_ext.sites import Sites
from gpflow_ext.sites.grid import factors, structure, trace
from gpflow_ext.sites.grid.prior import Grid
from gpflow_ext.sites.structured import misfit

RNG = np.random.default_rng(0)
AXES = np.linspace(0.0, 1.0, 6), np.array([0.0, 0.1, 0.5, 0.9, 1.4, 1.5, 2.0])
CELLS = grids.grid(*AXES)
G = len(CELLS)
X = CELLS[RNG.permutation(G)[:36]]  # six cells are missing, the others in any order
N = len(X)
Y = RNG.poisson(np.exp(np.sin(5.0 * X[:, :1]))).astype(float)
PREC = RNG.gamma(1.0, 3.0, (N, 1))
B = RNG.standard_normal((N, 1))
NEW = np.array([[0.13, 0.2], [0.55, 1.1], [0.9, 1.9]])
ALL = gpx.GridOptions(probes=G, tolerance=1e-11)
FEW = gpx.GridOptions(probes=8, tolerance=1e-11)


@pytest.fixture(autouse=True)
def _no_jitter() -> Iterator[None]:
    """The dense model has GPflow's jitter on K, which the grid does without."""
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-12)):
        yield


class Functions:
    """What `structure.at` reads from a model."""

    def __init__(self, kernel: Kernel, num_latent_gps: int = 1) -> None:
        self.kernel, self.num_latent_gps = kernel, num_latent_gps
        self.mean_function = gpflow.functions.Constant(0.3)


def _kernel() -> Kernel:
    return Matern32(1.3, 0.4, active_dims=[0]) * Matern52(0.9, 0.7, active_dims=[1])


def _prior(options: gpx.GridOptions, functions: Functions | None = None, inputs: np.ndarray = X) -> Grid:
    functions = functions or Functions(_kernel())
    return structure.at(
        functions, structure.GridStructure(inputs, options, functions.num_latent_gps), tf.constant(inputs)
    )


def _dense(K: np.ndarray, prec: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return α, Σα, diag V and ½ log|I + ΛΣ|."""
    T = np.eye(len(K)) + prec * K
    alpha = np.linalg.solve(T, b)
    variance = np.diag(np.linalg.solve(T.T, K))[:, None]
    return alpha, K @ alpha, variance, 0.5 * np.linalg.slogdet(T)[1]


def test_the_factor_is_dense_algebra() -> None:
    """Solutions, variances and log determinant, with missing cells and with rows that repeat."""
    for inputs in (X, np.concatenate([X, X[:5]])):
        prec = np.resize(PREC, (len(inputs), 1))
        b = np.resize(B, (len(inputs), 1))
        expected = _dense(_kernel()(inputs).numpy(), prec, b)
        factor = _prior(ALL, inputs=inputs).factorise(tf.constant(prec))
        found = *factor.solve(tf.constant(b)), factor.variance(), factor.half_log_det()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-9 * np.abs(other).max())
        assert factor.finite


def test_weights_are_better_than_the_tolerance() -> None:
    """Those in the cells, of a second solution for the error of the first."""
    b = np.linalg.solve(np.eye(N) + PREC * _kernel()(X).numpy(), B)[:, 0]
    expected = np.bincount(_prior(ALL).cells, b, minlength=G)
    rough = _prior(gpx.GridOptions(probes=2, tolerance=1e-3))
    factor = rough.factorise(tf.constant(PREC))
    apart = [
        np.abs(found - expected).max() / np.abs(b).max()
        for found in (factor.weights(rough.scatter(B))[0, 0], rough.scatter(factor.solve(B).alpha)[0, 0])
    ]
    assert apart[0] < 1e-5 < apart[1]


def test_few_probes_are_exact_where_the_precision_is_constant() -> None:
    """Log determinant and variances in closed form, with three probes; else near."""
    K = _kernel()(CELLS).numpy()
    options = gpx.GridOptions(probes=3, tolerance=1e-11)
    for prec in (0.0, 1e-3, 2.5, 300.0):
        constant = np.full((G, 1), prec)
        factor = _prior(options, inputs=CELLS).factorise(tf.constant(constant))
        *_, variance, log_det = _dense(K, constant, constant)
        np.testing.assert_allclose(factor.variances()[0, 0], variance[:, 0], rtol=1e-10)
        np.testing.assert_allclose(factor.half_log_det(), log_det, rtol=1e-10, atol=1e-12)
    factor = _prior(FEW).factorise(tf.constant(PREC))
    *_, variance, log_det = _dense(_kernel()(X).numpy(), PREC, B)
    found = factor.prior.gather(factor.variances(), factor.prec)
    np.testing.assert_allclose(found, variance, rtol=0.25)
    assert np.abs(found - variance).mean() < 0.7 * np.abs(factor.variance() - variance).mean()
    np.testing.assert_allclose(factor.half_log_det(), log_det, rtol=1e-2)


@pytest.mark.parametrize("options", [FEW, ALL], ids=["few", "all"])
def test_variances_are_the_derivatives_of_the_log_determinant(options: gpx.GridOptions) -> None:
    """2 ∂F/∂Λ by central differences, whatever the probes; so a bound and its sites agree."""
    prior = _prior(options)
    compiled = tf.function(lambda prec: prior.factorise(prec).half_log_det(), autograph=False)
    variance = prior.factorise(tf.constant(PREC)).variance()
    for n in (0, 5, 20):
        change = 1e-4 * np.eye(N)[:, n : n + 1]
        ends = [float(compiled(tf.constant(PREC + sign * change))) for sign in (1.0, -1.0)]
        np.testing.assert_allclose(variance[n, 0], (ends[0] - ends[1]) / 1e-4, rtol=1e-6)


@pytest.mark.parametrize("options", [FEW, ALL], ids=["few", "all"])
def test_the_normaliser_has_its_gradient(options: gpx.GridOptions) -> None:
    """Against central differences, of kernels and mean, of shared and of separate kernels."""
    kernel = SeparateIndependent([_kernel(), SquaredExponential(0.7, [0.5, 0.6])])
    functions = Functions(kernel, 2)
    sites = Sites(tf.constant(np.hstack([B, B**2])), tf.constant(np.hstack([PREC, 1.0 / PREC])))
    parts = structure.GridStructure(X, options, 2)

    @tf.function(autograph=False)
    def value() -> tf.Tensor:
        return structure.at(functions, parts, tf.constant(X)).log_normaliser(sites)

    with tf.GradientTape() as tape:
        here = value()
    first, second = kernel.kernels
    moving = [*(part.lengthscales for part in first.kernels), first.kernels[0].variance]
    moving += [second.variance, second.lengthscales, functions.mean_function.c]
    raw = [each.unconstrained_variable for each in moving]
    for variable, slope in zip(raw, tape.gradient(here, raw), strict=True):
        at, unit = variable.numpy(), np.eye(1, variable.numpy().size).reshape(variable.shape)
        ends = []
        for sign in (1.0, -1.0):
            variable.assign(at + sign * 1e-5 * unit)
            ends.append(float(value()))
        variable.assign(at)
        np.testing.assert_allclose(np.ravel(slope)[0], (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_probes_in_blocks_are_those_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value, variances and slopes."""
    found = []
    for block, chunk in ((trace.BLOCK, trace.CHUNK), (8 * G * G, 50)):
        monkeypatch.setattr(trace, "BLOCK", block)
        monkeypatch.setattr(trace, "CHUNK", chunk)
        factor = _prior(FEW).factorise(tf.constant(PREC))
        found.append((factor.half_log_det(), factor.variance(), *factor.slopes()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


def test_the_divided_differences_of_a_logarithm() -> None:
    """Against the definition, near and far apart."""
    values = np.array([1.0, 1.0, 1.0 + 1e-6, 1.0015, 1.1, 50.0])
    found = lanczos.divided(tf.constant(values)).numpy()
    a, b = values[:, None], values[None]
    with np.errstate(invalid="ignore"):
        expected = np.where(a == b, 1.0 / a, np.log1p((a - b) / b) / np.where(a == b, 1.0, a - b))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


KERNELS: dict[str, Kernel] = {
    "isotropic": SquaredExponential(1.3, 0.5),
    "ard": SquaredExponential(0.7, [0.4, 0.9]),
    "constant": Constant(2.0) * Matern12(active_dims=[0]) * Matern32(active_dims=[1]),
    "sum": (Matern32(active_dims=[0]) + Linear(active_dims=[0])) * Matern12(active_dims=[1]),
    "periodic": Periodic(SquaredExponential(active_dims=[0]), period=0.7) * Matern52(active_dims=[1]),
    "one column": Matern32(0.8, active_dims=[1]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_factors_of_a_kernel_multiply_to_it(name: str) -> None:
    kernel = KERNELS[name]
    assert misfit("grid", kernel, CELLS) is None
    K = [factors.gram([kernel], d, tf.constant(axis), tf.constant(axis), 2)[0] for d, axis in enumerate(AXES)]
    np.testing.assert_allclose(np.kron(*K), kernel(CELLS), rtol=1e-12, atol=1e-14)


def _fitted(name: str, prior: Any, likelihood: Any = None, targets: np.ndarray = Y) -> Any:
    model = getattr(gpx.models, name)(
        (X, targets), _kernel(), likelihood or gpflow.likelihoods.Poisson(), prior=prior
    )
    gpflow.set_trainable(model.kernel, False)
    result = gpx.fit(model, progress=False)
    assert result.status.name == "CONVERGED"
    gpflow.set_trainable(model.kernel, True)
    return model


@pytest.mark.parametrize(
    "name",
    [
        "GPLaplace",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("GPTaylor", "VGPKMM", "GPJaakkola")),
    ],
)
def test_with_all_probes_every_method_is_that_of_the_dense_model(name: str) -> None:
    """Objective and gradient, means everywhere, variances on the grid and in missing cells; near off it."""
    logit = gpx.likelihoods.BernoulliLogit(bound="jaakkola") if name == "GPJaakkola" else None
    targets, found = Y if logit is None else np.minimum(Y, 1.0), []
    for prior in (None, ALL):
        model = _fitted(name, prior, logit, targets)
        with tf.GradientTape() as tape:
            value = model.maximum_log_likelihood_objective()
        slopes = tape.gradient(value, model.trainable_variables)
        mean, variance = model.predict_f(np.concatenate([CELLS, NEW]))
        found.append((value, mean, variance[:G], variance[G:], *slopes))
    for number, (dense, grid) in enumerate(zip(*found, strict=True)):
        tolerance = 1e-8 if number < 3 else 0.1 if number == 3 else 1e-6
        np.testing.assert_allclose(grid, dense, rtol=tolerance, atol=tolerance if number != 3 else 0.0)


def test_predictions_in_cells_are_those_of_the_probes() -> None:
    """Exactly, where the jitter of the cells nearest to a place would show; missing cells too."""
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-3)):
        model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=FEW)
        model.assign_sites(Sites(tf.constant(B), tf.constant(PREC)))
        factor = model.prior().factorise(tf.constant(PREC))
        np.testing.assert_allclose(model.predict_f(CELLS)[1][:, 0], factor.variances()[0, 0], rtol=1e-10)


def test_a_logarithm_of_what_is_not_positive_definite_is_none() -> None:
    """Nor is one of numbers that are not finite, which TensorFlow's eigenvalues would raise for."""
    for T in (np.diag([2.0, -0.1]), np.full([2, 2], np.nan)):
        value, c = lanczos.logarithm(tf.constant(np.stack([np.eye(2), T])))
        assert np.isfinite(value).tolist() == [True, False]
        assert np.isfinite(c).all(axis=(1, 2)).tolist() == [True, False]


@pytest.mark.slow
def test_precisions_below_zero() -> None:
    """Laplace's sites of Student's t under outliers: those of Z = X, which predicts the same in cells."""
    targets = np.sin(5.0 * X[:, :1])
    targets[::6] += 4.0
    found = []
    for given in ({"prior": ALL}, {"inducing_variable": X}):
        model = gpx.models.GPLaplace((X, targets), _kernel(), gpflow.likelihoods.StudentT(0.3, 3.0), **given)
        gpflow.set_trainable(model, False)
        assert gpx.fit(model, progress=False).status is gpx.Status.CONVERGED
        assert model.prec.numpy().min() < -0.1
        found.append((float(model.log_evidence()), *model.predict_f(X)))
        assert np.isfinite(model.predict_f(NEW)[1]).all()
        if "prior" in given:
            with pytest.raises(NotImplementedError, match="needs sites of non-negative precision"):
                gpx.sample_functions(model, 2, seed=0)
    for grid, sparse in zip(*found, strict=True):
        np.testing.assert_allclose(grid, sparse, rtol=1e-6, atol=1e-6)


def test_exposure_and_latent_functions_of_their_own() -> None:
    """Counts with exposure; two functions of a stick-breaking likelihood."""
    exposed = np.hstack([Y, RNG.uniform(0.5, 2.0, (N, 1))])
    classes = RNG.integers(0, 3, (N, 1)).astype(float)
    separate = SeparateIndependent([_kernel(), SquaredExponential(1.0, 0.4)])
    cases = [
        (exposed, _kernel(), gpx.likelihoods.PoissonLog(exposure=True)),
        (classes, separate, gpx.likelihoods.StickBreaking(3)),
    ]
    for targets, kernel, likelihood in cases:
        found = []
        for prior in (None, ALL):
            model = gpx.models.GPLaplace((X, targets), kernel, likelihood, prior=prior)
            gpflow.set_trainable(model, False)
            result = gpx.fit(model, progress=False)
            found.append((result.objective[-1], *model.predict_f(CELLS)))
        for dense, grid in zip(*found, strict=True):
            np.testing.assert_allclose(grid, dense, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["GPLaplace", pytest.param("VGPKMM", marks=pytest.mark.slow)])
def test_hyperparameters_are_learnt_as_in_the_dense_model(name: str) -> None:
    """All probes reach its optimum, eight probes come near; each run ends on its own optimum."""
    found = []
    for prior in (None, ALL, FEW):
        model = getattr(gpx.models, name)((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=prior)
        gpflow.set_trainable(model.kernel.kernels[1], False)
        result = gpx.fit(model, progress=False, starts=1)
        assert result.status.name == "CONVERGED"
        part = model.kernel.kernels[0]
        found.append([result.objective[-1], float(part.lengthscales.numpy()), float(part.variance.numpy())])
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-7)
    np.testing.assert_allclose(found[2][0], found[0][0], rtol=1e-2)


def test_it_serves_resumes_and_takes_other_data(tmp_path: Path) -> None:
    """An export predicts the same, a checkpoint rebuilds the model with its options, cells follow new data."""
    options = gpx.GridOptions(probes=9, seed=3)
    model = gpx.models.GPLaplace((X, Y), _kernel(), gpflow.likelihoods.Poisson(), prior=options)
    rebuilt = served_and_rebuilt(model, X, np.concatenate([NEW, CELLS]), tmp_path)
    assert rebuilt.prior_options == options
    model.update_data((CELLS, np.ones((G, 1))))
    assert np.isfinite(float(model.maximum_log_likelihood_objective()))
    assert model.prior().cells.shape == [G]


def test_single_precision_is_near_double() -> None:
    """The prior is in double precision, the sites and the kernel in single."""
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-6)):
        data = X.astype(np.float32), Y.astype(np.float32)
        model = gpx.models.VGPKMM(data, _kernel(), gpflow.likelihoods.Poisson(), prior="grid")
        gpflow.set_trainable(model, False)
        gpx.fit(model, progress=False)
        mean, variance = model.predict_f(CELLS.astype(np.float32))
        assert mean.dtype == tf.float32
    exact = _fitted("VGPKMM", "grid").predict_f(CELLS)
    np.testing.assert_allclose(mean, exact[0], atol=1e-3)
    np.testing.assert_allclose(variance, exact[1], atol=1e-3)


def test_a_grid_of_thousands_of_cells() -> None:
    """64 × 64 counts with 32 probes: the mode is one, and the error is as large as the variances say."""
    rng, axis = np.random.default_rng(1), np.linspace(0.0, 1.0, 64)
    root = np.linalg.cholesky(Matern32(1.0, 0.1)(axis[:, None]) + 1e-9 * np.eye(64))
    f = root @ rng.standard_normal((64, 64)) @ root.T
    counts = rng.poisson(np.exp(f)).reshape(-1, 1).astype(float)
    kernel = Matern32(1.0, 0.1, active_dims=[0]) * Matern32(1.0, 0.1, active_dims=[1])
    model = gpx.models.GPLaplace(
        (grids.grid(axis, axis), counts), kernel, gpflow.likelihoods.Poisson(), prior="grid"
    )
    gpflow.set_trainable(model, False)
    assert gpx.fit(model, progress=False).status.name == "CONVERGED"
    state: Any = model.settle_sites()[0]
    np.testing.assert_allclose(state.alpha, counts - np.exp(state.mean), atol=1e-5)
    np.testing.assert_allclose(model.prior().product(state.alpha), state.mean, atol=1e-8)
    mean, variance = model.predict_f(model.data[0])
    np.testing.assert_allclose(mean, state.mean, atol=1e-4)
    squares = (mean - f.reshape(-1, 1)) ** 2 / variance
    assert 0.8 < float(np.mean(squares)) < 1.2


def test_the_shell_multiplies_kernels_of_the_columns() -> None:
    """One variance and two length scales are learnt."""
    flags = {"kernel": "matern32", "variance": 2.0, "lengthscale": 0.5, "ard": False, "fixed": False}
    kernel = shell.kernel(argparse.Namespace(**flags, prior="grid"), 2)
    assert misfit("grid", kernel, CELLS) is None
    assert len(kernel.trainable_parameters) == 3
    columns = [Matern32(2.0, 0.5)(CELLS[:, :1]), Matern32(1.0, 0.5)(CELLS[:, 1:])]
    np.testing.assert_allclose(kernel(CELLS), columns[0] * columns[1], rtol=1e-12)


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "no product": (Matern32(), CELLS, r"Matern32 of the columns \[0, 1\] is no product"),
    "sum": (
        Matern32(active_dims=[0]) + Matern32(active_dims=[1]),
        CELLS,
        "Sum of several columns is no product",
    ),
    "white": (_kernel() + White(), CELLS, "White gives each datum a value of its own"),
    "scattered": (_kernel(), RNG.uniform(size=(40, 2)), "the 40 rows are no grid"),
    "long": (Matern32(), np.arange(5000.0)[:, None], 'use prior="markov"'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(name: str) -> None:
    """Kernels that are no product, rows that are no grid; the function says so without a model."""
    kernel, inputs, reason = REFUSED[name]
    assert misfit("grid", kernel, inputs)
    with pytest.raises(ValueError, match=reason):
        gpx.models.GPLaplace(
            (inputs, np.ones((len(inputs), 1))), kernel, gpflow.likelihoods.Poisson(), prior="grid"
        )


def test_other_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options out of range, variables, expectation propagation, covariances of new places, memory."""
    with pytest.raises(ValueError, match="`probes` must be at least 1; got 0"):
        gpx.GridOptions(probes=0)
    with pytest.raises(ValueError, match="`tolerance` must be above 0"):
        gpx.GridOptions(tolerance=0.0)
    given = (X, Y), _kernel(), gpflow.likelihoods.Poisson()
    with pytest.raises(ValueError, match="arrays, not variables"):
        gpx.models.GPLaplace((tf.Variable(X), tf.Variable(Y)), *given[1:], prior="grid")
    model = gpx.models.VGPKMM(*given, prior="grid")
    with pytest.raises(NotImplementedError, match="each place by itself"):
        model.predict_f(NEW, full_cov=True)
    with pytest.raises(NotImplementedError, match='use recipe="kmm" or "laplace"'):
        gpx.fit(model, recipe="ep", progress=False)
    with pytest.raises(NotImplementedError, match="no whitened"):
        model.whitened()
    monkeypatch.setattr("gpflow_ext.sites.grid.structure.LARGEST", 10**5)
    with pytest.raises(ValueError, match="a coarser grid"):
        gpx.models.GPLaplace(*given, prior="grid")


def test_coordinates_that_rounding_parts_are_one() -> None:
    """A third added three times is one."""
    points, number = structure._axis(np.array([1.0, 1.0 / 3.0 + 1.0 / 3.0 + 1.0 / 3.0, 0.0, 0.1 + 0.2, 0.3]))
    assert len(points) == 3
    np.testing.assert_array_equal(number, [2, 2, 0, 1, 1])


@pytest.mark.parametrize(
    ("sizes", "probes", "expected"),
    [((512, 512), 32, (6, 5)), ((3, 100), 32, (3, 10)), ((4, 5), 32, (4, 5)), ((9,), 4, (4,))],
)
def test_colours_lie_apart(sizes: tuple[int, ...], probes: int, expected: tuple[int, ...]) -> None:
    """As far as the probes allow, along each axis as far."""
    assert structure.colours(sizes, probes) == expected
