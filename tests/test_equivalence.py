"""Models equal each other where theory says so."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.models import GPR, SGPR, SVGP, VGP

import gpflow_ext as gpx
from gpflow_ext import sites
from gpflow_ext.kmm import ascent
from gpflow_ext.likelihoods import BernoulliLogit
from gpflow_ext.models import VGPKMM
from gpflow_ext.numerics import bounds

XNEW = problems.inputs(7, seed=11)


def _fixed(model):
    gpflow.set_trainable(model.kernel, False)
    gpflow.set_trainable(model.likelihood, False)
    gpflow.set_trainable(model.mean_function, False)
    if getattr(model, "inducing_variable", None) is not None:
        gpflow.set_trainable(model.inducing_variable, False)
    return model


def _optimum(model):
    _fixed(model)
    gpx.fit(model, tolerance=1e-12, stationarity=1e-9)
    return model


def _optimised_vgp(data, likelihood):
    model = _fixed(VGP(data, problems.kernel(), likelihood))
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    gpflow.optimizers.Scipy().minimize(
        model.training_loss, model.trainable_variables, options=options, tf_fun_args={"autograph": False}
    )
    return model


def test_gaussian_likelihood_gives_gpr() -> None:
    data = problems.continuous()
    mean = gpflow.functions.Linear(A=np.array([[0.5], [-1.0]]), b=[0.3])
    model = _optimum(
        VGPKMM(data, problems.kernel(), gpflow.likelihoods.Gaussian(0.2), gpflow.utilities.deepcopy(mean))
    )
    # GPR has no jitter of its own; ours is part of the kernel matrix.
    reference = GPR(
        data, problems.kernel() + gpflow.kernels.White(gpflow.default_jitter()), mean, noise_variance=0.2
    )
    np.testing.assert_allclose(model.elbo(), reference.log_marginal_likelihood(), rtol=1e-10)
    for ours, theirs in zip(model.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(
            ours, theirs, rtol=0, atol=2e-6
        )  # the White kernel adds 1e-6 to the variance


@pytest.mark.slow
def test_hardly_noisy_data_are_predicted_as_by_gpr() -> None:
    """Variances of a millionth of the prior's, to a thousandth: K*ᵀQK* with an inverse Q would leave no digit."""
    X = problems.inputs(50)
    Y = X[:, :1] + 0.5 * X[:, 1:2]
    kernel = gpflow.kernels.SquaredExponential(variance=200.0, lengthscales=70.0)
    model = _optimum(VGPKMM((X, Y), kernel, gpflow.likelihoods.Gaussian(1e-5)))
    reference = GPR((X, Y), kernel, noise_variance=1e-5 + gpflow.default_jitter())
    (mean, var), (wanted, spread) = (each.predict_f(XNEW) for each in (model, reference))
    np.testing.assert_allclose(mean, wanted, rtol=0, atol=1e-9)
    np.testing.assert_allclose(var, spread, rtol=1e-3)
    (_, cov), (_, wanted) = (each.predict_f(XNEW, full_cov=True) for each in (model, reference))
    np.testing.assert_allclose(cov, wanted, rtol=0, atol=1e-3 * np.max(spread))


def test_gaussian_likelihood_with_inducing_points_gives_sgpr() -> None:
    data, Z = problems.continuous(), problems.inputs(8, seed=5)
    model = _optimum(VGPKMM(data, problems.kernel(), gpflow.likelihoods.Gaussian(0.2), inducing_variable=Z))
    reference = SGPR(data, problems.kernel(), Z, noise_variance=0.2)
    np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-10)
    for full_cov in (False, True):
        ours, theirs = (m.predict_f(XNEW, full_cov=full_cov) for m in (model, reference))
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("data", "likelihood"),
    [
        (problems.counts(), gpflow.likelihoods.Poisson),
        pytest.param(problems.binary(), BernoulliLogit, marks=pytest.mark.slow),
        (problems.binary(), lambda: BernoulliLogit(bound="jaakkola")),
    ],
    ids=["poisson", "logit-piecewise", "logit-jaakkola"],
)
def test_optimum_is_that_of_gpflow_vgp(data, likelihood, record_property) -> None:
    model = _optimum(VGPKMM(data, problems.kernel(), likelihood()))
    reference = _optimised_vgp(data, likelihood())
    record_property("relative difference of bounds", abs(float(model.elbo() / reference.elbo()) - 1.0))
    np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-6)
    assert model.elbo() >= reference.elbo() - 1e-8  # never below what L-BFGS found
    for ours, theirs in zip(model.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-3)  # L-BFGS stops at a flat top


@pytest.mark.parametrize("num_inducing", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_whitened_parameters_reproduce_bound_and_prediction_in_gpflow(num_inducing: int | None) -> None:
    data = problems.binary()
    Z = None if num_inducing is None else problems.inputs(num_inducing, seed=5)
    model = _optimum(VGPKMM(data, problems.kernel(), BernoulliLogit(), inducing_variable=Z))
    q_mu, q_sqrt = model.whitened()
    if Z is None:
        reference = VGP(data, problems.kernel(), BernoulliLogit())
        reference.q_mu.assign(q_mu)
        reference.q_sqrt.assign(q_sqrt)
        bound = reference.elbo()
    else:
        reference = SVGP(problems.kernel(), BernoulliLogit(), Z, q_mu=q_mu, q_sqrt=q_sqrt)
        bound = reference.elbo(data)
    np.testing.assert_allclose(model.elbo(), bound, rtol=1e-8)
    for ours, theirs in zip(model.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-8)


@pytest.mark.parametrize("likelihood", [BernoulliLogit, gpflow.likelihoods.Poisson])
def test_a_site_update_is_gpflow_natural_gradient_step(likelihood) -> None:
    data, step = (problems.binary() if likelihood is BernoulliLogit else problems.counts()), 0.5
    model, reference = (cls(data, problems.kernel(1.0), likelihood()) for cls in (VGPKMM, VGP))
    natural = gpflow.optimizers.NaturalGradient(gamma=step)
    prior, current = model.prior(), model.sites
    for _ in range(3):
        q = sites.condition(prior, current)
        proposed = sites.variational_sites(model.expectation, sites.Marginals(q.mean, q.var))
        current = sites.Sites(
            *((1 - step) * old + step * new for old, new in zip(current, proposed, strict=True))
        )
        natural.minimize(reference.training_loss, [(reference.q_mu, reference.q_sqrt)])
        model.assign_sites(current)
        np.testing.assert_allclose(model.elbo(), reference.elbo(), rtol=1e-8)


def test_all_data_as_inducing_points_give_the_dense_model() -> None:
    data = problems.binary(20)
    dense = _optimum(VGPKMM(data, problems.kernel(), BernoulliLogit()))
    sparse = _optimum(VGPKMM(data, problems.kernel(), BernoulliLogit(), inducing_variable=data[0]))
    # They differ by where the jitter 1e-6 enters: in K for the dense model, in K_uu alone for the sparse.
    np.testing.assert_allclose(dense.elbo(), sparse.elbo(), rtol=1e-5)
    for ours, theirs in zip(dense.predict_f(XNEW), sparse.predict_f(XNEW), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def test_order_of_the_data_does_not_matter() -> None:
    X, Y = problems.binary(20)
    order = np.random.default_rng(0).permutation(20)
    models = [
        _optimum(VGPKMM((X[i], Y[i]), problems.kernel(), BernoulliLogit())) for i in (np.arange(20), order)
    ]
    np.testing.assert_allclose(models[0].elbo(), models[1].elbo(), rtol=1e-10)
    np.testing.assert_allclose(models[0].prec.numpy()[order], models[1].prec, rtol=0, atol=1e-6)


def test_mean_function_shifts_the_latent_function() -> None:
    """A constant mean of 40 with a counter-shifted likelihood is the zero-mean model."""
    X, Y = problems.continuous(15)
    shifted = VGPKMM(
        (X, Y + 40.0), problems.kernel(), gpflow.likelihoods.Gaussian(0.2), gpflow.functions.Constant(40.0)
    )
    plain = VGPKMM((X, Y), problems.kernel(), gpflow.likelihoods.Gaussian(0.2))
    for model in (shifted, plain):
        _optimum(model)
    np.testing.assert_allclose(shifted.elbo(), plain.elbo(), rtol=1e-9)
    np.testing.assert_allclose(shifted.predict_f(XNEW)[0] - 40.0, plain.predict_f(XNEW)[0], rtol=0, atol=1e-9)
    q = ascent.start(shifted.prior(), shifted.expectation, shifted.sites)
    assert q.violation < 1e-8
    assert tf.reduce_all(q.var > 0)


@pytest.mark.slow
def test_dual_gradient_is_that_of_the_optimised_bound() -> None:
    """The envelope theorem: at the fixed point the sites may be held still while the kernel moves."""
    model = _optimum(VGPKMM(problems.binary(), problems.kernel(), BernoulliLogit()))
    for parameter in (model.kernel.variance, model.kernel.lengthscales):
        variable = parameter.unconstrained_variable
        with tf.GradientTape() as tape:
            tape.watch(variable)
            bound = model.elbo()
        slope = tape.gradient(bound, variable)
        middle, step = variable.numpy(), 1e-3
        values = []
        for moved in (middle + step, middle - step):
            variable.assign(moved)
            gpx.fit(model, tolerance=1e-13, stationarity=1e-9)
            values.append(float(model.elbo()))
        variable.assign(middle)
        gpx.fit(model, tolerance=1e-13, stationarity=1e-9)
        np.testing.assert_allclose(slope, (values[0] - values[1]) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize("num_inducing", [None, pytest.param(8, marks=pytest.mark.slow)])
def test_envelope_has_the_gradient_of_the_bound_at_the_fixed_point(num_inducing: int | None) -> None:
    X, Y = problems.continuous(20)
    Z = None if num_inducing is None else problems.inputs(num_inducing, seed=5)
    mean = gpflow.functions.Linear(A=np.array([[0.5], [-1.0]]), b=[0.3])
    model = VGPKMM((X, Y), problems.kernel(), gpflow.likelihoods.StudentT(df=30.0), mean, inducing_variable=Z)
    variables = model.trainable_variables
    _optimum(model)
    q = sites.condition(model.prior(), model.sites)
    gradients = []
    for objective in (model.elbo, lambda: model.envelope(q.mean, q.var)):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = objective()
        gradients.append(tape.gradient(value, variables))
    assert len(variables) == (5 if Z is None else 6)
    for bound, envelope in zip(*gradients, strict=True):
        # Both are exact at the fixed point; the sites are within 1e-9 of it, of slopes of size 1 to 10.
        np.testing.assert_allclose(bound, envelope, rtol=1e-6, atol=1e-6)


TOY_BOUNDS = {  # 60 inputs, variance 4, length scale 0.7, jitter 1e-6: computed once in NumPy, independently
    (None, 20): -34.66925910,
    ("piecewise", 5): -34.96102,
    ("piecewise", 10): -34.71057,
    ("piecewise", 20): -34.67364,
    ("jaakkola", 20): -36.54905,
}


@pytest.mark.slow
def test_bounds_bracket_the_exact_elbo() -> None:
    rng = np.random.default_rng(1)
    X = rng.uniform(-2, 2, (60, 2))
    K = problems.kernel(4.0, 0.7)(X).numpy() + 1e-8 * np.eye(60)
    f = np.linalg.cholesky(K) @ rng.standard_normal(60)
    Y = (rng.uniform(size=60) < 1 / (1 + np.exp(-f))).astype(float)[:, None]
    exact = TOY_BOUNDS[None, 20]
    for (bound, pieces), expected in TOY_BOUNDS.items():
        model = _optimum(VGPKMM((X, Y), problems.kernel(), BernoulliLogit(bound, pieces)))
        elbo = float(model.elbo())
        assert abs(elbo - expected) < 1e-5
        assert elbo <= exact + 1e-7
        if bound == "piecewise":
            assert elbo >= exact - 60 * bounds.piecewise_llp(pieces).max_gap
