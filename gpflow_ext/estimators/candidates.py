"""What `auto` compares: estimators of a task with different kernels and noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpflow.kernels import Constant, Kernel, Linear, Matern52, SquaredExponential

from gpflow_ext.estimators.base import GPEstimator
from gpflow_ext.estimators.classifier import GPClassifier
from gpflow_ext.estimators.counts import GPCountRegressor
from gpflow_ext.estimators.ordinal import GPOrdinal
from gpflow_ext.estimators.outputs import GPMultiOutputRegressor, Outputs
from gpflow_ext.estimators.regressor import GPRegressor

ESTIMATORS: dict[str, type[GPEstimator]] = {
    "binary": GPClassifier,
    "multiclass": GPClassifier,
    "ordinal": GPOrdinal,
    "count": GPCountRegressor,
    "regression": GPRegressor,
}
SURE = 2  # of the candidates, which are compared whatever the budget
_MOST_SCALES = 40  # inputs up to which each may have a length scale of its own
_NOISY = 600  # rows up to which label noise is tried, by expectation propagation


def kernels(num_inputs: int) -> dict[str, Kernel]:
    """Return the kernels that are compared for D standardised inputs, the most promising first."""
    D = num_inputs
    scale = float(np.sqrt(D))
    linear = Linear(variance=1.0 / D) + Constant()
    found = {
        "Matérn 5/2": Matern52(lengthscales=scale),
        "linear": linear,
        "Matérn 5/2 with a length scale for each input": Matern52(lengthscales=np.full(D, scale)),
        "Matérn 5/2 + linear": Matern52(lengthscales=scale) + Linear(variance=1.0 / D) + Constant(),
        "squared exponential": SquaredExponential(lengthscales=scale),
    }
    if not 1 < D <= _MOST_SCALES:
        del found["Matérn 5/2 with a length scale for each input"]
    return found


def candidates(task: str, num_rows: int, num_inputs: int, num_targets: int) -> dict[str, GPEstimator]:
    """Return estimators by name, which take standardised inputs; the first `SURE` are always compared."""
    common: dict[str, Any] = {"standardise": False}
    if num_targets > 1 and task == "regression":
        kinds: tuple[Outputs, ...] = ("independent", "coregionalised")
        return {f"{kind} outputs": GPMultiOutputRegressor(kind=kind, **common) for kind in kinds}
    build: Any = ESTIMATORS[task]
    found = {name: build(kernel, **common) for name, kernel in kernels(num_inputs).items()}
    first = kernels(num_inputs)["Matérn 5/2"]
    if task == "regression":
        found["Matérn 5/2, Student's t noise"] = build(first, noise="student_t", **common)
    elif task == "count":
        found["Matérn 5/2, Poisson"] = build(first, scatter="poisson", **common)
    elif task == "binary" and num_rows <= _NOISY:
        found["Matérn 5/2, label noise"] = build(first, label_noise=0.03, **common)
    return found
