"""Predictions that average over draws of the parameters of a sparse model."""

from __future__ import annotations

from typing import Any, Protocol

import gpflow
import tensorflow as tf
from check_shapes import inherit_check_shapes
from gpflow import posteriors
from gpflow.base import MeanAndVariance
from gpflow.inducing_variables import InducingVariables
from gpflow.posteriors import PrecomputeCacheType

from gpflow_ext.functions.draws import SamplesFunctions
from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.numerics import batched, linalg, stacked
from gpflow_ext.numerics.batched import Rows, TakesNumbers
from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.prediction.densities import MixturePredictions
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sites import coupled, latent

BLOCK = 32  # draws treated at once: memory O(BLOCK·M·N)

_BETWEEN = {  # the covariance of the draws' means, for full_cov and full_output_cov
    (False, False): "s...np,s...np->...np",
    (True, False): "s...np,s...mp->...pnm",
    (False, True): "s...np,s...nq->...npq",
    (True, True): "s...np,s...mq->...npmq",
}


class DrawnModel(Protocol):
    """Protocol of the model of the posterior."""

    kernel: gpflow.kernels.Kernel
    likelihood: gpflow.likelihoods.Likelihood
    inducing_variable: InducingVariables
    mean_function: gpflow.functions.MeanFunction
    num_latent_gps: int
    V: gpflow.Parameter

    @property
    def density(self) -> FreeFormDensity:
        """The density of the data, and what it is made of."""

    def held(self) -> Stack:
        """Return the draws, [S, *shape] of each sampled parameter."""


class DrawsPosterior(SamplesFunctions, TakesNumbers, posteriors.AbstractPosterior):
    """The mixture (1/S) Σ_s p(f | draw s); its cache holds the Cholesky factors of K_uu of all draws.

    Parameters
    ----------
    model
        The model.
    precompute_cache
        See `gpflow.posteriors`. ``update_cache`` reads the model again.

    Attributes
    ----------
    repeats_cache
        See `sites.posterior.SitePosterior`.
    """

    repeats_cache = True

    def __init__(self, model: DrawnModel, precompute_cache: PrecomputeCacheType | str | None) -> None:
        super().__init__(model.kernel, model.inducing_variable)
        self._model, self._density, self._stack = model, model.density, model.held()
        self.update_cache(PrecomputeCacheType(precompute_cache or "nocache"))

    def predictions(self, X: tf.Tensor) -> MixturePredictions:
        """Return what the draws predict at X [N, D]; `ValueError` for other axes."""
        X = self.inputs(X)
        if len(X.shape) != 2:
            raise ValueError(
                f"X must be inputs [N, D]; its shape is {X.shape}: predict a batch by predict_f, predict_y "
                "or predict_log_density."
            )
        return self._predictions(self.cache or self._factors(), X)

    def _predictions(self, cache: tuple[tf.Tensor, ...], X: tf.Tensor) -> MixturePredictions:
        (chol,) = cache
        parts = [self._density.moments(stack, X, L) for stack, L in self._blocks(chol)]
        mean, var = (tf.concat(part, axis=0) for part in zip(*parts, strict=True))
        return MixturePredictions(self._model.likelihood, self._stack, X, mean, var)

    def sample_f(self, X: tf.Tensor, num_samples: int) -> tf.Tensor:
        """Return samples of f at X [batch..., N, D], each from a draw taken at random.

        They are [batch..., num_samples, N, P]; those of one number are of the same draw in all of the batch.
        """
        (chol,) = self.cache or self._factors()
        chosen = tf.random.uniform([num_samples], maxval=self._size, dtype=tf.int32)
        taken = Stack((parameter, tf.gather(value, chosen)) for parameter, value in self._stack.values)
        L = chol if chol.shape[0] == 1 else tf.gather(chol, chosen)
        mean, cov = self._density.covariance(taken, self.inputs(X), L)
        root = tf.linalg.cholesky(linalg.jittered(cov))
        W = self._density.mixing(taken)
        width = mean.shape[-1] if W is None else W.shape[-1]
        noise = tf.random.normal([*batched.sizes(mean)[:-1], width], dtype=mean.dtype)
        apart = (root @ tf.einsum("s...l->sl...", noise)[..., None])[..., 0]  # [S, L, batch..., N]
        apart = tf.einsum("sl...->s...l", apart) if W is None else tf.einsum("sl...,spl->s...p", apart, W)
        return batched.behind_batch(mean + apart)

    def functions(self) -> Given:
        """See `SamplesFunctions`; each function is of a draw taken at random.

        α = L⁻ᵀ(v − L⁻¹f̃) for v of the draw and the prior draw f̃ at the inducing points.
        """
        (chol,) = self.cache or self._factors()
        model, size = self._model, self._size
        chol = tf.broadcast_to(chol, [size, *chol.shape[1:]])
        hyper = [(p, value) for p, value in self._stack.values if p is not model.V]

        def condition(prior: tf.Tensor, numbers: Numbers, v: tf.Tensor, L: tf.Tensor) -> tf.Tensor:
            v = tf.transpose(v)[..., None]  # [L, M, 1]
            L = tf.broadcast_to(L, [*batched.sizes(v)[:2], batched.sizes(v)[1]])
            return tf.linalg.triangular_solve(L, v - tf.linalg.triangular_solve(L, prior), adjoint=True)

        V = tf.broadcast_to(self._stack[model.V], [size, *model.V.shape])
        points = latent.sets(model.inducing_variable)
        return Given(
            domain=domain(type(model).__name__, latent.kernels(model.kernel), points),
            mean_function=model.mean_function,
            num_latent=latent.num_functions(model),
            condition=condition,
            mixing=latent.mixing(model.kernel),
            parameters=tuple(parameter for parameter, _ in hyper),
            members=(*(tf.convert_to_tensor(value) for _, value in hyper), V, chol),
        )

    @property
    def _size(self) -> int:
        """S."""
        return int(self._stack.values[0][1].shape[0])

    def _factors(self) -> tuple[tf.Tensor, ...]:
        """Read the model; return the Cholesky factors of K_uu, [S or 1, M, M] or [S or 1, L, M, M]."""
        self._stack = self._model.held()
        return linalg.finite((tf.linalg.cholesky(self._density.gram(self._stack)),), self._model)

    def _precompute(self) -> tuple[posteriors.PrecomputedValue, ...]:
        return tuple(
            posteriors.PrecomputedValue(part, (False,) * part.shape.rank) for part in self._factors()
        )

    @inherit_check_shapes
    def _conditional_fused(
        self, Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        return self._conditional_with_precompute(self._factors(), Xnew, full_cov, full_output_cov)

    @inherit_check_shapes
    def _conditional_with_precompute(
        self, cache: tuple[tf.Tensor, ...], Xnew: Any, full_cov: bool = False, full_output_cov: bool = False
    ) -> MeanAndVariance:
        X, flags = tf.convert_to_tensor(Xnew), (full_cov, full_output_cov)
        blocks = [self._block(stack, X, L, *flags) for stack, L in self._blocks(cache[0])]
        mean = tf.concat([part for part, _ in blocks], axis=0)
        average = tf.reduce_mean(mean, axis=0)
        within = tf.add_n([part for _, part in blocks]) / self._size
        apart = mean - average
        return average, within + tf.einsum(_BETWEEN[flags], apart, apart) / self._size

    def _block(
        self, stack: Stack, X: tf.Tensor, chol: tf.Tensor, full_cov: bool, full_output_cov: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the means [S, batch..., N, P] of some draws, and the sum of their (co)variances.

        These have the shapes that GPflow's models return.
        """
        W = self._density.mixing(stack)
        if not full_cov and (W is None or not full_output_cov):
            rows = Rows(X)
            mean, var = (rows.apart(part, 1) for part in self._density.moments(stack, rows.flat, chol))
            return mean, batched.independent_outputs(tf.reduce_sum(var, axis=0), False, full_output_cov)
        mean, cov = self._density.covariance(stack, X if full_cov else X[..., None, :], chol)
        if not full_cov:  # of rows that are alone
            mean, cov = mean[..., 0, :], cov[..., 0, 0]
        if W is not None:
            return mean, _mixed(W, cov, full_cov, full_output_cov)
        total = tf.reduce_sum(cov, axis=0)  # [1 or L, batch..., N, N]
        total = tf.broadcast_to(total, [mean.shape[-1], *batched.sizes(total)[1:]])
        return mean, batched.independent_outputs(batched.behind_batch(total), True, full_output_cov)

    def _blocks(self, chol: tf.Tensor) -> list[tuple[Stack, tf.Tensor]]:
        """Return the draws and their factors, `BLOCK` at a time."""
        return [
            (self._stack.members(some), chol if chol.shape[0] == 1 else chol[some])
            for some in stacked.slices(self._size, BLOCK)
        ]


def _mixed(W: tf.Tensor, cov: tf.Tensor, full_cov: bool, full_output_cov: bool) -> tf.Tensor:
    """Return the sum over the draws of the (co)variances of outputs that mix functions.

    From W [S or 1, P, L] and the covariances [S, L, batch..., N, N], or variances [S, L, batch..., N].
    """
    S, L, *axes = batched.sizes(cov)
    all_of_them = tf.einsum("spl->psl", tf.broadcast_to(W, [S, *W.shape[1:]]))
    weights = tf.reshape(all_of_them, [W.shape[1], S * L])
    return coupled.prior_covariance(weights, tf.reshape(cov, [S * L, *axes]), full_cov, full_output_cov)
