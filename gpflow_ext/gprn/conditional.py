"""Moments, densities and draws of W(x)f(x), a product of two Gaussians, at new inputs."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.gprn import blocks, node_kernels
from gpflow_ext.gprn.scales import OutputScales
from gpflow_ext.numerics import batched, philox
from gpflow_ext.numerics.batched import Rows

_CELLS = 2**23  # numbers in the largest tensor of a block of outputs


class Inducing(NamedTuple):
    """L_w and L_f [M, M] at the inducing inputs, and the variances at the data that these leave, [N].

    Of nodes with kernels of their own L_f is [K, M, M], and the variances [K, N].
    """

    weight_chol: tf.Tensor
    node_chol: tf.Tensor
    weight_residual: tf.Tensor
    node_residual: tf.Tensor


class NetworkPrior(NamedTuple):
    """L_w and L_f [N, N], the Cholesky factors of both kernels at the training inputs, and σ².

    Of nodes with kernels of their own L_f is [K, N, N]. With inducing inputs both are (L⁻¹K_zx)ᵀ, M columns
    instead of N, L of their own. ``scales`` are those of the outputs,
    ``None`` where all share k_w and σ².
    """

    weights: tf.Tensor
    nodes: tf.Tensor
    noise: tf.Tensor
    inducing: Inducing | None = None
    scales: OutputScales | None = None

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

    ``residual`` is the variance of r, [X], or its covariances within B members of X' inputs, [B, X', X'].
    Both have a leading axis K where each node has a kernel of its own.
    """

    A: tf.Tensor
    residual: tf.Tensor

    def mean(self, whitened: tf.Tensor) -> tf.Tensor:
        """Return the means Aᵀg̃ for g̃ [N, K], [X, K] or [B, X', K]."""
        found = blocks.applied(tf.linalg.matrix_transpose(self.A), whitened)
        if not self.is_of_pairs:
            return found
        return tf.reshape(found, [*batched.sizes(self.residual)[-3:-1], found.shape[-1]])

    @property
    def is_of_pairs(self) -> bool:
        """Whether the residual is a covariance within members."""
        return int(self.residual.shape.rank) > 2


class View(Protocol):
    """An approximate posterior seen from X new inputs, R = X, or jointly from those of B members of a batch.

    With X' inputs each, X = BX', these have R = BX'² pairs: a view of pairs. An output brings a column of
    what the posterior keeps of it (``payload`` [N, D, …]) and a ``trait`` [D].
    """

    @property
    def mean(self) -> tf.Tensor:
        """Means of the nodes, [X, K] or [B, X', K]."""

    @property
    def cov(self) -> tf.Tensor:
        """Covariances of the nodes, [R, K, K]."""

    def weights(self, payload: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return the means of the weights, [X, D, K]."""

    def spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return Σ_kl M_kl Cov(w_k, w_l) for M [..., R, K, K], as [..., R, D]."""

    def output_spread(self, M: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
        """Return Σ_kl M_kl Cov(w_dk, w_el) for M [X, K, K] and all outputs, as [X, D, D]."""

    def draw_weights(self, mean: tf.Tensor, trait: tf.Tensor, seed: tf.Tensor, number: int) -> tf.Tensor:
        """Return joint draws of the weights of means [B, X', D, K], [S, B, X', D, K], for a view of pairs."""


def condition(
    kernel: gpflow.kernels.Kernel,
    X: tf.Tensor,
    chol: tf.Tensor,
    Xnew: tf.Tensor,
    pairs: bool,
    nugget: tf.Tensor | float = 0.0,
) -> Conditional:
    """Return the conditional at Xnew of a process, or of each node, with white noise [] or [K]. O(N²X).

    Xnew is [X, Q], or with ``pairs`` the members [B, X', Q].
    """
    rows = Rows(Xnew)
    A = tf.linalg.triangular_solve(chol, node_kernels.gram(kernel, X, rows.flat))
    nugget = tf.convert_to_tensor(nugget, A.dtype)[..., None]  # [1] or [K, 1]
    if pairs:
        own = rows.columns(A)  # [B, N, X']
        residual = node_kernels.of_members(kernel, Xnew) - tf.matmul(own, own, transpose_a=True)
        diagonal = tf.nn.relu(tf.linalg.diag_part(residual)) + nugget[..., None]
        return Conditional(A, tf.linalg.set_diag(residual, diagonal))
    left = node_kernels.variances(kernel, rows.flat) - tf.reduce_sum(A**2, axis=-2)
    return Conditional(A, tf.nn.relu(left) + nugget)


def at_data(chol: tf.Tensor, residual: float = 0.0) -> Conditional:
    """Return the conditional at the training inputs themselves, white noise included: g = Lg̃."""
    return Conditional(tf.linalg.matrix_transpose(chol), residual + tf.zeros(chol.shape[:-1], chol.dtype))


def on_diagonal(residual: tf.Tensor, num_nodes: int, pairs: bool) -> tf.Tensor:
    """Return a `Conditional`'s residual of independent nodes, [X, K, K] or for pairs [B, X', X', K, K]."""
    if residual.shape.rank == (3 if pairs else 1):
        return residual[..., None, None] * tf.eye(num_nodes, dtype=residual.dtype)
    last = [*range(1, residual.shape.rank), 0]
    return tf.linalg.diag(tf.transpose(residual, last))


def block_size(rows: int | None, num_latent: int, draws: int = 1) -> int:
    """Return the number of outputs in a block for R rows of a view, ``None`` where they are not known."""
    return max(1, _CELLS // max(1, (rows or 64) * max(num_latent, draws)))


def normal(seed: tf.Tensor, number: int, like: tf.Tensor) -> tf.Tensor:
    """Return standard normal numbers [S, *shape] for the shape of a tensor."""
    return philox.normal(tf.concat([[number], tf.shape(like)], axis=0), seed, like.dtype)


def second_moment(view: View) -> tf.Tensor:
    """Return E[f_x f_xᵀ] for the inputs of a view, [X, K, K]."""
    return view.cov + view.mean[:, :, None] * view.mean[:, None, :]


def second_moment_of_pairs(view: View) -> tf.Tensor:
    """Return E[f_x f_yᵀ] for the pairs of inputs of a view, [R, K, K]."""
    pairs = view.mean[:, :, None, :, None] * view.mean[:, None, :, None, :]
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
    """Return the means [B, X', D] and, for each output, the covariances between inputs [B, D, X', X']."""
    B, X, K = batched.sizes(view.mean)
    u = _weights_of_members(view, payload, trait)
    cov = tf.einsum("bxdk,bxykl,bydl->bdxy", u, tf.reshape(view.cov, [B, X, X, K, K]), u)
    spread = tf.reshape(view.spread(second_moment_of_pairs(view), trait), [B, X, X, batched.sizes(u)[2]])
    return tf.linalg.matvec(u, view.mean), cov + tf.transpose(spread, [0, 3, 1, 2])


def _weights_of_members(view: View, payload: tf.Tensor, trait: tf.Tensor) -> tf.Tensor:
    """Return the means of the weights for a view of pairs, [B, X', D, K]."""
    B, X, K = batched.sizes(view.mean)
    u = view.weights(payload, trait)
    return tf.reshape(u, [B, X, batched.sizes(u)[1], K])


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
    """Return joint draws of W(x)f(x) for draws f [S, B, X', K] of the nodes, as [S, B, X', D]."""
    weights = view.draw_weights(_weights_of_members(view, payload, trait), trait, seed, f.shape[0])
    return tf.linalg.matvec(weights, f)


def draw_nodes(view: View, seed: tf.Tensor, number: int) -> tf.Tensor:
    """Return joint draws of the nodes at the inputs of each member of a view of pairs, [S, B, X', K]."""
    B, X, K = batched.sizes(view.mean)
    factor = joint_factor(view.cov, B, X, K)
    noise = philox.normal([number, B, X * K], seed, factor.dtype)
    return view.mean + tf.reshape(tf.linalg.matvec(factor, noise), [number, B, X, K])


def joint_factor(cov: tf.Tensor, B: int | tf.Tensor, X: int | tf.Tensor, K: int) -> tf.Tensor:
    """Return the Cholesky factors of covariances given by pairs [..., BX², K, K], as [..., B, XK, XK]."""
    lead = cov.shape[:-3]
    full = tf.einsum("...xykl->...xkyl", tf.reshape(cov, [*lead, B, X, X, K, K]))
    full = tf.reshape(full, [*lead, B, X * K, X * K])
    return tf.linalg.cholesky(full + gpflow.default_jitter() * tf.eye(X * K, dtype=cov.dtype))
