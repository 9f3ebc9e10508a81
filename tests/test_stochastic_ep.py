"""`SparseEP` on minibatches: the fixed point and the steps of batch mode, the sums, resume, datasets."""

from __future__ import annotations

from unittest import mock

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.data import rows
from gpflow_ext.ep.engine import MomentMatcher
from gpflow_ext.ep.minibatch_updates import Visit
from gpflow_ext.ep.recipe import ep
from gpflow_ext.ep.stochastic import StochasticMatcher
from gpflow_ext.likelihoods import BernoulliProbit
from gpflow_ext.models import SparseEP
from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Sites

X, Y = problems.binary(30)
Z = problems.inputs(8, seed=5)


def stream() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y))


def probit(learn: bool = False, data=(X, Y)) -> SparseEP:
    kernel = gpflow.kernels.SquaredExponential(4.0, [0.7, 1.1]) + gpflow.kernels.White(0.2)
    mean = gpflow.functions.Constant(0.3)
    model = SparseEP(data, kernel, BernoulliProbit(), mean, inducing_variable=Z)
    for part in (model.kernel, model.mean_function, model.inducing_variable):
        gpflow.set_trainable(part, learn)
    return model


@pytest.fixture(scope="module")
def settled() -> SparseEP:
    """Batch mode at its fixed point."""
    model = probit()
    _, violation = MomentMatcher(model, (), None, None, None).settle(300, 1e-13)
    assert violation < 1e-12
    return model


def start(learn: bool, sites: SparseEP, share: float = 1.0, data=(X, Y)) -> SparseEP:
    """A model whose sites are a share of those of another."""
    model = probit(learn, data)
    model.nat1.assign(share * sites.nat1)
    model.prec.assign(share * sites.prec)
    return model


def sgd(model: SparseEP, rate: float) -> tf_keras.optimizers.Optimizer:
    optimizer = tf_keras.optimizers.SGD(rate)
    optimizer.build(model.trainable_variables)
    return optimizer


def stochastic(model: SparseEP, rate: float | None = None, size: int = 10, **options) -> StochasticMatcher:
    optimizer = None if rate is None else sgd(model, rate)
    return StochasticMatcher(model, model.trainable_variables, optimizer, minibatch_size=size, **options)


def visit_of(matcher: StochasticMatcher, sites, inputs, targets) -> Visit:
    """What a minibatch finds."""
    inputs, targets = tf.constant(inputs), tf.constant(targets)
    return matcher._updates.visit(sites, inputs, targets, tf.constant(30.0, tf.float64))


def values(model: tf.Module) -> list[np.ndarray]:
    return [variable.numpy() for variable in model.variables]


@pytest.mark.parametrize(
    ("size", "seed", "data"),
    [
        (7, 0, "arrays"),
        pytest.param(1, 1, "arrays", marks=pytest.mark.slow),
        pytest.param(7, 2, "dataset", marks=pytest.mark.slow),
    ],
)
def test_the_fixed_point_is_that_of_batch_mode(settled: SparseEP, size: int, seed: int, data: str) -> None:
    model = probit(data=stream() if data == "dataset" else (X, Y))
    epoch = -(-30 // size)
    result = gpx.fit(model, minibatch_size=size, seed=seed, steps=10 * epoch)
    assert result.status is gpx.Status.CONVERGED
    assert result.steps % epoch == 0
    np.testing.assert_allclose(model.prec, settled.prec, rtol=0, atol=1e-6)
    np.testing.assert_allclose(model.log_evidence(), settled.log_evidence(), rtol=0, atol=1e-10)
    for ours, theirs in zip(model.predict_f(X[:5]), settled.predict_f(X[:5]), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_minibatch_of_all_data_is_a_sweep_of_batch_mode(settled: SparseEP) -> None:
    ours, theirs = (start(False, settled, 0.8) for _ in range(2))
    step, sweep = stochastic(ours, size=30, damping=0.6), MomentMatcher(theirs, (), None, 0.6, None)
    np.testing.assert_allclose(step.step()[0], sweep.start()[0], rtol=0, atol=1e-10)
    sweep.step()
    for _ in range(2):
        np.testing.assert_allclose(step.step()[0], theirs.log_evidence(), rtol=0, atol=1e-10)
        sweep.step()
        np.testing.assert_allclose(ours.nat1, theirs.nat1, rtol=0, atol=1e-10)
        np.testing.assert_allclose(ours.prec, theirs.prec, rtol=0, atol=1e-10)


def test_a_step_of_the_hyperparameters_is_that_of_batch_mode(settled: SparseEP) -> None:
    """At the fixed point, where the two forms of the gradient agree."""
    ours, theirs = (start(True, settled) for _ in range(2))
    before = [variable.numpy() for variable in ours.trainable_variables]
    stochastic(ours, 0.01, size=30, damping=0.6).step()
    MomentMatcher(theirs, theirs.trainable_variables, sgd(theirs, 0.01), 0.6, None).step()
    moved = zip(before, ours.trainable_variables, theirs.trainable_variables, strict=True)
    for old, a, b in moved:
        assert np.abs(a.numpy() - old).max() > 1e-5
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def brute_force(
    model: SparseEP, hypers: list[np.ndarray], data: tuple[np.ndarray, np.ndarray], sites
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The sites of some data as functions of u, at given hyperparameters: (Στυυᵀ, Σρυ, υ)."""
    now = [variable.numpy() for variable in model.trainable_variables]
    for variable, value in zip(model.trainable_variables, hypers, strict=True):
        variable.assign(value)
    prior = model.prior(tf.constant(data[0]))
    upsilon = np.linalg.solve(prior.chol[0].numpy().T, prior.A[0].numpy())
    for variable, value in zip(model.trainable_variables, now, strict=True):
        variable.assign(value)
    nat1, prec = (part.numpy()[:, 0] for part in sites)
    return (upsilon * prec) @ upsilon.T, upsilon @ (nat1 - prec * prior.mean.numpy()[:, 0]), upsilon


def test_sites_are_taken_out_as_they_were_put_in(settled: SparseEP) -> None:
    """The sums in mid-epoch, and the cavities, in terms of u and by explicit inverses.

    Entries of the sums have size 1 to 100; the explicit inverses lose about cond(K_uu) = 1e3 of 1e-16.
    """
    model = start(True, settled, 0.7)
    matcher = stochastic(model, 0.05)
    matcher.start()
    hypers = [variable.numpy() for variable in model.trainable_variables]
    anchor = list(hypers)
    batches = list(model.rows.batches(10, 0, 0))
    old = model.sites
    total = list(brute_force(model, anchor, (X, Y), old)[:2])
    for batch in batches[:2]:
        index = batch[0].numpy()
        before = model.gather_sites(batch[0])
        matcher.step()
        for sign, at, sites in ((-1, anchor, before), (1, hypers, model.gather_sites(batch[0]))):
            parts = brute_force(model, at, (X[index], Y[index]), sites)
            total = [a + sign * b for a, b in zip(total, parts, strict=False)]
        hypers = [variable.numpy() for variable in model.trainable_variables]
    assert np.abs(hypers[0] - anchor[0]).max() > 1e-3
    L0 = matcher.anchor_chol.numpy()[0]
    np.testing.assert_allclose(matcher.sums.prec[0], L0.T @ total[0] @ L0, rtol=0, atol=1e-9)
    np.testing.assert_allclose(matcher.sums.nat1[:, 0], L0.T @ total[1], rtol=0, atol=1e-9)
    index = batches[2][0].numpy()
    sites = model.gather_sites(batches[2][0])
    _, _, own = brute_force(model, anchor, (X[index], Y[index]), sites)
    _, _, now = brute_force(model, hypers, (X[index], Y[index]), sites)
    (offset,) = (a for a in anchor if a.ndim == 0 and a == 0.3)
    K, visit = model.gram().numpy()[0], visit_of(matcher, sites, X[index], Y[index])
    residual = model.prior(tf.constant(X[index])).residual
    for i in range(10):
        nat1, prec = (part.numpy()[i, 0] for part in sites)
        cov = np.linalg.inv(np.linalg.inv(K) + total[0] - prec * np.outer(own[:, i], own[:, i]))
        u = cov @ (total[1] - (nat1 - prec * offset) * own[:, i])
        mean = model.mean_function.c.numpy() + now[:, i] @ u
        var = now[:, i] @ cov @ now[:, i] + residual[i]
        m, v = (tf.reshape(part, [1, 1]) for part in (mean, var))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(m)
            with tf.GradientTape() as inner:
                inner.watch(m)
                value = model.log_normaliser(m, v, (X[index[i : i + 1]], Y[index[i : i + 1]]))
            slope = inner.gradient(value, m)
        gamma = -tape.gradient(slope, m)
        shrinkage = 1 - gamma * (v - residual[i])
        np.testing.assert_allclose(visit.proposal.prec[i], (gamma / shrinkage)[0], rtol=1e-8)
        np.testing.assert_allclose(visit.proposal.nat1[i], ((slope + gamma * m) / shrinkage)[0], rtol=1e-8)
    assert np.isfinite(matcher.step().violation)  # an epoch has ended
    np.testing.assert_array_equal(matcher.anchor_chol, tf.linalg.cholesky(model.gram()))
    for ours, theirs in zip(matcher.sums, model.message(matcher.anchor_chol), strict=False):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_the_minibatch_gradient_is_unbiased_at_the_fixed_point(settled: SparseEP) -> None:
    model = start(True, settled)
    slope = MomentMatcher(model, model.trainable_variables, None, None, None).differentiate()[1]
    matcher = stochastic(model, 0.1)
    matcher.start()
    visits = [visit_of(matcher, model.gather_sites(n), x, y) for n, x, y in model.rows.batches(10, 0, 0)]
    for parts, exact in zip(zip(*(visit.gradient for visit in visits), strict=True), slope, strict=True):
        assert np.abs(parts[0] - exact).max() > 1e-3
        np.testing.assert_allclose(sum(parts) / 3, exact, rtol=0, atol=1e-10)
    objective = sum(visit.objective for visit in visits) / 3
    np.testing.assert_allclose(objective, model.log_evidence(), rtol=1e-12)


def test_whitening_by_a_known_factor_has_the_gradient_of_the_factorisation() -> None:
    rng = np.random.default_rng(0)
    gram, cross = problems.kernel()(Z) + 0.1 * np.eye(8), tf.constant(rng.standard_normal((8, 5)))
    weights = rng.standard_normal((8, 5))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch((gram, cross))
        chol = tf.linalg.cholesky(gram)
        plain = tf.reduce_sum(weights * tf.linalg.triangular_solve(chol, cross))
        known = tf.reduce_sum(weights * linalg.whiten(gram, tf.stop_gradient(chol), cross))
    for ours, theirs in zip(
        tape.gradient(known, (gram, cross)), tape.gradient(plain, (gram, cross)), strict=True
    ):
        theirs = 0.5 * (theirs + tf.transpose(theirs)) if theirs.shape == gram.shape else theirs
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["arrays", pytest.param("dataset", marks=pytest.mark.slow)])
def test_training_resumes_exactly_in_mid_epoch(tmp_path, kind: str) -> None:
    def model() -> SparseEP:
        return probit(True, stream() if kind == "dataset" else (X, Y))

    options = {"minibatch_size": 10, "seed": 3}  # three steps to an epoch
    resuming.check(model, tmp_path, steps=7, cut=5, options=lambda: options)


@pytest.mark.slow
def test_training_raises_the_evidence(settled: SparseEP) -> None:
    """The optimum of batch mode is 4.8 above the start."""
    model = start(True, settled)
    gpx.fit(model, minibatch_size=15, steps=100, optimizer=tf_keras.optimizers.Adam(0.03))
    assert model.log_evidence() > settled.log_evidence() + 3.0


def test_a_step_that_breaks_the_model_is_undone_and_shortened(settled: SparseEP) -> None:
    model = start(True, settled)
    matcher = stochastic(model, 1e6)
    objective, _ = matcher.step()
    assert np.isfinite(objective)
    assert all(np.isfinite(value).all() for value in [*values(model), *values(matcher)])


class Broken(SparseEP):
    """A model none of whose normalisers is a number."""

    def log_normaliser(self, mean, var, data=None) -> tf.Tensor:
        return np.nan * mean[:, 0]


def test_without_any_sound_step_nothing_changes() -> None:
    model = probit(True)
    gpx.fit(model, minibatch_size=10, steps=3)
    kept = values(model)
    model.__class__ = Broken
    result = gpx.fit(model, minibatch_size=10, steps=3)
    assert result.status is gpx.Status.NON_FINITE
    assert result.steps == 0
    for a, b in zip(values(model), kept, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_sums_over_chunks_do_not_depend_on_their_size(settled: SparseEP, monkeypatch) -> None:
    models = [settled, start(False, settled, data=stream())]
    gradients, results = [], []
    for chunk in (2048, 7, 15):  # one chunk; with a smaller last one; without
        monkeypatch.setattr(rows, "CHUNK", chunk)
        results += [[model.log_evidence(), *model.predict_f(X[:5]), *model.whitened()] for model in models]
        with tf.GradientTape() as tape:
            tape.watch(settled.inducing_variable.Z.unconstrained_variable)
            value = settled.log_evidence()
        gradients.append([tape.gradient(value, settled.inducing_variable.Z.unconstrained_variable)])
    for same in (results, gradients):
        for other in same[1:]:
            for a, b in zip(other, same[0], strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def test_no_tensor_of_a_step_grows_with_the_data() -> None:
    N = 311  # no other size
    model = probit(True, problems.binary(N))
    matcher = stochastic(model, 0.1)
    batch = next(model.rows.batches(10, 0, 0))
    one = tf.constant(1.0, tf.float64)
    graph = tf.function(matcher._updates.take).get_concrete_function(*batch, one, one, N * one).graph
    inner = [graph, *(f.graph for f in graph._functions.values() if hasattr(f, "graph"))]
    operations = [op for g in inner for op in g.get_operations() if op.type != "BroadcastGradientArgs"]
    shapes = [output.shape for op in operations for output in op.outputs]
    sizes = [shape.as_list() for shape in shapes if shape.rank is not None]
    assert len(shapes) > 300
    assert not any(N in size or None in size for size in sizes)  # the variables of the sites are [None, 1]


@pytest.mark.parametrize("kind", ["arrays", "dataset"])
def test_an_epoch_visits_each_row_once(kind: str) -> None:
    data = probit(data=stream() if kind == "dataset" else (X, Y)).rows
    epochs = [list(data.batches(8, 3, epoch)) for epoch in (0, 0, 1)]
    orders = [np.concatenate([batch[0] for batch in epoch]) for epoch in epochs]
    for epoch, order in zip(epochs, orders, strict=True):
        np.testing.assert_array_equal(np.sort(order), np.arange(30))
        np.testing.assert_array_equal(np.concatenate([batch[1] for batch in epoch]), X[order])
        np.testing.assert_array_equal(np.concatenate([batch[2] for batch in epoch]), Y[order])
    np.testing.assert_array_equal(orders[0], orders[1])
    assert (orders[0] != orders[2]).any()
    later = next(data.batches(8, 3, 0, first=2))
    np.testing.assert_array_equal(later[0], orders[0][16:24])


def test_in_the_first_epoch_the_data_seen_stand_for_all() -> None:
    """q after 10 of 30 rows is that of three copies of each; at the end of the epoch that of the sites."""
    model = probit()
    matcher = stochastic(model)
    for visited in (10.0, 20.0):
        matcher.step()
        assert float(matcher.seen) == visited
        reference = probit()
        reference.assign_sites(Sites(*(30.0 / visited * part for part in model.sites)))
        same_posterior(matcher, reference)
    sums = [part.numpy() for part in (matcher.sums.prec, matcher.sums.nat1)]
    matcher.step()
    assert (float(matcher.seen), int(matcher.epoch)) == (30.0, 1)
    same_posterior(matcher, model)
    for before, after in zip(sums, (matcher.sums.prec, matcher.sums.nat1), strict=True):
        assert np.abs(after).max() > np.abs(before).max()


def same_posterior(matcher: StochasticMatcher, model: SparseEP) -> None:
    """The moments of q(v) of the matcher are those that the sites of a model give, to rounding."""
    q = model.condition()[1]
    for ours, theirs in ((matcher.sums.mean, q.mean), (matcher.sums.q_chol, q.chol)):
        np.testing.assert_allclose(ours, theirs, rtol=0.0, atol=1e-12 * np.abs(theirs).max())


def test_after_the_first_epoch_the_sums_are_those_without_weights() -> None:
    """With the hyperparameters fixed: what was added up one by one is what all sites say, counted once."""
    model = probit()
    matcher, left = stochastic(model), []
    anew = matcher._sum_all

    def look(all_seen: bool) -> bool:
        left.append([part.numpy() for part in (matcher.sums.prec, matcher.sums.nat1)])
        return anew(all_seen)

    matcher._sum_all = look
    for _ in range(3):
        matcher.step()
    for found, exact in zip(left[-1], model.whitened_message(), strict=True):
        np.testing.assert_allclose(found, exact, rtol=0.0, atol=1e-12 * np.abs(exact).max())


def test_rows_without_sites_are_spoken_for_until_their_visit(settled: SparseEP) -> None:
    model = start(False, settled)
    for part in (model.nat1, model.prec):
        part.assign(np.where(np.arange(30)[:, None] < 20, part.numpy(), 0.0))  # ten new rows
    matcher = stochastic(model)
    matcher.start()
    assert float(matcher.seen) == 20.0
    reference = probit()
    reference.assign_sites(Sites(*(1.5 * part for part in model.sites)))
    same_posterior(matcher, reference)


def test_no_data_are_read_before_the_first_step_unless_some_have_sites(settled: SparseEP) -> None:
    one = probit()
    one.prec.assign(tf.tensor_scatter_nd_update(one.prec, [[11, 0]], [0.5]))
    for model, read in ((probit(), 0), (one, 1), (start(False, settled), 1)):
        with mock.patch.object(
            type(model.rows), "pieces", autospec=True, side_effect=type(model.rows).pieces
        ) as pieces:
            matcher = stochastic(model)
            matcher.start()
        assert pieces.call_count == read
        assert int(matcher.seen) == int(np.count_nonzero(model.prec))


def test_a_model_of_a_dataset_exports(settled: SparseEP, tmp_path) -> None:
    model = start(False, settled, data=stream().filter(lambda x, y: True))  # of unknown length
    loaded = gpx.load_exported(gpx.export(model, tmp_path))
    mean, _ = settled.predict_y(X[:5])
    np.testing.assert_allclose(loaded.predict(X[:5])["mean"], mean, rtol=0, atol=1e-9)


def test_wrong_arguments_are_named() -> None:
    for options, message in (
        ({"minibatch_size": 0}, "from 1 to 30"),
        ({"minibatch_size": 31}, "from 1 to 30"),
        ({"minibatch_size": 8, "optimizer": "lbfgs"}, "lbfgs"),
        ({"minibatch_size": 8, "damping": 1.5}, "damping"),
    ):
        with pytest.raises(ValueError, match=message):
            gpx.fit(probit(True), **options)
    with pytest.raises(ValueError, match="minibatch_size"):
        gpx.fit(probit(data=stream()))
    broken = X.copy()
    broken[20, 1] = np.nan
    for data, message in (
        (stream().batch(5), "single rows"),
        (tf.data.Dataset.range(3), "single rows"),
        (stream().take(0), "empty"),
        (tf.data.Dataset.from_tensor_slices((broken, Y)), "row 20, column 1"),
        (tf.data.Dataset.from_tensor_slices((X, Y + 1)), "0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            probit(data=data)


def test_the_default_rate_falls() -> None:
    """After 150 minibatches to a half, whatever the number of steps."""
    plan = ep(probit(learn=True), minibatch_size=10, starts=1)
    rate = plan.trackables["optimizer"]._learning_rate
    np.testing.assert_allclose([rate(0), rate(150)], [0.01, 0.005], rtol=1e-6)
