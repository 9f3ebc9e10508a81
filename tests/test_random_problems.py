"""Random problems of every likelihood, prior variances from 1e-3 to 1e3: the ascent never falls and never fails."""

from __future__ import annotations

import numpy as np
import problems
import pytest
import tensorflow as tf
from marks import others_slow

from gpflow_ext import sites
from gpflow_ext.kmm import ascent
from gpflow_ext.likelihoods import (
    BernoulliLogit,
    CumulativeLogit,
    MultinomialLogit,
    PoissonLog,
    StickBreaking,
)

NUM_DATA, ITERATIONS = 24, 600
LIKELIHOODS = {
    "logit": BernoulliLogit,
    "poisson": PoissonLog,
    "ordinal": lambda: CumulativeLogit(4),
    "stick-breaking": lambda: StickBreaking(3),
    "multinomial": lambda: MultinomialLogit(3),
}


def _draw(name: str, K: np.ndarray, num_latent: int, rng: np.random.Generator) -> np.ndarray:
    """Targets from the likelihood at latent functions from the prior, tamed where counts would overflow."""
    f = np.linalg.cholesky(K) @ rng.standard_normal((NUM_DATA, num_latent))
    if name == "logit":
        return (rng.uniform(size=f.shape) < 1 / (1 + np.exp(-f))).astype(float)
    if name == "poisson":
        return rng.poisson(np.exp(np.minimum(f, 7.0))).astype(float)
    if name == "ordinal":
        return np.clip(np.round(f + 1.5 + rng.logistic(size=f.shape)), 0, 3)
    return (
        np.argmax(np.c_[f, np.zeros(NUM_DATA)] + rng.gumbel(size=(NUM_DATA, num_latent + 1)), axis=1)[:, None]
        % 3.0
    )


def _check(name: str, cases: int) -> None:
    likelihood = LIKELIHOODS[name]()
    num_latent = likelihood.latent_dim or 1
    X, Y = tf.zeros([NUM_DATA, 1], tf.float64), tf.Variable(np.zeros((NUM_DATA, 1)))

    def expectation(mean: tf.Tensor, var: tf.Tensor) -> tf.Tensor:
        return likelihood.variational_expectations(X, mean, var, Y)

    step = tf.function(lambda prior, state: ascent.parallel_step(prior, expectation, state), autograph=False)
    rng = np.random.default_rng(0)
    zeros = tf.zeros([NUM_DATA, num_latent], tf.float64)
    for case in range(cases):
        variance, lengthscale = 10 ** rng.uniform(-3, 3), 10 ** rng.uniform(-0.7, 0.5)
        K = problems.kernel(variance, lengthscale)(problems.inputs(NUM_DATA, case)).numpy()
        K += 1e-6 * max(1.0, variance) * np.eye(NUM_DATA)
        Y.assign(_draw(name, K, num_latent, rng))
        prior = sites.Dense(zeros, tf.constant(K[None]))
        state = ascent.start(prior, expectation, sites.Sites(zeros, zeros))
        for _ in range(ITERATIONS):
            new = ascent.State(*step(prior, state))
            gained = float(new.objective - state.objective)
            scale = max(1.0, abs(float(new.objective)))
            assert gained >= -1e-9 * scale, (case, variance, lengthscale, gained)
            state = new
            if gained <= 1e-12 * scale:
                break
        violation = float(state.violation)
        assert violation < 1e-3, (case, variance, lengthscale, violation)
        assert np.isfinite(state.objective)


@pytest.mark.parametrize("name", others_slow(LIKELIHOODS, "poisson", "multinomial"))
def test_a_few_random_problems(name: str) -> None:
    _check(name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_hundred_random_problems(name: str) -> None:
    _check(name, 100)
