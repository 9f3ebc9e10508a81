"""L-BFGS on an objective that is itself the end of an inner iteration over the sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import gpflow
import numpy as np
import numpy.typing as npt
import scipy.optimize
import tensorflow as tf

from gpflow_ext.inference.loops import resolve_jit

REJECTED = 1e25  # the loss that tells a line search to come back from where the objective is not finite

Objective: TypeAlias = Callable[[], tuple[float, Sequence[tf.Tensor]]]
"""Evaluate at the present values of the variables; return the objective and its gradient in each of them."""


def evaluation(
    closure: Callable[[], tf.Tensor], variables: Sequence[tf.Variable], jit_compile: bool | None = None
) -> Objective:
    """Return the compiled evaluation of minus a loss and its gradient in the variables."""

    @tf.function(jit_compile=resolve_jit(jit_compile), autograph=False)
    def evaluate() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            value = -closure()
        return value, tape.gradient(value, variables, unconnected_gradients="zero")

    def objective() -> tuple[float, Sequence[tf.Tensor]]:
        value, gradient = evaluate()
        return float(value), gradient

    return objective


def climb(
    variables: Sequence[tf.Variable],
    objective: Objective,
    iterations: int,
    bounds: Sequence[tuple[float, float]] | None = None,
) -> bool:
    """Raise an objective by some iterations of L-BFGS, and leave the variables at the best point.

    With ``bounds``, a pair for each element of the variables one after the other, they stay between them.
    Return whether the end is no worse than the start; if not, the variables are put back.
    """
    pack, unpack = gpflow.optimizers.Scipy.pack_tensors, gpflow.optimizers.Scipy.unpack_tensors
    assign = gpflow.optimizers.Scipy.assign_tensors
    losses: list[float] = []

    def loss(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        assign(variables, unpack(variables, tf.constant(x)))
        value, parts = objective()
        gradient = pack(parts).numpy().astype(np.float64)
        sound = np.isfinite(value) and np.isfinite(gradient).all()
        losses.append(-value if sound else REJECTED)
        return losses[-1], -gradient if sound else np.zeros_like(x)

    kept = [variable.read_value() for variable in variables]
    outcome = scipy.optimize.minimize(
        loss,
        pack(variables).numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": iterations},
    )
    raised = bool(outcome.fun <= losses[0])
    assign(variables, unpack(variables, tf.constant(outcome.x)) if raised else kept)
    return raised


def minimize(
    closure: Callable[[], tf.Tensor],
    variables: Sequence[tf.Variable],
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    iterations: int = 1000,
) -> float:
    """Lower a loss by L-BFGS-B and return it; ``bounds`` as for `climb`."""
    objective = evaluation(closure, variables)
    climb(variables, objective, iterations, bounds)
    return -objective()[0]
