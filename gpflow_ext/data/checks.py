"""Checks of the data that a constructor is given, with errors that say what to do."""

from __future__ import annotations

from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_ROOM = 1e-4  # for sums over as many rows as there may be


def check_data(data: tuple[Any, Any], *, gaps: bool = False) -> tuple[Array, Array]:
    """Return inputs [N, D] and targets [N, P] in GPflow's default float type, or say what is wrong.

    With ``gaps``, several columns of targets may hold NaN where one is missing.

    Raises
    ------
    ValueError
        If ``data`` is not a pair, a part is not a matrix with rows, the numbers of rows differ, or a cell is
        not a finite number (the first bad row and column are named).
    """
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        raise ValueError("`data` must be a pair (X, Y) of inputs [N, D] and targets [N, P].")
    X, Y = _matrix(data[0], "X"), _matrix(data[1], "Y", gaps)
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have the same number of rows; X has {len(X)} and Y has {len(Y)}.")
    return X, Y


def check_targets(likelihood: gpflow.likelihoods.Likelihood, Y: Array) -> None:
    """Raise ``ValueError`` when targets [N, P] lie outside the support of the likelihood."""
    own = getattr(likelihood, "check_targets", None)
    if own is not None:
        own(Y)
    elif isinstance(likelihood, gpflow.likelihoods.Bernoulli):
        if not np.isin(Y, (0.0, 1.0)).all():
            raise ValueError(
                f"Y must hold 0 and 1; found the values {_some_values(Y)}. Encode the labels first."
            )
        check_not_one_hot(Y)
    elif isinstance(likelihood, gpflow.likelihoods.Poisson) and ((Y < 0).any() or (np.round(Y) != Y).any()):
        raise ValueError(f"Y must hold counts 0, 1, 2, …; found the values {_some_values(Y)}.")


def are_inputs(points: gpflow.inducing_variables.InducingVariables | None) -> bool:
    """Tell whether inducing variables are values at inputs Z [M, D], and not, say, at patches of images."""
    kinds = gpflow.inducing_variables
    return isinstance(points, kinds.InducingPoints) and not isinstance(points, kinds.InducingPatches)


def check_widths(widths: tuple[int, int], before: tuple[int, int]) -> None:
    """Raise ``ValueError`` when new X and Y have other numbers of columns than those before."""
    for now, old, name in zip(widths, before, "XY", strict=True):
        if now != old:
            raise ValueError(
                f"{name} has {now} columns and had {old} before: give the same, or build another model."
            )


def check_not_one_hot(Y: npt.ArrayLike) -> None:
    """Raise ``ValueError`` where Y [N, P] of 0 and 1 has several columns and a single 1 in each row."""
    values = np.asarray(Y)
    if values.ndim == 2 and values.shape[1] > 1 and (values.sum(axis=1) == 1.0).all():
        fix = "use Y[:, 1:]"
        if values.shape[1] > 2:
            fix = (
                "for several classes use a likelihood such as gpflow_ext.likelihoods.StickBreaking, with "
                "Y.argmax(axis=1).reshape(-1, 1)"
            )
        raise ValueError(
            f"Y is one-hot, a column for each of {values.shape[1]} classes; a binary likelihood takes "
            f"one column of 0 and 1: {fix}."
        )


def check_inducing(points: gpflow.inducing_variables.InducingPoints, X: Array) -> None:
    """Raise ``ValueError`` when inducing points [M, D'] have another number of columns than inputs [N, D]."""
    if points.Z.shape[1:] != X.shape[1:]:
        raise ValueError(
            f"The inducing points have {points.Z.shape[-1]} columns and X has {X.shape[1]}: both need one "
            "for each input."
        )


def _some_values(Y: Array) -> str:
    values = np.unique(Y)
    return ", ".join(f"{value:g}" for value in values[:5]) + (", …" if len(values) > 5 else "")


def _matrix(values: Any, name: str, gaps: bool = False) -> Array:
    raw = np.asarray(values)
    if raw.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} must hold numbers; its dtype is {raw.dtype}. Encode labels and strings first."
        )
    if raw.ndim != 2:
        raise ValueError(
            f"{name} must have two axes; its shape is {raw.shape}. Use {name}.reshape(-1, 1) for one column."
        )
    if raw.shape[0] == 0 or raw.shape[1] == 0:
        raise ValueError(f"{name} is empty: its shape is {raw.shape}.")
    matrix: Array = raw.astype(gpflow.default_float())
    missing = np.isnan(matrix) if gaps and matrix.shape[1] > 1 else False
    _check_finite(np.where(missing, 0.0, matrix), name)
    return matrix


def check_held(model: Any) -> None:
    """Raise ``ValueError`` where data (X, Y) that a model of GPflow holds are not finite."""
    held = getattr(model, "data", None)
    for name, part in zip("XY", held if isinstance(held, tuple) and len(held) == 2 else (), strict=False):
        values = np.asarray(part)
        if values.dtype.kind == "f" and values.ndim == 2:
            _check_finite(values, name)


def _check_finite(raw: Array, name: str) -> None:
    bad = np.argwhere(~np.isfinite(raw))
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"{name} must be finite; row {row}, column {column} (counted from 0) holds {raw[row, column]} "
            f"and {len(bad)} cell(s) in all are not finite. Drop or fill these rows first."
        )
    check_size(raw, name)


def check_size(values: Array, name: str) -> None:
    """Raise ``ValueError`` where sums of the squares of values [N, R] could overflow; NaN passes."""
    most = np.sqrt(np.finfo(gpflow.default_float()).max) * _ROOM
    bad = np.argwhere(np.abs(values) > most)
    if len(bad):
        row, column = bad[0]
        raise ValueError(
            f"{name} must be at most {most:.1g} in size, so that sums of squares are finite; row {row}, "
            f"column {column} (counted from 0) holds {values[row, column]:g}. Standardise it."
        )


def check_class_numbers(Y: npt.ArrayLike, num_classes: int) -> None:
    """Raise ``ValueError``, with the fix, unless ``Y`` (of any shape) holds only the integers 0 .. K-1.

    A class that does not occur is not an error.
    """
    values = np.asarray(Y)
    numeric = values.dtype.kind in "biuf"
    found = np.unique(values if numeric else values.astype(str))
    wrong = found[~np.isin(found, np.arange(num_classes))] if numeric else found
    if not wrong.size:
        return
    shown = np.array2string(wrong[:5], separator=", ") + (
        f" and {wrong.size - 5} more" if wrong.size > 5 else ""
    )
    shifted = numeric and np.isin(found, np.arange(1, num_classes + 1)).all()
    recipe = "encode with Y - 1" if shifted else f"encode the classes as 0, …, {num_classes - 1}"
    raise ValueError(
        f"Y must hold the class numbers 0 to {num_classes - 1}; found values {shown}: {recipe}, "
        "or load through gpflow_ext.datasets"
    )
