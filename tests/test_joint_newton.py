"""Newton's steps in the precisions and the mean together: right, and quick where turns of the two creep."""

from __future__ import annotations

from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.kmm import ascent, joint
from gpflow_ext.kmm.method import KMM, Algorithm1, Joint
from gpflow_ext.likelihoods import BernoulliLogit, MultinomialLogit
from gpflow_ext.models import VGPKMM
from gpflow_ext.sites import Sites, expect
from gpflow_ext.training.site_iteration import SiteOptimum


def _spike(variance: float = 1.0, lengthscale: float = 0.3, count: float = 100.0) -> VGPKMM:
    """A model of one large count among 99 zeros."""
    Y = np.zeros((100, 1))
    Y[7] = count
    kernel = gpflow.kernels.Matern32(variance=variance, lengthscales=lengthscale)
    return VGPKMM((0.25 * problems.inputs(100), Y), kernel, gpflow.likelihoods.Poisson())


def _settle(model: VGPKMM, method: KMM, steps: int) -> ascent.State:
    @tf.function(autograph=False)
    def settled() -> ascent.State:
        state, _ = method.solve(model, model.prior(), model.sites, steps, 1e-9)
        return getattr(state, "point", state)

    return settled()


def _settled_mean_and_gap(model: VGPKMM, log_prec: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return what is zero at the optimum, log λ(m, v) − log λ and ∂f_b/∂m − α, [2N]."""
    cov = model.prior().cov.numpy()[0]
    V = np.linalg.inv(np.linalg.inv(cov) + np.diag(np.exp(log_prec)))
    found = expect(model.expectation, tf.constant(cov @ alpha)[:, None], tf.constant(np.diag(V))[:, None])
    grad, curvature = (part.numpy()[:, 0] for part in found[1:])
    return np.concatenate([np.log(curvature) - log_prec, grad - alpha])


@pytest.mark.parametrize("likelihood", [gpflow.likelihoods.Poisson, lambda: BernoulliLogit(bound=None)])
def test_the_direction_solves_the_linear_equations_of_both(likelihood) -> None:
    X, Y = problems.binary(6)
    model = VGPKMM((X, Y), problems.kernel(2.0), likelihood())
    prior = model.prior()
    state = ascent.parallel_step(
        prior, model.expectation, ascent.start(prior, model.expectation, model.sites)
    )
    found = joint.newton_direction(prior, model.expectation, state)
    at = np.log(state.prec.numpy()[:, 0]), state.alpha.numpy()[:, 0]

    def residual(moves: np.ndarray) -> np.ndarray:
        return _settled_mean_and_gap(model, at[0] + moves[:6], at[1] + moves[6:])

    step = 1e-5
    jacobian = np.stack([(residual(e) - residual(-e)) / (2.0 * step) for e in step * np.eye(12)], axis=1)
    expected = np.linalg.solve(jacobian, -residual(np.zeros(12)))
    np.testing.assert_allclose(found.log_prec[:, 0], expected[:6], atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(found.mean.alpha[:, 0], expected[6:], atol=1e-7 * np.abs(expected).max())
    np.testing.assert_allclose(found.mean.shift, prior.product(found.mean.alpha), atol=1e-10)


def test_it_settles_where_turns_creep() -> None:
    model = _spike(1e4, 0.9, count=1000.0)
    turns, together = _settle(model, KMM(), 50), _settle(model, Joint(), 25)
    assert turns.violation > 1e-3
    assert together.violation < 1e-9
    assert together.objective > turns.objective + 0.1
    # With counts the optimum has α = y − λ and log λ = m + v/2.
    Y, cov = model.data[1].numpy()[:, 0], model.prior().cov.numpy()[0]
    prec = together.prec.numpy()[:, 0]
    root = np.sqrt(prec)
    chol = np.linalg.cholesky(np.eye(100) + root[:, None] * cov * root)
    variance = np.diag(cov) - np.sum(np.linalg.solve(chol, root[:, None] * cov) ** 2, axis=0)
    np.testing.assert_allclose(np.log(prec), cov @ (Y - prec) + 0.5 * variance, atol=1e-5)


def test_gaussian_noise_whose_curvature_nothing_moves_is_exact() -> None:
    data, kernel = problems.continuous(20), problems.kernel()
    model = VGPKMM(data, kernel, gpflow.likelihoods.Gaussian(0.1))
    model.assign_sites(Sites(tf.constant(data[1]), tf.ones_like(data[1])))  # as of noise of variance one
    exact = gpflow.models.GPR(data, kernel, noise_variance=0.1).log_marginal_likelihood()
    np.testing.assert_allclose(_settle(model, Joint(), 3).objective, exact, rtol=1e-6)  # K has a jitter


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    violations, evaluate = [], SiteOptimum.evaluate

    def counted(self, *bounds):
        found = evaluate(self, *bounds)
        violations.append(found.violation)
        return found

    monkeypatch.setattr(SiteOptimum, "evaluate", counted)
    return violations


def test_a_fit_turns_to_it_and_comes_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    violations = _counted(monkeypatch)
    assert gpx.fit(_spike()).status is gpx.Status.CONVERGED
    assert len(violations) < 20  # 89 without it
    assert max(violations) < 3e-3
    assert violations[-1] <= 1e-5


@pytest.mark.slow
def test_held_hyperparameters_turn_to_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    violations, model = _counted(monkeypatch), _spike(1e4, 0.9, count=1000.0)
    gpflow.set_trainable(model.kernel, False)
    assert gpx.fit(model).status is gpx.Status.CONVERGED
    assert violations[-1] <= 1e-5
    assert len(violations) < 20


def test_a_run_that_has_turned_to_it_resumes_exactly(tmp_path: Path) -> None:
    def fit(steps: int, folder: Path) -> np.ndarray:
        model = _spike()
        gpx.fit(model, steps=steps, hyper_updates=6, checkpoint_dir=folder, checkpoint_every=1)
        return np.concatenate([np.ravel(part) for part in model.variables])

    whole = fit(4, tmp_path / "whole")
    fit(2, tmp_path / "parts")
    np.testing.assert_array_equal(fit(4, tmp_path / "parts"), whole)


class _Own(KMM):
    """A user's own steps."""


@pytest.mark.parametrize("method", [Algorithm1, _Own])
def test_other_methods_keep_to_their_own_steps(method) -> None:
    model = _spike()
    assert isinstance(KMM().finisher(model), Joint)
    assert method().finisher(model) is None


OTHERS = {
    "inducing points": lambda X, Y, k: VGPKMM((X, Y), k, BernoulliLogit(), inducing_variable=X[:5]),
    "state space": lambda X, Y, k: VGPKMM((X[:, :1], Y), k, BernoulliLogit(), prior="markov"),
    "negative precisions": lambda X, Y, k: VGPKMM((X, Y), k, gpflow.likelihoods.StudentT()),
    "several functions": lambda X, Y, k: VGPKMM((X, Y), k, MultinomialLogit(3)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_models_that_it_is_not_for_go_on_in_turns(what: str) -> None:
    model = OTHERS[what](*problems.binary(20), gpflow.kernels.Matern32())
    assert KMM().finisher(model) is None
