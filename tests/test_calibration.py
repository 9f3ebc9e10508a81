"""Simulation-based calibration (Talts et al. 2018) of the density and the sampler, all data sets side by side.

Each chain has its own data, drawn from the model with parameters from the prior. Two runs leave from these, and
m draws of one and S − m of the other, m uniform, make them a place at random in one reversible chain: in a right
sampler their rank is exactly uniform, however slowly it mixes (Gandy & Scott 2020). Z = X, so that the density
is that of the model.
"""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
from scipy import stats

from gpflow_ext.likelihoods import BernoulliProbit, PoissonLog, RobustMax
from gpflow_ext.mcmc import hmc
from gpflow_ext.mcmc.target import Target
from gpflow_ext.mcmc.tuning import Setting
from gpflow_ext.models import SGPMCFreeForm

tfd = tfp.distributions
SETS, N, DRAWS, THIN, BINS = 160, 8, 31, 6, 8
X = np.linspace(-2.0, 2.0, N)[:, None]


def noisy() -> gpflow.likelihoods.Gaussian:
    likelihood = gpflow.likelihoods.Gaussian(0.5)
    likelihood.variance.prior = tfd.Gamma(np.float64(3.0), np.float64(6.0))
    return likelihood


def normal(f: np.ndarray, noise: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return f + np.sqrt(noise)[:, None, None] * rng.standard_normal(f.shape)


def sign(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.standard_normal(f.shape) < f).astype(float)


def count(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.poisson(np.exp(np.minimum(f, 12.0))).astype(float)


def largest(f: np.ndarray, _: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The largest of three functions, and with probability ε = 0.1 one of the other two."""
    best = f.argmax(axis=-1)
    wrong = rng.uniform(size=best.shape) < 0.1
    return np.where(wrong, (best + rng.integers(1, 3, best.shape)) % 3, best)[..., None].astype(float)


CASES: dict[str, tuple[Callable[[], gpflow.likelihoods.Likelihood], int, Callable[..., np.ndarray]]] = {
    "regression": (noisy, 1, normal),
    "binary": (BernoulliProbit, 1, sign),
    "poisson": (PoissonLog, 1, count),
    "classes": (lambda: RobustMax(3, 0.1), 3, largest),
}


def p_values(name: str, jacobian: float = 1.0) -> dict[str, float]:
    """Return how uniform the ranks of some functions of the parameters are."""
    build, P, simulate = CASES[name]
    rng = np.random.default_rng(7)
    kernel = gpflow.kernels.SquaredExponential()
    kernel.variance.prior = tfd.Gamma(np.float64(3.0), np.float64(2.0))
    kernel.lengthscales.prior = tfd.Gamma(np.float64(4.0), np.float64(4.0))
    likelihood = build()
    nothing = np.zeros([N, 1])
    model = SGPMCFreeForm((X, nothing), kernel, likelihood, num_latent_gps=P, inducing_variable=X.copy())
    Y = tf.Variable(np.zeros([SETS * N, 1]))

    def log_likelihoods(stack):
        mean, var = (tf.reshape(part, [-1, P]) for part in model.moments(stack, tf.constant(X)))
        inputs = tf.zeros([SETS * N, 1], tf.float64)
        if name == "regression":  # its noise is sampled: one for each data set
            noise = tf.repeat(stack[likelihood.variance], N)[:, None]
            terms = tfd.Normal(mean, tf.sqrt(noise)).log_prob(Y) - 0.5 * var / noise
        else:
            terms = likelihood.variational_expectations(inputs, mean, var, Y)[:, None]
        return tf.reduce_sum(tf.reshape(terms, [SETS, -1]), axis=1)

    target = Target(model, log_likelihoods)
    columns = []
    for c in target.coordinates:
        shape = (SETS, *c.parameter.shape)
        if c.name == "V":
            value = rng.standard_normal(shape)
        else:
            prior = c.parameter.prior
            value = rng.gamma(float(prior.concentration), 1.0 / float(prior.rate), shape)
        columns.append(c.bijector.inverse(tf.constant(value)).numpy().reshape(SETS, -1))
    x = np.concatenate(columns, axis=1)
    truth = target.values(tf.constant(x))
    f = model.moments(truth, tf.constant(X))[0].numpy()
    noise = truth[likelihood.variance].numpy() if name == "regression" else np.zeros(SETS)
    Y.assign(simulate(f, noise, rng).reshape(-1, 1))
    size = N * P

    def density(z: tf.Tensor) -> tf.Tensor:
        return target(z) + (jacobian - 1.0) * tf.reduce_sum(z[:, size:], axis=1)

    run = hmc.runner(density)
    setting = Setting(0.3, 6)
    runs = [
        hmc.call(run, tf.constant(x), setting, [5, number], DRAWS, THIN)[1].position.numpy()
        for number in range(2)
    ]
    first = rng.integers(0, DRAWS + 1, SETS)  # m
    order = np.arange(DRAWS)[:, None]
    taken = [(order < number)[:, :, None] for number in (first, DRAWS - first)]
    below, equal = (
        sum((compare(draws, x) & kept).sum(axis=0) for draws, kept in zip(runs, taken, strict=True))
        for compare in (np.less, np.equal)
    )
    ranks = below + rng.integers(
        0, equal + 1
    )  # where proposals were rejected the order is a matter of chance
    watched = {"v": 2, "V": size - 1}
    offset = size
    for c in target.coordinates[1:]:
        watched[c.name] = offset
        offset += c.size
    return {
        key: float(stats.chisquare(np.bincount(ranks[:, j] * BINS // (DRAWS + 1), minlength=BINS)).pvalue)
        for key, j in watched.items()
    }


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("regression", marks=SLOW),
        pytest.param("binary", marks=SLOW),
        "poisson",
        pytest.param("classes", marks=SLOW),
    ],
)
def test_ranks_are_uniform(name: str) -> None:
    """False failures: 1e-4 for each of about four functions."""
    found = p_values(name)
    assert min(found.values()) > 1e-4, found


@pytest.mark.parametrize("jacobian", [0.0, pytest.param(2.0, marks=SLOW)])
def test_a_wrong_jacobian_is_found(jacobian: float) -> None:
    found = p_values("poisson", jacobian)
    assert min(found.values()) < 1e-4, found
