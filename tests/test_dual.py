"""The recipe "dual": GPflow's natural gradients and optimum, the bound that follows, lengths, resume, refusals."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from gpflow.models import SVGP
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliLogit, BernoulliProbit, MultinomialLogit, PoissonLog
from gpflow_ext.sites import sparse_prior
from gpflow_ext.svgp import last_pass as whole
from gpflow_ext.svgp.dual import DualUpdates
from gpflow_ext.svgp.dual_recipe import DualOptions, SparseAdam, lengths
from gpflow_ext.svgp.whitened import WhitenedSVGP
from gpflow_ext.training.schedules import FallingRate

Z = problems.inputs(6, seed=5)
ROWS = 60
SETS = {
    "logit": (BernoulliLogit, problems.binary(ROWS), 1),
    "Poisson": (PoissonLog, problems.counts(ROWS), 1),
    "three classes": (lambda: MultinomialLogit(3), problems.classes(ROWS), 3),
}


def svgp(name: str = "logit", num_data: int | None = ROWS, kernel: Any = None, **options: Any) -> SVGP:
    likelihood, _, count = SETS[name]
    kernel = problems.kernel(2.0, 1.0) if kernel is None else kernel
    return SVGP(kernel, likelihood(), Z.copy(), num_latent_gps=count, num_data=num_data, **options)


def held(model: SVGP) -> SVGP:
    for part in (model.kernel, model.likelihood, model.inducing_variable):
        gpflow.set_trainable(part, False)
    return model


def same_q(ours: SVGP, other: SVGP, **tolerance: float) -> None:
    np.testing.assert_allclose(ours.q_mu, other.q_mu, **tolerance)
    for one, two in zip(ours.q_sqrt.numpy(), other.q_sqrt.numpy(), strict=True):
        np.testing.assert_allclose(one @ one.T, two @ two.T, **tolerance)


# ---------------------------------------------------------------------------------------- GPflow's q


@pytest.mark.parametrize("name", SETS)
def test_steps_of_q_are_gpflows_natural_gradients(name: str) -> None:
    ours, reference = held(svgp(name)), held(svgp(name))
    data = SETS[name][1]
    gpx.fit(ours, data, recipe="dual", gamma=0.1, steps=3)
    natural = gpflow.optimizers.NaturalGradient(0.1)
    for _ in range(3):
        natural.minimize(lambda: reference.training_loss(data), [(reference.q_mu, reference.q_sqrt)])
    same_q(ours, reference, rtol=0.0, atol=1e-8)


@pytest.mark.parametrize("name", others_slow(SETS, "logit"))
def test_steps_of_length_one_end_at_the_optimal_q(name: str) -> None:
    """−ELBO bends at least as the KL does, by 1 in m: half the squared gradient bounds what is missing."""
    ours, data = held(svgp(name)), SETS[name][1]
    gpx.fit(ours, data, recipe="dual", steps=150)
    with tf.GradientTape() as tape:
        loss = ours.training_loss(data)
    gradient = tape.gradient(loss, [part.unconstrained_variable for part in (ours.q_mu, ours.q_sqrt)])
    assert sum(float(tf.reduce_sum(part**2)) for part in gradient) < 1e-9 * abs(float(loss))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_the_optimal_q_is_that_of_gpflow(name: str) -> None:
    ours, reference = held(svgp(name)), held(svgp(name))
    data = SETS[name][1]
    gpx.fit(ours, data, recipe="dual", steps=200)
    gpflow.optimizers.Scipy().minimize(
        reference.training_loss_closure(data),
        reference.trainable_variables,
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 3000},
    )
    np.testing.assert_allclose(ours.elbo(data), reference.elbo(data), rtol=1e-8)


@pytest.mark.parametrize("follow", [False, True])
def test_a_first_step_of_length_one_is_finite_in_single_precision(follow: bool) -> None:
    """One minibatch stands for 60,000 rows; sites held as sums of kernels, and not of A, give NaN here."""
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-4)):
        X = np.random.default_rng(0).uniform(-2.0, 2.0, (60_000, 2)).astype(np.float32)
        Y = (X[:, :1] * X[:, 1:] > 0.0).astype(np.float32)
        points = gpx.inducing.conditional_variance(
            X[:500], gpflow.kernels.SquaredExponential(), 60, share=0.0
        )
        model = SVGP(gpflow.kernels.SquaredExponential(), BernoulliProbit(), points, num_data=len(X))
        options = {"minibatch_size": 200, "gamma": 1.0, "decay_steps": None, "follow": follow}
        result = gpx.fit(model, (X, Y), recipe="dual", steps=3, **options)
        assert result.steps == 3
        assert all(np.isfinite(variable).all() for variable in model.variables)


# ------------------------------------------------------------------------------- the bound that follows


class Noted:
    """An optimiser that notes the gradient and moves nothing."""

    variables: tuple[()] = ()

    def apply_gradients(self, pairs: Any) -> None:
        self.gradient = [-part for part, _ in pairs]


def gradient(model: SVGP, data: Any) -> tuple[DualUpdates, list[tf.Variable], list[np.ndarray]]:
    """Return the engine after a step of 0.3 of q, the hyperparameters and the gradient there."""
    target, noted = WhitenedSVGP(model), Noted()
    q = {id(part.unconstrained_variable) for part in (model.q_mu, model.q_sqrt)}
    hypers = [variable for variable in model.trainable_variables if id(variable) not in q]
    updates = DualUpdates(target, hypers, noted, True, None)
    updates.start()
    data = tuple(map(tf.constant, data))
    for length in (0.3, 0.0):
        updates.step(*data, tf.constant(-np.inf, tf.float64), tf.constant(length, tf.float64))
    return updates, hypers, [np.array(part) for part in noted.gradient]


def natural(model: SVGP) -> tuple[np.ndarray, np.ndarray]:
    """Return the sites of the model's q as functions of u: L⁻ᵀs [M, L] and L⁻ᵀSL⁻¹ [L, M, M]."""
    L = np.linalg.cholesky(np.broadcast_to(sparse_prior.gram(model), model.q_sqrt.shape))
    prec = np.linalg.inv([root @ root.T for root in model.q_sqrt.numpy()])
    s = np.einsum("kmn,nk->km", prec, model.q_mu.numpy())
    S = prec - np.eye(prec.shape[-1])
    inverse = np.linalg.inv(L)
    return np.einsum("kmn,km->nk", inverse, s), inverse.transpose(0, 2, 1) @ S @ inverse


def follow(model: SVGP, first: np.ndarray, second: np.ndarray) -> None:
    """Give the model the q of these sites at its present hyperparameters."""
    L = np.linalg.cholesky(np.broadcast_to(sparse_prior.gram(model), model.q_sqrt.shape))
    S, s = L.transpose(0, 2, 1) @ second @ L, np.einsum("kmn,mk->kn", L, first)
    C = np.linalg.inv(S + np.eye(S.shape[-1]))
    model.q_mu.assign(np.einsum("kmn,kn->mk", C, s))
    model.q_sqrt.assign(np.linalg.cholesky(C))


def separate() -> gpflow.kernels.MultioutputKernel:
    return gpflow.kernels.SeparateIndependent([problems.kernel(2.0, length) for length in (0.8, 1.0, 1.3)])


def shared_points() -> gpflow.inducing_variables.MultioutputInducingVariables:
    one = gpflow.inducing_variables.InducingPoints(Z.copy())
    return gpflow.inducing_variables.SharedIndependentInducingVariables(one)


@pytest.mark.parametrize("several", others_slow([False, True], False))
def test_the_gradient_is_that_of_the_bound_of_the_same_sites(several: bool) -> None:
    model, data = svgp("Poisson"), SETS["Poisson"][1]
    if several:  # a count in each of three columns
        data = data[0], np.random.default_rng(0).poisson(1.0, (ROWS, 3)).astype(float)
        model = SVGP(separate(), PoissonLog(), shared_points(), num_latent_gps=3, num_data=ROWS)
    _, hypers, found = gradient(model, data)
    sites = natural(model)
    for variable, slope in zip(hypers, found, strict=True):
        at, step = variable.numpy(), np.zeros(variable.shape)
        step[(0,) * step.ndim] = 1e-5
        values = []
        for sign in (1.0, -1.0):
            variable.assign(at + sign * step)
            follow(model, *sites)
            values.append(float(model.elbo(data)))
        variable.assign(at)
        difference = (values[0] - values[1]) / 2e-5
        np.testing.assert_allclose(slope[(0,) * step.ndim], difference, rtol=1e-6, atol=1e-6)


def test_the_sites_stay_while_the_hyperparameters_move() -> None:
    model, data = svgp(), SETS["logit"][1]
    gpx.fit(model, data, recipe="dual", steps=4)
    before, at = natural(model), model.kernel.lengthscales.numpy()
    options: dict[str, Any] = {"gamma": 1e-9, "decay_steps": None}  # q learns nothing
    gpx.fit(model, data, recipe="dual", steps=3, **options)
    assert abs(model.kernel.lengthscales.numpy() - at) > 0.03
    for one, two in zip(natural(model), before, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=1e-6 * np.abs(two).max())


@pytest.mark.slow
def test_a_whole_fit_ends_where_the_bound_is_largest() -> None:
    data = SETS["logit"][1]
    ours, reference = svgp(), svgp()
    gpx.fit(ours, data, recipe="dual", steps=600, inducing_share=1.0)
    gpx.fit(reference, data)
    best = float(reference.elbo(data))
    start = float(svgp().elbo(data))
    assert best - float(ours.elbo(data)) < 0.02 * (best - start)


# ------------------------------------------------------------------------------------- lengths and rates


def test_lengths_fall_as_one_over_the_root() -> None:
    found = [lengths(DualOptions(), True)(step) for step in (0, 50, 150, 10**7)]
    np.testing.assert_allclose(found, [0.1, 0.1 / np.sqrt(2.0), 0.05, 0.01], rtol=1e-12)
    assert lengths(DualOptions(gamma=0.3, decay_steps=None), True)(10**7) == 0.3
    assert lengths(DualOptions(gamma=0.005), True)(10**7) == 0.005
    assert lengths(DualOptions(), False)(3) == 1.0
    rates = [float(FallingRate(0.2, 10)(tf.constant(step))) for step in (0, 30)]
    np.testing.assert_allclose(rates, [0.2, 0.1], rtol=1e-6)


def test_inducing_points_take_a_share_of_the_steps() -> None:
    ends = []
    for share in (1.0, 0.25):
        variables = [tf.Variable([3.0]), tf.Variable([5.0])]
        optimizer = SparseAdam(0.1, points=variables[1:], share=share)
        optimizer.build(variables)
        optimizer.apply_gradients((tf.constant([2.0]), variable) for variable in variables)
        ends.append([float(variable[0]) for variable in variables])
    np.testing.assert_allclose(ends, [[2.9, 4.9], [2.9, 4.975]], atol=1e-5)


# --------------------------------------------------------------------------------- minibatches as recipes go


@pytest.mark.parametrize("options", [{}, {"follow": False}])
def test_it_learns_by_minibatches_and_resumes_exactly(options: dict[str, Any], tmp_path: Any) -> None:
    data = SETS["logit"][1]
    own = {"recipe": "dual", "minibatch_size": 12, "seed": 3, **options}
    whole, _ = resuming.check(svgp, tmp_path, data, steps=8, cut=4, options=lambda: own)
    assert whole.elbo(data) > svgp().elbo(data) + 3.0


def test_it_trains_on_a_dataset_as_on_the_same_arrays() -> None:
    X, Y = SETS["logit"][1]
    batches = tf.data.Dataset.from_tensors((X, Y)).repeat()
    one, other = svgp(), svgp()
    gpx.fit(one, batches, recipe="dual", steps=4)
    gpx.fit(other, (X, Y), recipe="dual", minibatch_size=ROWS, steps=4)
    for a, b in zip(one.variables, other.variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)  # other orders of the rows


def test_held_steps_leave_the_hyperparameters_and_an_optimizer_of_ones_own_is_taken() -> None:
    model, data = svgp(), SETS["logit"][1]
    gpx.fit(model, data, recipe="dual", minibatch_size=20, steps=3, hold=3)
    np.testing.assert_array_equal(model.inducing_variable.Z, Z)
    gpx.fit(model, data, recipe="dual", minibatch_size=20, steps=1, optimizer=tf_keras.optimizers.SGD(0.0))
    np.testing.assert_array_equal(model.inducing_variable.Z, Z)
    assert np.abs(model.q_mu).max() > 0.05


def test_predictions_export_as_those_of_any_svgp(tmp_path: Any) -> None:
    model, (X, Y) = svgp(), SETS["logit"][1]
    gpx.fit(model, (X, Y), recipe="dual", minibatch_size=20, steps=5)
    gpx.export(model, tmp_path / "model", example=X[:5])
    loaded = gpx.load_exported(tmp_path / "model").predict_f(X[:7])
    for name, expected in zip(("mean", "variance"), model.predict_f(X[:7]), strict=True):
        np.testing.assert_allclose(loaded[name], expected, rtol=1e-10)


def test_a_wrong_call_names_the_fix() -> None:
    data = SETS["logit"][1]
    sgpr = gpflow.models.SGPR(problems.continuous(20), problems.kernel(), Z.copy())
    cases = [
        (ValueError, 'recipe="dual" is for SVGP', {}, sgpr, None),
        (NotImplementedError, r"dual needs SVGP\(whiten=True\)", {}, svgp(whiten=False), data),
        (NotImplementedError, "dual needs a full q_sqrt", {}, svgp(q_diag=True), data),
        (ValueError, "num_data=60", {"minibatch_size": 5}, svgp(num_data=None), data),
        (ValueError, r"`gamma` must be in \(0, 1\]", {"gamma": 1.5}, svgp(), data),
        (ValueError, "`rate` must be positive", {"rate": 0.0}, svgp(), data),
        (ValueError, r"`inducing_share` in \(0, 1\]", {"inducing_share": 2.0}, svgp(), data),
        (ValueError, "`decay_steps` at least 1", {"decay_steps": 0}, svgp(), data),
        (ValueError, "0 and 1", {}, svgp(), (data[0], data[1] + 1.0)),
        (ValueError, "columns", {}, svgp(), (data[0][:, :1], data[1])),
        (ValueError, "options are .*decay_steps", {"half_life": 3}, svgp(), data),
    ]
    for error, message, options, model, given in cases:
        with pytest.raises(error, match=message):
            gpx.fit(model, given, recipe="dual", **options)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["dual", "svi_natural"])
def test_steps_on_all_data_are_shortened_where_whole_ones_overshoot(recipe):
    """Where a likelihood is not log-concave, whole steps of q may wander for ever."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(-3.0, 3.0, [40, 1]), axis=0)
    Y = (np.sin(2.0 * X) + 0.5 * X + 0.3 * rng.normal(size=X.shape) > 0.0).astype(float)

    def bound(**options):
        kernel = gpflow.kernels.SquaredExponential(1.5, 0.8)
        likelihood = gpx.likelihoods.RobustMax(2, 0.05)
        model = gpflow.models.SVGP(kernel, likelihood, X.copy(), num_latent_gps=2, num_data=40)
        for part in (model.kernel, model.inducing_variable):
            gpflow.set_trainable(part, False)
        gpx.fit(model, (X, Y), recipe=recipe, steps=60, progress=False, **options)
        return float(model.elbo((X, Y)))

    assert bound() > bound(gamma=0.2) - 0.01
    assert bound(gamma=1.0) < bound(gamma=0.2) - 10.0


@pytest.mark.parametrize("recipe", ["dual", pytest.param("svi_natural", marks=pytest.mark.slow)])
def test_a_step_after_which_the_bound_plunges_is_undone(recipe):
    """A second whole step led to -2e7 here, with a gradient that Adam never forgot: it ended at -46 or -44."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(-2.0, 2.0, (50, 1)), axis=0)
    Y = np.sin(2.0 * X) + np.exp(-1.0 + 0.7 * X) * rng.normal(size=X.shape)
    likelihood = gpflow.likelihoods.HeteroskedasticTFPConditional(scale_transform=tfp.bijectors.Exp())
    kernel, Z = gpflow.kernels.Matern32(1.0, 0.8), np.linspace(-2.0, 2.0, 8)[:, None]
    model = gpflow.models.SVGP(kernel, likelihood, Z, num_latent_gps=2, num_data=50)
    gpflow.set_trainable(model.inducing_variable, False)
    result = gpx.fit(model, (X, Y), recipe=recipe, steps=100, progress=False)
    assert np.min(result.objective[1:]) >= result.objective[0]
    assert float(model.elbo((X, Y))) > -40.0


def test_minibatches_end_at_the_optimal_q_of_the_hyperparameters_they_found() -> None:
    """A tenth of what the minibatches alone miss is left after the step on all rows."""
    data = SETS["logit"][1]
    own: dict[str, Any] = {"recipe": "dual", "minibatch_size": 6, "decay_steps": None}
    bounds = []
    for last_pass in (False, True):
        model = held(svgp())
        gpx.fit(model, data, steps=30, last_pass=last_pass, **own)
        bounds.append(float(model.elbo(data)))
    gpx.fit(model, data, recipe="dual", steps=20)
    best = float(model.elbo(data))
    assert best - bounds[1] < 0.1 * (best - bounds[0])


def test_a_training_on_fewer_rows_than_there_are_has_no_last_pass() -> None:
    data = SETS["logit"][1]
    one, other = svgp(), svgp()
    for model, last_pass in ((one, False), (other, True)):
        gpx.fit(model, data, recipe="dual", minibatch_size=12, steps=4, last_pass=last_pass)
    np.testing.assert_array_equal(one.q_mu, other.q_mu)


def test_a_last_pass_that_lowers_the_bound_is_undone() -> None:
    """Steps of length one of the logarithm of the noise overshoot, see above."""
    rng = np.random.default_rng(5)
    X = np.sort(rng.uniform(-2.0, 2.0, (50, 1)), axis=0)
    Y = np.sin(2.0 * X) + np.exp(-1.0 + 0.7 * X) * rng.normal(size=X.shape)
    likelihood = gpflow.likelihoods.HeteroskedasticTFPConditional(scale_transform=tfp.bijectors.Exp())
    kernel, points = gpflow.kernels.Matern32(1.0, 0.8), np.linspace(-2.0, 2.0, 8)[:, None]
    model = SVGP(kernel, likelihood, points, num_latent_gps=2, num_data=50)
    data, target, kept = (X, Y), WhitenedSVGP(model), []
    for _ in range(20):
        before = float(model.elbo(data))
        kept.append(whole.last_pass(target, data, None))
        assert float(model.elbo(data)) >= before - 1e-9 * abs(before)
    assert not all(kept)
