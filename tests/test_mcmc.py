"""The sampler by itself: densities, leapfrog, random lengths, tuning, diagnostics, files."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import warnings

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.base import PriorOn
from matplotlib.figure import Figure
from scipy import optimize, stats
from tensorflow_probability.python.mcmc.internal.leapfrog_integrator import SimpleLeapfrogIntegrator

import gpflow_ext as gpx
from gpflow_ext.numerics import stacked
from gpflow_ext.sampling import adaptation, diagnostics, iterations, surrogate
from gpflow_ext.sampling.adaptation import Start
from gpflow_ext.sampling.affine import Affine
from gpflow_ext.sampling.options import BayesOptOptions, DualAveragingOptions
from gpflow_ext.sampling.target import Target, coordinates
from gpflow_ext.sampling.tuning import BayesianOptimizer, Setting, Trial, reward

tfd, tfb = tfp.distributions, tfp.bijectors
SCALES = np.array([0.3, 1.0, 2.0])


def gaussian(z: tf.Tensor) -> tf.Tensor:
    return -0.5 * tf.reduce_sum((z / SCALES) ** 2, axis=-1)


RUN = iterations.runner(gaussian)


def go(z, setting: Setting, number: int, seed: int = 0, run=RUN, thin: int = 1):
    return iterations.call(run, tf.constant(z), setting, [seed, 0], number, thin)


def regression() -> gpflow.models.GPR:
    kernel = gpflow.kernels.SquaredExponential()
    model = gpflow.models.GPR(problems.continuous(12), kernel, noise_variance=0.2)
    gamma = tfd.Gamma(np.float64(2.0), np.float64(1.5))
    kernel.variance.prior = kernel.lengthscales.prior = model.likelihood.variance.prior = gamma
    return model


def test_the_density_of_any_model_is_its_own_with_the_jacobian_of_the_logarithm() -> None:
    model = regression()
    parameters = [c.parameter for c in coordinates(model)]
    before = [p.unconstrained_variable.numpy() for p in parameters]
    target = Target(model, lambda stack: stacked.each(model.maximum_log_likelihood_objective, stack))
    x = np.random.default_rng(0).normal(0.0, 0.5, (4, 3))
    ours = target(tf.constant(x)).numpy()
    np.testing.assert_allclose(ours, [target(tf.constant(row[None]))[0] for row in x], rtol=1e-12)
    for p, value in zip(parameters, before, strict=True):
        np.testing.assert_array_equal(p.unconstrained_variable, value)
    for row, value in zip(x, ours, strict=True):
        for c, log in zip(coordinates(model), row, strict=True):
            c.parameter.assign(
                np.exp(log) + (1e-6 if "variance" in c.name and "likelihood" in c.name else 0.0)
            )
        priors = sum(float(p.prior.log_prob(p)) for p in parameters)
        np.testing.assert_allclose(
            value, float(model.log_marginal_likelihood()) + priors + row.sum(), rtol=1e-10
        )


def test_the_density_equals_gpflows_where_the_transforms_do() -> None:
    """GPflow's SamplingHelper assigns variables, so one point at a time."""
    with gpflow.config.as_context(gpflow.config.Config(positive_bijector="exp")):
        model = regression()
    helper = gpflow.optimizers.SamplingHelper(model.log_posterior_density, model.trainable_parameters)
    target = Target(model, lambda stack: stacked.each(model.maximum_log_likelihood_objective, stack))
    x = np.random.default_rng(1).normal(0.0, 0.5, 3)
    ours = target(tf.constant(x[None]))[0]
    named = {id(c.parameter): value for c, value in zip(coordinates(model), x, strict=True)}
    states = [tf.constant(named[id(p)]) for p in model.trainable_parameters]
    np.testing.assert_allclose(ours, helper.target_log_prob_fn(*states), rtol=1e-12)


def test_a_prior_on_the_unconstrained_value_is_a_density_there() -> None:
    """p(u) du with u = softplus⁻¹(θ), θ = exp(x)."""
    holder = tf.Module()
    holder.p = gpflow.Parameter(
        1.0, transform=tfb.Softplus(), prior=tfd.Normal(np.float64(0.3), np.float64(0.8))
    )
    holder.p.prior_on = PriorOn.UNCONSTRAINED
    target = Target(holder, lambda stack: tf.zeros([1], tf.float64))
    grid = np.linspace(-12.0, 4.0, 401)
    density = np.exp(target(tf.constant(grid[:, None])).numpy())
    np.testing.assert_allclose(density.sum() * (grid[1] - grid[0]), 1.0, atol=1e-4)


def test_a_parameter_without_a_prior_is_named_with_the_fix() -> None:
    model = regression()
    model.kernel.lengthscales.prior = None
    with pytest.raises(
        ValueError, match=r"kernel.lengthscales.*set_trainable\(model.kernel.lengthscales, False\)"
    ):
        gpx.sample(model, 10, 2)
    model.kernel.lengthscales.prior = tfd.Gamma(2.0, 1.0)
    with pytest.raises(ValueError, match=r"kernel.lengthscales is float32, .*to_default_float"):
        gpx.sample(model, 10, 2)
    gpflow.set_trainable(model, False)
    with pytest.raises(ValueError, match="nothing to sample"):
        coordinates(model)


def test_affine_coordinates() -> None:
    rng = np.random.default_rng(0)
    blocks = np.tril(rng.uniform(0.5, 1.0, (2, 3, 3)))
    tilt = rng.standard_normal((6, 2))
    loc, scale = rng.standard_normal(8), np.array([0.5, 2.0])
    affine = Affine(*(tf.constant(part) for part in (loc, blocks, scale, tilt)))
    z = tf.constant(rng.standard_normal((5, 8)))
    x, z = affine.forward(z).numpy(), z.numpy()
    np.testing.assert_allclose(affine.inverse(tf.constant(x)), z, atol=1e-12)
    np.testing.assert_allclose(x[:, 6:], loc[6:] + scale * z[:, 6:])
    first = (x[:, :6] - loc[:6] - (scale * z[:, 6:]) @ tilt.T).reshape(5, 3, 2)
    for latent in range(2):
        np.testing.assert_allclose(
            first[..., latent], z[:, :6].reshape(5, 3, 2)[..., latent] @ blocks[latent].T
        )


@pytest.mark.parametrize("halvings", [3])
def test_leapfrog_is_reversible_and_of_second_order(halvings: int, record_property) -> None:
    """On a quartic target, over a trajectory of length 1: the energy error falls by 4 with half the step."""

    def target(z: tf.Tensor) -> tf.Tensor:
        return -0.5 * tf.reduce_sum(z**2, -1) - 0.1 * tf.reduce_sum(z**4, -1)

    rng = np.random.default_rng(0)
    p, z = (tf.constant(rng.standard_normal((20, 3))) for _ in range(2))

    def travel(p, z, steps: int):
        integrate = SimpleLeapfrogIntegrator(
            target, step_sizes=[tf.constant(1.0 / steps, tf.float64)], num_steps=steps
        )
        ([new_p], [new_z], value, _) = integrate([p], [z], target(z))
        return new_p, new_z, 0.5 * tf.reduce_sum(new_p**2, -1) - value

    start = 0.5 * tf.reduce_sum(p**2, -1) - target(z)
    errors = []
    for steps in 8 * 2 ** np.arange(halvings + 1):
        new_p, new_z, energy = travel(p, z, int(steps))
        back_p, back_z, _ = travel(-new_p, new_z, int(steps))
        np.testing.assert_allclose(back_z, z, atol=1e-10)
        np.testing.assert_allclose(-back_p, p, atol=1e-10)
        errors.append(float(tf.reduce_mean(tf.abs(energy - start))))
    record_property("error of the way back", np.abs(back_z - z).max())
    slope = -np.polyfit(np.arange(halvings + 1) * math.log(2.0), np.log(errors), 1)[0]
    record_property("slope", slope)
    assert slope == pytest.approx(2.0, abs=0.2)


def test_leapfrog_preserves_volume(record_property) -> None:
    """The logarithm of the determinant of ∂(p', z')/∂(p, z) over 20 steps."""
    target = lambda z: -0.5 * tf.reduce_sum(z**2, -1) - 0.1 * tf.reduce_sum(z**4, -1)  # noqa: E731
    integrate = SimpleLeapfrogIntegrator(target, step_sizes=[tf.constant(0.2, tf.float64)], num_steps=20)
    start = tf.constant(np.random.default_rng(0).standard_normal(6))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(start)
        p, z = start[None, :3], start[None, 3:]
        ([new_p], [new_z], _, _) = integrate([p], [z], target(z))
        end = tf.concat([new_p, new_z], axis=1)[0]
    sign, log_det = np.linalg.slogdet(tape.jacobian(end, start, experimental_use_pfor=False))
    record_property("log determinant", abs(log_det))
    assert sign == 1.0
    assert abs(log_det) <= 1e-8


def test_random_lengths_are_uniform_and_moments_right() -> None:
    """False failures: chi-square 1e-4; each of six moments 6e-5 (z <= 4)."""
    _, trace = go(np.zeros((8, 3)), Setting(0.3, 6), 3000)
    counts = np.bincount(trace.gradients.numpy(), minlength=7)[1:]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4
    draws = trace.position.numpy()[100:]
    import arviz

    for j, scale in enumerate(SCALES):
        chain = draws[:, :, j].T
        for function, expected in ((chain, 0.0), (chain**2, scale**2)):
            error = function.std() / math.sqrt(float(arviz.ess(function)))
            assert abs(function.mean() - expected) <= 4.0 * error
    assert not trace.divergent.numpy().any()
    assert trace.accepted.numpy().mean() == pytest.approx(0.97, abs=0.03)


def test_acceptance_goes_to_one_with_the_step() -> None:
    rates = [
        float(tf.reduce_mean(go(np.ones((4, 3)), Setting(step, 5), 200)[1].accepted))
        for step in (0.55, 0.2, 0.02)
    ]
    assert rates[0] < rates[1] < rates[2]
    assert rates[2] > 0.999


def test_a_region_without_density_is_never_entered_and_counts_as_divergence() -> None:
    def half(z: tf.Tensor) -> tf.Tensor:
        return tf.where(z[:, 0] > 0.0, gaussian(z), tf.constant(np.nan, tf.float64))

    _, trace = go(np.ones((4, 3)), Setting(0.3, 4), 300, run=iterations.runner(half))
    assert np.isfinite(trace.position).all()
    assert (trace.position.numpy()[..., 0] > 0.0).all()
    assert trace.divergent.numpy().sum() > 0


def test_thinning_and_seeds() -> None:
    last, every = go(np.ones((2, 3)), Setting(0.3, 4), 12)
    end, kept = go(np.ones((2, 3)), Setting(0.3, 4), 4, thin=3)
    np.testing.assert_array_equal(every.gradients.numpy().sum(), kept.gradients.numpy().sum())
    np.testing.assert_array_equal(last, end)
    np.testing.assert_array_equal(every.position[2::3], kept.position)
    assert (go(np.ones((2, 3)), Setting(0.3, 4), 4, seed=1)[0].numpy() != end.numpy()).any()


def expected_reward(setting: Setting, scales: tuple[float, ...]) -> float:
    """The reward of a run on N(0, diag(scales²)) that starts there: a leapfrog step is a rotation.

    What is accepted is taken to fall as exp(−(ε/s)³), s the smallest scale.
    """
    step, longest = setting.step_size, setting.max_leapfrogs
    angles = 2.0 * np.arcsin(np.minimum(0.5 * step / np.array(scales), 1.0))
    turned = 1.0 - np.cos(np.arange(1, longest + 1)[:, None] * angles).mean(axis=0)
    jump = math.exp(-((step / min(scales)) ** 3)) * 2.0 * np.sum(np.square(scales) * turned)
    return math.log1p(jump / math.sqrt(longest))


def tuned(seed: int, steps: tuple[float, float], scales: tuple[float, ...]) -> BayesianOptimizer:
    """A search of 30 trials whose rewards have noise of a tenth."""
    optimizer, rng = BayesianOptimizer(steps, seed=seed), np.random.default_rng(seed)
    for _ in range(30):
        setting = optimizer.ask()
        noisy = expected_reward(setting, scales) * (1.0 + 0.1 * rng.standard_normal())
        optimizer.tell(Trial(setting, noisy, 1.0, 1.0))
    return optimizer


@pytest.mark.parametrize(
    ("steps", "scales"), [((0.02, 1.0), (1.0, 1.0)), ((1e-4, 1.0), (0.05, 0.3, 1.0)), ((1e-4, 1.0), (0.02,))]
)
def test_bayesian_optimisation_beats_random_search(steps, scales, record_property) -> None:
    """Regret, as a share of the largest reward, beside that of the best noisy value of 30 random settings."""
    pairs = [(step, longest) for step in np.geomspace(*steps, 200) for longest in range(1, 51)]
    largest = max(expected_reward(Setting(*pair), scales) for pair in pairs)
    regret, random_regret, tried = [], [], []
    for seed in range(5):
        optimizer = tuned(seed, steps, scales)
        regret.append(1.0 - expected_reward(optimizer.best(), scales) / largest)
        tried.append(len({trial.setting for trial in optimizer.trials}))
        rng = np.random.default_rng(seed)
        random = [Setting(math.exp(rng.uniform(*np.log(steps))), int(rng.integers(1, 51))) for _ in range(30)]
        rewards = np.array([expected_reward(setting, scales) for setting in random])
        chosen = np.argmax(rewards * (1.0 + 0.1 * rng.standard_normal(30)))
        random_regret.append(1.0 - rewards[chosen] / largest)
    record_property("regret", np.mean(regret))
    record_property("regret of random search", np.mean(random_regret))
    assert np.mean(regret) < 0.06
    assert np.mean(regret) < 0.3 * np.mean(random_regret)
    assert np.max(regret) < 0.15
    assert tried == [30] * 5


def test_a_search_repeats() -> None:
    first, again, other = (tuned(seed, (0.02, 1.0), (1.0,)).trials for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_the_surrogate_has_the_gradient_of_its_evidence() -> None:
    rng = np.random.default_rng(0)
    squares, rewards = surrogate._squares(*[rng.standard_normal((9, 2))] * 2), rng.standard_normal(9)
    at = np.array([0.2, -2.0, 0.1, -0.3])
    found = optimize.approx_fprime(at, lambda logs: surrogate._loss(logs, squares, rewards)[0], 1e-7)
    np.testing.assert_allclose(surrogate._loss(at, squares, rewards)[1], found, rtol=1e-5, atol=1e-5)


def test_a_reward_that_is_not_finite_counts_nothing() -> None:
    optimizer = BayesianOptimizer()
    optimizer.tell(Trial(optimizer.ask(), math.nan, 0.0, math.nan))
    assert optimizer.trials[0].reward == 0.0
    assert reward(np.full((3, 2, 4), np.inf), np.zeros((2, 4)), 5)[0] == 0.0
    path = np.cumsum(np.ones((3, 2, 4)), axis=0)
    assert reward(path, np.zeros((2, 4)), 4) == (pytest.approx(math.log(1 + 4 / 2)), pytest.approx(4.0))
    assert reward(path, np.zeros((2, 4)), 4, penalty=1.0)[0] == pytest.approx(math.log(1 + 4 / 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"step_sizes": (0.0, 1.0)}, "step_sizes"), ({"max_leapfrogs": (5, 2)}, "max_leapfrogs")],
)
def test_a_box_out_of_order(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BayesianOptimizer(**arguments)


def test_tuners_find_good_settings_of_a_gaussian() -> None:
    z = tf.constant(np.random.default_rng(0).standard_normal((6, 3)) * SCALES)
    start, seen = Start(RUN, z, 0, gaussian), []
    options = BayesOptOptions(trials=15, samples=20, max_leapfrogs=(1, 20))
    best = adaptation.bayesopt(start, options, lambda *step: seen.append(step))
    assert [number for number, _ in seen] == list(range(1, 16))
    assert 0.1 < best.setting.step_size < 0.6  # stable below 2 · 0.3
    assert len(best.trials) == 15
    averaging = DualAveragingOptions(iterations=600, max_leapfrogs=6)
    average = adaptation.dual_averaging(start, averaging, lambda *_: None)
    accepted = go(average.positions.numpy(), average.setting, 3000)[1].accepted.numpy().mean()
    assert accepted == pytest.approx(0.75, abs=0.12)


def test_dual_averaging_in_the_graph_is_that_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hoffman & Gelman (2014), section 3.2, an iteration at a time; two calls, of 8 iterations and of 4."""
    monkeypatch.setattr(adaptation, "_AT_ONCE", 8)
    z = tf.constant(np.random.default_rng(0).standard_normal((6, 3)) * SCALES)
    options, seen = DualAveragingOptions(iterations=12, max_leapfrogs=4, step_size=0.2), []
    found = adaptation.dual_averaging(Start(RUN, z, 5, gaussian), options, lambda *step: seen.append(step))
    assert [number for number, _ in seen] == [8, 12]
    shortfall, log_average, step = 0.0, 0.0, options.step_size
    for t in range(1, options.iterations + 1):
        z, trace = iterations.call(RUN, z, Setting(step, 4), [5, -1], 1, first=t - 1)
        shortfall += (options.acceptance - trace.accepted.numpy().mean() - shortfall) / (t + 10.0)
        log_step = math.log(10.0 * options.step_size) - math.sqrt(t) / 0.05 * shortfall
        log_average += t**-0.75 * (log_step - log_average)
        step = math.exp(log_step)
    np.testing.assert_allclose(found.setting.step_size, math.exp(log_average), rtol=1e-9)
    np.testing.assert_allclose(found.positions, z, rtol=0.0, atol=1e-9)


def fake(rhat: float = 1.0) -> gpx.Draws:
    rng = np.random.default_rng(0)
    values = {"a": rng.standard_normal((4, 500)), "b": rng.standard_normal((4, 500, 2))}
    values["a"] += rhat * np.arange(4)[:, None]
    recorded = {name: rng.standard_normal((4, 500)) for name in ("log_density", "energy")}
    recorded |= {
        "accepted": np.full((4, 500), 0.8),
        "divergent": np.zeros((4, 500), int),
        "gradients": np.full(500, 3),
    }
    return gpx.Draws(
        values, recorded, Setting(0.1, 5), 2.0, (Trial(Setting(0.2, 3), 1.0, 0.5, 2.0),), {"seed": 0}
    )


def test_draws_pass_or_fail_loudly() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", gpx.ConvergenceWarning)
        found = fake(rhat=0.0).check()
    assert set(found.rhat) == {"a", "b[0]", "b[1]"}
    assert found.gradients == 1500
    assert found.ess_per_1000_gradients == pytest.approx(1000 * found.min_ess / 6000)
    with pytest.warns(gpx.ConvergenceWarning, match=r"R-hat of a is .*bulk ESS of a"):
        fake(rhat=1.0).check()
    with pytest.warns(gpx.ConvergenceWarning, match="divergences|E-BFMI"):
        fake(rhat=0.0).check(bfmi=3.0)
    with pytest.raises(ValueError, match="Unknown gates: ess"):
        fake().check(ess=3)


def test_draws_are_shown_as_a_short_table() -> None:
    draws = fake()
    text, page = str(draws), draws._repr_html_()
    first = next(iter(draws.coordinates()))
    value = draws.coordinates()[first]
    row = next(line.split() for line in text.splitlines() if line.startswith(f"{first} "))
    found = [value.mean(), value.std(), *np.quantile(value, (0.05, 0.95))]
    np.testing.assert_allclose([float(cell) for cell in row[1:5]], found, rtol=1e-3)
    assert float(row[5]) == pytest.approx(draws.diagnose().rhat[first], abs=1e-3)
    assert float(row[6]) == pytest.approx(draws.diagnose().bulk_ess[first], abs=1.0)
    assert f"<td>{row[1]}</td>" in page
    assert "array" not in text + repr(draws)
    many = gpx.Draws({"V": np.zeros((2, 3, 50, 1)), "a<b": np.ones((2, 3))}, draws.stats, draws.setting, 1.0)
    lines = str(many).splitlines()
    assert lines[2].split()[:2] == ["a<b", "1"]  # the parameters of few numbers come first
    assert lines[-1] == "and 31 numbers more; `diagnose` looks at all of them"
    assert "a&lt;b" in many._repr_html_()


def test_draws_are_shown_without_arviz(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "arviz", None)
    assert "R-hat" in str(fake())


def test_diagnostics_are_those_of_arviz_and_go_there() -> None:
    import arviz

    draws = fake(rhat=0.1)
    data = draws.to_arviz()
    assert draws.diagnose().rhat["a"] == pytest.approx(float(arviz.rhat(data)["a"]))
    np.testing.assert_allclose(draws.diagnose().bfmi, arviz.bfmi(data))


def test_one_chain_is_compared_with_itself() -> None:
    rng = np.random.default_rng(0)
    stats = {name: np.ones((1, 400)) for name in ("energy", "divergent", "accepted")} | {
        "gradients": np.ones(400)
    }
    steady, drifting = (
        rng.standard_normal((1, 400)),
        rng.standard_normal((1, 400)) + np.linspace(0.0, 4.0, 400),
    )
    found = diagnostics.diagnose({"steady": steady, "drifting": drifting}, stats, 1.0)
    assert found.rhat["steady"] < 1.02
    assert found.rhat["drifting"] > 1.5


@pytest.mark.parametrize("names", [("moving", "stuck"), ("stuck", "moving")])
def test_a_coordinate_that_never_moves_fails_the_gates_wherever_it_stands(names: tuple[str, str]) -> None:
    values = {"moving": np.random.default_rng(0).standard_normal((4, 1000)), "stuck": np.ones((4, 1000))}
    stats = {name: np.ones((4, 1000)) for name in ("energy", "divergent", "accepted", "gradients")}
    found = diagnostics.diagnose({name: values[name] for name in names}, stats, 1.0)
    assert np.isnan(found.worst_rhat)
    assert any("R-hat of stuck" in sentence for sentence in found.failures())


def test_energies_of_a_random_walk_have_little_information() -> None:
    walk = np.cumsum(np.random.default_rng(0).standard_normal((2, 1000)), axis=1)
    assert (diagnostics.bfmi(walk) < 0.1).all()


def test_files_hold_all_and_no_pickle(tmp_path) -> None:
    draws = fake()
    path = draws.save(tmp_path / "draws.npz")
    again = gpx.Draws.load(path)
    for name, value in draws.values.items():
        np.testing.assert_array_equal(again.values[name], value)
    assert (again.setting, again.trials, again.seconds, dict(again.info)) == (
        draws.setting, draws.trials, draws.seconds, dict(draws.info),
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == [path]
    for name in ("shape 0.1", "shape 0.2"):  # each its own file
        assert draws.save(tmp_path / name) == tmp_path / f"{name}.npz"
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="holds no draws"):
        gpx.Draws.load(tmp_path / "other.npz")


def test_draws_of_all_chains_in_one_axis() -> None:
    draws = fake()
    assert draws.flat()["b"].shape == (2000, 2)
    assert draws.flat(50)["a"].shape == (50,)
    np.testing.assert_array_equal(draws.flat()["a"][:4], draws.values["a"][:, 0])


@pytest.mark.parametrize(("chains", "number"), [(4, 995), (8, 1990), (10, 5000), (3, 70)])
def test_some_of_the_draws_are_of_all_chains_and_all_times(chains: int, number: int) -> None:
    values = np.stack(np.broadcast_arrays(np.arange(chains)[:, None], np.arange(number)), axis=-1)
    chain, at = (
        gpx.Draws({"a": values}, {"log_density": values[..., 0]}, Setting(0.1, 5), 1.0).flat(200)["a"].T
    )
    assert np.ptp(np.bincount(chain, minlength=chains)) <= 1
    for own in range(chains):
        gaps = np.diff([0, *at[chain == own], number])
        assert gaps.max() <= 2.0 * number * chains / 200


def test_what_tuning_tried_becomes_a_picture() -> None:
    trials = tuple(Trial(Setting(0.02 * k, 5 + k), 1.0 - (k - 4) ** 2, 0.5, 1.0) for k in range(1, 9))
    options = {"step_sizes": [0.01, 0.5], "max_leapfrogs": [1, 20], "trials": 8}
    draws = dataclasses.replace(fake(), trials=trials, info={"tuning": json.dumps(options)})
    optimizer = draws.optimizer()
    steps, lengths, mean = optimizer.grid(30)
    assert (steps[0], steps[-1], lengths[-1]) == pytest.approx((0.01, 0.5, 20.0))
    row, column = np.unravel_index(mean.argmax(), mean.shape)
    assert abs(lengths[row] - 9.0) < 2.0
    assert abs(np.log(steps[column] / 0.08)) < 0.5
    ax = Figure().subplots()
    gpx.plotting.tuning(ax, optimizer, draws.setting)
    assert len(ax.collections[-2].get_offsets()) == 8
    with pytest.raises(ValueError, match="did not tune"):
        dataclasses.replace(draws, trials=()).optimizer()
