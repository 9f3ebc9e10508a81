"""Factors that serve more than once: inverses by halves, systems near a factor's own, steps that hand theirs on."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext import sites
from gpflow_ext.kmm import ascent, held, newton
from gpflow_ext.laplace import expansion, nearby
from gpflow_ext.laplace.method import Laplace
from gpflow_ext.likelihoods import BernoulliLogit, MultinomialLogit, RobustMax, StickBreaking
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import conjugate
from gpflow_ext.sites.dense import Dense, DenseFactor
from gpflow_ext.training.site_iteration import SiteOptimum


def _factor(size: int, seed: int = 0) -> np.ndarray:
    A = np.random.default_rng(seed).normal(size=(2, size, size))
    return np.linalg.cholesky(A @ A.transpose(0, 2, 1) / size + np.eye(size))


@pytest.mark.parametrize("size", [1, 5, 300, 601])
def test_inverse_by_halves(size: int) -> None:
    factor = _factor(size)
    expected = np.linalg.inv(factor @ factor.transpose(0, 2, 1))
    found = linalg.inverse(tf.constant(factor))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    spec = tf.TensorSpec([2, None, None], tf.float64)
    with linalg.expecting(1200):  # a graph for other sizes
        by_graph = tf.function(linalg.inverse, autograph=False).get_concrete_function(spec)
    np.testing.assert_allclose(by_graph(tf.constant(factor)), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("weakest", [1e-3, 1e-9, 0.0])
def test_variances_by_the_inverse(weakest: float) -> None:
    """A weak site's variance cannot be had from the diagonal of B⁻¹, and is not."""
    prior = VGPKMM(problems.binary(), problems.kernel(), BernoulliLogit()).prior()
    prec = np.random.default_rng(0).uniform(0.1, 4.0, (30, 1))
    prec[3] = weakest
    factor = prior.factorise(tf.constant(prec))
    own = factor.inverted()
    np.testing.assert_allclose(own.variance(), factor.variance(), rtol=1e-11)
    np.testing.assert_allclose(own.reduction(), factor.reduction(), rtol=0, atol=1e-14)
    b = tf.constant(prec)
    for ours, theirs in zip(own.solve(b), factor.solve(b), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert own.half_log_det() == factor.half_log_det()


def _priors() -> dict[str, sites.Prior]:
    X, Y = problems.binary(60)
    mixed = gpflow.kernels.LinearCoregionalization(
        [problems.kernel(), problems.kernel(1.0, 2.0)], W=np.eye(2)
    )
    two, Y2 = {"num_latent_gps": 2}, np.hstack([Y, Y[::-1]])
    return {
        "dense": VGPKMM((X, Y), problems.kernel(), BernoulliLogit()).prior(),
        "sparse": VGPKMM((X, Y), problems.kernel(), BernoulliLogit(), inducing_variable=X[::5]).prior(),
        "coupled": VGPKMM((X, Y2), mixed, BernoulliLogit(), **two).prior(),
    }


@pytest.mark.parametrize("name", ["dense", "sparse", "coupled"])
def test_a_system_near_that_of_a_factor(name: str) -> None:
    prior, rng = _priors()[name], np.random.default_rng(1)
    prec = tf.constant(rng.uniform(0.1, 1.0, prior.mean.shape))
    b, other = tf.constant(rng.normal(size=prec.shape)), prec * tf.constant(rng.uniform(0.7, 1.4, prec.shape))
    found, close = conjugate.near(prior.factorise(prec), other, b, tf.constant(1e-10, tf.float64))
    expected = prior.factorise(other).solve(b)
    assert close
    np.testing.assert_allclose(found.alpha, expected.alpha, rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.shift, prior.product(found.alpha), rtol=0, atol=1e-10)
    far = 1e6 * prec * tf.constant(rng.uniform(0.0, 1.0, prec.shape))
    assert not conjugate.near(prior.factorise(prec), far, b, tf.constant(1e-10, tf.float64))[1]


def test_an_indefinite_system_is_left_where_it_bends_the_other_way() -> None:
    """What is found leads upwards; negative curvature taken for positive led down in 10 of these 20."""
    prior, rng = _priors()["dense"], np.random.default_rng(2)
    factor = prior.factorise(tf.zeros_like(prior.mean))
    for _ in range(20):
        b, prec = (tf.constant(rng.normal(size=prior.mean.shape)) for _ in range(2))
        found, _ = conjugate.solve(
            lambda p, prec=prec: prec * p, factor.solve, b, tf.constant(1e-6, tf.float64), 50
        )
        assert tf.reduce_sum(b * found.shift) > 0.0


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the factorisations of dense priors in eager code."""
    count, factorise = [0], Dense.factorise

    def counting(self: Dense, prec: tf.Tensor) -> DenseFactor:
        count[0] += 1
        return factorise(self, prec)

    monkeypatch.setattr(Dense, "factorise", counting)
    return count


@pytest.mark.parametrize(("model", "most"), [(VGPKMM, 4), (GPLaplace, 2)])
def test_an_evaluation_near_the_last_one_takes_few_factorisations(
    model: type, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps of the ascent would take seven, and the objective one; Newton's steps three or four."""
    monkeypatch.setattr(linalg, "LEAF", 16)  # so that 60 data are many
    ours = model(problems.binary(60), problems.kernel(), BernoulliLogit())
    method = sites.site_method(ours.site_method)
    state, _ = method.solve(ours, ours.prior(), ours.sites, 200, method.stationarity())
    ours.assign_sites(state.sites)
    ours.kernel.variance.assign(1.1 * ours.kernel.variance)
    count = _counted(monkeypatch)
    prior = ours.prior()
    state, finite = method.solve(ours, prior, ours.sites, 200, method.stationarity())
    value = method.at_rest(ours, prior, state)
    assert finite
    assert state.violation <= method.stationarity()
    assert 0 < count[0] <= most
    ours.assign_sites(state.sites)
    np.testing.assert_allclose(value, method.objective(ours, ours.prior(), ours.sites), rtol=1e-9)


def test_the_bound_of_jaakkola_and_its_gradient_take_one_factorisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = GPJaakkola(problems.binary(), problems.kernel(), BernoulliLogit(bound="jaakkola"))
    gpx.fit(model, steps=1, hyper_updates=1)
    method, prior = sites.site_method("jaakkola"), model.prior()
    state = method.begin(model, prior, model.sites)
    count = _counted(monkeypatch)
    value = method.at_rest(model, prior, state)
    assert count == [1]
    np.testing.assert_allclose(value, method.objective(model, prior, model.sites), rtol=1e-12)


def test_the_mode_of_a_dense_prior_by_one_factor(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the prior's mean, too, and to the digits of Newton's own steps."""
    model = GPLaplace(problems.binary(60), problems.kernel(40.0), BernoulliLogit())
    prior = model.prior()
    plain, _ = Laplace().solve(model, prior, model.sites, 50, 1e-9)
    count = _counted(monkeypatch)
    found = nearby.find_mode(prior, model.log_density, model.sites, 50, 1e-9)
    assert found.violation <= 1e-9
    assert count[0] <= 3
    np.testing.assert_allclose(found.mean, plain.mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(expansion.evidence(prior, found), expansion.evidence(prior, plain), rtol=1e-11)


@pytest.mark.parametrize("likelihood", [BernoulliLogit(), gpflow.likelihoods.Poisson()])
def test_steps_that_hand_their_factor_on_are_those_of_the_ascent(
    likelihood: gpflow.likelihoods.Likelihood,
) -> None:
    data = problems.binary() if isinstance(likelihood, BernoulliLogit) else problems.counts()
    model = VGPKMM(data, problems.kernel(), likelihood)
    prior = model.prior()
    plain, ours = (
        ascent.start(prior, model.expectation, model.sites),
        held.start(prior, model.expectation, model.sites),
    )
    np.testing.assert_array_equal(ours.point.mean, plain.mean)
    trace = []
    for _ in range(12):
        plain = ascent.parallel_step(prior, model.expectation, plain)
        ours = held.step(prior, model.expectation, ours)
        trace.append(float(ours.objective))
        np.testing.assert_array_equal(
            ours.factor(prior).chol,
            prior.factorise(ours.point.prec).chol,  # whichever it has at hand
        )
    assert (np.diff(trace) >= -1e-9 * np.abs(trace[1:])).all()
    np.testing.assert_allclose(ours.point.prec, plain.prec, rtol=1e-5)
    np.testing.assert_allclose(ours.objective, plain.objective, rtol=1e-11)


def test_a_factor_of_other_precisions_is_not_taken_for_that_of_the_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it precondition where W is far from them: at zero sites under a wide prior it is."""
    model = VGPKMM(problems.binary(), problems.kernel(400.0), BernoulliLogit())
    prior = model.prior()
    first = held.start(prior, model.expectation, model.sites)
    moved = first._replace(point=first.point._replace(prec=first.point.prec + 1.0))
    expected = prior.factorise(moved.point.prec).chol
    np.testing.assert_array_equal(moved.factor(prior).chol, expected)
    count = _counted(monkeypatch)
    held.step(prior, model.expectation, first)
    assert count == [2]


def _of_classes(likelihood: gpflow.likelihoods.Likelihood) -> VGPKMM:
    """Return a model of three classes, or of two counts made of them."""
    X, Y = problems.classes(20)
    Y = Y if likelihood.latent_dim else np.concatenate([Y, 2.0 - Y], axis=1)
    return VGPKMM((X, Y), problems.kernel(), likelihood)


@pytest.mark.parametrize(
    ("likelihood", "separate"),
    [
        (StickBreaking(3), True),
        (gpflow.likelihoods.Poisson(), True),
        (MultinomialLogit(3), False),
        (gpflow.likelihoods.HeteroskedasticTFPConditional(), False),
        (RobustMax(3), False),
    ],
    ids=["sticks", "counts", "multinomial", "mean and scale", "largest"],
)
def test_a_model_knows_whether_functions_have_terms_of_their_own(
    likelihood: gpflow.likelihoods.Likelihood, separate: bool
) -> None:
    """That of robust-max has no second derivatives to tell."""
    model = _of_classes(likelihood)
    assert model.separate is separate
    model.likelihood = MultinomialLogit(model.num_latent_gps)
    sites.site_method("kmm").check(model)
    assert not model.separate


@pytest.mark.parametrize(
    "likelihood", [StickBreaking(3), gpflow.likelihoods.Poisson()], ids=["sticks", "counts"]
)
def test_functions_with_terms_of_their_own_take_newton_s_step_by_one_solution(
    likelihood: gpflow.likelihoods.Likelihood,
) -> None:
    """Against the equations solved for all functions at once, with the second derivatives of the bound."""
    model = _of_classes(likelihood)
    prior = model.prior()
    point = ascent.parallel_step(
        prior, model.expectation, ascent.start(prior, model.expectation, model.sites), True
    )
    factor = newton.own_factor(prior, point)
    calls = []

    def solve(b: tf.Tensor) -> sites.Pair:
        calls.append(b)
        return factor.solve(b)

    found = newton.direction(model.expectation, point, solve, exact=True, separate=model.separate)
    assert len(calls) == 1
    with tf.GradientTape() as outer:
        outer.watch(point.mean)
        with tf.GradientTape() as inner:
            inner.watch(point.mean)
            value = tf.reduce_sum(model.expectation(point.mean, point.var))
        slope = inner.gradient(value, point.mean)
    H = -outer.jacobian(slope, point.mean).numpy().transpose(1, 0, 3, 2)  # [L, N, L, N]
    N, L = point.mean.shape
    K = np.kron(np.eye(L), prior.cov[0].numpy())
    rise = (point.grad - point.alpha).numpy().T.ravel()
    expected = np.linalg.solve(np.eye(N * L) + H.reshape(N * L, N * L) @ K, rise).reshape(L, N).T
    np.testing.assert_allclose(found.alpha, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("model", [VGPKMM, GPLaplace])
def test_with_hyperparameters_held_a_step_is_several_updates(model: type) -> None:
    ours = model(problems.binary(), problems.kernel(), BernoulliLogit())
    gpflow.set_trainable(ours, False)
    result = gpx.fit(ours)
    method = sites.site_method(ours.site_method)
    assert result.status is gpx.Status.CONVERGED
    assert len(result.objective) == 1  # the next one would change nothing
    assert result.objective[-1] == pytest.approx(
        float(method.objective(ours, ours.prior(), ours.sites)), rel=1e-9
    )
    again = SiteOptimum(ours, method, ()).evaluate(1, 0.0)
    assert again.objective == pytest.approx(result.objective[-1], rel=1e-10)
