"""Moments, densities and draws of W(x)f(x), a product of two Gaussians, at new inputs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.numerics import batched

_CELLS = 2**23  # numbers in the largest tensor of a block of outputs


class Inducing(NamedTuple):
    """L_w and L_f [M, M] at the inducing inputs, and the variances at the data that these leave, [N]."""

    weight_chol: tf.Tensor
    node_chol: tf.Tensor
    weight_residual: tf.Tensor
    node_residual: tf.Tensor


class NetworkPrior(NamedTuple):
    """L_w and L_f [N, N], the Cholesky factors of both kernels at the training inputs, and σ².

    With inducing inputs both are (L⁻¹K_zx)ᵀ [N, M], L of their own.
    """

    weights: tf.Tensor
    nodes: tf.Tensor
    noise: tf.Tensor
    inducing: Inducing | None = None

    @property
    def chols(self) -> tuple[tf.Tensor, tf.Tensor]:
        """The factors at the inputs on which all others are conditioned."""
        own = self.inducing
        return (self.weights, self.nodes) if own is None else (own.weight_chol, own.node_chol)

    @property
    def residuals(self) -> tuple[tf.Tensor | float, tf.Tensor | float]:
        """The variances of the weights and the nodes that inducing inputs leave."""
        own = self.inducing
        return (0.0, 0.0) if own is None else (own.weight_residual, own.node_residual)


class Conditional(NamedTuple):
    """A whitened Gaussian process at X new inputs: g* = Aᵀg̃ + r with A [N, X].

    ``residual`` is the variance of r, [X], or its covariance [X, X].
    """

    A: tf.Tensor
    residual: tf.Tensor


class View(Protocol):
    """An approximate posterior seen from X new inputs; R = X, or X² pairs of inputs for joint predictions.

    An output brings a column of what the posterior keeps of it (``payload`` [N, B, …]) and a ``trait`` [B].
    """

    @property
    def mean(self) -> tf.Tensor:
        """Means of the nodes, [X, K]."""

    @property
    def cov(self) -> tf.Tensor:
        """Covariances of the nodes, [R, K, K]."""

    def weights(self, payload: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return the means of the weights, [X, B, K]."""

    def spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return Σ_kl M_kl Cov(w_k, w_l) for M [..., R, K, K], as [..., R, B]."""

    def output_spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return Σ_kl M_kl Cov(w_dk, w_el) for M [X, K, K] and all outputs, as [X, D, D]."""

    def draw_weights(self, mean: tf.Tensor, trait: tf.Tensor, seed: tf.Tensor, number: int) -> tf.Tensor:
        """Return joint draws of the weights at all X inputs, [S, X, B, K], for a view of pairs."""


def condition(
    kernel: gpflow.kernels.Kernel,
    X: tf.Tensor,
    chol: tf.Tensor,
    Xnew: tf.Tensor,
    full_cov: bool,
    nugget: tf.Tensor | float = 0.0,
) -> Conditional:
    """Return the conditional at Xnew [X, D] of a process with white noise ``nugget``. O(N²X)."""
    A = tf.linalg.triangular_solve(chol, kernel(X, Xnew))
    if full_cov:
        residual = kernel(Xnew) - tf.matmul(A, A, transpose_a=True)
        return Conditional(
            A, tf.linalg.set_diag(residual, tf.nn.relu(tf.linalg.diag_part(residual)) + nugget)
        )
    return Conditional(A, tf.nn.relu(kernel(Xnew, full_cov=False) - tf.reduce_sum(A**2, axis=0)) + nugget)


def block_size(rows: int | None, num_latent: int, draws: int = 1) -> int:
    """Return the number of outputs in a block for R rows of a view, ``None`` where they are not known."""
    return max(1, _CELLS // max(1, (rows or 64) * max(num_latent, draws)))


def normal(seed: tf.Tensor, number: int, like: tf.Tensor) -> tf.Tensor:
    """Return standard normal numbers [S, *shape] for the shape of a tensor."""
    return tf.random.stateless_normal(tf.concat([[number], tf.shape(like)], axis=0), seed, dtype=like.dtype)


def second_moment(view: View) -> tf.Tensor:
    """Return E[f_x f_xᵀ] for the inputs of a view, [X, K, K]."""
    return view.cov + view.mean[:, :, None] * view.mean[:, None, :]


def second_moment_of_pairs(view: View) -> tf.Tensor:
    """Return E[f_x f_yᵀ] for the pairs of inputs of a view, [X², K, K]."""
    pairs = view.mean[:, None, :, None] * view.mean[None, :, None, :]
    return view.cov + tf.reshape(pairs, tf.shape(view.cov))


def moments(view: View, payload: tf.Tensor, trait: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and variance of W(x)f(x), each [X, B]. O(XBK(N + K)).

    W and f are independent under q, so that with u = E[w], m = E[f] and C = Cov(f) they are uᵀm and
    uᵀCu + tr(Cov(w) (C + mmᵀ)).
    """
    u = view.weights(payload, trait)
    mean = tf.linalg.matvec(u, view.mean)
    through = tf.reduce_sum(tf.matmul(u, view.cov) * u, axis=-1)
    return mean, through + view.spread(second_moment(view), trait)


def joint_moments(view: View, payload: tf.Tensor, trait: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean [X, B] and, for each output, the covariance between inputs [B, X, X]."""
    u = view.weights(payload, trait)
    X, K = batched.sizes(view.mean)
    cov = tf.einsum("xdk,xykl,ydl->dxy", u, tf.reshape(view.cov, [X, X, K, K]), u)
    spread = tf.reshape(view.spread(second_moment_of_pairs(view), trait), [X, X, batched.sizes(u)[1]])
    return tf.linalg.matvec(u, view.mean), cov + tf.transpose(spread, [2, 0, 1])


def output_moments(view: View, payload: tf.Tensor, trait: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mean [X, D] and, at each input, the covariance between all outputs [X, D, D]."""
    u = view.weights(payload, trait)
    through = tf.matmul(tf.matmul(u, view.cov), u, transpose_b=True)
    return tf.linalg.matvec(u, view.mean), through + view.output_spread(second_moment(view), trait)


def log_density(
    view: View, payload: tf.Tensor, trait: tf.Tensor, Y: tf.Tensor, noise: tf.Tensor, draws: tf.Tensor
) -> tf.Tensor:
    """Return log p(y*_d) of each target [X, B] by a mixture over draws of the nodes, [X, B].

        log (1/S) Σ_s N(y; u_dᵀf_s, f_sᵀ Cov(w_d) f_s + σ²),    f_s ~ q(f*)

    The weights are integrated out (Rao-Blackwell). ``draws`` are standard normal, [S, X, K].
    """
    u = view.weights(payload, trait)
    f = view.mean + tf.linalg.matvec(tf.linalg.cholesky(view.cov), draws)  # [S, X, K]
    mean = tf.einsum("xdk,sxk->sxd", u, f)
    var = view.spread(f[..., :, None] * f[..., None, :], trait) + noise
    terms = -0.5 * (tf.math.log(2.0 * np.pi * var) + tf.square(Y - mean) / var)
    return tf.reduce_logsumexp(terms, axis=0) - np.log(draws.shape[0])


def draw(view: View, payload: tf.Tensor, trait: tf.Tensor, f: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return joint draws over inputs of W(x)f(x) for draws f [S, X, K] of the nodes, as [S, X, B]."""
    weights = view.draw_weights(view.weights(payload, trait), trait, seed, f.shape[0])
    return tf.linalg.matvec(weights, f)


def draw_nodes(view: View, seed: tf.Tensor, number: int) -> tf.Tensor:
    """Return joint draws of the nodes at the inputs of a view of pairs, [S, X, K]."""
    X, K = batched.sizes(view.mean)
    factor = joint_factor(view.cov, X, K)
    noise = tf.random.stateless_normal([number, X * K], seed, dtype=factor.dtype)
    return view.mean + tf.reshape(tf.linalg.matvec(factor, noise), [number, X, K])


def joint_factor(cov: tf.Tensor, X: int | tf.Tensor, K: int) -> tf.Tensor:
    """Return the Cholesky factor of covariances given by pairs [..., X², K, K], as [..., XK, XK]."""
    lead = cov.shape[:-3]
    full = tf.einsum("...xykl->...xkyl", tf.reshape(cov, [*lead, X, X, K, K]))
    full = tf.reshape(full, [*lead, X * K, X * K])
    return tf.linalg.cholesky(full + gpflow.default_jitter() * tf.eye(X * K, dtype=cov.dtype))
