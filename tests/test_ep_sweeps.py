"""Sweeps of expectation propagation that mix, and what they do where mixing misleads."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from test_student_t import hard_regression

from gpflow_ext.ep import sweeps
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.method import EP, factored
from gpflow_ext.ep.optimum import Optimum
from gpflow_ext.likelihoods import BernoulliProbit
from gpflow_ext.models import SparseEP
from gpflow_ext.sites.method import adopt

X = problems.inputs(40)
Y = (np.sin(2.0 * X[:, :1]) + X[:, 1:2] > 0.0).astype(float)
SITES = tf.zeros([2, 3, 1], tf.float64)


def path(count: int = 1, pause: int = 0) -> sweeps.Path:
    """A path whose memory holds a point from which the change was smaller by a tenth."""
    begin = sweeps.beginning(SITES)
    points, residuals = begin.memory.points.numpy(), begin.memory.residuals.numpy()
    points[0], residuals[0] = -1.0, 1.1
    memory = begin.memory._replace(
        points=tf.constant(points), residuals=tf.constant(residuals), count=tf.constant(count)
    )
    one = tf.ones_like(begin.least)
    return begin._replace(memory=memory, least=one, length=one, pause=tf.constant(pause))


def test_a_whole_sweep_extrapolates_and_a_share_or_a_pause_does_not() -> None:
    """Changes of 1.1 and 1 at points one apart are zero at 10; a plain sweep goes to 1."""
    proposal, one = SITES + 1.0, tf.ones([], tf.float64)
    mixed = sweeps.take(path(), SITES, proposal, one)
    assert mixed.mixed
    np.testing.assert_allclose(mixed.sites, 10.0, rtol=1e-9)
    for plain, share in ((path(pause=2), 1.0), (path(count=0), 1.0), (path(), 0.5)):
        taken = sweeps.take(plain, SITES, proposal, share * one)
        assert not taken.mixed
        np.testing.assert_allclose(taken.sites, share, rtol=1e-12)


@pytest.mark.parametrize(
    ("norm", "sound", "stands"), [(1.9, True, True), (2.1, True, False), (0.1, False, False)]
)
def test_a_mixed_sweep_that_leads_away_is_taken_back(norm: float, sound: bool, stands: bool) -> None:
    begin = path()
    taken = sweeps.take(begin, SITES, SITES + 1.0, tf.ones([], tf.float64))
    change = tf.fill([2, 3, 1], tf.constant(norm / 6**0.5, tf.float64))
    after, kept = sweeps.follow(begin, SITES, taken, change, tf.constant(sound))
    assert bool(kept) == stands
    assert int(after.memory.count) == (2 if stands else 0)
    assert int(after.pause) == (0 if stands else sweeps.PAUSE)
    np.testing.assert_allclose(after.least, 1.0)
    plain = taken._replace(mixed=tf.constant(False))
    assert bool(sweeps.follow(begin, SITES, plain, change, tf.constant(sound))[1]) == sound


def probit(variance: float) -> SparseEP:
    """A classifier whose hyperparameters are held fixed."""
    kernel = gpflow.kernels.SquaredExponential(variance, 0.5)
    model = SparseEP((X, Y), kernel, BernoulliProbit(), inducing_variable=X.copy())
    gpflow.set_trainable(model, False)
    return model


@pytest.mark.parametrize("variance", [1.0, 100.0])
def test_mixing_and_damping_meet_in_one_fixed_point(variance: float) -> None:
    mixed, damped = probit(variance), probit(variance)
    found = MomentMatcher(mixed, (), None, None, None).settle(100, 1e-9)
    slow = MomentMatcher(damped, (), None, 0.5, None).settle(1000, 1e-9)
    assert found.violation <= 1e-9
    np.testing.assert_allclose(found.objective, slow.objective, rtol=0, atol=1e-8)
    for site in ("nat1", "prec"):
        np.testing.assert_allclose(getattr(mixed, site), getattr(damped, site), rtol=0, atol=1e-6)


def test_a_second_run_forgets_the_first() -> None:
    """Sites and hyperparameters may have moved between: what was learnt of another fixed point misleads."""
    model = probit(1.0)
    matcher = MomentMatcher(model, (), None, None, None)
    matcher.settle(100, 1e-9)
    model.kernel.variance.assign(50.0)
    matcher.start()
    count, least, pause = matcher.rest[2:]
    assert int(count) == 0
    assert int(pause) == 0
    change = matcher.proposal - tf.stack(model.sites)
    np.testing.assert_allclose(least, tf.norm(change), rtol=1e-12)
    assert matcher.settle(100, 1e-9).violation <= 1e-9


def test_a_fixed_point_among_outliers_is_that_of_constant_damping() -> None:
    """Secant lengths without mixing wander there."""
    model, damped = hard_regression(1, 60, 0.1), hard_regression(1, 60, 0.1)
    for each in (model, damped):
        adopt(each, EP())
    at = Optimum(factored(model), model.trainable_variables, None, None).evaluate(200, 1e-6)
    slow = Optimum(factored(damped), damped.trainable_variables, 0.5, None).evaluate(400, 1e-6)
    assert max(at.violation, slow.violation) <= 1e-6
    np.testing.assert_allclose(at.objective, slow.objective, rtol=0, atol=1e-6)
