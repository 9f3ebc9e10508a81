"""`SVGPRobustMax` on all data: q at its optimum in each evaluation of L-BFGS."""

from __future__ import annotations

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import gpflow_ext as gpx
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.numerics import anderson
from gpflow_ext.sites import Projection
from gpflow_ext.svgp import newton_mean
from gpflow_ext.svgp.whole_data import WholeData
from gpflow_ext.training.starts import FROM_DATA, OWN

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (60, 1))
Y = (np.digitize(X + 0.3 * RNG.standard_normal((60, 1)), [-0.7, 0.7])).astype(float)
DATA = X, Y
Z = np.linspace(-2.0, 2.0, 7)[:, None]


def build() -> gpx.models.SVGPRobustMax:
    model = gpx.models.SVGPRobustMax(gpflow.kernels.Matern52(), 3, Z.copy(), num_data=len(X))
    gpflow.set_trainable(model.inducing_variable, False)
    return model


def slopes(model: gpx.models.SVGPRobustMax) -> list[float]:
    """Return the largest slope of the bound, log priors included, in each trainable variable, by autodiff alone."""
    with tf.GradientTape() as tape:
        value = model.elbo(DATA) + model.log_prior_density()
    return [float(tf.reduce_max(tf.abs(part))) for part in tape.gradient(value, model.trainable_variables)]


@pytest.fixture(scope="module", name="trained")
def _trained() -> tuple[gpx.models.SVGPRobustMax, gpx.FitResult]:
    model = build()
    return model, gpx.fit(model, DATA, progress=False)


def test_it_ends_where_the_bound_has_no_slope(trained):
    model, result = trained
    assert result.status is gpx.Status.CONVERGED
    assert max(slopes(model)) < 2e-2
    assert np.max(slopes(build())) > 1.0
    assert float(model.elbo(DATA) + model.log_prior_density()) == pytest.approx(
        result.objective[-1], abs=1e-9
    )
    assert np.all(np.diff(result.objective) >= 0.0)


class Alike(RobustMax):
    """Robust-max with expectations of its own, of which the second derivatives are not known."""

    def _variational_expectations(self, X, Fmu, Fvar, Y):
        return 1.0 * super()._variational_expectations(X, Fmu, Fvar, Y)


def hard(likelihood: RobustMax | None = None) -> WholeData:
    """Return a problem whose natural gradients circle the optimum and creep."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (100, 3))
    Y = np.digitize(np.sin(X.sum(axis=1, keepdims=True)), [-0.4, 0.4]).astype(float)
    kernel = gpflow.kernels.SquaredExponential(100.0, 2.0)
    model = gpx.models.SVGPRobustMax(kernel, 3, X[:15].copy(), num_data=len(X))
    model.likelihood = likelihood or model.likelihood
    return WholeData(model, model, (tf.constant(X), tf.constant(Y)), kernel.trainable_variables, False)


@pytest.mark.slow
def test_newton_steps_in_the_means_see_that_labels_couple_the_classes():
    """Without that, as for a subclass with expectations of its own, 100 steps are not enough, and 40 are."""
    known, unknown = hard(), hard(Alike(3, 1e-3, learn_epsilon=True))
    found = known.evaluate(40, 1e-3)
    assert found.violation <= 1e-3
    assert found.objective == pytest.approx(known.evaluate(1000, 1e-5).objective, abs=1e-4)
    assert unknown.evaluate(100, 1e-3).violation > 1e-3
    assert unknown.evaluate(1000, 1e-5).objective == pytest.approx(found.objective, abs=1e-4)


class Twice(gpx.models.SVGPRobustMax):
    """A model whose data count twice, by its expectations alone."""

    def expectations(self, X, Y, mean, var):
        return 2.0 * super().expectations(X, Y, mean, var)


def test_a_subclass_with_other_expectations_is_fitted_by_these():
    model = Twice(gpflow.kernels.Matern52(), 3, Z.copy(), num_data=len(X))
    mean, var = model.predict_f(X)
    found = model.second_order(X, Y, mean, var)
    np.testing.assert_allclose(found.value, model.expectations(X, Y, mean, var), rtol=1e-9)
    plain = build().second_order(X, Y, mean, var)
    np.testing.assert_allclose(found.by_mean, 2.0 * plain.by_mean, rtol=1e-9)


def system() -> tuple[Projection, tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return a projection of 4 inducing variables on 6 data, R, Hₙ and a slope of 3 functions."""
    rng = np.random.default_rng(1)
    draw = lambda *shape: tf.constant(rng.standard_normal(shape))  # noqa: E731
    half = draw(6, 3, 3)
    zero = tf.zeros([6, 3], tf.float64)
    other = draw(3, 4, 4)
    root = tf.linalg.cholesky(tf.eye(4, dtype=tf.float64) + 0.1 * tf.matmul(other, other, transpose_b=True))
    chol = tf.eye(4, batch_shape=[1], dtype=tf.float64)
    return (
        Projection(zero, draw(1, 4, 6), zero, chol),
        root,
        tf.matmul(half, half, transpose_b=True),
        draw(4, 3),
    )


def test_newtons_direction_solves_the_system_of_all_classes(monkeypatch):
    monkeypatch.setattr(newton_mean, "TOLERANCE", 1e-12)
    prior, root, bend, slope = system()
    seen = np.einsum("mn,nkl,jn->mkjl", prior.A[0], bend, prior.A[0]).reshape(12, 12)
    exact = np.linalg.solve(np.eye(12) + seen, np.reshape(slope, -1)).reshape(4, 3)
    np.testing.assert_allclose(newton_mean.direction(prior, root, bend, slope), exact, rtol=1e-8)
    alone = tf.linalg.diag_part(bend)
    np.testing.assert_allclose(
        newton_mean.direction(prior, root, alone, slope),
        newton_mean.direction(prior, root, tf.linalg.diag(alone), slope),
        rtol=1e-8,
    )


def test_newtons_direction_leads_upwards_where_the_bound_is_not_concave():
    prior, root, bend, slope = system()
    for sign in (-0.1, -1.0, -1e6):
        delta = newton_mean.direction(prior, root, sign * bend, slope)
        assert np.all(np.isfinite(delta))
        assert float(tf.reduce_sum(delta * slope)) > 0.0


def test_first_order_steps_end_no_higher(trained):
    model = build()
    result = gpx.fit(model, DATA, rate=0.05, decay_steps=1000, steps=1000, progress=False)
    assert result.steps == 1000
    bound = float(model.elbo(DATA) + model.log_prior_density())
    assert trained[1].objective[-1] - 1.0 < bound < trained[1].objective[-1] + 1e-3


def test_held_hyperparameters_leave_q_alone_to_move():
    model = build()
    for part in (model.kernel, model.likelihood):
        gpflow.set_trainable(part, False)
    before = model.kernel.lengthscales.numpy()
    result = gpx.fit(model, DATA, progress=False)
    assert result.status is gpx.Status.CONVERGED
    assert max(slopes(model)) < 1e-2
    assert model.kernel.lengthscales.numpy() == before


def test_a_run_resumes_exactly(trained, tmp_path):
    options = {"checkpoint_dir": tmp_path, "checkpoint_every": 1, "progress": False}
    gpx.fit(build(), DATA, steps=1, **options)
    resumed = build()
    result = gpx.fit(resumed, DATA, **options)
    assert result.objective[-1] == trained[1].objective[-1]
    for new, old in zip(resumed.variables, trained[0].variables, strict=True):
        np.testing.assert_array_equal(new.numpy(), old.numpy())


@pytest.mark.parametrize("gpflows", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_labels_that_one_start_takes_to_be_wrong_are_explained_from_another(gpflows):
    """Labels that alternate, a tenth of them wrong: from a long length scale half of them are given up."""
    rng = np.random.default_rng(4)
    inputs = rng.uniform(-2.0, 2.0, (60, 1))
    labels = np.where(rng.random((60, 1)) < 0.1, np.sin(4.0 * inputs) <= 0.0, np.sin(4.0 * inputs) > 0.0)
    data = inputs, labels.astype(float)

    def fitted(**options: int) -> gpx.FitResult:
        kernel = gpflow.kernels.SquaredExponential(lengthscales=3.0)
        points = np.linspace(-2.0, 2.0, 20)[:, None]
        if gpflows:
            likelihood = gpflow.likelihoods.MultiClass(2)
            model = gpflow.models.SVGP(kernel, likelihood, points, num_latent_gps=2)
        else:
            model = gpx.models.SVGPRobustMax(kernel, 2, points, num_data=60)
        gpflow.set_trainable(model.inducing_variable, False)
        return gpx.fit(model, data, progress=False, **options)

    one, two = fitted(starts=1), fitted()
    assert [each.name for each in two.starts] == [OWN, FROM_DATA]
    assert two.objective[-1] > one.objective[-1] + 10.0


def test_a_number_of_starts_below_one_is_refused():
    with pytest.raises(ValueError, match="starts"):
        gpx.fit(build(), DATA, starts=0)


def test_weights_of_either_sign_are_followed():
    """At this optimum a likelihood that is not log-concave gives data with negative precision."""
    model = build()
    gpx.fit(model, (X, Y[::-1].copy()), progress=False)
    mean, var = model.predict_f(X)
    with tf.GradientTape() as tape:
        tape.watch(var)
        fit = tf.reduce_sum(model.likelihood.variational_expectations(X, mean, var, Y[::-1].copy()))
    assert float(tf.reduce_max(tape.gradient(fit, var))) > 1e-3


def test_mixing_solves_a_linear_iteration_that_turns_and_creeps():
    """Modes with rates of 0.999 and −1.2: the plain iteration diverges in the one, and hardly moves in the other."""
    rates, x = tf.constant([0.999, -1.2, 0.3], tf.float64), tf.ones([3], tf.float64)
    memory = anderson.empty(x, 5)
    for _ in range(6):
        residual = rates * x - x
        following = anderson.mixed(memory, x, residual, tf.constant(0.5, tf.float64))
        memory, x = anderson.remember(memory, x, residual), following
    assert float(tf.reduce_max(tf.abs(x))) < 1e-6
    one, half = tf.ones_like(x), tf.constant(0.5, tf.float64)
    plain = anderson.mixed(anderson.empty(x, 5), one, rates - 1.0, half)
    np.testing.assert_allclose(plain, 0.5 + 0.5 * rates)
    again = anderson.remember(anderson.empty(x, 5), one, rates - 1.0)  # a step too short to move
    np.testing.assert_allclose(anderson.mixed(again, one, rates - 1.0, half), plain)


def test_multi_class_has_the_second_derivatives_of_robust_max():
    """Beside its own first ones: those by differences of these, as far as its nodes and its floor allow."""
    rng, step = np.random.default_rng(0), 1e-4
    mean, var = rng.normal(size=(6, 3)), rng.uniform(0.5, 1.5, (6, 3))
    likelihood, labels = gpflow.likelihoods.MultiClass(3), tf.constant(rng.integers(0, 3, (6, 1)))

    def expectations(mean, var):
        return likelihood.variational_expectations(X[:6], mean, var, labels)

    def at(mean):
        return newton_mean.second_order(expectations, likelihood, labels, tf.constant(mean), tf.constant(var))

    moved = [(at(mean + step * e).by_mean - at(mean - step * e).by_mean) / (2.0 * step) for e in np.eye(3)]
    numeric = tf.stack(moved, axis=-1)
    np.testing.assert_allclose(at(mean).by_means, numeric, atol=2e-2 * np.abs(numeric).max())


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [RobustMax(3, 1e-2), gpflow.likelihoods.MultiClass(3)])
def test_a_vgp_of_robust_max_ends_where_its_bound_has_no_slope(likelihood):
    data = X[:30], Y[:30]
    model = gpflow.models.VGP(data, gpflow.kernels.Matern52(), likelihood, num_latent_gps=3)
    result = gpx.fit(model, starts=1, progress=False)
    with tf.GradientTape() as tape:
        loss = model.training_loss()
    slopes = [float(tf.reduce_max(tf.abs(part))) for part in tape.gradient(loss, model.trainable_variables)]
    assert result.status is gpx.Status.CONVERGED
    assert -float(loss) == pytest.approx(result.objective[-1], abs=1e-8)
    assert max(slopes) < 2e-2
