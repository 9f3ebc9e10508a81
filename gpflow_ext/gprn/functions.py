"""What the functions of a regression network are drawn from: those of its nodes and of its weights.

Under an approximate posterior both are known by draws at the inputs. Given a draw (V, θ) of a sampler the
nodes are F = L_f V there, and each output is a Gaussian process with the covariance a²K_w ∘ FFᵀ, so that
prior draws w̃ of its weights are corrected by Matheron's rule through what they predict of its targets:

    w_dk(x) = w̃_dk(x) + k_w(x, X) α_dk,    α_dk = a F_k ∘ C⁻¹(y_d − a Σ_k F_k ∘ w̃_dk(X) − ε),    ε ~ N(0, σ²)

for C = a²K_w ∘ FFᵀ + σ²I.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.product import Product
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.gprn import node_kernels
from gpflow_ext.numerics import batched
from gpflow_ext.numerics.stacked import Stack

Draw: TypeAlias = Callable[[Numbers, int], tf.Tensor]
"""Map random numbers and S to draws of whitened processes at the points, [L, N, S]."""


def of_network(
    model: Any, chols: tuple[tf.Tensor, tf.Tensor], weights: Draw, nodes: Draw, scales: tf.Tensor
) -> Product:
    """Return what W(x)f(x) is drawn from, without the white noise of the nodes.

    Parameters
    ----------
    model
        The network.
    chols
        L_w and L_f at the inputs on which all others are conditioned.
    weights, nodes
        Draws of W̃, output by output, and of F̃ under q.
    scales
        The amplitudes of the outputs, [D].
    """
    of_weights, of_nodes = chols
    at_points = 0.0 if model.inducing_variable is not None else tf.convert_to_tensor(model.nugget)
    num_outputs, num_nodes = int(scales.shape[0]), model.num_latent
    return Product(
        _given(model, (model.weight_kernel,), num_outputs * num_nodes, of_weights, weights, 0.0),
        _given(model, node_kernels.each(model.kernel), num_nodes, of_nodes, nodes, at_points),
        scales,
    )


def of_draws(
    model: Any, payload: tf.Tensor, trait: tf.Tensor, draws: Sequence[tf.Tensor], stack: Stack
) -> Product:
    """Return what W(x)f(x) is drawn from given draws of nodes and hyperparameters, one for each function.

    Parameters
    ----------
    model
        The network.
    payload, trait
        The targets [N, D], zero where missing, and the pattern of each output [D].
    draws
        V [C, N, K], F [C, N, K], L_f [C, N, N] or [C, K, N, N], and the factors of the covariances C of each
        pattern's targets [C, P, N, N].
    stack
        The hyperparameters that were drawn.
    """
    V, F, of_nodes, factor = draws
    seen = model.q.seen(model.scales())
    gain, observed = (tf.gather(part, trait) for part in (seen.gain(), seen.observed))  # [D], [D, N]
    targets = tf.transpose(payload)[..., None]  # [D, N, 1]
    K, D = model.num_latent, trait.shape[0]

    def weights(values: tf.Tensor, numbers: Numbers, F: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
        _, N, S = batched.sizes(values)
        noise = tf.gather(seen.noise(tf.convert_to_tensor(model.likelihood.variance)), trait)
        shown = tf.einsum("dkns,nk->dns", tf.reshape(values, [D, K, N, S]), F)
        shown = gain[:, None, None] * shown + tf.sqrt(noise)[:, None, None] * numbers.normal([D, N, S])
        apart = observed[..., None] * (targets - shown)
        solved = tf.linalg.cholesky_solve(tf.gather(factor, trait), apart)
        return tf.reshape(tf.einsum("d,nk,dns->dkns", gain, F, solved), [D * K, N, S])

    def nodes(values: tf.Tensor, numbers: Numbers, V: tf.Tensor, chol: tf.Tensor) -> tf.Tensor:
        prior = _at_points(values, numbers, model.nugget)
        return _corrected(chol, prior, tf.transpose(V)[..., None])

    names = tuple(parameter for parameter, _ in stack.values)
    varied = tuple(tf.convert_to_tensor(value) for _, value in stack.values)
    owner, points = type(model).__name__, (model.points,)
    return Product(
        Given(
            domain(owner, (model.weight_kernel,), points), model.mean_function, D * K, weights,
            parameters=names, members=(*varied, F, factor),
        ),
        Given(
            domain(owner, node_kernels.each(model.kernel), points), model.mean_function, K, nodes,
            parameters=names, members=(*varied, V, of_nodes),
        ),
        gain,
    )  # fmt: skip


def _given(
    model: Any, kernels: tuple[Any, ...], count: int, chol: tf.Tensor, draw: Draw, nugget: Any
) -> Given:
    """Return what functions with u = L ũ at the points are drawn from: α = L⁻ᵀ(ũ − L⁻¹f̃)."""

    def condition(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        prior = _at_points(values, numbers, nugget)
        return _corrected(chol, prior, draw(numbers, values.shape[-1]))

    points = domain(type(model).__name__, kernels, (model.points,))
    return Given(points, model.mean_function, count, condition)


def _at_points(values: tf.Tensor, numbers: Numbers, nugget: Any) -> tf.Tensor:
    """Return prior draws [L, N, S] at the points with the white noise of the nodes there."""
    noise = tf.reshape(
        tf.sqrt(tf.cast(tf.convert_to_tensor(nugget), values.dtype)), [-1, 1, 1]
    )  # [1 or K, 1, 1]
    return values + noise * numbers.normal(batched.sizes(values))


def _corrected(chol: tf.Tensor, prior: tf.Tensor, whitened: tf.Tensor) -> tf.Tensor:
    """Return α = L⁻ᵀ(ũ − L⁻¹f̃) for factors [N, N] or [L, N, N] and draws [L, N, S]."""
    L, N, _ = batched.sizes(prior)
    factor = tf.broadcast_to(chol, [L, N, N])
    return tf.linalg.triangular_solve(
        factor, whitened - tf.linalg.triangular_solve(factor, prior), adjoint=True
    )
