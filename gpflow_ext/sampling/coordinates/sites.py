"""Coordinates of v in which its Gaussian sites make it a standard normal at each θ."""

from __future__ import annotations

import tensorflow as tf

from gpflow_ext.numerics.stacked import Stack
from gpflow_ext.sampling.density import FreeFormDensity
from gpflow_ext.sampling.latents import Projection


class ConditionalSites:
    """q(v | θ) = N(m, B⁻¹), what the Gaussian sites of the approximation say of v at θ, v = m + R⁻ᵀz.

        B = I + AΛAᵀ = RRᵀ,    m = B⁻¹Aρ,    ρ = ν − Λμ

    In these coordinates the posterior of z hardly depends on θ, so the coupling of v and θ does not slow the
    sampler down. If outputs mix the latent functions, each has the sites that it has while the others stay
    as they were when the approximation was made.

    Parameters
    ----------
    density
        The density of a model with a Gaussian approximation.
    """

    def __init__(self, density: FreeFormDensity) -> None:
        self._density, self._model = density, density.model

    def log_likelihoods(self, stack: Stack) -> tf.Tensor:
        """Return Σₙ E[log p(yₙ | fₙ)] + log N(v; 0, I) − log q(v | θ), [C]; the stack has z instead of V.

        Times p(θ) N(z; 0, I) it is the density of (z, θ). O(C(LM³ + LNM²)), less on grids.
        """
        A, z = self._density.projection(stack), stack[self._model.V]
        V, half_log_det = self._move(stack, A, z)
        shift = 0.5 * tf.reduce_sum(z**2 - V**2, axis=[1, 2])
        return self._density.expected(stack, A, V) + shift - half_log_det

    def recover(self, stack: Stack) -> Stack:
        """Return the stack with v in the place of z."""
        V, _ = self._move(stack, self._density.projection(stack), stack[self._model.V])
        return stack.replaced(self._model.V, V)

    def mean(self, stack: Stack) -> tf.Tensor:
        """Return m at the hyperparameters of each member, [C, M, L]."""
        return self._move(stack, self._density.projection(stack), tf.zeros_like(stack[self._model.V]))[0]

    def factor(self) -> tf.Tensor:
        """Return the lower factors of the approximation's covariance, [L, M, M]."""
        return tf.convert_to_tensor(self._model.q_sqrt)

    def _move(self, stack: Stack, A: Projection, z: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return m + R⁻ᵀz [C, M, L] and ½ log|B| [C] for z [C, M, L]."""
        model = self._model
        rho = model.nat1 - model.prec * self._density.latent_mean(stack, model.data[0])  # [·, N, L]
        B = A.weighted(tf.transpose(tf.convert_to_tensor(model.prec)))  # [C or 1, L, M, M]
        R = tf.linalg.cholesky(tf.linalg.set_diag(B, tf.linalg.diag_part(B) + 1.0))
        pulled = tf.linalg.matrix_transpose(A.pull(rho))[..., None]  # [C, L, M, 1]
        z = tf.linalg.matrix_transpose(z)[..., None]
        R = tf.broadcast_to(R, tf.concat([tf.shape(z)[:1], tf.shape(R)[1:]], axis=0))
        root = tf.linalg.triangular_solve(R, tf.broadcast_to(pulled, tf.shape(z)))
        V = tf.linalg.triangular_solve(R, root + z, adjoint=True)[..., 0]
        logs = tf.reduce_sum(tf.math.log(tf.linalg.diag_part(R)), axis=[1, 2])
        return tf.linalg.matrix_transpose(V), logs
