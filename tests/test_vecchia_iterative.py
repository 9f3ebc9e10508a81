"""Vecchia priors that are solved by iteration: what the factor gives, as far as probes tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import pytest
import tensorflow as tf
from gpflow.kernels import Matern32, Matern52, SeparateIndependent
from kept_models import served_and_rebuilt

import gpflow_ext as gpx
from gpflow_ext.sites import Sites
from gpflow_ext.sites.vecchia import conditionals, levels, preconditioned, sweeps
from gpflow_ext.sites.vecchia.iterative_structure import IterativeStructure
from gpflow_ext.sites.vecchia.structure import Structure, VecchiaOptions

RNG = np.random.default_rng(0)
N = 300
X = RNG.uniform(0.0, 1.0, (N, 2))
Y = RNG.poisson(np.exp(np.sin(5.0 * X[:, :1]))).astype(float)
NEW = RNG.uniform(0.0, 1.0, (7, 2))
PREC = RNG.gamma(1.0, 3.0, (N, 1))
MIXED = np.where(np.arange(N)[:, None] % 7 == 0, -0.02, PREC)  # with negative ones
B = RNG.standard_normal((N, 1))
SCALES = np.array([0.3, 0.5])


class Functions:
    """What `conditionals.at` reads from a model."""

    def __init__(self) -> None:
        self.kernel, self.num_latent_gps = Matern32(1.3, SCALES), 1
        self.mean_function = gpflow.functions.Constant(0.3)


def _priors(**given: Any) -> tuple[Any, Any]:
    """Return the prior with a factor, and the one that is solved by iteration."""
    options = VecchiaOptions(neighbours=6, seed=3, **given)
    kinds = Structure(X, SCALES, options), IterativeStructure(X, SCALES, options)
    direct, iterative = (conditionals.at(Functions(), kind, tf.constant(X)) for kind in kinds)
    return direct, iterative


def _model(solver: str, cls: Any = gpx.models.GPLaplace, likelihood: Any = None, **given: Any) -> Any:
    options = VecchiaOptions(neighbours=6, solver=solver, **given)
    likelihood = likelihood or gpflow.likelihoods.Poisson()
    return cls((X, Y), Matern32(1.3, SCALES), likelihood, prior=options)


def _dense(prior: Any) -> np.ndarray:
    """Return B."""
    found = np.eye(N)
    for row, clique, a in zip(found, prior.rows.cliques.numpy(), prior.rows.a.numpy()[..., 0], strict=True):
        there = clique[1:] < N
        row[clique[1:][there]] = -a[there]
    return found


def _compiled(function: Any) -> Any:
    return tf.function(function, autograph=False)()


def test_steps_by_levels_solve_triangular_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """With B and Bᵀ, three columns at once, where a block takes several steps; a level needs lower ones alone."""
    monkeypatch.setattr(levels, "WIDTH", 4)
    monkeypatch.setattr(levels, "PART", 3)
    iterative = _priors()[1]
    dense = _dense(iterative)
    triangle = sweeps.triangle(iterative.schedule, iterative.rows.a[..., 0])
    columns = RNG.standard_normal((N, 3))
    assert len(iterative.schedule.back.first) > len(iterative.schedule.forth.first)
    for solve, matrix in ((triangle.solve, dense), (triangle.solve_transposed, dense.T)):
        found = iterative.schedule.gather(solve(iterative.schedule.spread(tf.constant(columns))))
        np.testing.assert_allclose(found, np.linalg.solve(matrix, columns), rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("prec", [PREC, MIXED], ids=["positive", "some negative"])
def test_solutions_and_products_are_those_of_the_factor(prec: np.ndarray) -> None:
    """To the tolerance, and within a rougher one that is asked for."""
    direct, iterative = _priors(tolerance=1e-10)
    factor, system = direct.factorise(tf.constant(prec)), iterative.system(tf.constant(prec))
    for one, other in zip(system.solve(tf.constant(B)), factor.solve(tf.constant(B)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-8 * np.abs(other).max())
    rough, close = system.near(tf.constant(prec), tf.constant(B), tf.constant(0.1))
    exact = factor.solve(tf.constant(B)).shift
    assert close
    assert 1e-6 < np.linalg.norm(rough.shift - exact) / np.linalg.norm(exact) < 0.5
    np.testing.assert_allclose(
        iterative.product(tf.constant(B)), direct.product(tf.constant(B)), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize(
    "prec", [PREC, pytest.param(MIXED, marks=pytest.mark.slow)], ids=["positive", "some negative"]
)
def test_the_estimate_is_that_of_its_probes(prec: np.ndarray) -> None:
    """½ Σ log(DW) + ½ zᵀ log(A) z by dense algebra, the mean and the standard error over the probes."""
    prior = _priors(probes=6, tolerance=1e-8)[1]
    inverse, D = np.linalg.inv(_dense(prior)), prior.rows.D.numpy()
    W = 1.0 / D + np.maximum(prec, 0.0)
    half = inverse / np.sqrt(W.T)
    values, vectors = np.linalg.eigh(np.diag(1.0 / (D * W)[:, 0]) + half.T @ (prec * half))
    seen = vectors.T @ preconditioned._signs(N, prior.seeds).numpy()
    logs = 0.5 * (np.log(D * W).sum() + np.log(values) @ seen**2)
    trace = _compiled(lambda: prior.factorise(tf.constant(prec)).trace)
    np.testing.assert_allclose(trace.value, [logs.mean()], rtol=1e-7)
    np.testing.assert_allclose(trace.error, [logs.std(ddof=1) / np.sqrt(6.0)], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("prec", [PREC, MIXED], ids=["positive", "some negative"])
def test_the_log_determinant_and_its_derivatives_are_right_on_average(prec: np.ndarray) -> None:
    """Within three standard errors, which fall with the root of the number of probes.

    So is the sum of variances times precisions, to a twentieth.
    """
    exact = _priors()[0].factorise(tf.constant(prec))
    spread = exact.variance()
    errors = []
    for probes in (8, 128):
        prior = _priors(probes=probes)[1]
        factor = _compiled(lambda prior=prior: prior.factorise(tf.constant(prec)))
        error = float(factor.standard_error())
        assert abs(float(factor.half_log_det() - exact.half_log_det())) < 3.0 * error
        errors.append(error)
    assert (
        1.6 < errors[0] / errors[1] < 6.4
    )  # 4, within three errors of the first, of 8 deviations, 27 % each
    ratio = tf.reduce_sum(factor.variance() * PREC) / tf.reduce_sum(spread * PREC)
    np.testing.assert_allclose(ratio, 1.0, atol=0.05)


def _derivative(value: Any, variable: Any, index: int, step: float) -> float:
    """Return a central difference of a function of nothing, in an entry of a variable, by a share of it."""
    at, ends = variable.numpy(), []
    step *= max(abs(float(np.ravel(at)[index])), 1e-3)
    for sign in (1.0, -1.0):
        moved = np.array(at, copy=True)
        moved.flat[index] += sign * step
        variable.assign(moved)
        ends.append(float(value()))
    variable.assign(at)
    return (ends[0] - ends[1]) / (2.0 * step)


def test_the_estimate_has_its_own_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ½ log|I + ΛΣ| in precisions of both signs, coefficients and conditional variances, by blocks of probes.

    By central differences: it is a smooth function, with four probes too.
    """
    monkeypatch.setattr(preconditioned, "KEPT", tf.float64)
    monkeypatch.setattr(preconditioned, "SIDE", (2, 2))
    _, prior = _priors(probes=4, tolerance=1e-14)
    prec = tf.Variable(MIXED)
    a, D = (tf.Variable(part) for part in prior.rows[1:])

    @tf.function(autograph=False)
    def factor() -> Any:
        return prior._replace(rows=prior.rows._replace(a=a, D=D)).factorise(prec)

    trace = factor().trace
    for variable, slopes in ((prec, 0.5 * trace.by_prec), (a, trace.by_a), (D, trace.by_D)):
        slopes = np.ravel(slopes)
        for index in (int(np.abs(slopes).argmax()), 7, 140):
            found = _derivative(lambda: factor().half_log_det(), variable, index, 1e-4)
            np.testing.assert_allclose(slopes[index], found, rtol=2e-5, atol=1e-6 * np.abs(slopes).max())


@pytest.mark.slow
def test_the_estimate_compiles_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under XLA it is the same, to the six digits of its eigenvalues; in two blocks of probes."""
    monkeypatch.setattr(preconditioned, "SIDE", (2, 2))
    prior = _priors(probes=4, tolerance=1e-10)[1]

    def traced() -> Any:
        return prior.factorise(tf.constant(PREC)).trace

    for one, other in zip(
        tf.function(traced, jit_compile=True, autograph=False)(), _compiled(traced), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0.0, atol=1e-4 * np.abs(other).max())


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [gpflow.likelihoods.Poisson(), gpflow.likelihoods.StudentT(1.5, 4.0)])
def test_laplace_finds_the_same_mode_and_nearly_its_evidence(likelihood: Any) -> None:
    """The mode to the tolerance, the evidence within three standard errors, and the gradient of the estimate."""
    found = []
    for solver in ("direct", "iterative"):
        model = _model(solver, likelihood=likelihood, tolerance=1e-8, probes=64)
        objective = tf.function(model.maximum_log_likelihood_objective, autograph=False)
        with tf.GradientTape() as tape:
            value = objective()
        slopes = tape.gradient(value, model.trainable_variables)
        found.append((float(value), model.nat1.numpy(), model.prec.numpy()))
    (exact, *sites), (estimate, *others) = found
    for one, other in zip(sites, others, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    error = _compiled(lambda: model.prior().factorise(model.prec).standard_error())
    assert 0.0 < abs(estimate - exact) < 3.0 * float(error)
    for raw, slope in zip(model.trainable_variables, slopes, strict=True):
        found_slope = _derivative(objective, raw, 0, 1e-4)
        np.testing.assert_allclose(np.ravel(slope)[0], found_slope, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_means_are_exact_and_variances_right_on_average() -> None:
    """At new places: those of the factor; 400 draws have a standard error of 7 %, of which four are allowed."""
    (mean, var), (same, near) = (
        _compiled(lambda model=model: model.predict_f(NEW))
        for model in (_fitted("direct"), _fitted("iterative", tolerance=1e-8, probes=200))
    )
    np.testing.assert_allclose(same, mean, rtol=0.0, atol=1e-6)
    np.testing.assert_allclose(near, var, rtol=0.28)


def _fitted(solver: str, **given: Any) -> Any:
    model = _model(solver, **given)
    gpflow.set_trainable(model, False)
    gpx.fit(model, progress=False)
    return model


@pytest.mark.slow
def test_it_learns_hyperparameters() -> None:
    """L-BFGS ends, and near to where the factor leads it."""
    found = []
    for solver in ("direct", "iterative"):
        model = _model(solver, probes=64)
        result = gpx.fit(model, progress=False)
        assert result.status is gpx.Status.CONVERGED
        found.append(np.concatenate([np.ravel(p) for p in model.trainable_variables]))
    np.testing.assert_allclose(found[1], found[0], atol=0.3)


@pytest.mark.slow
def test_latent_functions_have_kernels_of_their_own_or_share_one() -> None:
    """Two functions of a stick-breaking likelihood."""
    targets = RNG.integers(0, 3, (N, 1)).astype(float)
    for kernel in (SeparateIndependent([Matern32(), Matern52(1.0, 0.3)]), Matern32(1.0, 0.4)):
        found = []
        for solver in ("direct", "iterative"):
            options = VecchiaOptions(neighbours=6, solver=solver, tolerance=1e-8)
            model = gpx.models.GPLaplace(
                (X, targets), kernel, gpx.likelihoods.StickBreaking(3), prior=options
            )
            with tf.GradientTape() as tape:
                value = tf.function(model.maximum_log_likelihood_objective, autograph=False)()
            slopes = tape.gradient(value, model.trainable_variables)
            assert all(np.isfinite(slope).all() for slope in slopes)
            found.append((float(value), _compiled(lambda model=model: model.predict_f(NEW)[0]), model))
        np.testing.assert_allclose(found[1][1], found[0][1], rtol=0.0, atol=1e-6)
        model = found[1][2]
        error = float(_compiled(lambda model=model: model.prior().factorise(model.prec).standard_error()))
        assert abs(found[1][0] - found[0][0]) < 3.0 * error


@pytest.mark.slow
def test_the_normaliser_has_its_gradient() -> None:
    """In the variance, a length scale and the mean, by central differences of the estimate."""
    functions, options = Functions(), VecchiaOptions(neighbours=6, tolerance=1e-9)
    structure = IterativeStructure(X, SCALES, options)
    sites = Sites(tf.constant(B), tf.constant(PREC))

    @tf.function(autograph=False)
    def value() -> tf.Tensor:
        return conditionals.at(functions, structure, tf.constant(X)).log_normaliser(sites)

    kernel = functions.kernel
    raws = [each.unconstrained_variable for each in (kernel.variance, kernel.lengthscales)]
    raws.append(functions.mean_function.c.unconstrained_variable)
    with tf.GradientTape() as tape:
        current = value()
    for raw, slope in zip(raws, tape.gradient(current, raws), strict=True):
        np.testing.assert_allclose(np.ravel(slope)[0], _derivative(value, raw, 0, 1e-4), rtol=1e-4)


@pytest.mark.slow
def test_functions_of_it_have_its_mean() -> None:
    """Draws of whole functions: 400 of them, five standard errors of the mean."""
    model = _fitted("iterative")
    mean, var = _compiled(lambda: model.predict_f(NEW))
    drawn = gpx.sample_functions(model, 400, seed=0)(NEW)
    apart = (np.mean(drawn, axis=0) - mean) / np.sqrt(var / 400.0)
    assert np.abs(apart).max() < 5.0


def test_functions_need_the_noise_of_sites() -> None:
    model = _model("iterative")
    model.assign_sites(Sites(tf.constant(B), tf.constant(MIXED)))
    with pytest.raises(NotImplementedError, match="needs sites of non-negative precision"):
        gpx.sample_functions(model, 2, seed=0)


@pytest.mark.slow
def test_it_serves_and_resumes(tmp_path: Path) -> None:
    """An export predicts the same, a checkpoint rebuilds the model, neighbours follow new data."""
    model = _model("iterative")
    assert served_and_rebuilt(model, X, NEW, tmp_path).estimates_variances
    model.update_data((np.concatenate([X, NEW]), np.concatenate([Y, Y[:7]])))
    assert model.structure.num_data == N + 7
    assert np.isfinite(float(model.maximum_log_likelihood_objective()))


def test_methods_that_need_each_variance_are_refused() -> None:
    """With both names, and what to use; Taylor's method is not."""
    for cls in (gpx.models.VGPKMM, gpx.models.GPJaakkola):
        likelihood = gpx.likelihoods.BernoulliLogit(bound="jaakkola")
        with pytest.raises(NotImplementedError, match=r'VecchiaOptions\(solver="direct"\)'):
            cls(
                (X, np.minimum(Y, 1.0)),
                Matern32(),
                likelihood,
                prior=VecchiaOptions(solver="iterative"),
            )
    with pytest.raises(NotImplementedError, match='recipe="ep" needs the variance at each datum'):
        gpx.fit(_model("iterative"), recipe="ep", progress=False)
    assert np.isfinite(float(_model("iterative", gpx.models.GPTaylor).maximum_log_likelihood_objective()))


def test_many_data_are_solved_by_iteration_where_the_method_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By "auto", and neither with inducing points nor with variational inference."""
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.DIRECT", N - 1)
    assert _model("auto").estimates_variances
    assert _model("auto").solver_error == VecchiaOptions().tolerance
    assert not _model("auto", gpx.models.VGPKMM).estimates_variances
    assert not _model("auto", inducing=5).estimates_variances
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.DIRECT", N)
    assert not _model("auto").estimates_variances
    assert _model("auto").solver_error == 0.0


def test_variances_of_predictions_are_those_of_a_factor_where_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By "auto", to rounding; not of too many data, or where it takes too much memory."""
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.DIRECT", N - 1)
    found = []
    for solver in ("direct", "auto"):
        model = _model(solver)
        model.assign_sites(Sites(tf.constant(B), tf.constant(PREC)))
        found.append(model.predict_f(NEW)[1])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-10)
    assert model.estimates_variances
    with monkeypatch.context() as patch:
        patch.setattr("gpflow_ext.sites.vecchia.iterative_structure.FACTORED", N - 1)
        assert _model("auto").structure.factored is None
    with monkeypatch.context() as patch:
        patch.setattr("gpflow_ext.sites.vecchia.iterative_structure.refuse", lambda *_: None)
        patch.setattr("gpflow_ext.sites.vecchia.structure.LARGEST", 2**20)
        assert _model("auto").structure.factored is None
    assert _model("iterative").structure.factored is None


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "solver": ({"solver": "cg"}, "`solver` must be one of"),
    "probes": ({"probes": 1}, "`probes` must be at least 2; got 1"),
    "tolerance": ({"tolerance": 0.2}, "`tolerance` must be above 0 and at most 0.1; got 0.2"),
    "inducing": ({"solver": "iterative", "inducing": 5}, "without `inducing` points"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_out_of_range_are_refused(name: str) -> None:
    given, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        VecchiaOptions(**given)


@pytest.mark.parametrize(
    ("solver", "instead"), [("iterative", "fewer neighbours or probes"), ("direct", 'solver="iterative"')]
)
def test_too_much_memory_is_refused_with_what_takes_less(
    solver: str, instead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpflow_ext.sites.vecchia.structure.LARGEST", 10**5)
    with pytest.raises(ValueError, match=instead):
        _model(solver)
