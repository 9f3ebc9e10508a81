"""The prior of a dense model: that of the values at the data themselves."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.numerics import linalg
from gpflow_ext.sites import Coupled, Dense, coupled, latent


def at(prior: latent.Functions, X: tf.Tensor) -> Dense | Coupled:
    """Return the prior at X [N, D], with GPflow's default jitter on K. O(N²), or O((NP)²) for mixtures."""
    K, W, mean = latent.gram(prior.kernel, X), latent.mixing(prior.kernel), latent.mean(prior, X)
    if W is None:
        return Dense(mean, linalg.jittered(K))
    return Coupled(mean, Dense(tf.reshape(mean, [-1, 1]), linalg.jittered(coupled.mixed_blocks(W, K))))
