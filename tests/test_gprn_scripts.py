"""What the comparisons of the regression networks rest on: the fully factorised baseline is a bound that rises."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import problems
import tensorflow as tf

sys.path[:0] = [str(Path(__file__).parent.parent / "scripts")]

import _gprn_methods as methods  # noqa: E402
from _gprn_mean_field import MeanField  # noqa: E402

from gpflow_ext import network  # noqa: E402


def test_the_factorised_bound_rises_and_stays_below_the_collapsed_one() -> None:
    X, rng = problems.inputs(12), np.random.default_rng(0)
    Y = rng.normal(size=(12, 5))
    model = methods.network(methods.Task(X, Y, X, Y), 2)
    fitted = MeanField(model, X, Y, np.stack([np.ones(12), 0.3 * rng.normal(size=12)], axis=1))
    values = []
    for _ in range(4):
        fitted.sweep()
        values.append(fitted.elbo())
    assert (np.diff(values) > -1e-8).all()
    prior = model.prior()
    K = (prior.nodes @ tf.transpose(prior.nodes)).numpy()
    kl = sum(
        0.5 * (np.trace(np.linalg.solve(K, S + np.outer(m, m))) - 12 + np.linalg.slogdet(K)[1])
        - 0.5 * np.linalg.slogdet(S)[1]
        for S, m in zip(fitted._node_cov, fitted.means.T, strict=True)
    )
    cov = tf.linalg.diag(tf.constant([S.diagonal() for S in fitted._node_cov]).numpy().T)
    q = network.Nodes(tf.constant(fitted.means), cov, tf.constant(kl))
    assert network.bound(model.q.patterns, prior.weights, prior.noise, q) > values[-1]
