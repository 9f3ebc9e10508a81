"""Newton's direction in the mean of q(f), equation 21 of Khan, Mohamed & Murphy (2012)."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf

from gpflow_ext.sites import Expectation, Factor, Pair, Prior, conjugate
from gpflow_ext.sites.conjugate import Solve

CG_TOLERANCE = 1e-3  # of the Newton step, in the norm of the preconditioner
CG_ITERATIONS = 50


class MeanPoint(Protocol):
    """Protocol of a point at which the direction is wanted; all [N, L]."""

    @property
    def alpha(self) -> tf.Tensor:
        """α of m = μ + Qα."""

    @property
    def mean(self) -> tf.Tensor:
        """M."""

    @property
    def var(self) -> tf.Tensor:
        """V."""

    @property
    def grad(self) -> tf.Tensor:
        """∂f_b/∂m."""

    @property
    def curvature(self) -> tf.Tensor:
        """−2 ∂f_b/∂v."""

    @property
    def least(self) -> tf.Tensor:
        """The least precision, [], negative where the likelihood is not log-concave."""


def own_factor(prior: Prior, point: MeanPoint) -> Factor:
    """Return the factor of I + WQ, W = −2 ∂f_b/∂v, whose solutions are exact with one latent function."""
    return prior.factorise(tf.nn.relu(point.curvature))


def direction(
    expectation: Expectation, point: MeanPoint, solve: Solve, exact: bool, separate: bool = False
) -> Pair:
    """Return the change δ of α that solves (I + HQ) δ = g − α, with H = −∂²f_b/∂m², and Qδ.

    With one latent function, or where each has terms of its own, H is taken as the diagonal W = −2 ∂f_b/∂v
    (Price's theorem), and the solution by the factor of I + WQ is it. Where the likelihood couples several,
    as the multinomial logit, W only bounds H; and a solution by a factor for other precisions does not equal
    it. Then either preconditions conjugate gradients in m, which find the step at O(N²) an iteration. H may
    be indefinite if the likelihood is not log-concave: they end early there; see `conjugate.solve`.

    Parameters
    ----------
    expectation, point
        The likelihood, and where the step begins.
    solve, exact
        Solution by a factor, and whether that is `own_factor`.
    separate
        Whether the likelihood is known not to couple the latent functions.
    """
    residual = point.grad - point.alpha
    curvature = tf.nn.relu(point.curvature)
    separate |= point.mean.shape[-1] == 1
    if exact and separate:
        return solve(residual)
    most = CG_ITERATIONS if exact else conjugate.ITERATIONS
    if separate:
        return conjugate.solve(lambda p: curvature * p, solve, residual, CG_TOLERANCE, most)[0]

    # What p does not change stays outside of the loop.
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(point.mean)
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(point.mean)
            value = tf.reduce_sum(expectation(point.mean, point.var))
        slope = inner.gradient(value, point.mean)

    def times_hessian(p: tf.Tensor) -> tf.Tensor:
        return -outer.gradient(slope, point.mean, output_gradients=p)

    return conjugate.solve(times_hessian, solve, residual, CG_TOLERANCE, most)[0]
