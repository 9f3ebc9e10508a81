"""What the functions of a regression network are drawn from: those of its nodes and of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import tensorflow as tf

from gpflow_ext.functions.given import Given, domain
from gpflow_ext.functions.product import Product
from gpflow_ext.functions.randomness import Numbers
from gpflow_ext.gprn import node_kernels
from gpflow_ext.numerics import batched

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


def _given(
    model: Any, kernels: tuple[Any, ...], count: int, chol: tf.Tensor, draw: Draw, nugget: Any
) -> Given:
    """Return what functions with u = L ũ at the points are drawn from: α = L⁻ᵀ(ũ − L⁻¹f̃)."""

    def condition(values: tf.Tensor, numbers: Numbers) -> tf.Tensor:
        L, N, S = batched.sizes(values)
        noise = tf.reshape(tf.sqrt(tf.cast(nugget, values.dtype)), [-1, 1, 1])  # [1 or K, 1, 1]
        values += noise * numbers.normal([L, N, S])
        factor = tf.broadcast_to(chol, [L, N, N])
        apart = draw(numbers, S) - tf.linalg.triangular_solve(factor, values)
        return tf.linalg.triangular_solve(factor, apart, adjoint=True)

    points = domain(type(model).__name__, kernels, (model.points,))
    return Given(points, model.mean_function, count, condition)
