"""Newton's method in a box, for the few hyperparameters of a model (Bertsekas 1982).

The variables at or near a bound that the gradient pushes outwards are held there; the others take the step
−|H|⁻¹g, the Hessian's eigenvalues made positive, along the path projected onto the box, with backtracking
until Armijo's rule holds. Where Izmailov (2016, section 3.3) took differences of gradients, the Hessian is
differentiated exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from gpflow_ext.compiled import Compiled
from gpflow_ext.numerics import linalg
from gpflow_ext.training.loop import resolve_jit
from gpflow_ext.training.loss import Loss

SMALLEST_CURVATURE = 1e-5  # to which smaller eigenvalues of the Hessian are raised
ARMIJO = 1e-4
HALVINGS = 40
NEAR = 1e-2  # a variable this near to a bound, or as near as the projected gradient is small, is held there

Array = npt.NDArray[np.float64]


class Curved(Loss):
    """A loss with its Hessian."""

    def derivatives(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the loss [], its gradient [P] and its Hessian [P, P]."""
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(self._variables)
            loss, parts = self.value_and_gradient()
            gradient = gpflow.optimizers.Scipy.pack_tensors(parts)
        columns = tape.jacobian(
            gradient, self._variables, unconnected_gradients="zero", experimental_use_pfor=False
        )
        size = gradient.shape[0]
        return loss, gradient, tf.concat([tf.reshape(part, [size, -1]) for part in columns], axis=1)


class ProjectedNewton:
    """Newton steps on a loss; the only state is that of the variables.

    Parameters
    ----------
    closure
        The loss, [], twice differentiable.
    variables
        What to move, P numbers in all; a step costs about 3P gradients.
    bounds
        A pair (low, high) for each of the P numbers, one variable after the other; none by default.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only.

    Raises
    ------
    ValueError
        For bounds of another number, or empty ones.
    """

    def __init__(
        self,
        closure: Callable[[], tf.Tensor],
        variables: Sequence[tf.Variable],
        bounds: Sequence[tuple[float, float]] | None = None,
        jit_compile: bool | None = None,
    ) -> None:
        self._variables = list(variables)
        size = sum(int(np.prod(variable.shape)) for variable in self._variables)
        box = np.array([(-np.inf, np.inf)] * size if bounds is None else bounds, float).reshape(-1, 2)
        if len(box) != size or (box[:, 0] > box[:, 1]).any():
            raise ValueError(f"`bounds` must be {size} pairs (low, high) with low <= high; got {bounds}.")
        self._low, self._high = box.T
        self._loss = Curved(closure, self._variables)
        self._compiled = Compiled(self._loss, resolve_jit(jit_compile))

    def step(self, tolerance: float = 0.0) -> tuple[float, bool]:
        """Take one step; return the loss after it, and whether the projected gradient was small.

        Small is within ``tolerance·max(1, |loss|)``; where no trial lowers the loss the variables stay, which
        counts too.
        """
        x = self._project(self._read())
        self._assign(x)
        derivatives = self._compiled(self._loss.derivatives)
        loss, gradient, hessian = (part.numpy().astype(float) for part in derivatives)
        slack = float(linalg.rounding_slack(derivatives[0]))  # the fall near an optimum is below rounding
        if not (np.isfinite(loss) and np.isfinite(gradient).all() and np.isfinite(hessian).all()):
            return float("nan"), False
        slope = float(np.abs(x - self._project(x - gradient)).max(initial=0.0))
        if slope <= tolerance * max(1.0, abs(loss)):
            return float(loss), True
        direction = self._direction(x, gradient, hessian, min(slope, NEAR))
        for length in 0.5 ** np.arange(HALVINGS):
            new = self._project(x + length * direction)
            self._assign(new)
            value = float(self._compiled(self._loss.value))
            if value <= loss + slack + ARMIJO * gradient @ (new - x):  # false for NaN
                return value, False
        self._assign(x)
        return float(loss), True

    def _direction(self, x: Array, gradient: Array, hessian: Array, near: float) -> Array:
        """Return −|H|⁻¹g in the variables that are free to move, −g in those that are held, [P]."""
        held = ((x <= self._low + near) & (gradient > 0.0)) | ((x >= self._high - near) & (gradient < 0.0))
        free = np.flatnonzero(~held)
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T)[np.ix_(free, free)])
        positive = np.maximum(np.abs(values), SMALLEST_CURVATURE)
        direction = -gradient
        direction[free] = -vectors @ ((vectors.T @ gradient[free]) / positive)
        return direction

    def _project(self, x: Array) -> Array:
        return np.clip(x, self._low, self._high)

    def _read(self) -> Array:
        return gpflow.optimizers.Scipy.pack_tensors(self._variables).numpy().astype(float)

    def _assign(self, x: Array) -> None:
        parts = gpflow.optimizers.Scipy.unpack_tensors(self._variables, tf.constant(x))
        gpflow.optimizers.Scipy.assign_tensors(self._variables, parts)


def minimize(
    closure: Callable[[], tf.Tensor],
    variables: Sequence[tf.Variable],
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    iterations: int = 100,
    tolerance: float = 1e-6,
) -> float:
    """Lower a loss by projected Newton steps and return it; see `ProjectedNewton`.

    Ends when no element of the projected gradient exceeds ``tolerance·max(1, |loss|)``, or after
    ``iterations`` steps.
    """
    engine = ProjectedNewton(closure, variables, bounds)
    loss = float("nan")
    for _ in range(iterations):
        loss, at_rest = engine.step(tolerance)
        if at_rest or not np.isfinite(loss):
            break
    return loss
