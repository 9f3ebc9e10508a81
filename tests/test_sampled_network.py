"""Regression networks sampled with their weights integrated out: density, draws, predictions, restarts."""

from __future__ import annotations

import functools

import gpflow
import numpy as np
import problems
import pytest
import scipy.special
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from placing import placed

import gpflow_ext as gpx
from gpflow_ext.compiled import clear_compiled, trace_count
from gpflow_ext.gprn import network
from gpflow_ext.gprn.recipe import gprn
from gpflow_ext.models import GPRNTensor
from gpflow_ext.sampling.draws import Draws
from gpflow_ext.sampling.tuning import Setting

N, D, K = 8, 5, 2
X, XNEW = problems.inputs(N), problems.inputs(3, seed=7)


def targets(missing: bool = True) -> np.ndarray:
    rng = np.random.default_rng(1)
    F = np.stack([np.ones(N), problems.latent(X, 1.0, 1.0, seed=3)], axis=1)
    W = np.stack([[problems.latent(X, 1.0, 1.5, seed=10 + 2 * d + k) for k in range(K)] for d in range(D)])
    Y = np.einsum("dkn,nk->nd", W, F) + 0.2 * rng.standard_normal((N, D))
    if missing:
        Y[:3, ::2] = np.nan
        Y[N - 1, 1] = np.nan
    return Y


def gamma(shape: float, rate: float) -> tfp.distributions.Gamma:
    return tfp.distributions.Gamma(*gpflow.utilities.to_default_float((shape, rate)))


def model(missing: bool = True, priors: bool = True, num_latent: int = K, **options) -> GPRNTensor:
    new = GPRNTensor(
        (X, targets(missing)),
        gpflow.kernels.SquaredExponential(lengthscales=1.2),
        gpflow.kernels.SquaredExponential(variance=1.1, lengthscales=1.4),
        num_latent,
        **{"nugget": 1e-3, "noise_variance": 0.2} | options,
    )
    for held in (new.kernel.variance, new.weight_kernel.variance, new.nugget):
        gpflow.set_trainable(held, False)
    for parameter in (new.kernel.lengthscales, new.weight_kernel.lengthscales, new.likelihood.variance):
        parameter.prior = gamma(3.0, 2.0)
        gpflow.set_trainable(parameter, priors)
    return new


def short(new: GPRNTensor, **options) -> Draws:
    defaults = {"num_samples": 12, "num_chains": 2, "tuner": Setting(0.1, 4), "warm_up": 2, "chunk": 4}
    return gpx.sample(new, **{**defaults, "progress": False, "check": False, "seed": 3} | options)


def position(target, seed: int = 0) -> tf.Tensor:
    return tf.constant(0.5 * np.random.default_rng(seed).standard_normal((3, target.num_dimensions)))


def dense(Y: np.ndarray, F: np.ndarray, gram: np.ndarray, noise: float) -> float:
    """log N(vec Y; 0, Σ_k (f_k f_kᵀ ∘ K_w) ⊗ I + σ²I) in one piece, without the targets that are missing."""
    cov = np.kron(gram * (F @ F.T), np.eye(Y.shape[1])) + noise * np.eye(Y.size)
    there = ~np.isnan(Y.ravel())
    return scipy.stats.multivariate_normal.logpdf(Y.ravel()[there], cov=cov[np.ix_(there, there)])


@pytest.mark.parametrize("missing", [False, True])
def test_the_density_is_that_of_all_targets_in_one_dense_gaussian(missing) -> None:
    new = model(missing)
    target, _ = placed(new, None)
    z, values = position(target), []
    stack = target.values(z)
    held = [
        stack[p].numpy()
        for p in (new.kernel.lengthscales, new.weight_kernel.lengthscales, new.likelihood.variance)
    ]
    for c, x in enumerate(z.numpy()):
        lengths, weight_lengths, noise = (value[c] for value in held)
        chol = np.linalg.cholesky(problems.kernel(1.0, lengths)(X).numpy() + (1e-3 + 1e-6) * np.eye(N))
        V = x[: N * K].reshape(N, K)
        gram = problems.kernel(1.1, weight_lengths)(X).numpy() + 1e-6 * np.eye(N)
        value = dense(targets(missing), chol @ V, gram, noise) + scipy.stats.norm.logpdf(V).sum()
        for parameter, bijector in ((c.parameter, c.bijector) for c in target.coordinates[1:]):
            own = stack[parameter][c]
            value += parameter.prior.log_prob(own) - bijector.inverse_log_det_jacobian(own, 0)
        values.append(float(value))
    np.testing.assert_allclose(target(z), values, rtol=1e-8)


def test_gradients_of_the_density_are_central_differences() -> None:
    target, _ = placed(model(), "fisher")
    z = position(target)
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = tf.reduce_sum(target(z))
    unit = tf.constant(np.random.default_rng(1).standard_normal(z.shape))
    ends = [tf.reduce_sum(target(z + step * unit)) for step in (1e-5, -1e-5)]
    slope = tf.reduce_sum(tape.gradient(value, z) * unit)
    np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=1e-7)


def test_chains_are_independent_and_leave_the_model_as_it_is() -> None:
    new = model()
    before = [variable.numpy() for variable in new.variables]
    target, _ = placed(new, "fisher")
    z = position(target)
    np.testing.assert_allclose(target(z), [target(each[None])[0] for each in z], rtol=1e-12)
    for variable, value in zip(new.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


@pytest.mark.parametrize("missing", [False, True])
def test_the_information_is_that_of_a_gaussian(missing) -> None:
    """½ tr(S⁻¹ ∂S S⁻¹ ∂S), summed over outputs, mean over nodes, with ∂S by automatic differentiation."""
    new, noise = model(missing), tf.constant(0.2, tf.float64)
    F = tf.constant(np.random.default_rng(2).normal(size=(N, K)))
    gram = new.weight_kernel(X)
    with tf.GradientTape() as tape:
        tape.watch(F)
        cov = gram * tf.matmul(F, F, transpose_b=True) + noise * tf.eye(N, dtype=tf.float64)
    slopes, expected = tape.jacobian(cov, F).numpy(), np.zeros((N, N))  # [N, N, N, K]
    for y in targets(missing).T:
        rows = ~np.isnan(y)
        P = np.linalg.inv(cov.numpy()[np.ix_(rows, rows)])
        half = np.einsum("ab,bcik->acik", P, slopes[rows][:, rows])
        expected += 0.5 * np.einsum("acik,cajk->ij", half, half) / K
    np.testing.assert_allclose(network.information(new.q.patterns, gram, F, noise), expected, rtol=1e-9)


def test_the_coordinates_make_the_expected_curvature_of_a_node_that_of_a_standard_normal() -> None:
    """Mean over the nodes of I + L_fᵀJ_kL_f, seen in z."""
    new = model()
    size = N * K
    target, _ = placed(new, "fisher")
    origin = target.position(tf.zeros([1, target.num_dimensions], tf.float64))
    A = (target.position(tf.eye(target.num_dimensions, dtype=tf.float64)) - origin).numpy().T
    np.testing.assert_allclose(origin[0, :size], tf.reshape(new.q.mean(new.prior()), [-1]), rtol=1e-12)
    prior = new.prior()
    gram = tf.matmul(prior.weights, prior.weights, transpose_b=True)
    J = network.information(new.q.patterns, gram, prior.nodes @ new.sampled().V, prior.noise).numpy()
    curvature = np.kron(np.eye(N) + prior.nodes.numpy().T @ J @ prior.nodes.numpy(), np.eye(K))
    found = A[:size, :size].T @ curvature @ A[:size, :size]
    np.testing.assert_allclose(found, np.eye(size), rtol=0, atol=1e-9)


def test_training_forgets_the_draws() -> None:
    new, draws = sampled()
    new.assign_draws(draws)
    gprn(new)
    assert not new.draw_names


def test_rotated_nodes_have_the_same_density_and_are_turned_back() -> None:
    """Acceptance check C8, the nodes: F → FR, W → WR."""
    new = model()
    target, _ = placed(new, None)
    own = target.coordinates[0].parameter
    turn = np.linalg.qr(np.random.default_rng(4).normal(size=(K, K)))[0]
    z = position(target)
    V = tf.reshape(z[:, : N * K], [-1, N, K])
    turned = tf.concat([tf.reshape(V @ turn, [-1, N * K]), z[:, N * K :]], axis=1)
    np.testing.assert_allclose(target(turned), target(z), rtol=1e-12)
    straight, back = (target.values(each)[own] for each in (z, turned))
    np.testing.assert_allclose(straight, back, rtol=0, atol=1e-9)
    F, like = np.random.default_rng(5).normal(size=(2, N, K))
    R = network.rotation(tf.constant(F), tf.constant(like)).numpy()
    np.testing.assert_allclose(R @ R.T, np.eye(K), atol=1e-12)
    others = [np.linalg.norm(F @ scipy.stats.ortho_group.rvs(K, random_state=s) - like) for s in range(50)]
    assert np.linalg.norm(F @ R - like) <= min(others)


def constant_nodes() -> tuple[GPRNTensor, Draws, list[tuple[float, float]]]:
    """A network whose one node is 1 everywhere, and two draws of the other parameters."""
    new = GPRNTensor(
        (X, targets()),
        gpflow.kernels.Constant(),
        gpflow.kernels.SquaredExponential(variance=1.1),
        1,
        nugget=1e-10,
        nugget_bounds=(1e-12, 1.0),
    )
    chol = np.linalg.cholesky(np.ones((N, N)) + (1e-6 + 1e-10) * np.eye(N))
    V = np.linalg.solve(chol, np.ones((N, 1)))
    settings = [(1.4, 0.2), (0.8, 0.05)]
    values = {
        "V": np.stack([V, -V])[None],
        "weight_kernel.lengthscales": np.array([[length for length, _ in settings]]),
        "likelihood.variance": np.array([[noise for _, noise in settings]]),
    }
    return new, Draws(values, {"log_density": np.zeros((1, 2))}, Setting(0.1, 1), 0.0), settings


def test_predictions_with_one_constant_node_are_mixtures_of_gpflows_regressions() -> None:
    """K = 1, F = 1: the jitter of the node, 1e-6, is the error."""
    new, draws, settings = constant_nodes()
    new.assign_draws(draws)
    Ynew, means, covs, densities = np.random.default_rng(3).normal(size=(3, D)), [], [], []
    for length, noise in settings:
        kernel = problems.kernel(1.1, length) + gpflow.kernels.White(1e-6)
        parts = []
        for y, ynew in zip(targets().T, Ynew.T, strict=True):
            rows = ~np.isnan(y)
            gpr = gpflow.models.GPR((X[rows], y[rows, None]), kernel, noise_variance=noise)
            m, v = gpr.predict_f(XNEW, full_cov=True)
            parts.append((m[:, 0], v[0], gpr.predict_log_density((XNEW, ynew[:, None]))))
        for held, own in zip((means, covs, densities), zip(*parts, strict=True), strict=True):
            held.append(np.array(own))
    m, c = np.array(means), np.array(covs)  # [S, D, X], [S, D, X, X]
    apart = m - m.mean(axis=0)
    total = c.mean(axis=0) + np.einsum("sdx,sdy->dxy", apart, apart) / 2.0
    mean, cov = new.predict_f(XNEW, full_cov=True)
    np.testing.assert_allclose(mean, m.mean(axis=0).T, atol=1e-5)
    np.testing.assert_allclose(cov, total, atol=1e-5)
    _, var = new.predict_f(XNEW)
    np.testing.assert_allclose(var, np.einsum("dxx->xd", total), atol=1e-5)
    np.testing.assert_allclose(new.predict_y(XNEW)[1], var + 0.125, rtol=1e-12)
    some = new.predict_outputs(XNEW, [4, 0])
    np.testing.assert_allclose(some[0], mean.numpy()[:, [4, 0]], rtol=1e-12)
    np.testing.assert_allclose(some[1], var.numpy()[:, [4, 0]] + 0.125, rtol=1e-12)
    density = scipy.special.logsumexp(densities, axis=0).sum(axis=0) - D * np.log(2.0)
    np.testing.assert_allclose(new.predict_log_density((XNEW, Ynew)), density, atol=1e-3)


@functools.cache
def sampled() -> tuple[GPRNTensor, Draws]:
    new = model()
    return new, short(new, num_samples=3)


def test_draws_of_the_function_have_the_moments_of_the_mixture() -> None:
    """Five standard errors of 4,000 draws, with a fixed seed."""
    new, draws = sampled()
    new.assign_draws(draws)
    mean, cov = new.predict_f(XNEW, full_cov=True)
    samples = new.predict_f_samples(XNEW, 4000).numpy()
    assert (np.abs(samples.mean(axis=0) - mean) < 5.0 * samples.std(axis=0) / np.sqrt(len(samples))).all()
    apart = samples - mean
    products = np.einsum("sxd,syd->sdxy", apart, apart)
    assert (np.abs(products.mean(axis=0) - cov) < 5.0 * products.std(axis=0) / np.sqrt(len(products))).all()
    across = new.predict_f(XNEW, full_output_cov=True)[1]
    products = np.einsum("sxd,sxe->sxde", apart, apart)  # outputs share a draw's nodes
    assert (
        np.abs(products.mean(axis=0) - across) < 5.0 * products.std(axis=0) / np.sqrt(len(products))
    ).all()
    turned = Draws(
        {**draws.values, "V": draws.values["V"][..., ::-1]}, draws.stats, draws.setting, draws.seconds
    )
    new.assign_draws(turned)  # the nodes in another order
    for a, b in zip(new.predict_f(XNEW, full_cov=True), (mean, cov), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    new.assign_draws(None)
    assert not np.allclose(new.predict_f(XNEW)[0], mean)


def test_a_second_model_predicts_by_the_functions_of_the_first() -> None:
    new, draws = sampled()
    moved = {name: 1.1 * value for name, value in draws.values.items()}
    other = model(noise_variance=0.3)
    there = XNEW, targets(False)[:3]

    def predicted(sampled_model, held) -> list[tf.Tensor]:
        sampled_model.assign_draws(Draws(held, draws.stats, draws.setting, draws.seconds))
        found = [*sampled_model.predict_f(XNEW), *sampled_model.predict_f(XNEW, full_cov=True)]
        found += [sampled_model.predict_log_density(there), sampled_model.predict_f_samples(XNEW, 5)]
        sampled_model.assign_draws(None)
        return found

    first, before = predicted(new, draws.values), trace_count()
    second = predicted(other, moved)
    assert trace_count() == before
    clear_compiled()
    for shared, own, its in zip(second, predicted(other, moved), first, strict=True):
        np.testing.assert_array_equal(shared, own)
        assert not np.allclose(shared, its)
    assert trace_count() > before


def test_predictions_are_those_of_importance_sampling() -> None:
    """One node, four data, θ held. Four errors of both estimates: one in 10,000 sound runs would fail."""
    rows, noise = slice(0, 4), 0.5
    Y = 0.5 * targets(False)[rows, :3]
    kernels = problems.kernel(1.0, 1.2), problems.kernel(1.1, 1.4)
    new = GPRNTensor((X[rows], Y), *kernels, 1, nugget=1e-3, noise_variance=noise)
    for part in (new.kernel, new.weight_kernel, new.likelihood, new.nugget):
        gpflow.set_trainable(part, False)
    for _ in range(20):
        new.q.sweep(new.prior())
    variational = new.predict_f(XNEW[:1])[0].numpy()[0]
    draws = gpx.sample(new, 500, 4, tuner=Setting(0.6, 5), thin=3, progress=False, check=False, seed=2)
    new.assign_draws(draws, most=None)
    found = new.predict_f(XNEW[:1])[0].numpy()[0]

    prior = new.prior()
    gram, node_gram = ((chol @ tf.transpose(chol)).numpy() for chol in (prior.weights, prior.nodes))
    F = np.random.default_rng(8).standard_normal((200_000, 4)) @ prior.nodes.numpy().T
    cov = gram * F[:, :, None] * F[:, None, :] + noise * np.eye(4)
    solved = np.linalg.solve(cov, np.broadcast_to(Y, (len(F), *Y.shape)))
    logs = -0.5 * (np.einsum("nd,snd->s", Y, solved) + Y.shape[1] * np.linalg.slogdet(cov)[1])
    weights = scipy.special.softmax(logs)
    own = F @ np.linalg.solve(node_gram, new.kernel(X[rows], XNEW[:1]).numpy())  # E f(x*) given F, [S, 1]
    cross = new.weight_kernel(X[rows], XNEW[:1]).numpy()[:, 0] * F * own
    means = np.einsum("sn,snd->sd", cross, solved)  # E W(x*)f(x*) given F
    expected = weights @ means
    spread = np.sqrt(weights @ (means - expected) ** 2)
    size = 1.0 / np.sum(weights**2)
    mcmc = min(draws.diagnose().bulk_ess.values())
    assert min(size, mcmc) > 500.0
    error = spread * np.sqrt(1.0 / size + 1.0 / mcmc)
    assert (np.abs(found - expected) < 4.0 * error).all()
    assert (np.abs(variational - expected) < 0.5 * spread).all()


def test_a_run_that_resumes_has_the_same_draws_bit_by_bit(tmp_path) -> None:
    """Also in a new network, whose own nodes are others than those that the chains left from."""

    def moved() -> GPRNTensor:
        new = model(priors=False)
        new.q.sweep(new.prior())
        return new

    whole = short(moved())
    short(moved(), num_samples=4, checkpoint_dir=tmp_path)
    resumed = short(model(priors=False), checkpoint_dir=tmp_path)
    for name, value in whole.values.items():
        np.testing.assert_array_equal(resumed.values[name], value)
    np.testing.assert_array_equal(resumed.stats["energy"], whole.stats["energy"])


@pytest.mark.slow
def test_an_exported_network_serves_the_mixture(tmp_path) -> None:
    new, draws = sampled()
    new.assign_draws(draws)
    served = gpx.load_exported(gpx.export(new, tmp_path / "network", example=XNEW))
    for name, part in zip(("mean", "variance"), new.predict_y(XNEW), strict=True):
        np.testing.assert_allclose(served.predict(XNEW)[name], part, rtol=0, atol=1e-11)
        some = served.predict_outputs(XNEW, [3, 1])[name]
        np.testing.assert_allclose(some, part.numpy()[:, [3, 1]], rtol=0, atol=1e-11)
    Y = targets(False)[:3]
    np.testing.assert_allclose(
        served.predict_log_density(XNEW, Y), new.predict_log_density((XNEW, Y)), rtol=1e-9
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gpx.sample(GPRNTensor((X, targets()), problems.kernel(), problems.kernel(), 2)), "nugget"),
        (lambda: short(model(), precondition="vb"), "'fisher'"),
        (lambda: short(model(), tuner="gibbs"), "SGPMCFreeForm"),
        (lambda: model(num_latent=1).assign_draws(sampled()[1]), "another model"),
    ],
)
def test_wrong_calls_say_what_to_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_the_tensor_posterior_is_not_sampled() -> None:
    with pytest.raises(NotImplementedError, match="collapsed"):
        short(model(posterior="tensor"))
