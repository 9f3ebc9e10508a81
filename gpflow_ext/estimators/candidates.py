"""The candidates that `auto` compares: estimators of a task with different kernels and noise models."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from gpflow_ext.estimators import kernels, ladder
from gpflow_ext.estimators.base import Array, GPEstimator
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
_NOISY = 600  # rows up to which label noise is tried, by expectation propagation


def candidates(
    task: str, num_rows: int, num_inputs: int, num_targets: int, weighted: bool = False
) -> dict[str, GPEstimator]:
    """Return estimators by name, which take standardised inputs; the first `SURE` are always compared.

    Of rows that have weights there are those alone that take them.
    """
    common: dict[str, Any] = {"standardise": False}
    if num_targets > 1 and task == "regression":
        kinds: tuple[Outputs, ...] = ("independent", "coregionalised")
        return {f"{kind} outputs": GPMultiOutputRegressor(kind=kind, **common) for kind in kinds}
    build: Any = ESTIMATORS[task]
    found = {name: build(kernel, **common) for name, kernel in kernels.compared(num_inputs, num_rows).items()}
    first = kernels.matern(num_inputs)
    if task == "regression":
        found["Matérn 5/2, Student's t noise"] = build(first, noise="student_t", **common)
    elif task == "count":
        found["Matérn 5/2, Poisson"] = build(first, scatter="poisson", **common)
    elif task == "binary" and num_rows <= _NOISY and not weighted:
        found["Matérn 5/2, label noise"] = build(first, label_noise=0.03, **common)
    return found


def like_all_rows(found: Iterable[GPEstimator], X: Array, Y: Array) -> None:
    """Let candidates build the models of parts of the rows as they would build that of all.

    Parameters
    ----------
    found
        The candidates, which are changed.
    X, Y
        All inputs [N, D] and targets [N, P], exposures among them.
    """
    for estimator in found:
        estimator._rows = estimator.problem_of(X, Y).rows


def of_neighbours(
    found: Mapping[str, GPEstimator], names: Iterable[str], X: Array, Y: Array
) -> dict[str, GPEstimator]:
    """Return the first of the named candidates that may have a Vecchia prior, with it; none if no one may.

    It is for places: two or three inputs, too many rows to be dense, few enough to go without minibatches,
    one target, and a stationary kernel.

    Parameters
    ----------
    found
        Candidates by name.
    names
        Some of them, the best one first.
    X, Y
        All inputs [N, D] and targets [N, P], exposures among them.
    """
    if X.shape[1] not in (2, 3) or len(X) > ladder.MINIBATCHES:
        return {}
    for name in names:
        if isinstance(found[name], GPMultiOutputRegressor):
            continue
        if ladder.takes_vecchia(found[name].problem_of(X, Y)):
            new = copy.copy(found[name])
            new._prior = "vecchia"
            return {f"{name}, nearest neighbours": new}
    return {}


def on_minibatches(estimator: GPEstimator, X: Array, Y: Array) -> bool:
    """Tell whether a candidate is trained on minibatches of inputs [N, D] and targets [N, P]."""
    problem = estimator.problem_of(X, Y)
    return problem.batches and problem.prior is None


def with_points(estimator: GPEstimator, number: int) -> GPEstimator:
    """Return a candidate as it is for minibatches, with M inducing points."""
    new = copy.copy(estimator)
    new.num_inducing, new.minibatch_size = number, ladder.BATCH
    return new
