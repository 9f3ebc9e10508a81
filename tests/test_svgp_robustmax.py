"""SVGPRobustMax: the bound of GPflow's SVGP, natural gradients that find its maximum, exact restarts."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import resuming
import tensorflow as tf
from gpflow.keras import tf_keras

import gpflow_ext as gpx
from gpflow_ext.likelihoods import RobustMax
from gpflow_ext.models import SVGPRobustMax
from gpflow_ext.numerics import linalg, triangular

DATA = problems.classes(60, lengthscale=1.0)


def model(num_inducing: int = 12, learn: bool = True, **options) -> SVGPRobustMax:
    kernel = gpflow.kernels.SquaredExponential(2.0, 1.0) + gpflow.kernels.White(0.01)
    options = {"learn_epsilon": learn} | options
    new = SVGPRobustMax(kernel, 3, DATA[0][:num_inducing].copy(), num_data=len(DATA[0]), **options)
    for part in (new.kernel, new.inducing_variable):
        gpflow.set_trainable(part, learn)
    return new


def scatter(new: SVGPRobustMax, seed: int = 0) -> SVGPRobustMax:
    """Move q away from the prior."""
    rng = np.random.default_rng(seed)
    K, M, _ = new.q_sqrt.shape
    new.q_mu.assign(rng.normal(size=(M, K)))
    new.q_sqrt.assign(np.tril(0.2 * rng.normal(size=(K, M, M))) + 0.7 * np.eye(M))
    return new


def twin(new: SVGPRobustMax) -> gpflow.models.SVGP:
    """GPflow's model with the same parts."""
    likelihood = RobustMax(3, 1e-3)
    return gpflow.models.SVGP(
        new.kernel,
        likelihood,
        new.inducing_variable,
        num_latent_gps=3,
        q_mu=new.q_mu.numpy(),
        q_sqrt=new.q_sqrt.numpy(),
        num_data=new.num_data,
    )


def values(new: tf.Module) -> list[np.ndarray]:
    return [variable.numpy() for variable in new.variables]


@pytest.mark.parametrize("size", [3, 70, 300])
def test_triangular_products_are_those_of_dense_matrices(size: int) -> None:
    rng = np.random.default_rng(0)
    F, A, w = rng.normal(size=(2, size, size)), rng.normal(size=(size, 5)), rng.normal(size=(5, 2))
    L = np.tril(F)
    norms = lambda F, A: tf.reduce_sum(tf.einsum("pji,jn->pin", F, A) ** 2, axis=1)  # noqa: E731
    with tf.GradientTape(persistent=True) as tape:
        factor, columns = tf.constant(F), tf.constant(A)
        tape.watch([factor, columns])
        ours = tf.reduce_sum(triangular.squared_norms(factor, columns[None]) * w)
        dense = tf.reduce_sum(tf.transpose(norms(tf.linalg.band_part(factor, -1, 0), columns)) * w)
    np.testing.assert_allclose(ours, dense, rtol=1e-12)
    for a, b in zip(
        tape.gradient(ours, [factor, columns]), tape.gradient(dense, [factor, columns]), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10 * size)
    gram = np.einsum("mb,bp,nb->pmn", A, w, A)
    np.testing.assert_allclose(
        np.tril(triangular.weighted_gram(tf.constant(A)[None], tf.constant(w))),
        np.tril(gram),
        atol=1e-12 * size,
    )
    good = L / size + 2.0 * np.eye(size)
    np.testing.assert_allclose(triangular.inverse(tf.constant(good)), np.linalg.inv(good), atol=1e-13)


def test_bound_and_gradient_are_those_of_gpflow() -> None:
    ours = scatter(model())
    theirs = twin(ours)
    np.testing.assert_allclose(ours.elbo(DATA), theirs.elbo(DATA), rtol=1e-12)
    rows = (DATA[0][:20], DATA[1][:20])
    np.testing.assert_allclose(ours.elbo(rows), theirs.elbo(rows), rtol=1e-12)
    np.testing.assert_allclose(ours.prior_kl(), theirs.prior_kl(), rtol=1e-12)
    gradients = []
    for each in (ours, theirs):
        variables = [*each.kernel.trainable_variables, *each.inducing_variable.trainable_variables]
        variables += [each.q_mu.unconstrained_variable, each.q_sqrt.unconstrained_variable]
        with tf.GradientTape() as tape:
            loss = each.training_loss(DATA)
        gradients.append(tape.gradient(loss, variables))
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)
    for options in ({}, {"full_cov": True}, {"full_output_cov": True}):
        expected = theirs.predict_f(DATA[0][:7], **options)
        for found in (
            ours.predict_f(DATA[0][:7], **options),
            ours.posterior().predict_f(DATA[0][:7], **options),
        ):
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_classes_of_many_inputs_by_name() -> None:
    new = scatter(model())
    predictor = gpx.ClassPredictor(new, ["a", "b", "c"], batch_size=25)
    p = predictor.probabilities(DATA[0])
    np.testing.assert_allclose(p, new.predict_y(DATA[0])[0], atol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-12)
    names, best = predictor.top(DATA[0], 2)
    assert (names[:, 0] == predictor.labels(DATA[0])).all()
    np.testing.assert_array_equal(best, np.sort(p, axis=1)[:, :0:-1])
    assert (names[:, 1] == np.array(["a", "b", "c"])[np.argsort(p, axis=1)[:, 1]]).all()
    assert predictor.probabilities(DATA[0][:0]).shape == (0, 3)
    assert (gpx.ClassPredictor(new).labels(DATA[0]) == p.argmax(axis=1)).all()
    for call, message in (
        (lambda: gpx.ClassPredictor(new, ["a"]), "3 classes"),
        (lambda: predictor.top(DATA[0], 4), "from 1 to 3"),
        (lambda: predictor.probabilities(DATA[0][:, :1]), "X has 1 columns, and the inputs of the model"),
        (lambda: gpx.ClassPredictor(None), "`model` must be of the class GPModel; got None"),
        (lambda: predictor.labels(DATA[0][0]), "two axes"),
        (lambda: gpx.ClassPredictor(gpflow.models.GPR(problems.continuous(), problems.kernel())), "Gaussian"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize(("name", "shape"), [("q_mu", (4, 3)), ("q_sqrt", (3, 4, 4)), ("q_sqrt", (2, 5, 5))])
def test_an_initial_q_of_another_shape_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=f"`{name}` must be .*5.*; its shape is"):
        model(5, **{name: np.ones(shape)})


def test_one_step_of_length_one_is_the_natural_gradient_of_gpflow() -> None:
    """From a q at which the precision after the step is positive definite."""
    ours = model(learn=False)
    gpx.fit(ours, DATA, steps=12, gamma=0.3)
    reference = twin(ours)
    for part in (reference.kernel, reference.inducing_variable):
        gpflow.set_trainable(part, False)
    gamma = 0.05
    gpflow.optimizers.NaturalGradient(gamma).minimize(
        reference.training_loss_closure(DATA, compile=False), [(reference.q_mu, reference.q_sqrt)]
    )
    gpx.fit(ours, DATA, steps=1, gamma=10 * gamma)  # the first step is a tenth of γ
    np.testing.assert_allclose(ours.q_mu, reference.q_mu, atol=1e-8)
    ours_cov, cov = (q @ q.transpose(0, 2, 1) for q in (ours.q_sqrt.numpy(), reference.q_sqrt.numpy()))
    np.testing.assert_allclose(ours_cov, cov, atol=1e-8)


@pytest.mark.slow
def test_large_factorisations_by_halves_do_what_one_operation_does(monkeypatch) -> None:
    ends = []
    for leaf in (linalg.LEAF, 5):
        monkeypatch.setattr(linalg, "LEAF", leaf)
        new = model()
        gpx.fit(new, DATA, steps=3, minibatch_size=20)
        ends.append(values(new))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_natural_gradients_and_lbfgs_find_the_same_maximum() -> None:
    ours, reference = model(learn=False), model(learn=False)
    result = gpx.fit(ours, DATA, steps=400, gamma=0.5)
    options = {"maxiter": 3000, "ftol": 1e-14, "gtol": 1e-9}
    gpflow.optimizers.Scipy().minimize(
        reference.training_loss_closure(DATA), reference.trainable_variables, options=options
    )
    np.testing.assert_allclose(ours.elbo(DATA), reference.elbo(DATA), rtol=1e-6)
    assert (np.diff(result.objective[100:]) > -1e-6).all()


def adadelta() -> tf_keras.optimizers.Optimizer:
    return tf_keras.optimizers.Adadelta(1.0, rho=0.9, epsilon=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"hold": 8, "decay_steps": 40},
        pytest.param(lambda: {"gamma": None, "optimizer": adadelta(), "hold": 8}, marks=pytest.mark.slow),
    ],
    ids=["natural gradients and adam", "adadelta"],
)
def test_minibatches_raise_the_bound_and_resume_exactly(options, tmp_path) -> None:
    made: list[SVGPRobustMax] = []
    lengthscales: list[float] = []

    def build() -> SVGPRobustMax:
        made.append(model())
        return made[-1]

    def watched() -> dict:
        kernel = made[0].kernel.kernels[0]
        return {
            "minibatch_size": 20,
            "monitor": lambda _: lengthscales.append(float(kernel.lengthscales.numpy())),
        } | options()

    whole, _ = resuming.check(build, tmp_path, DATA, steps=16, cut=6, options=watched)
    assert whole.elbo(DATA) > model().elbo(DATA) + 1.0
    assert len(set(lengthscales[:8])) == 1  # held
    assert len(set(lengthscales[7:16])) == 9


@pytest.mark.slow
def test_early_stopping_returns_to_the_best_parameters(tmp_path) -> None:
    held_out = problems.classes(40, lengthscale=1.0, seed=9)
    options = {"minibatch_size": 20, "rate": 0.3, "validation": held_out, "validate_every": 2, "patience": 3}
    whole, resumed, scores = model(), model(), []

    def watch(step: int) -> None:
        if step % 2 == 0:
            scores.append(float(-tf.reduce_mean(whole.predict_log_density(held_out))))

    result = gpx.fit(whole, DATA, steps=200, monitor=watch, **options)
    assert result.status is gpx.Status.STOPPED_EARLY
    assert np.argmin(scores) == len(scores) - 4  # three evaluations ago
    np.testing.assert_allclose(gpx.metrics.evaluate(whole, held_out)["nlpd"], min(scores), rtol=1e-12)
    gpx.fit(model(), DATA, steps=4, checkpoint_dir=tmp_path, **options)
    assert gpx.fit(resumed, DATA, steps=200, checkpoint_dir=tmp_path, **options).steps == result.steps
    for a, b in zip(values(resumed), values(whole), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_bar_shows_bound_accuracy_speed_and_time_left(capfd, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    held_out = problems.classes(40, lengthscale=1.0, seed=9)
    options = {"minibatch_size": 20, "validation": held_out, "validate_every": 2}
    gpx.fit(model(), DATA, steps=3, progress=True, **options)
    shown = capfd.readouterr().err
    for part in ("objective -", "accuracy 0.", "held-out NLPD 1.", "/s", "3/3", "0:00:0"):
        assert part in shown, part


def test_epsilon_is_learnt_under_its_prior() -> None:
    X, Y = DATA
    wrong = Y.copy()
    wrong[::5] = (wrong[::5] + 1) % 3
    new = model(learn=False, epsilon=0.01, learn_epsilon=True)
    prior = new.likelihood.epsilon.prior
    grid = np.linspace(0.001, 0.2, 2000)
    np.testing.assert_allclose(grid[np.argmax(prior.log_prob(grid))], 0.01, atol=1e-4)
    np.testing.assert_allclose(new.log_prior_density(), prior.log_prob(np.float64(0.01)), rtol=1e-9)
    gpx.fit(new, (X, wrong), steps=60, gamma=0.3, rate=0.2)
    assert 0.03 < new.likelihood.epsilon.numpy() < 0.25


@pytest.mark.slow
def test_a_dataset_of_minibatches_trains_and_its_labels_are_checked() -> None:
    good = tf.data.Dataset.from_tensor_slices(DATA).repeat().batch(20)
    ours = model()
    before = ours.elbo(DATA)
    gpx.fit(ours, good, steps=10)
    assert ours.elbo(DATA) > before
    bad = tf.data.Dataset.from_tensor_slices((DATA[0], DATA[1] + 1.0)).repeat().batch(20)
    with pytest.raises(ValueError, match="Y - 1"):
        gpx.fit(model(), bad, steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_training_step_compiles_under_xla(dtype) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype, jitter=1e-4)):
        data = tuple(part.astype(dtype) for part in DATA)
        objectives = []
        for jit in (True, False):
            kernel = gpflow.kernels.SquaredExponential(2.0, 1.0) + gpflow.kernels.White(0.01)
            new = SVGPRobustMax(kernel, 3, data[0][:12].copy(), num_data=60)
            objectives.append(gpx.fit(new, data, steps=3, minibatch_size=20, jit_compile=jit).objective)
        np.testing.assert_allclose(*objectives, rtol=1e-8 if dtype == np.float64 else 1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: model(epsilon=0.0), "positive"),
        (lambda: model(epsilon=0.9), "epsilon"),
        (lambda: SVGPRobustMax(problems.kernel(), 1, DATA[0], num_data=60), "at least 2"),
        (lambda: gpx.fit(model()), r"data=\(X, Y\)"),
        (lambda: gpx.fit(model(), (DATA[0], DATA[1] + 1.0)), "Y - 1"),
        (lambda: gpx.fit(model(), DATA, gamma=2.0), "gamma"),
        (lambda: gpx.fit(model(), DATA, hold=-1), "hold"),
        (lambda: gpx.fit(model(), DATA, decay_steps=0), "decay_steps"),
        (lambda: gpx.fit(model(), DATA, optimizer="adam"), "tf_keras optimiser"),
        (lambda: gpx.fit(model(), DATA, validation=(DATA[0], DATA[1] + 1.0)), "Y - 1"),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_mixtures_are_refused_with_the_way_out() -> None:
    kernel = gpflow.kernels.LinearCoregionalization([problems.kernel()], np.ones((3, 1)))
    with pytest.raises(NotImplementedError, match="SVGP the likelihood"):
        SVGPRobustMax(kernel, 3, DATA[0], num_data=60)
