"""GPRNTensor: both posteriors against each other, closed forms, Monte Carlo and GPflow; training and restarts."""

from __future__ import annotations

import functools
import itertools

import gpflow
import numpy as np
import problems
import pytest
import resuming
import scipy.special
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.keras import tf_keras
from marks import others_slow

import gpflow_ext as gpx
from gpflow_ext.gprn import conditional, network, tensor_normal
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.models import GPRNTensor

N, D, K = 14, 6, 2
X, XNEW = problems.inputs(N), problems.inputs(3, seed=7)


def targets(missing: bool = False, outputs: int = D) -> np.ndarray:
    """Draws of a network with two nodes, half of the outputs with the same gaps."""
    rng = np.random.default_rng(1)
    F = np.stack([np.ones(N), problems.latent(X, 1.0, 1.0, seed=3)], axis=1)
    W = np.stack(
        [[problems.latent(X, 1.0, 1.5, seed=10 + 2 * d + k) for k in range(K)] for d in range(outputs)]
    )
    Y = np.einsum("dkn,nk->nd", W, F) + 0.2 * rng.standard_normal((N, outputs))
    if missing:
        Y[:4, ::2] = np.nan
        Y[N - 1, 1] = np.nan
    return Y


def model(
    posterior: str = "collapsed", missing: bool = False, Y: object = None, separate: bool = False, **options
) -> GPRNTensor:
    """A network, ``separate`` with a kernel for each node."""
    kernel = gpflow.kernels.SquaredExponential(lengthscales=1.2)
    new = GPRNTensor(
        (X, targets(missing) if Y is None else Y),
        [kernel, gpflow.kernels.Matern32(lengthscales=0.6)] if separate else kernel,
        gpflow.kernels.SquaredExponential(variance=1.1, lengthscales=1.4),
        K,
        posterior=posterior,
        **{"nugget": 1e-3, "noise_variance": 0.2} | options,
    )
    gpflow.set_trainable(kernel.variance, False)
    return new


def scatter(new: GPRNTensor, seed: int = 0) -> GPRNTensor:
    """Move the variational parameters away from the start."""
    rng = np.random.default_rng(seed)
    if isinstance(new.q, CollapsedPosterior):
        half = rng.normal(size=new.q.prec.shape)
        new.q.prec.assign(half @ half.transpose(0, 2, 1))
        new.q.location.assign(rng.normal(size=new.q.location.shape))
        return new
    for variable in new.q.trainable_variables:
        variable.assign_add(0.3 * rng.normal(size=variable.shape))
    return new


@functools.cache
def trained(missing: bool = False) -> tuple[GPRNTensor, gpx.FitResult]:
    new = model(Y=targets(missing, outputs=60))
    return new, gpx.fit(new, steps=8, hyper_updates=10, joint=True)


@pytest.mark.parametrize(
    ("posterior", "missing", "separate"),
    others_slow(
        itertools.product(["collapsed", "tensor"], [False, True], [False, True]),
        ("collapsed", True, True),
        ("tensor", False, True),
    ),
)
def test_moments_and_density_are_those_of_draws(posterior, missing, separate) -> None:
    """Acceptance check C3: within five standard errors of 40,000 draws, with a fixed seed."""
    new = scatter(model(posterior, missing, separate=separate))
    mean, cov = new.predict_f(XNEW, full_cov=True)
    draws = new.predict_f_samples(XNEW, 40_000).numpy()
    error = np.sqrt(draws.var(axis=0) / len(draws))
    assert (np.abs(draws.mean(axis=0) - mean) < 5.0 * error).all()
    centred = draws - mean
    products = np.einsum("sxd,syd->sdxy", centred, centred)
    error = np.sqrt(products.var(axis=0) / len(draws))
    assert (np.abs(products.mean(axis=0) - cov) < 5.0 * error).all()
    var = new.predict_f(XNEW)[1]
    np.testing.assert_allclose(tf.transpose(tf.linalg.diag_part(cov)), var, rtol=1e-9)
    np.testing.assert_allclose(new.predict_y(XNEW)[1], var + 0.2, rtol=1e-9)
    Y = np.random.default_rng(5).normal(size=(3, D))
    terms = -0.5 * (np.log(2 * np.pi * 0.2) + (Y - draws) ** 2 / 0.2)
    density = scipy.special.logsumexp(terms, axis=0) - np.log(len(draws))
    found = new.predict_log_density((XNEW, Y), draws=5000)
    np.testing.assert_allclose(found, density.sum(axis=1), rtol=0.05)  # the error of either is near 1 %
    Y[:, 1] = np.nan
    np.testing.assert_allclose(
        new.predict_log_density((XNEW, Y), draws=5000), np.delete(density, 1, axis=1).sum(axis=1), rtol=0.05
    )


def test_outputs_of_the_tensor_posterior_are_correlated_as_dense_algebra_says() -> None:
    """Acceptance check C3, between outputs."""
    new = scatter(model("tensor", output_shape=(3, 2), separate_rows=False))
    prior, (x, *_) = new.prior(), XNEW
    mean, cov = new.predict_f(XNEW[:1], full_output_cov=True)
    aw, af = (
        np.linalg.solve(chol @ tf.transpose(chol), kernel(X, x[None]).numpy())[:, 0]
        for chol, kernel in ((prior.weights, new.weight_kernel), (prior.nodes, new.kernel))
    )
    rows, *outputs, column = (factor.numpy() for factor in new.q.weight_factors)
    row, omega = (factor.numpy() for factor in new.q.node_factors)
    half_w, half_f = (aw @ prior.weights.numpy() @ rows), (af @ prior.nodes.numpy() @ row)
    u = np.einsum("n,ndk->dk", aw @ prior.weights.numpy(), new.q.weight_mean.numpy())
    m = af @ prior.nodes.numpy() @ new.q.node_mean.numpy()
    s_w = 1.1 - aw @ new.weight_kernel(X, x[None]).numpy()[:, 0]
    s_f = 1.0 + new.nugget.numpy() - af @ new.kernel(X, x[None]).numpy()[:, 0]
    C = s_f * np.eye(K) + (half_f @ half_f) * omega @ omega.T
    second = C + np.outer(m, m)
    Gamma = np.kron(*(factor @ factor.T for factor in outputs))
    expected = u @ C @ u.T + s_w * np.trace(second) * np.eye(D)
    expected += (half_w @ half_w) * np.sum(column @ column.T * second) * Gamma
    np.testing.assert_allclose(mean[0], u @ m, rtol=1e-6)
    np.testing.assert_allclose(cov[0], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("shape", "missing"),
    others_slow(
        itertools.product([(6,), (3, 2), (2, 2, 2)], [False, True]), ((6,), True), ((2, 2, 2), False)
    ),
)
def test_the_collapsed_bound_is_never_below_the_tensor_bound(shape, missing) -> None:
    """Acceptance check C6, the bounds."""
    new, collapsed = model("tensor", missing, output_shape=shape), model(missing=missing)
    for seed in range(2):
        scatter(new, seed)
        prior = new.prior()
        best = network.bound(collapsed.q.patterns, prior.weights, prior.noise, new.q.nodes(prior))
        assert best >= new.elbo() - 1e-9


@pytest.mark.slow
def test_the_best_factors_of_the_outputs_are_multiples_of_the_identity() -> None:
    """Acceptance check C6, the factors: L-BFGS over q(W) alone, from random ones."""
    new = scatter(model("tensor", output_shape=(3, 2)), seed=3)
    variables = [new.q.weight_mean, *new.q.weight_factors]
    variables = [part.unconstrained_variable for part in variables]
    gpflow.optimizers.Scipy().minimize(
        new.training_loss,
        variables,
        options={"maxiter": 3000, "ftol": 1e-13},
        tf_fun_args={"autograph": False},
    )
    for factor in new.q.weight_factors[1:-1]:
        Gamma = factor.numpy() @ factor.numpy().T
        np.testing.assert_allclose(
            Gamma, np.trace(Gamma) / len(Gamma) * np.eye(len(Gamma)), atol=1e-3 * Gamma[0, 0]
        )
    prior, collapsed = new.prior(), model()
    best = network.bound(collapsed.q.patterns, prior.weights, prior.noise, new.q.nodes(prior))
    assert 0.0 < best - new.elbo() < 0.02 * abs(best)  # the row and column factors cost a little


def test_padding_is_valid_and_looser() -> None:
    whole, padded = model("tensor", output_shape=(2, 3)), model("tensor", output_shape=(2, 4))
    assert padded.elbo() < whole.elbo()
    assert padded.predict_f(XNEW)[0].shape == (3, D)
    np.testing.assert_allclose(padded.predict_f(XNEW)[0], whole.predict_f(XNEW)[0], rtol=1e-12)


@pytest.mark.slow
def test_the_order_of_outputs_and_their_shape_do_not_matter() -> None:
    """Acceptance check C8, the outputs; rotated nodes in `test_sampled_network.py`."""
    order, Y = [3, 0, 5, 1, 4, 2], targets(missing=True)
    a, b = model(Y=Y), model(Y=Y[:, order])
    for new in (a, b):
        new.q.sweep(new.prior())
    np.testing.assert_allclose(a.elbo(), b.elbo(), rtol=1e-10)
    np.testing.assert_allclose(
        a.predict_f(XNEW)[0].numpy()[:, order], b.predict_f(XNEW)[0], rtol=0, atol=1e-8
    )
    shapes = [model("tensor", output_shape=shape).elbo() for shape in ((6,), (2, 3), (3, 2))]
    np.testing.assert_allclose(shapes, shapes[0], rtol=1e-12)


def test_minibatches_of_outputs_give_an_unbiased_bound_and_gradient() -> None:
    """Acceptance check C9, the tensor posterior."""
    new = scatter(model("tensor", missing=True))
    values, slopes = [], []
    variable = new.q.weight_factors[0].unconstrained_variable
    for indices in ([0, 1], [2, 3], [4, 5], None):
        batch = None if indices is None else (tf.constant(indices), new.outputs.gather(indices))
        with tf.GradientTape() as tape:
            values.append(new.elbo(batch))
        slopes.append(tape.gradient(values[-1], variable))
    np.testing.assert_allclose(np.mean(values[:3]), values[3], rtol=1e-10)
    np.testing.assert_allclose(np.mean(slopes[:3], axis=0), slopes[3], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("recipe", ["lbfgs", pytest.param("adam", marks=pytest.mark.slow)])
def test_other_recipes_take_missing_targets_as_well(recipe) -> None:
    new = model("tensor", missing=True)
    before = float(new.elbo())
    gpx.fit(new, recipe=recipe, steps=2, starts=1, progress=False)
    assert float(new.elbo()) > before


@pytest.mark.parametrize("missing", [False, True])
def test_one_node_of_one_starts_as_independent_regression(missing) -> None:
    """Acceptance check C4, through the model."""
    new = model(missing=missing)
    expected = 0.0
    for y in targets(missing).T:
        rows = ~np.isnan(y)
        expected += gpflow.models.GPR(
            (X[rows], y[rows, None]), new.weight_kernel + gpflow.kernels.White(1e-6), noise_variance=0.2
        ).log_marginal_likelihood()
    np.testing.assert_allclose(new.independent_log_likelihood(), expected, rtol=1e-8)


@pytest.mark.parametrize("missing", [pytest.param(False, marks=pytest.mark.slow), True])
def test_coordinate_ascent_never_lowers_the_bound_and_beats_independent_regression(missing) -> None:
    """Acceptance check C7, through the model."""
    new, result = trained(missing)
    assert (np.diff(result.objective) >= -1e-9 * np.abs(result.objective[1:])).all()
    alone = model(Y=targets(missing, outputs=60))
    variables = [*alone.weight_kernel.trainable_variables, *alone.likelihood.trainable_variables]
    gpflow.optimizers.Scipy().minimize(
        lambda: -alone.independent_log_likelihood(), variables, tf_fun_args={"autograph": False}
    )
    assert new.elbo() > alone.independent_log_likelihood()
    copy = gpflow.utilities.deepcopy(new)
    previous = copy.elbo()
    copy.kernel.lengthscales.assign(2.0)
    previous = copy.elbo()
    for _ in range(3):
        copy.q.sweep(copy.prior())
        assert copy.elbo() >= previous - 1e-9
        previous = copy.elbo()


@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_gradients_are_central_differences(posterior) -> None:
    new = scatter(model(posterior, missing=True))
    variables = new.trainable_variables
    with tf.GradientTape() as tape:
        loss = new.training_loss()
    for i, (variable, gradient) in enumerate(zip(variables, tape.gradient(loss, variables), strict=True)):
        unit, middle, ends = np.random.default_rng(i).normal(size=variable.shape), variable.numpy(), []
        for sign in (1.0, -1.0):
            variable.assign(middle + sign * 1e-5 * unit)
            ends.append(new.training_loss())
        variable.assign(middle)
        np.testing.assert_allclose(np.sum(gradient * unit), (ends[0] - ends[1]) / 2e-5, rtol=1e-6, atol=1e-6)


OPTIMISERS = {
    "lbfgs": ("collapsed", {"hyper_updates": 5, "joint": True}),
    "tensor adam on minibatches": ("tensor", {"minibatch_size": 4}),
    "adam": ("collapsed", {"optimizer": lambda: tf_keras.optimizers.Adam(0.05)}),
    "tensor lbfgs": ("tensor", {"optimizer": "lbfgs", "hyper_updates": 5}),
}


@pytest.mark.parametrize(
    "name",
    [
        "lbfgs",
        pytest.param("tensor adam on minibatches", marks=pytest.mark.slow),
        pytest.param("adam", marks=pytest.mark.slow),
        pytest.param("tensor lbfgs", marks=pytest.mark.slow),
    ],
)
def test_training_raises_the_bound_and_resumes_exactly(name, tmp_path) -> None:
    posterior, options = OPTIMISERS[name]

    def build() -> GPRNTensor:
        return model(posterior, missing=True)

    def made() -> dict:
        return {key: value() if callable(value) else value for key, value in options.items()}

    whole, _ = resuming.check(build, tmp_path, steps=4, cut=2, options=made)
    assert whole.elbo() > build().elbo() + 0.5


def test_targets_from_a_file_and_a_stream_are_those_of_the_array(tmp_path) -> None:
    Y = targets(missing=True)
    np.save(tmp_path / "Y.npy", Y)
    blocks = tf.data.Dataset.from_generator(
        lambda: iter([Y[:, :4], Y[:, 4:]]), output_signature=tf.TensorSpec([N, None], tf.float64)
    )
    reference = scatter(model(Y=Y))
    for source in (tmp_path / "Y.npy", str(tmp_path / "Y.npy"), blocks):
        new = scatter(model(Y=source))
        np.testing.assert_allclose(new.elbo(), reference.elbo(), rtol=1e-12)
        for a, b in zip(new.predict_f(XNEW), reference.predict_f(XNEW), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
        for a, b in zip(new.predict_outputs(XNEW, [5, 1]), reference.predict_y(XNEW), strict=True):
            np.testing.assert_allclose(a, b.numpy()[:, [5, 1]], rtol=1e-12)
    tensor = model("tensor", Y=tmp_path / "Y.npy")
    np.testing.assert_allclose(tensor.elbo(), model("tensor", Y=Y).elbo(), rtol=1e-12)
    gpx.fit(tensor, steps=2, minibatch_size=3)
    with pytest.raises(NotImplementedError, match="npy"):
        model("tensor", Y=blocks)


@pytest.mark.parametrize("posterior", ["collapsed", "tensor"])
def test_an_exported_network_serves_the_outputs_that_are_asked_for(posterior, tmp_path) -> None:
    new = scatter(model(posterior, missing=posterior == "collapsed"))
    served = gpx.load_exported(gpx.export(new, tmp_path / "network", example=XNEW))
    mean, var = (part.numpy() for part in new.predict_y(XNEW))
    some = served.predict_outputs(XNEW, [4, 0])
    np.testing.assert_allclose(some["mean"], mean[:, [4, 0]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(some["variance"], var[:, [4, 0]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(served.predict(XNEW)["mean"], mean, rtol=0, atol=1e-12)
    for outputs in ([6], 2, [0.5]):
        with pytest.raises(ValueError, match="from 0 to 5"):
            served.predict_outputs(XNEW, outputs)
    called = served._signatures["predict_outputs"]  # as a server does
    found = called(inputs=tf.constant(XNEW), outputs=tf.constant([4, 6, -1], tf.int32))["mean"].numpy()
    np.testing.assert_allclose(found[:, 0], mean[:, 4], rtol=0, atol=1e-12)
    assert np.isnan(found[:, 1:]).all()


@pytest.mark.parametrize("posterior", [pytest.param("collapsed", marks=pytest.mark.slow), "tensor"])
def test_only_outputs_that_there_are_can_be_predicted(posterior) -> None:
    new = model(posterior)
    for indices in ([D], [-1, 0], tf.constant([0, D])):
        with pytest.raises(ValueError, match="from 0 to 5"):
            new.predict_outputs(XNEW, indices)
    for indices in (2, [0.5], [[1]]):
        with pytest.raises(ValueError, match="list of whole numbers"):
            new.predict_outputs(XNEW, indices)
    assert new.predict_outputs(XNEW, np.array([], int))[0].shape == (3, 0)
    some = tf.function(lambda indices: new.predict_outputs(XNEW, indices)[0])(tf.constant([5, 1]))
    np.testing.assert_allclose(some, tf.gather(new.predict_y(XNEW)[0], [5, 1], axis=1), atol=1e-12)


def test_blocks_of_outputs_change_nothing(monkeypatch) -> None:
    new = scatter(model(missing=True))
    whole = *new.predict_f(XNEW), new.predict_log_density((XNEW, np.ones((3, D))))
    monkeypatch.setattr(conditional, "_CELLS", 6)  # one output in a block
    blocks = *new.predict_f(XNEW), new.predict_log_density((XNEW, np.ones((3, D))))
    for a, b in zip(whole, blocks, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(
    ("posterior", "dtype"),
    [
        ("collapsed", np.float64),
        pytest.param("tensor", np.float32, marks=pytest.mark.slow),
        pytest.param("collapsed", np.float32, marks=pytest.mark.slow),
        pytest.param("tensor", np.float64, marks=pytest.mark.slow),
    ],
)
def test_training_and_prediction_compile_under_xla(posterior, dtype) -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=dtype)):
        new = model(posterior, missing=posterior == "tensor")
        variables = new.trainable_variables[:2]

        def everything(X: tf.Tensor) -> list[tf.Tensor]:
            if posterior == "collapsed":
                new.q.restart(new.prior())
                new.q.sweep(new.prior())
            with tf.GradientTape() as tape:
                loss = new.training_loss()
            return [loss, *tape.gradient(loss, variables), *new.predict_f(X)]

        tolerance = 1e-8 if dtype == np.float64 else 5e-3
        compiled = tf.function(everything, jit_compile=True, autograph=False)(tf.constant(XNEW, dtype))
        for a, b in zip(compiled, everything(tf.constant(XNEW, dtype)), strict=True):
            assert a.dtype == dtype
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def test_priors_enter_the_objective_of_training() -> None:
    new = model()
    new.weight_kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(200.0), np.float64(20.0))
    gpx.fit(new, steps=3)
    assert new.weight_kernel.lengthscales.numpy() > 5.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: model(posterior="diagonal"), "collapsed"),
        (lambda: model(output_shape=(2, 3)), 'posterior="tensor"'),
        (lambda: model("tensor", output_shape=(2, 2)), "at least 6"),
        (lambda: model(noise_variance=20.0), "noise_variance"),
        (lambda: model(Y=targets()[:, 0]), "reshape"),
        (lambda: model(Y=targets()[:-1]), "13"),
        (lambda: model(Y=np.full((N, D), np.nan)), "no target"),
        (lambda: model(Y=np.where(np.isnan(targets()), 0.0, np.inf)), "infinite"),
        (lambda: model("tensor", Y=np.where(np.isnan(targets()), 0.0, np.inf)), "infinite"),
        (lambda: model(Y=tf.data.Dataset.range(3)), "blocks"),
        (lambda: GPRNTensor((X, targets()), problems.kernel(), problems.kernel(), 0), "num_latent"),
        (lambda: model(seed=-1), "seed must be at least 0; got -1"),
        (lambda: gpx.fit(model(), (X, targets())), "without `data`"),
        (lambda: gpx.fit(model(), minibatch_size=2), "tensor posterior"),
        (lambda: gpx.fit(model("tensor"), minibatch_size=7), "from 1 to 6"),
        (lambda: gpx.fit(model("tensor"), minibatch_size=2, optimizer="lbfgs"), "all outputs"),
        (lambda: gpx.fit(model(), hyper_updates=0), "hyper_updates"),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_unsupported_flags_are_refused() -> None:
    new = model()
    kernel = gpflow.kernels.LinearCoregionalization([problems.kernel()] * 2, np.ones((2, 2)))
    for call in (
        lambda: new.predict_f(XNEW, full_cov=True, full_output_cov=True),
        lambda: new.predict_f_samples(XNEW, 2, full_cov=False),
        lambda: new.predict_log_density((XNEW, targets()[:3]), full_cov=True),
        lambda: new.elbo((tf.constant([0]), tf.constant(targets()[:, :1]))),
        lambda: model("tensor").independent_log_likelihood(),
        lambda: GPRNTensor((X, targets()), kernel, problems.kernel(), 2),
    ):
        with pytest.raises(NotImplementedError):
            call()
    assert tensor_normal.output_shape(D) == (2, 3) == model("tensor").q.output_shape
