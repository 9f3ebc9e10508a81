"""`SGPMCFreeForm`: its density, its approximation and coordinates, and draws against what is known exactly."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from pathlib import Path

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from marks import others_slow
from placing import placed
from scipy import stats

import gpflow_ext as gpx
from gpflow_ext.likelihoods import BernoulliProbit, PoissonLog, RobustMax
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics import stacked
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.prediction.densities import NODES
from gpflow_ext.sampling.coordinates.sites import ConditionalSites
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.target import Target
from gpflow_ext.sampling.tuning import Setting

tfd, tfb = tfp.distributions, tfp.bijectors
N, M = 16, 5
Z = problems.inputs(M, seed=5)


def gamma(shape: float, rate: float) -> tfd.Distribution:
    return tfd.Gamma(np.float64(shape), np.float64(rate))


def kernel(ard: bool = False) -> gpflow.kernels.Kernel:
    new = gpflow.kernels.SquaredExponential(lengthscales=np.ones(2) if ard else 1.0)
    new.variance.prior, new.lengthscales.prior = gamma(2.0, 1.0), gamma(3.0, 2.0)
    return new


def classes() -> tuple[np.ndarray, np.ndarray]:
    X = problems.inputs(N)
    return X, (np.digitize(X[:, 0], [-0.7, 0.7]).astype(float))[:, None]


def gaussian_likelihood() -> gpflow.likelihoods.Likelihood:
    likelihood = gpflow.likelihoods.Gaussian(0.3)
    likelihood.variance.prior = gamma(2.0, 2.0)
    return likelihood


MODELS = {
    "poisson": lambda: SGPMCFreeForm(problems.counts(N), kernel(), PoissonLog(), inducing_variable=Z),
    "binary ard": lambda: SGPMCFreeForm(
        problems.binary(N), kernel(True), BernoulliProbit(), inducing_variable=Z
    ),
    "gaussian": lambda: SGPMCFreeForm(
        problems.continuous(N), kernel(), gaussian_likelihood(), inducing_variable=Z
    ),
    "classes": lambda: SGPMCFreeForm(classes(), kernel(), RobustMax(3, 1e-3), inducing_variable=Z),
    "mean": lambda: SGPMCFreeForm(
        problems.counts(N), kernel(), PoissonLog(), constant(), inducing_variable=Z
    ),
}


def constant() -> gpflow.functions.Constant:
    mean = gpflow.functions.Constant(0.4)
    mean.c.prior = tfd.Normal(np.float64(0.0), np.float64(1.0))
    return mean


def points(target: Target, members: int = 3) -> tf.Tensor:
    start = target.start()
    return start + 0.3 * np.random.default_rng(0).standard_normal((members, target.num_dimensions))


def quick(model: SGPMCFreeForm, **changes) -> gpx.Draws:
    """Sample from a rough Gaussian approximation, without tuning."""
    if "approximate" not in changes:
        gpx.gaussian_approximation(model, steps=20, free_inducing=False)
    options = {
        "tuner": Setting(0.5, 4),
        "warm_up": 20,
        "chunk": 20,
        "progress": False,
        "check": False,
        "seed": 1,
    }
    return gpx.sample(model, **(options | changes))


@pytest.mark.parametrize("name", MODELS)
def test_the_density_is_that_of_gpflows_sgpmc(name: str) -> None:
    model = MODELS[name]()
    target = Target(model, model.density.log_likelihoods)
    x = points(target)
    values = target(x).numpy()
    for row, value in enumerate(values):
        stack, jacobian = target.values(x), 0.0
        for c in target.coordinates:
            c.parameter.assign(stack[c.parameter][row])
            lower = 1e-6 if c.name == "likelihood.variance" else 0.0  # GPflow's bound of a noise variance
            if c.name not in ("V", "mean_function.c"):
                jacobian += float(tf.reduce_sum(tf.math.log(c.parameter - lower)))
        likelihood = gpflow.models.SGPMC.log_likelihood_lower_bound(model)
        priors = sum(
            float(tf.reduce_sum(c.parameter.prior.log_prob(c.parameter))) for c in target.coordinates
        )
        np.testing.assert_allclose(value, float(likelihood) + priors + jacobian, rtol=1e-9)
        np.testing.assert_allclose(model.log_likelihood_lower_bound(), likelihood, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "precondition"),
    others_slow(
        itertools.product(MODELS, ["vb", "conditional"]),
        *[("poisson", "vb"), ("mean", "vb"), ("classes", "conditional"), ("binary ard", "conditional")],
    ),
)
def test_gradients_are_central_differences(name: str, precondition: str) -> None:
    model = MODELS[name]()
    gpx.gaussian_approximation(model, steps=5, free_inducing=False)
    target, _ = placed(model, precondition)
    z = 0.5 * tf.constant(np.random.default_rng(0).standard_normal((2, target.num_dimensions)))
    with tf.GradientTape() as tape:
        tape.watch(z)
        value = target(z)
    ours, step = tape.gradient(value, z).numpy(), 1e-5
    for direction in np.random.default_rng(1).standard_normal((3, *z.shape)):
        numeric = (target(z + step * direction) - target(z - step * direction)).numpy() / (2.0 * step)
        np.testing.assert_allclose((ours * direction).sum(1), numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", others_slow(["poisson", "classes", "mean"], "classes", "mean"))
def test_the_conditional_coordinates_are_a_change_of_variables(name: str) -> None:
    """log π(z, θ) − log π(v(z, θ), θ) = log |∂v/∂z|, for each of P latent functions."""
    model = MODELS[name]()
    gpx.gaussian_approximation(model, steps=5, free_inducing=False)
    here, _ = placed(model, "conditional")
    plain = Target(model, model.density.log_likelihoods)
    z = 0.5 * tf.constant(np.random.default_rng(0).standard_normal((2, here.num_dimensions)))
    with tf.GradientTape() as tape:
        tape.watch(z)
        v = tf.reshape(here.values(here.position(z))[model.V], [2, -1])
    jacobian = tape.batch_jacobian(v, z)[:, :, : v.shape[1]]
    x = tf.concat([v, here.position(z)[:, v.shape[1] :]], axis=1)
    difference = here(z) - plain(x)
    np.testing.assert_allclose(difference, tf.linalg.slogdet(jacobian)[1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", others_slow(["gaussian", "mean"], "mean"))
def test_vb_coordinates_move_with_the_conditional_mean(name: str) -> None:
    """A first-order step of θ moves v as the approximation's mean does: the rest is of second order."""
    model = MODELS[name]()
    gpx.gaussian_approximation(model, steps=30)
    target, _ = placed(model, "vb")
    rest = target.num_dimensions - M

    def conditional(x: tf.Tensor) -> tf.Tensor:
        at = target.values(tf.concat([tf.zeros([1, M], tf.float64), x[:, M:]], axis=1))
        return ConditionalSites(model.density).mean(at)[0]

    def gap(length: float) -> float:
        z = tf.constant([[0.0] * M + [length] * rest], tf.float64)
        moved = tf.reshape(target.position(z)[:, :M], [M, 1]) - model.q_mu
        expected = conditional(target.position(z)) - conditional(target.position(tf.zeros_like(z)))
        assert np.abs(expected).max() > 0.01 * length
        return float(tf.reduce_max(tf.abs(moved - expected)))

    assert gap(0.1) < 0.3 * gap(0.2)


@pytest.mark.parametrize("whiten", others_slow([True, False], False))
def test_the_gaussian_approximation_is_followed(whiten: bool) -> None:
    """With Gaussian noise q is exact, and so are the sites that it gives: m(θ) and B(θ) are its mean and precision."""
    data = problems.continuous(N)
    svgp = gpflow.models.SVGP(kernel(), gpflow.likelihoods.Gaussian(0.3), Z, whiten=whiten)
    natural = gpflow.optimizers.NaturalGradient(gamma=1.0)
    natural.minimize(svgp.training_loss_closure(data), [(svgp.q_mu, svgp.q_sqrt)])
    model = SGPMCFreeForm.from_gaussian(svgp, data)
    X = problems.inputs(7, seed=3)
    np.testing.assert_allclose(model.predict_f(X)[0], svgp.predict_f(X)[0], rtol=0, atol=1e-8)
    np.testing.assert_allclose(model.prec, 1.0 / 0.3, rtol=1e-6)
    zero = Stack([(model.V, tf.zeros([1, M, 1], tf.float64))])
    np.testing.assert_allclose(ConditionalSites(model.density).mean(zero)[0], model.q_mu, rtol=0, atol=1e-7)
    assert model.kernel is not svgp.kernel


def fixed_regression(Z: np.ndarray, data) -> SGPMCFreeForm:
    model = SGPMCFreeForm(data, kernel(), gpflow.likelihoods.Gaussian(0.3), inducing_variable=Z)
    gpflow.set_trainable(model.kernel, False)
    gpflow.set_trainable(model.likelihood, False)
    return model


def test_the_normaliser_is_the_bound_of_sgpr() -> None:
    """With Gaussian noise and fixed θ the log density is quadratic in v: its integral is in closed form."""
    data = problems.continuous(N)
    model = fixed_regression(Z, data)
    target = Target(model, model.density.log_likelihoods)
    basis = np.concatenate([np.zeros((1, M)), np.eye(M), -np.eye(M)])
    pairs = np.array([np.eye(M)[i] + np.eye(M)[j] for i in range(M) for j in range(M)])
    at, both = target(tf.constant(basis)).numpy(), target(tf.constant(pairs)).numpy().reshape(M, M)
    slope = (at[1 : M + 1] - at[M + 1 :]) / 2.0
    precision = -(both - at[1 : M + 1][:, None] - at[1 : M + 1][None] + at[0])
    integral = at[0] + 0.5 * slope @ np.linalg.solve(precision, slope)
    integral += 0.5 * M * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    expected = gpflow.models.SGPR(data, kernel(), Z, noise_variance=0.3).elbo()
    np.testing.assert_allclose(integral, expected, rtol=1e-9)


def test_draws_of_a_gaussian_posterior_are_those_of_exact_regression() -> None:
    """Z = X, fixed θ. z <= 4 for 2N numbers: a false failure in 500 seeds."""
    import arviz

    data = problems.continuous(N)
    model = fixed_regression(data[0], data)
    draws = quick(model, num_samples=1500, num_chains=4, tuner=Setting(0.6, 4), precondition="vb")
    values = Stack([(model.V, tf.constant(draws.flat()["V"]))])
    f = model.density.moments(values, tf.constant(data[0]))[0].numpy()[..., 0].reshape(1500, 4, N)
    mean, var = (
        part.numpy() for part in gpflow.models.GPR(data, kernel(), noise_variance=0.3).predict_f(data[0])
    )
    for n in range(N):
        chain = f[:, :, n].T
        for function, expected in ((chain, mean[n, 0]), ((chain - mean[n, 0]) ** 2, var[n, 0])):
            error = function.std() / np.sqrt(float(arviz.ess(function)))
            assert abs(function.mean() - float(expected)) <= 4.0 * error + 1e-4


def test_a_kernel_that_is_held_is_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean and the likelihood may still be sampled; three latent functions and a constant mean."""
    model = SGPMCFreeForm(classes(), kernel(), RobustMax(3, 1e-3), constant(), inducing_variable=Z)
    gpflow.set_trainable(model.kernel, False)
    gpx.gaussian_approximation(model, steps=5, free_inducing=False)
    target, _ = placed(model, "auto")
    z = tf.constant(np.random.default_rng(0).standard_normal((2, target.num_dimensions)))
    expected = target.density(z, model.density.log_likelihoods)
    monkeypatch.delattr(FreeFormDensity, "projection")
    np.testing.assert_allclose(target(z), expected, rtol=1e-12)


def test_without_data_the_prior_comes_back() -> None:
    """KS of thinned draws: false failures 1e-4 each."""
    model = MODELS["poisson"]()
    target = Target(model, lambda stack: tf.zeros([stack[model.V].shape[0] or 1], tf.float64))
    from gpflow_ext.sampling import iterations

    run = iterations.runner(target)
    x = tf.constant(np.random.default_rng(0).standard_normal((4, target.num_dimensions)))
    _, trace = iterations.call(run, x, Setting(0.3, 8), [0, 0], 2000, 5)
    stack = target.values(tf.reshape(trace.position[200::4], [-1, target.num_dimensions]))
    assert stats.kstest(stack[model.kernel.lengthscales], stats.gamma(3.0, scale=0.5).cdf).pvalue > 1e-4
    assert stats.kstest(stack[model.kernel.variance], stats.gamma(2.0).cdf).pvalue > 1e-4
    assert stats.kstest(stack[model.V][:, 2, 0], stats.norm.cdf).pvalue > 1e-4


def reference() -> tuple[dict, dict]:
    folder = Path(os.environ.get("GPFLOW_EXT_DATA", "missing")) / "reference_posteriors" / "gp_poisson_11"
    if not folder.exists():
        pytest.skip("needs reference_posteriors/gp_poisson_11 in the folder GPFLOW_EXT_DATA")
    return json.loads((folder / "data.json").read_text()), np.load(folder / "draws.npz")


def test_reference_draws_of_a_poisson_posterior(record_property) -> None:
    """Means within 4 standard errors of 10,000 published draws, R-hat < 1.01, ESS >= 400, <= 150,000 gradients."""
    import arviz

    data, expected = reference()
    X, Y = (np.array(data[name], float)[:, None] for name in ("x", "k"))
    prior = gpflow.kernels.SquaredExponential(variance=4.0, lengthscales=6.0)
    prior.lengthscales.prior = gamma(25.0, 4.0)
    prior.variance.prior = tfb.Square()(tfd.HalfNormal(np.float64(2.0)))
    model = SGPMCFreeForm((X, Y), prior, PoissonLog(), inducing_variable=X.copy())
    tuning = {"trials": 10, "samples": 15, "step_sizes": (0.05, 1.0), "max_leapfrogs": (1, 12)}
    with warnings.catch_warnings():
        warnings.simplefilter("error", gpx.ConvergenceWarning)
        draws = gpx.sample(model, 600, 4, tuning=tuning, progress=False, seed=3)
    found = draws.diagnose()
    spent = 4 * (found.gradients + 10 * 15 * 12 + 100 * 12)  # with the most that tuning and warm-up can take
    for key, value in (("R-hat", found.worst_rhat), ("gradients", spent), ("ESS, at least", found.min_ess)):
        record_property(key, value)
    assert spent <= 150_000
    f = model.density.moments(Stack([(model.V, tf.constant(draws.flat()["V"])), *(
        (p, tf.constant(draws.flat()[name])) for name, p in (("kernel.variance", prior.variance), ("kernel.lengthscales", prior.lengthscales))
    )]), tf.constant(X))[0].numpy()[..., 0]  # fmt: skip
    ours = {"rho": draws.values["kernel.lengthscales"], "alpha": np.sqrt(draws.values["kernel.variance"])}
    ours |= {f"f_{n + 1}": f.reshape(600, 4, 11)[:, :, n].T for n in range(11)}
    for name, chains in ours.items():
        theirs = expected[name]
        error = np.hypot(
            chains.std() / np.sqrt(float(arviz.ess(chains))), theirs.std() / np.sqrt(float(arviz.ess(theirs)))
        )
        record_property("largest |z|", abs(chains.mean() - theirs.mean()) / error)
        assert abs(chains.mean() - theirs.mean()) <= 4.0 * error, name
        assert 0.9 < chains.std() / theirs.std() < 1.1, name


def test_a_resumed_run_has_the_same_draws_bit_by_bit(tmp_path) -> None:
    """What was cut off after 20 draws of 40 goes on to 60 as if nothing had happened."""
    whole = quick(MODELS["poisson"](), num_samples=60, num_chains=2)
    quick(MODELS["poisson"](), num_samples=40, num_chains=2, checkpoint_dir=tmp_path)
    for path in tmp_path.glob("ckpt-40.*"):
        path.unlink()
    resumed = quick(
        MODELS["poisson"](), num_samples=60, num_chains=2, checkpoint_dir=tmp_path, approximate=False
    )
    for name, value in whole.values.items():
        np.testing.assert_array_equal(resumed.values[name], value)
    np.testing.assert_array_equal(resumed.stats["energy"], whole.stats["energy"])
    assert (resumed.setting, resumed.trials) == (whole.setting, whole.trials)
    with pytest.raises(ValueError, match="seed"):
        quick(MODELS["poisson"](), num_samples=60, num_chains=2, checkpoint_dir=tmp_path, seed=2)
    shorter = quick(
        MODELS["poisson"](), num_samples=30, num_chains=2, checkpoint_dir=tmp_path, approximate=False
    )
    np.testing.assert_array_equal(shorter.values["V"], whole.values["V"][:, :30])


@pytest.fixture(scope="module")
def drawn() -> tuple[SGPMCFreeForm, gpx.Draws]:
    model = MODELS["classes"]()
    return model, quick(model, num_samples=8, num_chains=2)


def test_predictions_average_densities_over_the_draws(drawn) -> None:
    model, draws = drawn
    X, Y = model.data
    values = [
        (p, draws.flat()[name])
        for name, p in (
            ("V", model.V),
            ("kernel.variance", model.kernel.variance),
            ("kernel.lengthscales", model.kernel.lengthscales),
        )
    ]
    single = [
        model.density.moments(Stack((p, tf.constant(value[s : s + 1])) for p, value in values), X)
        for s in range(16)
    ]
    means, variances = (np.concatenate([pair[k] for pair in single]) for k in range(2))
    mean, var = model.predict_f(X)
    np.testing.assert_allclose(mean, means.mean(0), atol=1e-10)
    np.testing.assert_allclose(var, variances.mean(0) + means.var(0), atol=1e-10)
    log_densities = [
        model.likelihood.predict_log_density(X, m[None][0], v[None][0], Y)
        for m, v in zip(means, variances, strict=True)
    ]
    np.testing.assert_allclose(
        model.predict_log_density((X, Y)), np.log(np.exp(log_densities).mean(0)), atol=1e-10
    )
    probabilities = model.predictions(X).probabilities().numpy()
    np.testing.assert_allclose(probabilities.sum(1), 1.0, atol=1e-7)
    np.testing.assert_allclose(gpx.ClassPredictor(model).probabilities(X), probabilities, atol=1e-10)
    np.testing.assert_allclose(
        np.log(probabilities[np.arange(N), Y.numpy()[:, 0].astype(int)]),
        model.predict_log_density((X, Y)),
        atol=1e-9,
    )
    _, cov = model.predict_f(X, full_cov=True)
    np.testing.assert_allclose(tf.transpose(tf.linalg.diag_part(cov)), var, atol=1e-9)


@pytest.mark.parametrize("elements", [11, 40], ids=["some rows of a draw", "some draws"])
def test_predictions_of_many_rows_are_made_in_blocks(elements, drawn, monkeypatch) -> None:
    model, _ = drawn
    data = tuple(np.asarray(part) for part in model.data)
    whole = *model.predict_y(data[0]), model.predict_log_density(data)
    sizes, one = [], model.likelihood.predict_log_density
    monkeypatch.setattr(stacked, "ELEMENTS", elements * (3 * NODES + 2))
    monkeypatch.setattr(
        model.likelihood, "predict_log_density", lambda X, *rest: sizes.append(len(X)) or one(X, *rest)
    )
    for a, b in zip(whole, (*model.predict_y(data[0]), model.predict_log_density(data)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert max(sizes) == (2 * N if elements > N else elements)
    assert sum(sizes) == 16 * N


def test_draws_are_kept_forgotten_and_refused(drawn) -> None:
    model, draws = drawn
    other = MODELS["classes"]()
    other.assign_draws(draws, most=10)
    assert other.draw_values[0].shape[0] == 10
    other.assign_draws(None)
    assert not other.draw_names
    bad = gpx.Draws({"W": np.zeros((2, 3, 4))}, draws.stats, draws.setting, 1.0)
    with pytest.raises(ValueError, match="another model: they hold W"):
        other.assign_draws(bad)
    for call in (
        lambda: model.predict_y(Z, full_cov=True),
        lambda: model.predict_f_samples(Z, 2, full_cov=False),
    ):
        with pytest.raises(NotImplementedError, match="leave out"):
            call()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"likelihood": gpflow.likelihoods.GaussianMC()}, NotImplementedError, "Monte Carlo"),
        ({"kernel": gpflow.kernels.SharedIndependent(gpflow.kernels.RBF(), 2)}, ValueError, "2 outputs"),
        ({"data": (np.zeros((3, 2)), np.full((3, 1), np.nan))}, ValueError, "row 0, column 0"),
        ({"data": (np.zeros((3, 2)), np.full((3, 1), -1.0))}, ValueError, "counts"),
    ],
)
def test_what_cannot_be_sampled(arguments: dict, error: type[Exception], message: str) -> None:
    given = {"data": problems.counts(N), "kernel": kernel(), "likelihood": PoissonLog()} | arguments
    with pytest.raises(error, match=message):
        SGPMCFreeForm(given["data"], given["kernel"], given["likelihood"], inducing_variable=Z)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tuner": "best"}, "bayesopt, dual_averaging"),
        ({"num_samples": 0}, "num_samples"),
        ({"precondition": "x"}, "conditional"),
    ],
)
def test_options_of_sample(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gpx.sample(MODELS["poisson"](), **({"num_samples": 5} | options))
