"""L-BFGS in iterations, to be stopped after each of them, in the SparseEP experiments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gpflow
import numpy as np
import scipy.optimize
import tensorflow as tf

REJECTED = 1e25  # the loss that sends a line search back from where the objective is not finite
Each: TypeAlias = Callable[[int], None]


def lbfgs(
    evaluate: Callable[[], tuple[float, Sequence[tf.Tensor]]],
    variables: Sequence[tf.Variable],
    steps: int,
    each: Each | None = None,
) -> float:
    """Climb by SciPy's L-BFGS, started afresh where its line search gives up; return the objective at the end.

    The variables are left at the best point. Fewer than ``steps`` iterations are done where nothing is gained.
    """
    pack, unpack = gpflow.optimizers.Scipy.pack_tensors, gpflow.optimizers.Scipy.unpack_tensors
    done = 0

    def move(x: Any) -> None:
        gpflow.optimizers.Scipy.assign_tensors(variables, unpack(variables, tf.constant(x)))

    def loss(x: Any) -> tuple[float, Any]:
        move(x)
        value, gradient = evaluate()
        packed = pack(gradient).numpy()
        if not (np.isfinite(value) and np.isfinite(packed).all()):
            return REJECTED, np.zeros_like(x)
        return -value, -packed

    def after(x: Any) -> None:
        nonlocal done
        done += 1
        if each is not None:
            move(x)
            each(done)

    x, lowest = pack(variables).numpy(), np.inf
    while done < steps:
        options = {"maxiter": steps - done, "maxfun": 10 * steps}
        outcome = scipy.optimize.minimize(
            loss, x, jac=True, method="L-BFGS-B", callback=after, options=options
        )
        if not outcome.fun < lowest - 1e-6 * abs(outcome.fun):
            break
        x, lowest = outcome.x, float(outcome.fun)
    move(x)
    return -lowest
