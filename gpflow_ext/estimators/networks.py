"""The regression network of `GPMultiOutputRegressor`: correlations of targets that depend on the input."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
from gpflow.kernels import Kernel
from sklearn.utils import check_array, check_consistent_length

from gpflow_ext.data import inducing, length_scales
from gpflow_ext.estimators import checked
from gpflow_ext.models import GPRNTensor

Array = npt.NDArray[Any]
_LONGER = 3.0  # are nodes than weights where training starts


def training(estimator: Any, X: Any, y: Any) -> tuple[Array, Array]:
    """Return inputs [N, D] and targets [N, P], NaN where they are missing.

    Raises
    ------
    ValueError
        For other arrays, infinite targets, or one that is missing everywhere.
    """
    inputs = checked.training_inputs(estimator, X)
    if y is None:
        raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None.")
    targets = np.asarray(y, inputs.dtype)
    targets = targets.reshape(len(targets), -1)
    check_consistent_length(inputs, targets)
    check_array(np.nan_to_num(targets, posinf=np.inf, neginf=-np.inf))
    empty = np.isnan(targets).all(axis=0)
    if empty.any():
        raise ValueError(f"y has no value in column {int(np.argmax(empty))}: leave it out.")
    return inputs, targets


def network(
    X: Array, Y: Array, kernel: Kernel, num_nodes: int, num_inducing: int | None, seed: int
) -> GPRNTensor:
    """Return a network of targets of mean zero and variance one as it is before training.

    The kernel is that of the weights; the nodes' is a copy with longer length scales and its variances held,
    since only the product of both is identified.
    """
    nodes = gpflow.utilities.deepcopy(kernel)
    for part in length_scales.stationary(nodes):
        part.lengthscales.assign(_LONGER * part.lengthscales)
        part.variance.assign(1.0)
        gpflow.set_trainable(part.variance, False)
    points = None if num_inducing is None else inducing.kmeans(X, num_inducing, seed=seed)
    return GPRNTensor((X, Y), nodes, kernel, num_nodes, seed=seed, inducing_variable=points)
