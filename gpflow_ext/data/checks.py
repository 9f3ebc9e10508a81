"""Checks of the data that a constructor is given, with errors that say what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from gpflow.models import GPMC, GPR, GPRFITC, SGPR, VGP, VGPOpperArchambeau
from gpflow.models.util import inducingpoint_wrapper

from gpflow_ext.data.arguments import check_kind
from gpflow_ext.data.float_type import largest

Array = npt.NDArray[Any]
_OF_ONE_OUTPUT = GPR, SGPR, GPRFITC, VGP, VGPOpperArchambeau, GPMC


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
        raise ValueError(
            "`data` must be a pair (X, Y) of inputs [N, D] and targets [N, P], as split.train is."
        )
    X, Y = _matrix(data[0], "X"), _matrix(data[1], "Y", gaps)
    if len(X) != len(Y):
        raise ValueError(f"X and Y must have the same number of rows; X has {len(X)} and Y has {len(Y)}.")
    return X, Y


def check_targets(likelihood: gpflow.likelihoods.Likelihood, Y: Array) -> None:
    """Raise ``ValueError`` when targets [N, P] lie outside the support of the likelihood.

    A likelihood says so itself by a method ``check_targets``; for those of GPflow it is said here. Nothing is
    known of others.
    """
    check_kind(gpflow.likelihoods.Likelihood, likelihood=likelihood)
    own = getattr(likelihood, "check_targets", None)
    if own is not None:
        own(Y)
        return
    for kind, check in _SUPPORTS.items():
        if isinstance(likelihood, kind):
            check(likelihood, np.asarray(Y))


def _check_binary(_: Any, Y: Array) -> None:
    if not np.isin(Y, (0.0, 1.0)).all():
        raise ValueError(f"Y must hold 0 and 1; found the values {_some_values(Y)}. Encode the labels first.")
    check_not_one_hot(Y)


def _check_counts(_: Any, Y: Array) -> None:
    if ((Y < 0) | (np.round(Y) != Y)).any():
        raise ValueError(f"Y must hold counts 0, 1, 2, …; found the values {_some_values(Y)}.")


def _check_unit_interval(_: Any, Y: Array) -> None:
    if ((Y < 0) | (Y > 1)).any():
        raise ValueError(
            f"Y must be from 0 to 1; found the values {_some_values(Y)}. Divide by the largest possible."
        )


def _check_from_zero(_: Any, Y: Array) -> None:
    if (Y < 0).any():
        raise ValueError(f"Y must not be negative; found the values {_some_values(Y)}.")


def _check_positive(_: Any, Y: Array) -> None:
    if (Y <= 0).any():
        raise ValueError(f"Y must be positive; found the values {_some_values(Y)}.")


def _check_one_column(Y: Array, num_classes: int) -> None:
    if Y.shape[1] != 1:
        raise ValueError(
            f"Y must have one column of class numbers; it has {Y.shape[1]}. If it is one-hot, use "
            "Y.argmax(axis=1).reshape(-1, 1)."
        )
    check_class_numbers(Y, num_classes)


def _check_classes(likelihood: Any, Y: Array) -> None:
    _check_one_column(Y, likelihood.num_classes)


def _check_softmax(likelihood: Any, Y: Array) -> None:
    _check_one_column(Y, likelihood.num_classes)
    if Y.dtype.kind == "f":
        raise ValueError(
            f"GPflow's Softmax takes targets of an integer type only, and arrays are held as {Y.dtype}: use "
            f"the same likelihood as gpflow_ext.likelihoods.MultinomialLogit({likelihood.num_classes})."
        )


def _check_levels(likelihood: Any, Y: Array) -> None:
    check_class_numbers(Y, likelihood.num_bins)
    why = ""
    if not np.isfinite(tf.math.erf(tf.constant(np.inf, gpflow.default_float()))):
        why = "is NaN at the outer levels, because erf is NaN at infinity in this build of TensorFlow"
    elif likelihood.sigma.trainable:
        why = "has a derivative in sigma that is NaN at the outer levels, zero times infinity"
    if why:
        instead = f"gpflow_ext.likelihoods.CumulativeLogit({likelihood.num_bins})"
        raise ValueError(f"GPflow's Ordinal {why}: use {instead}.")


def _check_switched(likelihood: Any, Y: Array) -> None:
    parts, which = likelihood.likelihoods, Y[:, -1]
    if not np.isin(which, np.arange(len(parts))).all():
        raise ValueError(
            f"The last column of Y must number the likelihoods, 0 to {len(parts) - 1}; found the values "
            f"{_some_values(which)}."
        )
    for number, part in enumerate(parts):
        check_targets(part, Y[which == number, :-1])


_SUPPORTS: dict[type, Callable[[Any, Array], None]] = {
    gpflow.likelihoods.Bernoulli: _check_binary,
    gpflow.likelihoods.Poisson: _check_counts,
    gpflow.likelihoods.Beta: _check_unit_interval,
    gpflow.likelihoods.Exponential: _check_from_zero,
    gpflow.likelihoods.Gamma: _check_positive,
    gpflow.likelihoods.MultiClass: _check_classes,
    gpflow.likelihoods.Softmax: _check_softmax,
    gpflow.likelihoods.Ordinal: _check_levels,
    gpflow.likelihoods.SwitchedLikelihood: _check_switched,
}


def are_inputs(points: gpflow.inducing_variables.InducingVariables | None) -> bool:
    """Tell whether inducing variables are values at inputs Z [M, D], and not, say, at patches of images."""
    kinds = gpflow.inducing_variables
    return isinstance(points, kinds.InducingPoints) and not isinstance(points, kinds.InducingPatches)


def as_inducing(points: Any) -> gpflow.inducing_variables.InducingVariables:
    """Return inducing variables as they are, or points [M, D] as such.

    Raises
    ------
    ValueError
        For anything else.
    """
    if isinstance(points, gpflow.inducing_variables.InducingVariables):
        return points
    shape = np.shape(points) if getattr(points, "shape", None) is None else tuple(points.shape)
    if isinstance(points, str):
        raise ValueError(
            f"`inducing_variable` must be points here, where no data are at hand; got {points!r}: give it "
            "gpflow_ext.inducing.conditional_variance(X, kernel)."
        )
    if len(shape) != 2:
        raise ValueError(
            "`inducing_variable` must be a matrix of points [M, D], or inducing variables of GPflow; got "
            f"{points!r}."
        )
    return inducingpoint_wrapper(points)


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
    """Raise ``ValueError`` where data (X, Y) that a model holds are not finite, or not its likelihood's.

    Targets of a model that predicts missing ones may be NaN.

    Raises
    ------
    NotImplementedError
        For a model of GPflow that has no use for the several outputs of its kernel.
    """
    _check_one_output(model)
    held = getattr(model, "data", None)
    if not isinstance(held, tuple) or len(held) != 2:
        return
    X, Y = map(np.asarray, held)
    known = np.where(np.isnan(Y), 0.0, Y) if hasattr(model, "predict_missing") else Y
    for name, values in (("X", X), ("Y", known)):
        if values.dtype.kind == "f" and values.ndim == 2:
            _check_finite(values, name)
    check_model_targets(model, known)


def _check_one_output(model: Any) -> None:
    if type(model) in _OF_ONE_OUTPUT and isinstance(model.kernel, gpflow.kernels.MultioutputKernel):
        kind, kernel = type(model).__name__, type(model.kernel).__name__
        raise NotImplementedError(
            f"GPflow's {kind} is for kernels of one output, and {kernel} has several: use "
            "gpflow_ext.models.VGPKMM, or GPflow's SVGP."
        )


def check_model_targets(model: Any, Y: Array) -> None:
    """Raise ``ValueError`` when targets [N, P] lie outside the support of the likelihood of a model."""
    likelihood = getattr(model, "likelihood", None)
    if isinstance(likelihood, gpflow.likelihoods.Likelihood) and Y.ndim == 2:
        check_targets(likelihood, Y)


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
    most = largest(gpflow.default_float())
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
