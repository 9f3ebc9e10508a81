"""The signature that draws the latent functions of a model jointly at all rows of a call.

The normal numbers are an argument: a draw is the mean plus the Cholesky factor of the covariance times them,
the same in every runtime, whoever draws them. It is the same to rounding, which the factor of a covariance
amplifies by the root of its condition number: of rows that are close together up to the root of one over the
jitter.
"""

from __future__ import annotations

from collections.abc import Callable

import gpflow
import tensorflow as tf

NAME = "sample_joint"
Joint = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
"""Map X [N, D] to the mean [N, P] and the covariance of each function, [P, N, N]."""


def sample(joint: Joint, X: tf.Tensor, ok: tf.Tensor, normals: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return draws [S, N, P]. O(PN³).

    Parameters
    ----------
    joint
        What is drawn from.
    X, ok
        Inputs [N, D], and which of them there are, [N]: the others get NaN, and change none of the draws.
    normals
        Standard normal numbers, [S, N, P].
    """
    mean, cov = joint(X)
    both = ok[:, None] & ok[None, :]
    alone = tf.eye(tf.shape(X)[0], dtype=cov.dtype)
    jitter = tf.cast(gpflow.default_jitter(), cov.dtype)
    chol = tf.linalg.cholesky(tf.where(both, cov + jitter * alone, alone))  # [P, N, N]
    draws = mean + tf.einsum("pnm,smp->snp", chol, normals)
    return {"f": tf.where(ok[:, None], draws, tf.constant(float("nan"), draws.dtype))}
