"""Densities and expectations of every likelihood against mpmath, where double precision is under strain.

Logits to 1e4, variances from 1e-12 to 1e12, counts to 1e9; 30 digits, the integrals split at the modes and kinks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import tensorflow as tf

from gpflow_ext.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    CumulativeLogit,
    MultinomialLogit,
    PoissonLog,
    RobustMax,
    StickBreaking,
)

mp.mp.dps = 30
MEANS = [0.0, 1.0, -30.0, 700.0, -1e4]
VARIANCES = [1e-12, 1e-4, 1.0, 1e4, 1e12]
COUNTS = [0.0, 1.0, 1e3, 1e9]
PAIRS = list(itertools.product(MEANS, VARIANCES))[::2]  # each mean and each variance, in half the time
M, V = (np.array(part)[:, None] for part in zip(*PAIRS, strict=True))
NO_X = np.zeros((len(PAIRS), 1))

Log = Callable[[mp.mpf], mp.mpf]


def log_sigmoid(x: mp.mpf) -> mp.mpf:
    return -mp.log1p(mp.exp(-x)) if x > 0 else x - mp.log1p(mp.exp(x))


def log_ndtr(x: mp.mpf) -> mp.mpf:
    return mp.log(mp.erfc(-x / mp.sqrt(2)) / 2)


def log_interval(x: mp.mpf, low: float, high: float) -> mp.mpf:
    """The logarithm of σ(high − x) − σ(low − x), in a form without cancellation."""
    return log_sigmoid(high - x) + log_sigmoid(x - low) + mp.log(-mp.expm1(mp.mpf(low) - high))


def points(centres: list[tuple[mp.mpf, mp.mpf]]) -> list[mp.mpf]:
    """Ends of intervals around each centre, by its width."""
    steps = [0, 0.5, 1, 2, 4, 7, 11, 16]
    return sorted({c + sign * k * w for c, w in centres for k in steps for sign in (-1, 1)})


def expectation(log_p: Log, mean: float, var: float) -> mp.mpf:
    """E[log p(x)], x ~ N(mean, var); the kinks of log p are near 0."""
    m, sd = mp.mpf(mean), mp.sqrt(mp.mpf(var))
    ends = [x for x in points([(m, sd), (mp.mpf(0), mp.mpf(3))]) if abs(x - m) <= 16 * sd]
    return mp.quad(lambda x: log_p(x) * mp.npdf(x, m, sd), ends)


def log_expected(log_p: Log, mean: float, var: float) -> mp.mpf:
    """log E[p(x)], x ~ N(mean, var), for a p that is log-concave."""
    m, v = mp.mpf(mean), mp.mpf(var)

    def log_integrand(x: mp.mpf) -> mp.mpf:
        return log_p(x) - (x - m) ** 2 / (2 * v)

    reach = 40 * mp.sqrt(v) + 1e10 * v  # the slope of log p is at most that
    low, high = m - reach, m + reach
    for _ in range(250):  # the mode, by thirds
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (a, high) if log_integrand(a) < log_integrand(b) else (low, b)
    mode, top = low, log_integrand(low)
    width = mp.sqrt(v)
    while (
        width > mp.sqrt(v) / 2**60 and log_integrand(mode + width) + log_integrand(mode - width) < 2 * top - 2
    ):
        width /= 2
    ends = points([(mode, 2 * width), (mode, mp.sqrt(v)), (m, mp.sqrt(v)), (mp.mpf(0), mp.mpf(3))])
    ends = [x for x in ends if log_integrand(x) > top - 300]
    return top + mp.log(mp.quad(lambda x: mp.exp(log_integrand(x) - top), ends) / mp.sqrt(2 * mp.pi * v))


def numbers(values: list[mp.mpf]) -> np.ndarray:
    """In double precision; what is below its range is −∞."""
    return np.array([float(value) if value > -1e308 else -np.inf for value in values])


@functools.cache
def of_pairs(reference: Callable[..., mp.mpf], log_p: Log) -> np.ndarray:
    return numbers([reference(log_p, *pair) for pair in PAIRS])


def check(found, exact, rtol=1e-10, atol=1e-11) -> None:
    """Compare [N]; what is nearer to zero than ``atol`` is the logarithm of one."""
    np.testing.assert_allclose(np.ravel(found), exact, rtol=rtol, atol=atol)


def check_finite_slopes(likelihood, Y) -> None:
    """Of the expectations, by mean and variance."""
    with tf.GradientTape() as tape:
        m, v = tf.constant(M), tf.constant(V)
        tape.watch([m, v])
        value = likelihood.variational_expectations(NO_X, m, v, Y)
    for slope in tape.gradient(value, [m, v]):
        assert np.isfinite(slope).all()


# The link, and the error that the expectation states: that of the probit is a mixture's.
BINARY = {
    "logit": (lambda: BernoulliLogit(None), log_sigmoid, 1e-11),
    "probit": (BernoulliProbit, log_ndtr, 2e-9 * (1.0 + M[:, 0] ** 2 + V[:, 0])),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("label", [1.0, 0.0])
def test_binary(name: str, label: float) -> None:
    make, log_link, error = BINARY[name]
    likelihood, Y, sign = make(), np.full_like(M, label), 2.0 * label - 1.0
    F = np.array(MEANS)[:, None]
    found = likelihood.log_prob(NO_X[: len(F)], F * sign, Y[: len(F)])
    check(found, numbers([log_link(mp.mpf(m)) for m in MEANS]), 1e-13, atol=0.0)
    found = likelihood.variational_expectations(NO_X, sign * M, V, Y)
    assert (
        np.abs(np.ravel(found) - (exact := of_pairs(expectation, log_link))) <= error + 1e-10 * -exact
    ).all()
    found = likelihood.predict_log_density(NO_X, sign * M, V, Y)
    check(found, of_pairs(log_expected, log_link), 1e-8)
    check_finite_slopes(likelihood, Y)


@pytest.mark.parametrize("count", COUNTS)
def test_counts(count: float) -> None:
    likelihood, Y = PoissonLog(), np.full_like(M, count)
    constant = mp.loggamma(mp.mpf(count) + 1)
    F = np.array([0.0, 1.0, -30.0, 20.0, -1e4])[:, None]
    found = likelihood.log_prob(NO_X[: len(F)], F, Y[: len(F)])
    exact = [count * mp.mpf(m) - mp.exp(mp.mpf(m)) - constant for m in F[:, 0]]
    check(found, numbers(exact), 1e-12)
    found = likelihood.variational_expectations(NO_X, M, V, Y)
    exact = [count * mp.mpf(m) - mp.exp(mp.mpf(m) + mp.mpf(v) / 2) - constant for m, v in PAIRS]
    check(found, numbers(exact), 1e-12)


@pytest.mark.parametrize("count", [0.0, 3.0, 1e9])
def test_predicted_counts(count: float) -> None:
    pairs = [pair for pair in itertools.product([0.0, 1.0, -30.0, 20.0, -1e4], VARIANCES) if pair[1] <= 1e4]
    m, v = (np.array(part)[:, None] for part in zip(*pairs[::2], strict=True))
    found = PoissonLog().predict_log_density(NO_X[: len(m)], m, v, np.full_like(m, count))

    def log_p(x: mp.mpf) -> mp.mpf:
        return count * x - mp.exp(x) - mp.loggamma(mp.mpf(count) + 1)

    check(found, numbers([log_expected(log_p, *pair) for pair in pairs[::2]]), 1e-11)


@pytest.mark.parametrize("level", [0.0, 1.0, 3.0])
def test_levels(level: float) -> None:
    cuts = [-1.5, 0.0, 2.0]
    likelihood = CumulativeLogit(4, bound=None, thresholds=cuts)
    log_p = {
        0.0: lambda x: log_sigmoid(cuts[0] - x),
        1.0: lambda x: log_interval(x, cuts[0], cuts[1]),
        3.0: lambda x: log_sigmoid(x - cuts[2]),
    }[level]
    Y, F = np.full_like(M, level), np.array(MEANS)[:, None]
    found = likelihood.log_prob(NO_X[: len(F)], F, Y[: len(F)])
    check(found, numbers([log_p(mp.mpf(m)) for m in MEANS]), 1e-12)
    found = likelihood.variational_expectations(NO_X, M, V, Y)
    check(found, of_pairs(expectation, log_p))
    found = likelihood.predict_log_density(NO_X, M, V, Y)
    check(found, of_pairs(log_expected, log_p))
    check_finite_slopes(likelihood, Y)


def test_two_classes() -> None:
    """With two classes each likelihood is one of a difference of two Gaussians."""
    means, variances = np.c_[M, -0.5 * M], np.c_[0.25 * V, 0.75 * V]
    pairs = [(1.5 * m, v) for m, v in PAIRS]
    Y = np.zeros_like(M)
    multinomial, sticks, largest = (
        MultinomialLogit(2, bound=None),
        StickBreaking(2, bound=None),
        RobustMax(2, 1e-3),
    )
    exact = numbers([expectation(log_sigmoid, *pair) for pair in pairs])
    check(multinomial.variational_expectations(NO_X, means, variances, Y), exact, 1e-9)
    exact = np.exp(numbers([log_expected(log_sigmoid, *pair) for pair in pairs]))
    check(np.exp(multinomial.predict_log_density(NO_X, means, variances, Y)), exact, 1e-9)
    check(sticks.variational_expectations(NO_X, M, V, Y), of_pairs(expectation, log_sigmoid))
    chance = [mp.ncdf(mp.mpf(m) / mp.sqrt(mp.mpf(v))) for m, v in pairs]
    exact = [p * mp.log1p(-mp.mpf(1e-3)) + (1 - p) * mp.log(mp.mpf(1e-3)) for p in chance]
    check(largest.variational_expectations(NO_X, means, variances, Y), numbers(exact))
    exact = [mp.log(p * (1 - mp.mpf(1e-3)) + (1 - p) * mp.mpf(1e-3)) for p in chance]
    check(largest.predict_log_density(NO_X, means, variances, Y), numbers(exact))
