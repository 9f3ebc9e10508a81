"""L-BFGS on an objective that is itself the end of an inner iteration over the sites."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import gpflow
import numpy as np
import numpy.typing as npt
import scipy.optimize
import tensorflow as tf

from gpflow_ext.training.loop import resolve_jit

Objective: TypeAlias = Callable[[], tuple[float, Sequence[tf.Tensor]]]
"""Evaluate at the present values of the variables; return the objective and its gradient in each of them."""
Vector: TypeAlias = npt.NDArray[np.float64]


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

    def loss(x: Vector) -> tuple[float, Vector]:
        assign(variables, unpack(variables, tf.constant(x)))
        value, parts = objective()
        return -value, -pack(parts).numpy().astype(np.float64)

    kept = [variable.read_value() for variable in variables]
    guarded = _Guarded(loss)
    outcome = scipy.optimize.minimize(
        guarded,
        pack(variables).numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        callback=guarded.arrive,
        options={"maxiter": iterations},
    )
    raised = bool(outcome.fun <= guarded.first)
    assign(variables, unpack(variables, tf.constant(outcome.x)) if raised else kept)
    return raised


class _Guarded:
    """A loss for L-BFGS whose line search comes back by steps from where the loss is not finite.

    There it is as far above the present iterate as the tangent is below, with the opposite gradient: cubic
    interpolation then tries a seventh of the step. From a huge value it would come all the way back, where
    the search ends as if it had converged. ``first`` is the loss at the start, where it ends if that is not
    finite.
    """

    def __init__(self, loss: Callable[[Vector], tuple[float, Vector]]) -> None:
        self._loss = loss
        self._iterate: tuple[Vector, float, Vector] | None = None

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        value, gradient = self._loss(x)
        sound = np.isfinite(value) and np.isfinite(gradient).all()
        if self._iterate is None:
            self.first = value if sound else np.nan
            self._iterate = x.copy(), value if sound else 0.0, gradient if sound else np.zeros_like(x)
        if sound:
            self._last = x.copy(), value, gradient
            return value, gradient
        at, base, slope = self._iterate
        return base + abs(float(slope @ (x - at))), -slope

    def arrive(self, x: Vector) -> None:
        """Take the last evaluation for the iterate, as L-BFGS-B has accepted it."""
        self._iterate = self._last


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
