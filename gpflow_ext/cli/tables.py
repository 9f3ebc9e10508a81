"""The data that the flags name."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

_CLASSES = 20  # whole numbers that a classifier takes for classes, at most


def load(options: argparse.Namespace, task: str | None = None, classifies: bool = False) -> Any:
    """Load the data that the flags name; the task is kept among them, so that they name the same again.

    A model that ``classifies`` takes a few whole numbers for classes where no flag says otherwise. Exposures
    and weights, if there are any, are further columns of Y, in this order.
    """
    given = getattr(options, "task", None)
    split = _read(options, given or task)
    if classifies and given is None and _are_few_whole(split):
        split = _read(options, "multiclass")
        note = "its few whole numbers were taken for classes; --task says what the target is"
        split, task = dataclasses.replace(split, notes=(*split.notes, note)), split.task
    options.task = given or task
    if "scale_targets" in options:
        from gpflow_ext.data.datasets.missing import without_missing_tests

        split = without_missing_tests(split)
        split = _scale_targets(split) if options.scale_targets else split
    return with_columns(split)


def are_several(options: argparse.Namespace) -> bool:
    """Tell whether several targets are named, and not the columns of events."""
    several = options.task is None and len(options.target or ()) > 1
    if several:
        _check_no_bins(options)
    return several


def _check_no_bins(options: argparse.Namespace) -> None:
    """Raise ``ValueError`` for bins along several columns whose rows are not said to be events."""
    if getattr(options, "bins", None) is not None:
        columns = " ".join(options.target)
        raise ValueError(f"--bins counts events along {columns}: give --task events too, or leave it out.")


def _are_few_whole(split: Any) -> bool:
    """Tell whether targets that were read as numbers look like those of classes."""
    import numpy as np

    Y = np.concatenate([split.train[1], split.test[1]])
    few = Y.shape[1] == 1 and (np.round(Y) == Y).all() and len(np.unique(Y)) <= _CLASSES
    return bool(split.task == "regression" and few)


def _read(options: argparse.Namespace, task: str | None) -> Any:
    import numpy as np

    import gpflow_ext as gpx

    if options.data == "-":
        raise ValueError("--data -: standard input is not read: write the table to a file, and name that.")
    return gpx.datasets.load(
        options.data,
        target=_target(options),
        task=task,
        drop=options.drop,
        one_hot=options.one_hot,
        categories=dict(options.categories),
        dates=dict(options.dates),
        decimal=options.decimal,
        bins=_bins(options),
        exposure=getattr(options, "exposure", None),
        weights=getattr(options, "weights", None),
        missing=options.missing,
        split=options.split,
        test_fraction=options.test_fraction,
        seed=options.seed,
        standardise="common" if options.common_scale else not options.raw,
        dtype=np.float32 if getattr(options, "float32", False) else None,
    )


def _target(options: argparse.Namespace) -> Any:
    """Return the target, or all of them where there may be several."""
    given = options.target
    if given is None or isinstance(given, str) or "scale_targets" in options:
        return given
    if len(given) > 1 and options.task != "events":
        _check_no_bins(options)
        raise ValueError(f"--target must be one column for this model; got {', '.join(given)}.")
    return given[0] if len(given) == 1 else given


def _bins(options: argparse.Namespace) -> Any:
    """Return the bins along each axis, or one number for all."""
    given = getattr(options, "bins", None)
    return given[0] if given is not None and len(given) == 1 else given


def with_columns(split: Any) -> Any:
    """Return data with their exposures, then their weights, as further columns of Y."""
    import numpy as np

    for column in (split.exposure, split.weights):
        if column is not None:
            train, test = (
                (X, np.concatenate([Y, beside], axis=1)) for (X, Y), beside in zip(split, column, strict=True)
            )
            split = dataclasses.replace(split, train=train, test=test)
    return split


def outputs(split: Any) -> int:
    """Return the number of targets, exposures and weights not among them."""
    beside = sum(column is not None for column in (split.exposure, split.weights))
    return int(split.train[1].shape[1]) - beside


def has_gaps(split: Any) -> bool:
    """Tell whether targets of the training rows are missing."""
    import numpy as np

    return bool(np.isnan(split.train[1]).any())


def in_units(model: Any, split: Any, options: argparse.Namespace) -> tuple[Any, Any]:
    """Return a model and its data, where targets were standardised in the units of the table."""
    if not getattr(options, "scale_targets", False):
        return model, split
    from gpflow_ext.data.datasets.missing import without_missing_tests
    from gpflow_ext.prediction.rescaled import RescaledTargets

    whole = without_missing_tests(_read(options, options.task))
    return RescaledTargets(model, *_units(whole.train[1])), whole


def _units(Y: Any) -> tuple[Any, Any]:
    """Return the mean and the deviation of each target, one where it does not vary, [P]."""
    import gpflow_ext as gpx

    scaler = gpx.datasets.Scaler.fit_known(Y)
    return scaler.mean, scaler.scale


def _scale_targets(split: Any) -> Any:
    """Return the data with targets of mean 0 and deviation 1 in the training rows."""
    import numpy as np

    (X, Y), (X_test, Y_test) = split.train, split.test
    if np.isnan(Y).all(axis=0).any():
        raise ValueError("A target has no value in the training rows: leave it out of --target.")
    middle, scale = _units(Y)
    Y, Y_test = (((part - middle) / scale).astype(part.dtype) for part in (Y, Y_test))
    shown = "; ".join(f"{a:.4g} and {b:.4g}" for a, b in zip(middle[:20], scale[:20], strict=True))
    note = f"targets were standardised: mean and deviation {shown}{' …' if len(middle) > 20 else ''}"
    return dataclasses.replace(split, train=(X, Y), test=(X_test, Y_test), notes=(*split.notes, note))
