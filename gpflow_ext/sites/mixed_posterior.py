"""GPflow's cached posteriors of site models whose latent functions are mixtures f = Wg, and so coupled."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from check_shapes import inherit_check_shapes

from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.batched import Rows
from gpflow_ext.sites import coupled, latent, sparse_prior
from gpflow_ext.sites.posterior import DenseSitePosterior, explained
from gpflow_ext.sites.triangular_posterior import SparseSitePosterior


class MixedDensePosterior(DenseSitePosterior):
    """See `DenseSitePosterior`; α is [N, P] and W [1, NP, NP]."""

    def _jitter(self) -> float | None:
        return 0.0  # the outputs have it

    def _values(self, prior: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        outputs = tf.einsum("pl,lns->pns", latent.mixing(self.kernel), prior)
        return outputs + np.sqrt(gpflow.default_jitter()) * numbers.normal(tf.shape(outputs))

    def _in_line(self, values: tf.Tensor) -> tf.Tensor:
        S = batched.sizes(values)[-1]
        return tf.reshape(tf.transpose(values, [1, 0, 2]), [1, -1, S])  # output by output within each datum

    def _apart(self, line: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        P, N, S = batched.sizes(like)
        return tf.transpose(tf.reshape(line, [N, P, S]), [1, 0, 2])

    def _weights(self, alpha: tf.Tensor) -> tf.Tensor:
        return tf.einsum("pl,pns->lns", latent.mixing(self.kernel), alpha)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        alpha, root, X, _ = cache
        rows, W = Rows(Xnew), tf.convert_to_tensor(latent.mixing(self.kernel))
        cross = coupled.mixed_blocks(W, latent.cross(self.kernel, X, rows.flat))[0]  # [NP, RP]
        flags = full_cov, full_output_cov
        left, right = explained(root, cross[None])
        seen = coupled.products(left[0], right[0], rows, W.shape[0], *flags)
        mean = tf.reshape(tf.matmul(cross, tf.reshape(alpha, [-1, 1]), transpose_a=True), [-1, W.shape[0]])
        return rows.apart(mean), _prior(self.kernel, Xnew, *flags) - seen


class MixedSparsePosterior(SparseSitePosterior):
    """See `SparseSitePosterior`; with the T inducing variables of all g, K_uu and q are [1, T, T]."""

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> tuple[tf.Tensor, tf.Tensor]:
        chol, q_mu, factor = cache
        rows, W = Rows(Xnew), tf.convert_to_tensor(latent.mixing(self.kernel))
        A = tf.linalg.triangular_solve(chol, sparse_prior.cross(self._model, rows.flat))  # [1, T, RP]
        seen, flags = self._seen(factor, A)[0], (full_cov, full_output_cov)
        explained, spread = (coupled.products(part, part, rows, W.shape[0], *flags) for part in (A[0], seen))
        mean = tf.reshape(tf.matmul(A[0], q_mu, transpose_a=True), [-1, W.shape[0]])
        return rows.apart(mean), _prior(self.kernel, Xnew, *flags) - explained + spread


def _prior(kernel: Any, Xnew: Any, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    """Return the prior (co)variances at Xnew [batch..., N, D], in the shapes that GPflow's models return."""
    own = tf.stack([part(Xnew, full_cov=full_cov) for part in latent.kernels(kernel)])
    return coupled.prior_covariance(latent.mixing(kernel), own, full_cov, full_output_cov)
