"""All samplers draw from one posterior that quadrature gives; Gibbs sampling and its tuning."""

from __future__ import annotations

import gpflow
import numpy as np
import problems
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from placing import placed
from scipy import stats

import gpflow_ext as gpx
from gpflow_ext.likelihoods import PoissonLog, RobustMax
from gpflow_ext.models import SGPMCFreeForm
from gpflow_ext.numerics import grids
from gpflow_ext.sampling.gibbs import Blocks
from gpflow_ext.sampling.tuning import Setting

NOISE, N = 0.3, 8
SHAPE, RATE = 3.0, 2.0  # of the prior of the length scale
SLOW = pytest.mark.slow
SAMPLERS = {
    "hmc": {"tuner": Setting(0.5, 6)},
    "gibbs": {"tuner": Setting(0.4, 6, walk=1.0), "thin": 8},
    "chees": {"tuner": "chees", "tuning": {"iterations": 200}},
    "nuts": {"tuner": "nuts", "tuning": {"iterations": 100}},
    "xla": {"tuner": Setting(0.5, 6), "jit_compile": True},
}


def regression() -> SGPMCFreeForm:
    X, Y = problems.continuous(N)
    kernel = gpflow.kernels.SquaredExponential()
    kernel.lengthscales.prior = tfp.distributions.Gamma(*gpflow.utilities.to_default_float((SHAPE, RATE)))
    gpflow.set_trainable(kernel.variance, False)
    likelihood = gpflow.likelihoods.Gaussian(NOISE)
    gpflow.set_trainable(likelihood, False)
    dtype = gpflow.default_float()
    X, Y = X.astype(dtype), Y.astype(dtype)
    return SGPMCFreeForm((X, Y), kernel, likelihood, inducing_variable=X.copy())


def exact() -> tuple[np.ndarray, np.ndarray]:
    """Return log length scales and their posterior's distribution function, by the trapezoidal rule."""
    X, Y = problems.continuous(N)
    logs = np.linspace(-4.0, 3.0, 1401)
    squared = ((X[:, None] - X) ** 2).sum(-1)
    density = [
        stats.multivariate_normal(
            np.zeros(N), np.exp(-0.5 * squared / np.exp(2.0 * at)) + NOISE * np.eye(N)
        ).logpdf(Y[:, 0])
        + stats.gamma(SHAPE, scale=1.0 / RATE).logpdf(np.exp(at))
        + at
        for at in logs
    ]
    weights = np.exp(np.array(density) - max(density))
    return logs, np.cumsum(weights) / weights.sum()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW) for name in ("hmc", "gibbs", "chees", "nuts", "xla")],
)
def test_the_marginal_of_a_length_scale_is_that_of_quadrature(name: str) -> None:
    """Mean within 4 standard errors; KS of draws thinned to independence: false failures below 1e-3."""
    import arviz

    options = {"warm_up": 100, "progress": False, "check": False, "seed": 5} | SAMPLERS[name]
    draws = gpx.sample(regression(), 800, 4, **options)
    logs, cumulative = exact()
    chains = np.log(draws.values["kernel.lengthscales"])
    size = float(arviz.ess(chains))
    weights = np.diff(cumulative, prepend=0.0)
    mean = weights @ logs
    assert size > 300.0
    assert abs(chains.mean() - mean) <= 4.0 * chains.std() / np.sqrt(size)
    independent = chains[:, :: int(np.ceil(chains.size / size))].ravel()
    assert stats.kstest(independent, lambda at: np.interp(at, logs, cumulative)).pvalue > 1e-3


@pytest.mark.slow
def test_single_precision_draws_the_same() -> None:
    with gpflow.config.as_context(gpflow.config.Config(float=np.float32, jitter=1e-5)):
        draws = gpx.sample(regression(), 800, 4, tuner=Setting(0.5, 6), progress=False, check=False, seed=5)
    logs, cumulative = exact()
    chains = np.log(draws.values["kernel.lengthscales"])
    assert chains.dtype == np.float32
    assert stats.kstest(chains[:, ::8].ravel(), lambda at: np.interp(at, logs, cumulative)).pvalue > 1e-3


def grid() -> SGPMCFreeForm:
    X = grids.grid(np.linspace(0.0, 1.0, 4), np.linspace(0.0, 1.0, 5))
    kernel = gpflow.kernels.SquaredExponential(lengthscales=0.5)
    kernel.lengthscales.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    gpflow.set_trainable(kernel.variance, False)
    Z = grids.grid(np.linspace(0.0, 1.0, 3), np.linspace(0.0, 1.0, 2))
    return SGPMCFreeForm((X, np.ones([20, 1])), kernel, PoissonLog(), inducing_variable=Z)


def classes() -> SGPMCFreeForm:
    X = problems.inputs(9)
    Y = np.arange(9.0)[:, None] % 3
    kernel = gpflow.kernels.SquaredExponential()
    kernel.variance.prior = tfp.distributions.Gamma(np.float64(2.0), np.float64(2.0))
    gpflow.set_trainable(kernel.lengthscales, False)
    return SGPMCFreeForm((X, Y), kernel, RobustMax(3, 1e-3), inducing_variable=X[:4])


@pytest.mark.parametrize("build", [regression, grid, classes])
@pytest.mark.parametrize("precondition", [None, "vb"])
def test_the_density_in_two_steps_is_the_density(build, precondition) -> None:
    model = build()
    target, _ = placed(model, precondition)
    blocks = Blocks(target, model.sampleable().in_two_steps())
    z = tf.constant(np.random.default_rng(0).standard_normal((3, target.num_dimensions)))
    np.testing.assert_allclose(blocks.density(z, blocks.prepare(z)), target(z), rtol=1e-11)
    other = tf.concat([z[:, : blocks.size] + 1.0, z[:, blocks.size :]], axis=1)
    np.testing.assert_allclose(blocks.density(other, blocks.prepare(z)), target(other), rtol=1e-11)


def test_tuning_of_gibbs_reaches_its_rates() -> None:
    model = regression()
    draws = gpx.sample(model, 200, 4, tuner="gibbs", warm_up=0, progress=False, check=False)
    path = draws.values["kernel.lengthscales"]
    assert 0.4 < draws.stats["accepted"].mean() < 0.97
    assert 0.05 < (np.diff(path, axis=1) != 0.0).mean() < 0.5
    assert draws.setting.max_leapfrogs == 20


def test_where_gibbs_does_not_apply() -> None:
    model = regression()
    with pytest.raises(ValueError, match=r"'conditional' moves v with θ, .* choose None or 'vb'"):
        gpx.sample(model, 10, 2, tuner="gibbs", precondition="conditional")
    plain = gpflow.models.GPMC(model.data, model.kernel, model.likelihood)
    with pytest.raises(ValueError, match="as SGPMCFreeForm has it, not GPMC: choose another tuner"):
        gpx.sample(plain, 10, 2, tuner="gibbs")


@pytest.mark.slow
def test_tuning_looks_where_the_coordinates_are_scaled() -> None:
    options = {"tuning": {"trials": 3, "samples": 2}, "warm_up": 0, "progress": False, "check": False}
    draws = gpx.sample(regression(), 5, 2, **options)
    assert all(0.02 <= trial.setting.step_size <= 1.0 for trial in draws.trials)
    assert draws.optimizer().grid(5)[0][[0, -1]] == pytest.approx([0.02, 1.0])
