"""Laplace, Jaakkola-Jordan and Taylor: against scikit-learn, NumPy twins, GPflow, and each other."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.models import GPR, SGPR
from scipy import stats

import gpflow_ext as gpx
from gpflow_ext import sites
from gpflow_ext.laplace import expansion, nearby, updates
from gpflow_ext.likelihoods import BernoulliLogit, CumulativeLogit, PoissonLog, StickBreaking
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPTaylor
from gpflow_ext.sites import site_method
from gpflow_ext.sites.concavity import expand
from gpflow_ext.training.site_iteration import SiteOptimum

XNEW = problems.inputs(7, seed=11)
Z = problems.inputs(8, seed=5)
JAAKKOLA = BernoulliLogit(bound="jaakkola")


def _fixed(model):
    for part in (model.kernel, model.likelihood, model.inducing_variable):
        if part is not None:
            gpflow.set_trainable(part, False)
    return model


def _iteration(model) -> SiteOptimum:
    return SiteOptimum(model, site_method(model.site_method), ())


def _held(model) -> tf.Tensor:
    """Return the objective at the current sites."""
    return site_method(model.site_method).objective(model, model.prior(), model.sites)


def _closed(model) -> tf.Tensor:
    """Return the objective at rest, whose gradient is in closed form."""
    method, prior = site_method(model.site_method), model.prior()
    return method.at_rest(model, prior, method.begin(model, prior, model.sites))


def _at_rest(model):
    gpx.fit(_fixed(model), tolerance=1e-13, stationarity=1e-11)
    return model


# --------------------------------------------------------------------------------------------------- Laplace


def test_a_curvature_below_zero_by_rounding_is_zero() -> None:
    """That of GPflow's ``Exponential`` at y = 0 is -2e-16; dense factors take the root of it."""
    X = np.linspace(0.0, 3.0, 12)[:, None]
    Y = np.exp(np.sin(2.0 * X)) * (np.arange(12)[:, None] % 3 > 0)
    model = _fixed(GPLaplace((X, Y), problems.kernel(), gpflow.likelihoods.Exponential()))
    at = expand(model.log_density, tf.constant(np.linspace(-3.0, 3.0, 12)[:, None]))
    assert at.curvature.numpy().min() == 0.0
    assert gpx.fit(model, progress=False).status is gpx.Status.CONVERGED
    lifted = expand(lambda F: 0.5 * tf.reduce_sum(1e-12 * F**2, axis=1), tf.ones([3, 1], tf.float64))
    np.testing.assert_allclose(lifted.curvature, -1e-12)


def test_laplace_is_scikit_learns(record_property) -> None:
    """Mode, evidence, and gradient in the logarithms of the variance and the length scale."""
    gaussian_process = pytest.importorskip("sklearn.gaussian_process")
    kernels = gaussian_process.kernels
    X, Y = problems.binary(40)
    model = GPLaplace((X, Y), problems.kernel(), BernoulliLogit())
    iteration = _iteration(model)
    hypers = [model.kernel.variance, model.kernel.lengthscales]
    for variance, lengthscale in ((1.0, 1.0), (4.0, 0.7), (50.0, 0.5)):
        jitter = kernels.WhiteKernel(gpflow.default_jitter())  # that of our prior
        kernel = kernels.ConstantKernel(variance) * kernels.RBF(lengthscale) + jitter
        reference = gaussian_process.GaussianProcessClassifier(kernel, optimizer=None, max_iter_predict=1000)
        reference.fit(X, Y[:, 0])
        evidence, slopes = reference.log_marginal_likelihood(kernel.theta, eval_gradient=True)
        for parameter, value in zip(hypers, (variance, lengthscale), strict=True):
            parameter.assign(value)
        assert iteration.evaluate(50, 1e-10).violation <= 1e-10
        with tf.GradientTape() as tape:
            ours = model.log_evidence()
        record_property("difference of the evidence", abs(float(ours) - evidence))
        np.testing.assert_allclose(ours, evidence, rtol=0, atol=1e-8)
        # scikit-learn stops where the evidence changes by less than 1e-10: the mode is right to its root.
        mode = model.predict_f(X)[0][:, 0] + gpflow.default_jitter() * model.posterior().cache[0][:, 0]
        np.testing.assert_allclose(mode, reference.base_estimator_.f_cached, rtol=0, atol=1e-6)
        gradients = tape.gradient(ours, [parameter.unconstrained_variable for parameter in hypers])
        for parameter, gradient, slope in zip(hypers, gradients, slopes, strict=False):
            by_log = gradient * parameter / tf.sigmoid(parameter.unconstrained_variable)  # softplus
            np.testing.assert_allclose(by_log, slope, rtol=0, atol=1e-6)


MODELS = {
    "laplace": lambda: GPLaplace(problems.binary(), problems.kernel(), BernoulliLogit()),
    "laplace-inducing": lambda: GPLaplace(
        problems.counts(), problems.kernel(1.0), gpflow.likelihoods.Poisson(), inducing_variable=Z.copy()
    ),
    "laplace-ordinal": lambda: GPLaplace(
        problems.ordinal(), problems.kernel(), CumulativeLogit(4), gpflow.functions.Constant(0.3)
    ),
    "taylor-inducing": lambda: GPTaylor(
        problems.binary(), problems.kernel(), BernoulliLogit(), inducing_variable=Z.copy()
    ),
    "jaakkola-inducing": lambda: GPJaakkola(
        problems.binary(), problems.kernel(), JAAKKOLA, inducing_variable=Z.copy()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_gradient_is_that_of_the_optimised_objective(name: str) -> None:
    """The sites move with the hyperparameters: left out, Laplace's gradient may even have the wrong sign."""
    model = MODELS[name]()
    iteration = _iteration(model)
    variables = model.trainable_variables
    value_at = tf.function(lambda: _held(model), autograph=False)

    def refit() -> float:
        assert iteration.evaluate(2000, 1e-11).violation <= 1e-11
        return float(value_at())

    refit()
    with tf.GradientTape(persistent=True) as tape:
        value, closed = _held(model), _closed(model)
    np.testing.assert_allclose(value, closed, rtol=1e-12)
    gradients, in_closed_form = (
        [tf.convert_to_tensor(part).numpy() for part in tape.gradient(end, variables)]
        for end in (value, closed)
    )
    problems.assert_refitted_gradient(variables, gradients, refit, atol=1e-6)
    for ours, theirs in zip(in_closed_form, gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-7)


def test_sites_held_fixed_throughout_would_give_another_gradient() -> None:
    """What the expansion about the moved mean adds, the implicit term, is not small."""
    model = MODELS["laplace"]()
    _iteration(model).evaluate(50, 1e-11)
    with tf.GradientTape(persistent=True) as tape:
        full, explicit = model.log_evidence(), model.prior().log_normaliser(model.sites)
    variables = model.trainable_variables
    a, b = (np.array(tape.gradient(value, variables)) for value in (full, explicit))
    assert np.abs(a - b).max() > 0.1


def test_gaussian_likelihood_gives_gpr_and_sgpr() -> None:
    data, likelihood = problems.continuous(), gpflow.likelihoods.Gaussian(0.2)
    dense = _at_rest(GPLaplace(data, problems.kernel(), likelihood))
    jitter = gpflow.kernels.White(gpflow.default_jitter())
    reference = GPR(data, problems.kernel() + jitter, noise_variance=0.2)
    np.testing.assert_allclose(dense.log_evidence(), reference.log_marginal_likelihood(), rtol=1e-10)
    for ours, theirs in zip(dense.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6)  # White adds 1e-6 to the variance
    sparse = SGPR(data, problems.kernel(), Z, noise_variance=0.2)
    for cls in (GPTaylor, GPLaplace):
        model = _at_rest(cls(data, problems.kernel(), likelihood, inducing_variable=Z))
        np.testing.assert_allclose(model.log_evidence(), sparse.elbo(), rtol=1e-10)
        for ours, theirs in zip(model.predict_f(XNEW), sparse.predict_f(XNEW), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("targets", "likelihood"), [(problems.binary, BernoulliLogit()), (problems.counts, PoissonLog())]
)
def test_few_inducing_points_do_not_let_the_variance_run_away(targets: Any, likelihood: Any) -> None:
    """Length scales so short that the points explain nothing would otherwise cost nothing."""
    data = targets(60)
    models = [
        GPLaplace(data, gpflow.kernels.Matern32(), likelihood, **points)
        for points in ({}, {"inducing_variable": data[0][::6]})
    ]
    for model in models:
        gpx.fit(model, progress=False)
    dense, sparse = (model.kernel.variance.numpy() for model in models)
    assert sparse < 5.0 * dense
    np.testing.assert_allclose(_held(model), _closed(model), rtol=1e-6)  # by `evidence`, and at the mode
    exact, approximate = (model.predict_f(XNEW)[0] for model in models)
    np.testing.assert_allclose(approximate, exact, rtol=0, atol=np.sqrt(dense))


def test_stick_breaking_is_one_laplace_for_each_stick() -> None:
    """Stick j sees the data of classes j and above: the evidences of the subsets add up."""
    X, Y = problems.classes(30)
    together = _at_rest(GPLaplace((X, Y), problems.kernel(), StickBreaking(3)))
    total = 0.0
    for stick in (0, 1):
        seen = Y[:, 0] >= stick
        labels = (Y[seen] == stick).astype(float)
        total += _at_rest(GPLaplace((X[seen], labels), problems.kernel(), BernoulliLogit())).log_evidence()
    np.testing.assert_allclose(together.log_evidence(), total, rtol=1e-10)


def test_newton_is_safeguarded_under_counts() -> None:
    """From the prior mean Newton's whole step to large counts overshoots to exp(f) ~ e⁴⁰; no step may fall."""
    X, Y = problems.counts(30, variance=25.0)
    model = GPLaplace((X, 50.0 * Y), problems.kernel(25.0), gpflow.likelihoods.Poisson())
    prior, current = model.prior(), model.sites
    point = whole = expansion.locate(prior, model.log_density, current)
    trace = [float(whole.log_joint(prior))]
    step = tf.function(lambda point: updates.newton_step(prior, model.log_density, point), autograph=False)
    for _ in range(60):
        point = step(point)
        trace.append(float(point.log_joint(prior)))
        there = expansion.locate(prior, model.log_density, point.sites)  # the sites keep the mean
        np.testing.assert_allclose(there.mean, point.mean, rtol=1e-6, atol=1e-6)
    assert point.violation < 1e-8
    assert (np.diff(trace) >= -1e-9 * np.abs(trace[1:])).all()
    first = prior.factorise(whole.at.curvature).solve(whole.at.grad).alpha
    assert prior.product(first).numpy().max() > 40.0  # so the safeguard was needed


@pytest.mark.slow
def test_hyperparameters_are_learnt_where_the_likelihood_is_not_log_concave() -> None:
    """Of all data as through as many inducing points: a dense factor would take the root of a precision."""
    X, Y = problems.continuous(30)
    Y[::5] += 30.0
    ends = []
    with gpflow.config.as_context(gpflow.config.Config(jitter=1e-10)):
        for points in (None, X):
            likelihood = gpflow.likelihoods.StudentT(0.3, 3.0)
            model = GPLaplace((X, Y), problems.kernel(), likelihood, inducing_variable=points)
            if points is not None:
                gpflow.set_trainable(model.inducing_variable, False)
            result = gpx.fit(model, starts=1, progress=False)
            assert result.status is gpx.Status.CONVERGED
            ends.append((result.objective[-1], *model.predict_f(XNEW), model.likelihood.scale))
    assert model.prec.numpy().min() < 0.0
    for dense, sparse in zip(*ends, strict=True):
        np.testing.assert_allclose(dense, sparse, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("likelihood", "indefinite"),
    [
        (BernoulliLogit(), False),
        (BernoulliLogit(flip=0.05), True),
        (gpflow.likelihoods.Bernoulli(), True),
        (gpflow.likelihoods.Poisson(), False),
        (gpx.likelihoods.StudentT(10.0), True),
        (gpx.likelihoods.Standardised(gpx.likelihoods.StudentT(0.1), 1.0, 20.0), True),
    ],
)
def test_precisions_below_zero_are_expected_of_likelihoods_that_are_not_log_concave(
    likelihood: gpflow.likelihoods.Likelihood, indefinite: bool
) -> None:
    X, Y = problems.binary(15)
    for _ in range(2):  # the second by what is known of the first
        model = GPLaplace((X, Y), problems.kernel(), likelihood)
        assert model.indefinite is indefinite
        assert isinstance(model.prior(), sites.Projection) is indefinite
    model.site_method = "jaakkola"
    assert isinstance(model.prior(), sites.Dense)


def _outliers() -> tuple[np.ndarray, np.ndarray]:
    X, Y = problems.continuous(30)
    Y[::5] += 3.0
    return X, Y


def _mode(prior: sites.Projection, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the mode under Student's t of scale 0.3 and three degrees of freedom, and Laplace's log q(y).

    By Newton steps with max(W, 0), halved until the density rises.
    """
    Q, y = (prior.A[0].numpy().T @ prior.A[0].numpy()), Y[:, 0]

    def parts(f: np.ndarray) -> tuple[np.ndarray, ...]:
        r, s = y - f, 3.0 * 0.3**2
        return stats.t(3.0, scale=0.3).logpdf(r), 4.0 * r / (s + r**2), 4.0 * (s - r**2) / (s + r**2) ** 2

    def density(a: np.ndarray) -> float:
        return float(parts(Q @ a)[0].sum() - 0.5 * a @ Q @ a)

    alpha, eye = np.zeros(len(y)), np.eye(len(y))
    for _ in range(500):
        _, g, W = parts(Q @ alpha)
        step = np.linalg.solve(eye + np.maximum(W, 0.0)[:, None] * Q, g - alpha)
        while density(alpha + step) < density(alpha) - 1e-12:
            step /= 2.0
        alpha = alpha + step
    W = parts(Q @ alpha)[2]
    assert W.min() < -0.1
    return Q @ alpha, density(alpha) - 0.5 * np.linalg.slogdet(eye + W[:, None] * Q)[1]


@pytest.mark.parametrize("points", [None, pytest.param("all", marks=pytest.mark.slow)])
def test_newton_climbs_where_the_density_is_not_concave(points: Any) -> None:
    """Its whole step leads down from the prior mean, where I + WQ is not positive definite."""
    X, Y = _outliers()
    likelihood = gpflow.likelihoods.StudentT(0.3, 3.0)
    points = None if points is None else X
    model = _fixed(GPLaplace((X, Y), problems.kernel(), likelihood, inducing_variable=points))
    prior = model.prior()
    point = expansion.start(prior, model.log_density, model.sites)
    assert not prior.factorise(point.at.curvature).finite
    mode, evidence = _mode(prior, X, Y)
    near = nearby.find_mode(prior, model.log_density, model.sites, 60, 1e-9)
    plain, finite = site_method("laplace").solve(model, prior, model.sites, 60, 1e-9)
    assert finite
    for found in (plain, near):
        assert found.violation <= 1e-9
        np.testing.assert_allclose(found.mean[:, 0], mode, atol=1e-7)
        charge = 0.5 * tf.reduce_sum(found.at.curvature * prior.residual)  # of rounding
        np.testing.assert_allclose(expansion.evidence(prior, found) + charge, evidence, rtol=1e-8)


# ---------------------------------------------------------------------------------------------------- Taylor


def test_taylor_is_laplace_in_the_dense_model_and_the_mode_in_the_sparse_one() -> None:
    data = problems.binary()
    dense = [_at_rest(cls(data, problems.kernel(), BernoulliLogit())) for cls in (GPTaylor, GPLaplace)]
    np.testing.assert_allclose(dense[0].log_evidence(), dense[1].log_evidence(), rtol=1e-12)
    model = _at_rest(GPTaylor(data, problems.kernel(), BernoulliLogit(), inducing_variable=Z))
    prior, v = model.prior(), model.whitened()[0]
    with tf.GradientTape() as tape:
        tape.watch(v)
        f = prior.mean + tf.matmul(prior.A[0], v, transpose_a=True)
        log_joint = tf.reduce_sum(model.log_density(f)) - 0.5 * tf.reduce_sum(v**2)
    np.testing.assert_allclose(tape.gradient(log_joint, v), 0.0, rtol=0, atol=1e-8)


def test_taylors_objective_is_no_bound() -> None:
    """Where all labels agree it exceeds the exact ELBO of the same q, by 11 nats; the paper prints ≥."""
    X, Y = problems.binary()
    likelihood = BernoulliLogit(bound=None)
    model = GPTaylor((X, np.ones_like(Y)), problems.kernel(100.0), likelihood, inducing_variable=Z)
    _iteration(model).evaluate(50, 1e-10)
    q = sites.condition(model.prior(), model.sites)
    elbo = tf.reduce_sum(model.expectation(q.mean, q.var)) - q.kl
    assert model.log_evidence() > elbo + 1.0


# -------------------------------------------------------------------------------------------------- Jaakkola


def _closed_form(A: np.ndarray, residual: np.ndarray, y: np.ndarray, steps: int) -> list[tuple[float, ...]]:
    """Equations 13 and 14 with explicit inverses, whitened, from ξ² = the prior's: J after each step."""

    def log_sigmoid(z: np.ndarray) -> np.ndarray:
        return -np.logaddexp(0.0, -z)

    xi = np.sqrt((A**2).sum(0) + residual)
    found = []
    for _ in range(steps):
        lam = np.tanh(xi / 2) / (4 * xi)
        Sigma = np.linalg.inv(2 * (A * lam) @ A.T + np.eye(len(A)))
        mu = 0.5 * Sigma @ A @ y
        m, v = A.T @ mu, residual + np.einsum("mn,mk,kn->n", A, Sigma, A)
        xi = np.sqrt(m**2 + v)
        lam = np.tanh(xi / 2) / (4 * xi)
        terms = log_sigmoid(xi) + (y * m - xi) / 2 - lam * (m**2 + v - xi**2)
        kl = 0.5 * (np.trace(Sigma) + mu @ mu - len(A) - np.linalg.slogdet(Sigma)[1])
        found.append((terms.sum() - kl, m, v, 2 * lam))
    return found


def test_jaakkolas_ascent_is_the_papers_and_the_generic_site_update() -> None:
    X, Y = problems.binary()
    model = GPJaakkola((X, Y), problems.kernel(), JAAKKOLA, inducing_variable=Z)
    prior = model.prior()
    expected = _closed_form(prior.A[0].numpy(), prior.residual.numpy()[:, 0], 2 * Y[:, 0] - 1, steps=6)
    for bound, mean, var, prec in expected:
        q = sites.condition(prior, model.sites)
        generic = sites.variational_sites(model.expectation, sites.Marginals(q.mean, q.var))
        new = updates.jaakkola_step(prior, model.expectation, model.sites).sites
        for a, b in zip(new, generic, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-13)
        np.testing.assert_allclose(new.nat1, Y - 0.5, rtol=0, atol=1e-12)
        model.assign_sites(new)
        q = sites.condition(prior, new)
        np.testing.assert_allclose(model.elbo(), bound, rtol=1e-11)
        np.testing.assert_allclose(q.mean[:, 0], mean, rtol=0, atol=1e-10)
        np.testing.assert_allclose(q.var[:, 0], var, rtol=0, atol=1e-10)
        again = sites.variational_sites(model.expectation, sites.Marginals(q.mean, q.var))
        np.testing.assert_allclose(again.prec[:, 0], prec, rtol=0, atol=1e-12)
    bounds = [bound for bound, *_ in expected]
    assert (np.diff(bounds) > 0).all()


def test_jaakkolas_bound_is_below_the_exact_elbo_in_500_random_cases() -> None:
    model = GPJaakkola(problems.binary(8), problems.kernel(), JAAKKOLA)
    exact = BernoulliLogit(bound=None)
    X, Y = model.data

    @tf.function(autograph=False)
    def both() -> tuple[tf.Tensor, tf.Tensor]:
        q = sites.condition(model.prior(), model.sites)
        return model.elbo(), tf.reduce_sum(exact.variational_expectations(X, q.mean, q.var, Y)) - q.kl

    rng, shortfalls = np.random.default_rng(0), []
    for _ in range(500):
        model.kernel.variance.assign(np.exp(rng.uniform(-3.0, 6.0)))
        model.kernel.lengthscales.assign(np.exp(rng.uniform(-2.0, 2.0)))
        new = rng.normal(size=(8, 1)) * np.exp(rng.normal()), rng.uniform(size=(8, 1)) * np.exp(rng.normal())
        model.assign_sites(sites.Sites(*map(tf.constant, new)))
        bound, elbo = both()
        shortfalls.append(float(elbo - bound))
    assert min(shortfalls) > -1e-9
    assert np.median(shortfalls) > 0.01  # and another number


def test_jaakkolas_optimum_is_that_of_the_same_bound_under_vgp_kmm() -> None:
    ours, theirs = (
        cls(problems.binary(), problems.kernel(), JAAKKOLA, inducing_variable=Z)
        for cls in (GPJaakkola, VGPKMM)
    )
    trace = gpx.fit(_fixed(ours), tolerance=1e-13, stationarity=1e-9).objective
    assert (np.diff(trace) >= -1e-12 * np.abs(trace[1:])).all()
    gpx.fit(_fixed(theirs), tolerance=1e-13, stationarity=1e-9)
    np.testing.assert_allclose(ours.elbo(), theirs.elbo(), rtol=1e-9)


# ------------------------------------------------------------------------------------------------------ all


@pytest.mark.parametrize(
    ("name", "learn"),
    [
        ("laplace", True),
        pytest.param("jaakkola-inducing", True, marks=pytest.mark.slow),
        pytest.param("laplace", False, marks=pytest.mark.slow),
        pytest.param("jaakkola-inducing", False, marks=pytest.mark.slow),
    ],
)
def test_resumes_exactly(name: str, learn: bool, tmp_path) -> None:
    def build():
        return MODELS[name]() if learn else _fixed(MODELS[name]())

    options = {"tolerance": 0.0} | ({"hyper_updates": 2, "site_updates": 30} if learn else {})
    resuming.check(build, tmp_path, steps=4, cut=2, options=lambda: options)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param("laplace", np.float64, marks=pytest.mark.slow),
        pytest.param("taylor-inducing", np.float32, marks=pytest.mark.slow),
    ],
)
def test_a_step_and_its_gradient_compile_under_xla(name: str, dtype, request) -> None:
    gpflow.config.set_default_float(dtype)
    request.addfinalizer(lambda: gpflow.config.set_default_float(np.float64))
    model = MODELS[name]()
    method = site_method(model.site_method)

    def step() -> list[tf.Tensor]:
        prior = model.prior()
        model.assign_sites(method.step(model, prior, method.begin(model, prior, model.sites)).sites)
        with tf.GradientTape() as tape:
            loss = -_held(model)
        return [loss, *map(tf.convert_to_tensor, tape.gradient(loss, model.kernel.trainable_variables))]

    start, found = model.sites, []
    for jit in (False, True):
        model.assign_sites(start)
        found.append(tf.function(step, jit_compile=jit, autograph=False)())
    tolerance = 1e-9 if dtype == np.float64 else 1e-3
    for plain, compiled in zip(*found, strict=True):
        assert compiled.dtype == dtype
        np.testing.assert_allclose(plain, compiled, rtol=tolerance, atol=tolerance)


def test_likelihoods_that_cannot_be_expanded_are_refused() -> None:
    data = problems.classes(12)
    GPLaplace(data, problems.kernel(), gpx.likelihoods.StickBreaking(4))  # as many latent functions
    for likelihood, message in (
        (gpx.likelihoods.MultinomialLogit(3), "StickBreaking"),
        (gpflow.likelihoods.MultiClass(3), "curvature"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            GPLaplace(data, problems.kernel(), likelihood, num_latent_gps=3)
    with pytest.raises(ValueError, match=r"bound='piecewise'"):
        GPJaakkola(problems.binary(), problems.kernel(), BernoulliLogit())
    with pytest.raises(ValueError, match="without `data`"):
        gpx.fit(MODELS["laplace"](), problems.binary())
