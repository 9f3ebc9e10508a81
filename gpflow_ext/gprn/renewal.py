"""The data of a regression network at the door, and what is kept of its posterior where they are replaced."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.inducing_variables import InducingPoints
from gpflow.models.util import inducingpoint_wrapper

from gpflow_ext.data import checks, held
from gpflow_ext.data.checks import Array
from gpflow_ext.gprn import conditional, outputs
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior
from gpflow_ext.gprn.tensor import TensorPosterior


def hold(data: Any) -> tuple[Array, outputs.Outputs]:
    """Check data (X [N, Q], Y [N, D]) and return them.

    Raises
    ------
    ValueError
        When they cannot be used, or are held in variables: the targets are read once, not in each step.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError("`data` must be a pair (X, Y) of inputs [N, Q] and targets [N, D].")
    if any(isinstance(part, tf.Variable | gpflow.Parameter) for part in data):
        raise ValueError(
            "GPRNTensor sums over its targets once, so that it cannot follow a tf.Variable: give arrays, and "
            "others later by `model.update_data`."
        )
    Y = outputs.hold(data[1])
    return checks.check_data((data[0], np.zeros([Y.num_data, 1])))[0], Y


def points(inducing_variable: Any, posterior: str) -> InducingPoints | None:
    """Return inducing inputs, where the posterior takes what is given."""
    if inducing_variable is None:
        return None
    wrapped = inducingpoint_wrapper(inducing_variable)
    if posterior == "tensor" or not checks.are_inputs(wrapped):
        raise NotImplementedError("Inducing inputs are points, and for the collapsed posterior.")
    return wrapped


def bounded(name: str, value: float, bounds: tuple[float, float]) -> gpflow.Parameter:
    """Return a parameter that stays in an interval."""
    low, high = bounds
    if not 0.0 < low < value < high:
        raise ValueError(f"{name} must lie between its bounds {bounds}, both positive; got {value}.")
    dtype = gpflow.default_float()
    return gpflow.Parameter(
        value, transform=tfp.bijectors.Sigmoid(np.array(low, dtype), np.array(high, dtype))
    )


def draws(prior: NetworkPrior, num_latent: int, seed: int) -> tf.Tensor:
    """Return draws of the prior of the nodes but the first, [N, K − 1]."""
    noise = np.random.default_rng(seed).standard_normal([prior.nodes.shape[1], num_latent - 1])
    return tf.matmul(prior.nodes, tf.constant(noise, prior.nodes.dtype))


def renew(
    model: Any, data: Any, index: Any | None, seed: int, strategy: tf.distribute.Strategy | None
) -> None:
    """Replace the data of a network; see `GPRNTensor.update_data`."""
    X, Y = hold(data)
    old, before = model.q, model.data[0]
    checks.check_widths((X.shape[1], Y.num_outputs), (before.shape[1], model.outputs.num_outputs))
    rows = held.kept_rows(index, len(before), len(X))
    if isinstance(old, CollapsedPosterior):
        model.begin(X, Y, None, seed, strategy)
        keep_sites(model.q, old, rows)
    else:
        sides = [
            conditional.condition(kernel, before, chol, tf.constant(X), False).A
            for kernel, chol in _sides(model)
        ]
        model.begin(X, Y, old.output_shape, seed, strategy)
        keep_means(model.q, old, *zip(sides, (chol for _, chol in _sides(model)), strict=True))
    model.assign_draws(None)


def _sides(model: Any) -> list[tuple[gpflow.kernels.Kernel, tf.Tensor]]:
    """Return both kernels, with their factors at the data."""
    prior = model.prior()
    return [(model.weight_kernel, prior.weights), (model.kernel, prior.nodes)]


def keep_sites(new: CollapsedPosterior, old: CollapsedPosterior, rows: Array) -> None:
    """Give a posterior the sites of some rows of another one, none where the number of a row is -1."""
    for mine, its in ((new.location, old.location), (new.prec, old.prec)):
        mine.assign(held.taken(tf.convert_to_tensor(its), rows))


def keep_means(
    new: TensorPosterior, old: TensorPosterior, weights: tuple[tf.Tensor, ...], nodes: tuple[tf.Tensor, ...]
) -> None:
    """Give a posterior the means that another one predicts at the new inputs, and what is free of the rows.

    Parameters
    ----------
    weights, nodes
        Of k_w and k_f the projection L⁻¹K(X, X') [N, N'] of the old inputs and the factor L' [N', N'] at the
        new ones: means Lm at the old inputs are Aᵀm at the new ones, which are L'm'.
    """
    for mine, its, (A, chol) in (
        (new.weight_mean, old.weight_mean, weights),
        (new.node_mean, old.node_mean, nodes),
    ):
        flat = tf.reshape(its, [its.shape[0], -1])
        moved = tf.linalg.triangular_solve(chol, tf.matmul(A, flat, transpose_a=True))
        mine.assign(tf.reshape(moved, mine.shape))
    for mine, its in zip(
        (*new.weight_factors[1:], *new.node_factors[1:]),
        (*old.weight_factors[1:], *old.node_factors[1:]),
        strict=True,
    ):
        mine.assign(its)
