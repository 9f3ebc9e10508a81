"""Student's t likelihood: its integrals against adaptive quadrature, and what they make possible."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gpflow
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.ep.method import EP, factored
from gpflow_ext.ep.optimum import Optimum
from gpflow_ext.likelihoods import Standardised, StudentT
from gpflow_ext.models import VGPKMM
from gpflow_ext.numerics import student_t
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sites.method import adopt
from gpflow_ext.training.hyperparameters import HyperparameterAscent
from gpflow_ext.training.site_iteration import SiteOptimum
from gpflow_ext.training.solver import Progress
from gpflow_ext.training.starts import FROM_DATA, OWN

CASES = [
    (df, scale, var, y)
    for df in (0.7, 3.0, 40.0)
    for scale in (0.01, 0.5)
    for var in (0.04, 2.0)
    for y in (0.0, 0.3, 6.0)
]


def _by_quadrature(df: float, scale: float, var: float, y: float) -> tuple[float, float]:
    """Return E[log t] and log E[t] for f ~ N(0, var)."""
    sd = np.sqrt(var)
    near = [k * scale for k in (-300.0, -30.0, -5.0, -1.0, 0.0, 1.0, 5.0, 30.0, 300.0)]
    ends = -14.0 * sd, 14.0 * sd
    points = sorted(
        {*ends, *(p for p in (y + k for k in near) if ends[0] < p < ends[1]), -3 * sd, 0.0, 3 * sd}
    )

    def integral(value: Any) -> float:
        pieces = itertools.pairwise(points)
        return sum(scipy.integrate.quad(value, *ends, epsabs=0.0, epsrel=1e-12)[0] for ends in pieces)

    top, widest = scipy.stats.t.logpdf(0.0, df, 0.0, scale), scipy.stats.norm.pdf(0.0, 0.0, sd)

    def log_density(f: float) -> float:
        return top - 0.5 * (df + 1.0) * math.log1p(((f - y) / scale) ** 2 / df)

    def weight(f: float) -> float:
        return widest * math.exp(-0.5 * (f / sd) ** 2)

    return integral(lambda f: log_density(f) * weight(f)), np.log(
        integral(lambda f: math.exp(log_density(f)) * weight(f))
    )


def _ours(likelihood: Any, mean: Any, var: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
    X, *parts = (
        tf.reshape(tf.constant(value, gpflow.default_float()), [-1, 1]) for value in (mean, mean, var, y)
    )
    return likelihood.variational_expectations(X, *parts), likelihood.predict_log_density(X, *parts)


@pytest.mark.parametrize(("df", "scale", "var", "y"), CASES)
def test_integrals_are_those_of_quadrature(df: float, scale: float, var: float, y: float) -> None:
    found = _ours(StudentT(scale, df), 0.0, var, y)
    np.testing.assert_allclose(np.ravel(found), _by_quadrature(df, scale, var, y), rtol=1e-8)


def test_density_of_the_most_degrees_of_freedom_has_enough_nodes() -> None:
    """Where it is nearly Gaussian: 1e6 narrower than f, its precisions lie between few of the nodes."""
    df, scale, var = student_t.MOST_DEGREES, 1e-4, 100.0
    (found,) = student_t.log_expected_density(*(tf.constant([v], tf.float64) for v in (0.0, var, scale)), df)
    expected = scipy.stats.norm.logpdf(0.0, 0.0, np.sqrt(var + scale**2 * df / (df - 2.0)))
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_nodes_of_gpflow_miss_a_narrow_density() -> None:
    """The case of the docstring."""
    _, exact = _by_quadrature(3.0, 0.1, 1.0, 0.3)
    _, theirs = _ours(gpflow.likelihoods.StudentT(0.1, 3.0), 0.0, 1.0, 0.3)
    assert abs(float(theirs[0]) - exact) > 0.5


def test_no_variance_and_several_columns() -> None:
    """With variance zero both are the log density, of each column."""
    rng, likelihood = np.random.default_rng(0), StudentT(0.3, 4.0)
    F, Y, zero = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), np.zeros((5, 2))
    expected = likelihood.log_prob(F, F, Y)
    np.testing.assert_allclose(likelihood.variational_expectations(F, F, zero, Y), expected, rtol=1e-8)
    np.testing.assert_allclose(likelihood.predict_log_density(F, F, zero, Y), expected, rtol=1e-8)


def test_derivatives() -> None:
    """In mean, variance and scale, by differences; the nodes, which are held, depend on them."""
    at = np.array([0.4, 0.3, 0.2])

    def both(values: Any) -> tf.Tensor:
        mean, var, scale = tf.unstack(values)
        likelihood = StudentT(1.0, 3.0)
        likelihood.scale = scale
        parts = [tf.reshape(part, [1, 1]) for part in (mean, var, tf.constant(1.5, tf.float64))]
        return tf.concat(
            [
                likelihood.variational_expectations(parts[0], *parts),
                likelihood.predict_log_density(parts[0], *parts),
            ],
            0,
        )

    point = tf.constant(at)
    with tf.GradientTape() as tape:
        tape.watch(point)
        value = both(point)
    found = tape.jacobian(value, point)
    steps = 1e-5 * np.eye(3)
    expected = np.stack([(both(at + step) - both(at - step)) / 2e-5 for step in steps], axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_expectation_propagation_converges() -> None:
    """Where GPflow's nodes do not let it; log Z is above the bound of variational inference."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.normal(size=(40, 1)), axis=0)
    Y = np.sin(2.0 * X) + np.where(rng.uniform(size=(40, 1)) < 0.1, 1.0, 0.1) * rng.normal(size=(40, 1))
    model = VGPKMM((X, Y), gpflow.kernels.SquaredExponential(), StudentT(0.3, 4.0))
    result = gpx.fit(model, recipe="ep", progress=False)
    assert result.status is gpx.Status.CONVERGED
    bound = gpflow.models.VGP((X, Y), model.kernel, model.likelihood)
    gpflow.set_trainable(model.kernel, False)
    gpflow.set_trainable(model.likelihood, False)
    lower = gpx.fit(bound, progress=False).objective[-1]
    assert lower < result.objective[-1] < lower + 1.0


@pytest.mark.slow
def test_an_export_has_its_density(tmp_path: Any) -> None:
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(12, 1)), rng.standard_t(3.0, size=(12, 1))
    model = gpflow.models.VGP((X, Y), gpflow.kernels.Matern32(), Standardised(StudentT(0.3), 1.0, 2.0))
    served = gpx.load_exported(gpx.export(model, tmp_path / "model"))
    np.testing.assert_allclose(served.predict_log_density(X, Y), model.predict_log_density((X, Y)), rtol=1e-9)


@pytest.mark.parametrize("df", [0.0, -1.0, 2000.0, float("inf"), float("nan")])
def test_degrees_of_freedom_are_checked(df: float) -> None:
    with pytest.raises(ValueError, match="df must be above 0 and at most 1000"):
        StudentT(1.0, df)


@pytest.mark.parametrize("scale", ["a", None, 0.0, -1.0, float("nan"), [1.0, -1.0]])
def test_a_scale_that_is_not_positive_is_refused(scale: Any) -> None:
    with pytest.raises(ValueError, match="scale must be positive and finite; got"):
        StudentT(scale)


def test_single_precision() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=50), rng.uniform(0.0, 2.0, 50), rng.uniform(0.05, 1.0, 50)
    for integral in (student_t.expected_log_density, student_t.log_expected_density):
        double, single = (
            integral(*(tf.constant(v, dtype) for v in values), 4.0) for dtype in (tf.float64, tf.float32)
        )
        np.testing.assert_allclose(single, double, rtol=0, atol=3e-5)


def hard_regression(seed: int, size: int, scale: float) -> VGPKMM:
    """Return a model of a skewed target whose tails are far outliers."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(size, 3))
    Y = np.exp(1.2 * X[:, :1]) + 0.1 * rng.standard_t(1.5, size=(size, 1))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1.5)
    return VGPKMM((X, (Y - Y.mean()) / Y.std()), kernel, StudentT(scale, 1.5))


def test_no_evidence_where_no_fixed_point_is_near() -> None:
    """The sweeps wander: after many of them log Z is none, and the sites are as they were."""
    model = hard_regression(1, 60, 0.03)
    adopt(model, EP())
    optimum = Optimum(factored(model), model.trainable_variables, None, None)
    assert np.isnan(optimum.evaluate(200, 1e-6).objective)
    np.testing.assert_array_equal(model.sites.nat1, 0.0)
    assert np.isfinite(optimum.evaluate(3, 1e-6).objective)


def _series(scale: float, lengthscale: float, prior: str) -> VGPKMM:
    """Return a model of a series in which every fifth value is an outlier."""
    rng = np.random.default_rng(2)
    X = np.sort(rng.uniform(0.0, 10.0, (30, 1)), axis=0)
    Y = np.sin(X) + 0.02 * rng.normal(size=(30, 1))
    Y[::5] += rng.choice([-1, 1], (6, 1)) * rng.uniform(1.0, 4.0, (6, 1))
    model = VGPKMM((X, Y), gpflow.kernels.Matern32(lengthscales=lengthscale), StudentT(scale), prior=prior)
    adopt(model, EP())
    return model


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["vecchia", "markov"])
def test_no_evidence_of_a_structured_prior_where_no_fixed_point_is_near(prior: str) -> None:
    """`settle_sites` tells what a few sweeps have reached, for a line search of GPflow's optimisers."""
    model = _series(0.1, 0.3, prior)
    optimum = SiteOptimum(model, EP(), model.trainable_variables)
    assert np.isnan(optimum.evaluate(200, 1e-6).objective)
    np.testing.assert_array_equal(model.sites.nat1, 0.0)
    scales = tf.constant([0.1, 1.0], tf.float64)
    drawn = tf.function(model.log_likelihoods)(Stack([(model.likelihood.scale, scales)]))
    np.testing.assert_array_equal(np.isnan(drawn), [True, False])
    state, finite = tf.function(lambda: model.settle_sites(2))()
    assert finite
    assert state.violation > 0.01
    assert np.isfinite(optimum.evaluate(3, 1e-6).objective)


def test_sites_that_wander_win_no_choice_between_starts() -> None:
    """Their log Z was 251, and that of the optimum is -39."""
    result = gpx.fit(_series(0.07, 1.0, "vecchia"), recipe="ep", starts=2, progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert np.isnan(result.starts[0].objective)
    assert result.objective[-1] < 0.0


def test_what_a_climb_has_reached_stays_where_the_sites_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is returned with no violation known, and there is nothing more to do."""
    model = hard_regression(1, 20, 0.5)
    adopt(model, EP())
    optimum = Optimum(factored(model), model.trainable_variables, None, None)
    options = {"site_updates": 200, "hyper_updates": 1, "tolerance": 1e-8, "stationarity": 1e-6}
    ascent = HyperparameterAscent(optimum, model, model.trainable_variables, **options)
    climbs = []

    def climb(iterations: int) -> bool:
        climbs.append(iterations)
        ascent.run.best.assign(-3.0)
        ascent.run.ended.assign(True)
        return True

    monkeypatch.setattr(ascent, "_settle", lambda: Progress(np.nan, np.nan))
    monkeypatch.setattr(ascent.run, "climb", climb)
    assert ascent.step() == ascent.step() == Progress(-3.0, np.inf)
    assert len(climbs) == 1


@pytest.mark.slow
def test_a_climb_ends_where_expectation_propagation_has_no_fixed_point() -> None:
    """The noise is so small beside the outliers that whole sweeps diverge: what was reached is kept.

    With mixing the fit gets to its optimum.
    """
    model = hard_regression(5, 30, 0.5)
    gpflow.set_trainable(model.kernel, False)
    begin = _evidence(model)
    with pytest.warns(gpx.FitWarning, match=r"no fixed point: use gpflow_ext\.models\.SGPMCFreeForm"):
        result = gpx.fit(model, recipe="ep", damping=1.0, starts=1, progress=False)
    assert result.status is gpx.Status.STALLED
    assert begin + 3.0 < result.objective[-1] < 0.0
    assert 0.01 < float(model.likelihood.scale.numpy()) < 0.1
    mixed = gpx.fit(model, recipe="ep", starts=1, progress=False)
    assert mixed.status is gpx.Status.CONVERGED
    assert mixed.objective[-1] > result.objective[-1] + 0.3


def _evidence(model: Any) -> float:
    """Return log Z at the hyperparameters as they are."""
    adopt(model, EP())
    return Optimum(factored(model), model.trainable_variables, None, None).evaluate(200, 1e-6).objective


def test_further_starts_are_tried_where_the_sites_of_the_only_one_never_settle() -> None:
    result = gpx.fit(_series(0.07, 1.0, "vecchia"), recipe="ep", progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert [tried.name for tried in result.starts] == [OWN, FROM_DATA, "random 1"]
    assert np.isnan(result.starts[0].objective)
    with pytest.warns(gpx.FitWarning, match="NaN or infinite"):
        alone = gpx.fit(_series(0.07, 1.0, "vecchia"), recipe="ep", starts=1, progress=False)
    assert alone.status is gpx.Status.NON_FINITE
