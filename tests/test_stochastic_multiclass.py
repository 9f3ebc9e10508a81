"""`SparseEP` on minibatches with several factors to a datum, or one without a cavity."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.data import rows
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.minibatch_updates import Visit
from gpflow_ext.ep.stochastic import StochasticMatcher
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.models import SparseEP

N, K = 30, 3
FIRST, SECOND, LATENT = 26, 6, 1  # two data close to each other, both of class 0
X, Y = problems.classes(N, K)
Z = problems.inputs(8, seed=5)


def stream() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def robust(learn: bool = False, data=(X, Y), epsilon: float = 0.0) -> SparseEP:
    kernel = gpflow.kernels.SquaredExponential(4.0, [0.7, 1.1]) + gpflow.kernels.White(1.0)
    mean = gpflow.functions.Constant(np.array([0.3, 0.0, -0.3]))
    model = SparseEP(data, kernel, RobustMax(K, epsilon), mean, inducing_variable=Z)
    for part in (model.kernel, model.mean_function, model.inducing_variable):
        gpflow.set_trainable(part, learn)
    return model


def start(learn: bool, sites: SparseEP, share: float = 1.0, data=(X, Y)) -> SparseEP:
    model = robust(learn, data)
    model.nat1.assign(share * sites.nat1)
    model.prec.assign(share * sites.prec)
    return model


def stochastic(model: SparseEP, rate: float | None = None, size: int = 10, **options) -> StochasticMatcher:
    optimizer = None if rate is None else tf_keras.optimizers.SGD(rate)
    if optimizer is not None:
        optimizer.build(model.trainable_variables)
    return StochasticMatcher(model, model.trainable_variables, optimizer, minibatch_size=size, **options)


def visit_of(matcher: StochasticMatcher, sites, inputs, targets) -> Visit:
    """What a minibatch finds."""
    inputs, targets = tf.constant(inputs), tf.constant(targets)
    return matcher._updates.visit(sites, inputs, targets, tf.constant(float(N), tf.float64))


@pytest.fixture(scope="module")
def settled() -> SparseEP:
    """Batch mode at its fixed point."""
    model = robust()
    _, violation = MomentMatcher(model, (), None, None, None).settle(1000, 1e-13)
    assert violation < 1e-11
    return model


@pytest.fixture(scope="module")
def learner(settled: SparseEP) -> StochasticMatcher:
    return stochastic(start(True, settled), 0.02)


def test_a_minibatch_of_all_data_is_a_sweep_of_batch_mode(settled: SparseEP) -> None:
    ours, theirs = (start(False, settled, 0.8) for _ in range(2))
    step, sweep = stochastic(ours, size=N, damping=0.6), MomentMatcher(theirs, (), None, 0.6, None)
    np.testing.assert_allclose(step.step()[0], sweep.start()[0], rtol=0, atol=1e-10)
    sweep.step()
    np.testing.assert_allclose(step.step()[0], theirs.log_evidence(), rtol=0, atol=1e-10)
    sweep.step()
    np.testing.assert_allclose(ours.nat1, theirs.nat1, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.prec, theirs.prec, rtol=0, atol=1e-10)
    assert np.abs(ours.prec - 0.8 * settled.prec).max() > 1e-2


@pytest.mark.parametrize("data", others_slow(["arrays", "dataset"], "arrays"))
def test_minibatches_reach_the_fixed_point_of_batch_mode(settled: SparseEP, data: str) -> None:
    """Sites within some 1e-5: log Z, stationary there, within the square of that times N."""
    model = robust(data=stream() if data == "dataset" else (X, Y))
    result = gpx.fit(model, minibatch_size=7, seed=1, steps=300, stationarity=1e-5)
    assert result.status is gpx.Status.CONVERGED
    np.testing.assert_allclose(model.log_evidence(), settled.log_evidence(), rtol=0, atol=1e-7)
    p, expected = (m.predict_y(X)[0] for m in (model, settled))
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-5)


def test_the_minibatch_gradient_is_unbiased_at_the_fixed_point(
    settled: SparseEP, learner: StochasticMatcher
) -> None:
    model = learner._target
    model.assign_sites(settled.sites)
    slope = MomentMatcher(model, model.trainable_variables, None, None, None).differentiate()[1]
    assert sum(part.shape.num_elements() for part in slope) == 4 + K + Z.size
    learner.start()
    visits = [visit_of(learner, model.gather_sites(n), x, y) for n, x, y in model.rows.batches(10, 0, 0)]
    for parts, exact in zip(zip(*(visit.gradient for visit in visits), strict=True), slope, strict=True):
        assert np.abs(parts[0] - exact).max() > 1e-3
        np.testing.assert_allclose(sum(parts) / 3, exact, rtol=0, atol=1e-10)
    objective = sum(visit.objective for visit in visits) / 3
    np.testing.assert_allclose(objective, model.log_evidence(), rtol=1e-12)


def explicit_gradient(matcher: StochasticMatcher, batch, visit, counted: np.ndarray) -> list[tf.Tensor]:
    """The gradient of the ``counted`` factors [B, K]: q without one site, by explicit inverses."""
    model, (index, inputs, labels) = matcher._target, batch
    sites, layout = model.gather_sites(index), model.layout((inputs, labels))
    own = matcher.sums.shift.numpy()[0].T @ visit.old_A[0].numpy()
    nat1 = sites.nat1 - sites.prec * layout.select(visit.old_mean)
    latents = layout.select(tf.broadcast_to(tf.range(K), [len(index), K])).numpy()  # of each site
    means, covs = np.zeros((*latents.shape, len(Z))), np.zeros((*latents.shape, len(Z), len(Z)))
    for site in np.argwhere(counted[..., None] & np.ones(2, bool)):
        n, latent, site = site[0], latents[tuple(site)], tuple(site)
        R = matcher.sums.q_chol[latent].numpy()
        P, w = R @ R.T, own[:, n]
        covs[site] = np.linalg.inv(P - sites.prec.numpy()[site] * np.outer(w, w))
        means[site] = covs[site] @ (P @ matcher.sums.mean.numpy()[:, latent] - nat1.numpy()[site] * w)
    with tf.GradientTape() as tape:
        prior = model.prior(inputs)
        a = tf.transpose(prior.A[0])
        m = layout.select(prior.mean) + tf.einsum("nkjp,np->nkj", means, a)
        v = layout.select(prior.residual) + tf.einsum("np,nkjpq,nq->nkj", a, covs, a)
        values = model.log_normaliser(m, v, (inputs, labels))
        value = N / len(index) * tf.reduce_sum(tf.where(counted, values, tf.zeros_like(values)))
    return tape.gradient(value, model.trainable_variables)


def assert_same_gradient(ours: list[tf.Tensor], theirs: list[tf.Tensor]) -> None:
    """The inverses lose about cond(K_uu), 1e3, of 1e-16 in entries of size 1 to 100."""
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


def test_the_gradient_is_that_of_explicit_cavities(settled: SparseEP, learner: StochasticMatcher) -> None:
    """In mid-epoch, the hyperparameters moved."""
    model = learner._target
    model.assign_sites(start(True, settled, 0.7).sites)
    learner.start()
    batches = list(model.rows.batches(10, 0, 0))
    for _ in range(2):
        learner.step()
    assert np.abs(learner.sums.shift - np.eye(len(Z))).max() > 1e-3
    index, inputs, labels = batches[2]
    visit = visit_of(learner, model.gather_sites(index), inputs, labels)
    exact = explicit_gradient(learner, batches[2], visit, np.ones((10, K), bool))
    assert_same_gradient(visit.gradient, exact)


@pytest.mark.slow
def test_sums_over_chunks_and_datasets_are_those_over_arrays(settled: SparseEP, monkeypatch) -> None:
    models = [settled, start(False, settled, data=stream())]
    exact = MomentMatcher(settled, (), None, None, None).start()[0]
    expected = [exact, *settled.predict_f(X[:5]), *settled.whitened()]
    monkeypatch.setattr(rows, "CHUNK", 7)
    for model in models:
        found = [model.log_evidence(), *model.predict_f(X[:5]), *model.whitened()]
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_a_factor_without_a_cavity_is_passed_over(settled: SparseEP, learner: StochasticMatcher) -> None:
    """A precise site beside a neighbour's that cancels it: without it, q would be improper."""
    model = learner._target
    for variable, value in zip(model.trainable_variables, robust(True).trainable_variables, strict=True):
        variable.assign(value)
    prec = settled.prec.numpy().copy()
    prec[FIRST, LATENT, 1] += 30.0
    prec[SECOND, LATENT, 1] -= 8.0
    model.assign_sites(type(settled.sites)(settled.nat1, tf.constant(prec)))
    assert np.isfinite(learner.start().objective)
    batch = next(b for b in model.rows.batches(10, 0, 0) if FIRST in b[0])
    place, factors = list(batch[0]).index(FIRST), np.ones((10, K), bool)
    factors[place, LATENT] = False
    before = model.gather_sites(batch[0])
    visit = visit_of(learner, before, *batch[1:])
    assert visit.sound
    assert visit.violation == np.inf
    moving = factors[place] & (np.arange(K) != Y[FIRST])
    for old, new in zip(before, visit.proposal, strict=True):
        np.testing.assert_array_equal((old != new).numpy()[place], np.stack([moving, moving], -1))
    assert_same_gradient(visit.gradient, explicit_gradient(learner, batch, visit, factors))
    fixed = start(False, model)
    gpx.fit(fixed, minibatch_size=10, steps=300, stationarity=1e-5)
    np.testing.assert_allclose(fixed.log_evidence(), settled.log_evidence(), rtol=0, atol=1e-7)
