"""Checks of the data of a regression network, and what is kept of its posterior when they are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.inducing_variables import InducingPoints
from gpflow.kernels import Kernel

from gpflow_ext.data import arguments, checks, held, inducing
from gpflow_ext.data.checks import Array
from gpflow_ext.gprn import blocks, conditional, outputs
from gpflow_ext.gprn.collapsed import CollapsedPosterior
from gpflow_ext.gprn.conditional import NetworkPrior
from gpflow_ext.gprn.tensor import TensorPosterior
from gpflow_ext.sites import latent


class FollowsVariables(held.KeepsData):
    """Mixin of networks whose data may be in variables.

    The model uses the current values of the variables whenever it is called; graphs do too, for the number of
    rows at the time they were traced. Another number of rows takes effect at the next call: the collapsed
    posterior keeps the sites of rows that keep their positions, and gets new parameters.

    Attributes
    ----------
    num_rows
        The number of rows that the posterior is for.
    """

    num_rows: int
    variables: Sequence[tf.Variable]

    @property
    def data(self) -> tuple[tf.Tensor, ...]:
        """The inputs and what is kept of the targets, as tensors."""
        return tuple(map(self._read, vars(self).get("data", ())))

    @data.setter
    def data(self, parts: tuple[tf.Tensor | tf.Variable, ...]) -> None:
        vars(self)["data"] = parts

    def _read(self, part: tf.Tensor | tf.Variable) -> tf.Tensor:
        if not isinstance(part, tf.Variable):
            return part
        rows = self.num_rows if part.shape[0] is None else part.shape[0]
        return tf.ensure_shape(part.read_value(), [rows, *part.shape[1:]])

    def follow_data(self) -> None:
        """Bring the posterior to the number of rows that variables have now; not in graphs.

        Raises
        ------
        ValueError
            If X and Y have different numbers of rows, or the posterior is ``"tensor"``.
        """
        targets = vars(self).get("_outputs")  # not where it is trained; see `updates.trained`
        followed = isinstance(targets, outputs.VariableOutputs)
        parts = vars(self)["data"][: 2 if followed else 1]
        variables = [part for part in parts if isinstance(part, tf.Variable)]
        if not tf.executing_eagerly() or all(len(part.read_value()) == self.num_rows for part in variables):
            return
        grow(self, *vars(self)["data"][:2])


def grow(model: Any, X: tf.Variable, Y: tf.Variable) -> None:
    """Bring a network to another number of rows in both variables of its data."""
    if not all(isinstance(part, tf.Variable) for part in (X, Y)) or len(X.read_value()) != len(
        Y.read_value()
    ):
        raise ValueError(
            "X and Y must have one number of rows: assign to both variables before the model is used."
        )
    if not isinstance(model.q, CollapsedPosterior):
        raise ValueError(
            'posterior="tensor" is for the rows that it was made for: give other numbers of rows by '
            "`model.update_data`, not through the variables."
        )
    old, before = model.q, model.num_rows
    held_outputs = outputs.VariableOutputs(Y)
    model.begin(X, held_outputs, None, 0, None)
    keep_sites(model.q, old, held.kept_rows(None, before, held_outputs.num_data))
    model.assign_draws(None)


def hold(data: Any) -> tuple[tf.Tensor | tf.Variable, outputs.Outputs]:
    """Check data (X [N, Q], Y [N, D]) and return what is held of them.

    Raises
    ------
    ValueError
        If they cannot be used.
    """
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise ValueError("`data` must be a pair (X, Y) of inputs [N, Q] and targets [N, D].")
    targets = data[1]
    if isinstance(targets, tf.Variable | gpflow.Parameter):
        held.kept(targets, targets, "Y")
    Y = outputs.hold(targets)
    X, _ = checks.check_data((data[0], np.zeros([Y.num_data, 1])))
    return held.kept(data[0], X, "X"), Y


def points(inducing_variable: Any, posterior: str, X: Any, kernel: Kernel) -> InducingPoints | None:
    """Return inducing inputs, where the posterior takes what is given; "auto" chooses among X [N, Q]."""
    if inducing_variable is None:
        return None
    if isinstance(inducing_variable, str):
        inducing_variable = inducing.by_name(inducing_variable, np.asarray(X), latent.kernels(kernel)[0])
    wrapped = checks.as_inducing(inducing_variable)
    if posterior == "tensor" or not checks.are_inputs(wrapped):
        raise NotImplementedError("Inducing inputs are points, and for the collapsed posterior.")
    return wrapped


def bounded(
    name: str, value: float, bounds: tuple[float, float], number: int | None = None
) -> gpflow.Parameter:
    """Return a parameter that stays in an interval: a number, or one for each of a number of nodes."""
    arguments.check_number(**{name: value})
    if np.shape(bounds) != (2,):
        raise ValueError(f"The bounds of {name} must be a pair of numbers; got {bounds!r}.")
    low, high = bounds
    for bound in bounds:
        arguments.check_number(**{f"bounds of {name}": bound})
    if not 0.0 < low < value < high:
        raise ValueError(f"{name} must lie between its bounds {bounds}, both positive; got {value}.")
    dtype = gpflow.default_float()
    return gpflow.Parameter(
        value if number is None else np.full(number, value),
        transform=tfp.bijectors.Sigmoid(np.array(low, dtype), np.array(high, dtype)),
    )


def check_nodes(num_latent: int, seed: int) -> None:
    """Check ``num_latent`` and ``seed`` of `GPRNTensor`."""
    arguments.check_whole(num_latent=num_latent, seed=seed)
    for name, value, least in (("num_latent", num_latent, 1), ("seed", seed, 0)):
        if value < least:
            raise ValueError(f"{name} must be at least {least}; got {value}.")


def check_rows(separate_rows: bool | None, posterior: str, own_kernels: bool) -> None:
    """Check ``separate_rows`` of `GPRNTensor`."""
    arguments.check_flag(separate_rows=separate_rows)
    if posterior != "tensor" and separate_rows is not None:
        raise ValueError('separate_rows is for posterior="tensor".')
    if separate_rows is False and own_kernels:
        raise NotImplementedError("Nodes with kernels of their own need separate_rows=True.")


def draws(prior: NetworkPrior, num_latent: int, seed: int) -> tf.Tensor:
    """Return draws of the prior of the nodes but the first, [N, K − 1]."""
    noise = np.random.default_rng(seed).standard_normal([prior.nodes.shape[-1], num_latent - 1])
    return drawn(prior, tf.constant(noise, prior.nodes.dtype))


def drawn(prior: NetworkPrior, noise: tf.Tensor) -> tf.Tensor:
    """Return the same for standard normal numbers [N or M, K − 1]."""
    own = prior.nodes if prior.nodes.shape.rank == 2 else prior.nodes[1:]
    return blocks.applied(own, noise)


def renew(
    model: Any, data: Any, index: Any | None, seed: int, strategy: tf.distribute.Strategy | None
) -> None:
    """Replace the data of a network; see `GPRNTensor.update_data`."""
    X, Y = hold(data)
    model.follow_data()
    old, before = model.q, model.data[0]
    checks.check_widths((X.shape[1], Y.num_outputs), (before.shape[1], model.outputs.num_outputs))
    rows = held.kept_rows(index, len(before), len(X))
    if isinstance(old, CollapsedPosterior):
        model.begin(*_into_variables(model, X, Y), None, seed, strategy)
        keep_sites(model.q, old, rows)
    else:
        sides = [
            conditional.condition(kernel, before, chol, tf.convert_to_tensor(X), False).A
            for kernel, chol in _sides(model)
        ]
        model.begin(*_into_variables(model, X, Y), old.output_shape, seed, strategy)
        keep_means(model.q, old, *zip(sides, (chol for _, chol in _sides(model)), strict=True))
    model.assign_draws(None)


def _into_variables(model: Any, X: Any, Y: outputs.Outputs) -> tuple[Any, outputs.Outputs]:
    """Return other data as they are held: assigned to the variables of the model where it has them."""
    held_X, held_Y = vars(model)["data"][0], getattr(model.outputs, "variable", None)
    inputs = np.asarray(X)
    held.check_fits(held_X, inputs, "X")
    if held_Y is not None:
        targets = Y.gather(range(Y.num_outputs)).numpy()
        held.check_fits(held_Y, targets, "Y")
        held_Y.assign(targets)
        Y = outputs.VariableOutputs(held_Y)
    return held.replaced(held_X, inputs), Y


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
        there = blocks.applied(tf.linalg.matrix_transpose(A), flat)
        mine.assign(tf.reshape(blocks.whitened(chol, there), mine.shape))
    for mine, its in zip(
        (*new.weight_factors[1:], *new.node_factors[1:]),
        (*old.weight_factors[1:], *old.node_factors[1:]),
        strict=True,
    ):
        mine.assign(its)
