"""``load``: from a name or a file to a standardised training and test part; notes record each step."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpflow_ext.data.datasets.missing import (
    Ways,
    fill_with_mean,
    not_positive,
    note_constant,
    too_large,
    treat_missing,
    ways,
    without_weightless,
    wrong_weights,
)
from gpflow_ext.data.datasets.raw import Raw, Request
from gpflow_ext.data.datasets.sources import find
from gpflow_ext.data.datasets.split import Floats, Rows, Scaler, Split, choose_rows
from gpflow_ext.data.datasets.targets import CLASSIFICATION, EncodedTarget, check_task, encode
from gpflow_ext.data.float_type import default_float
from gpflow_ext.data.reading.problems import TableError
from gpflow_ext.data.reading.treatment import Column, Treatment


def load(
    name: Any,
    *,
    target: str | Sequence[str] | None = None,
    task: str | None = None,
    seed: int = 0,
    test_fraction: float = 0.2,
    split: str | None = None,
    standardise: bool | Literal["common"] = True,
    missing: str | Sequence[str] = "error",
    drop: Sequence[str] = (),
    one_hot: Sequence[str] = (),
    categories: Mapping[str, Sequence[str]] | None = None,
    dates: Mapping[str, str] | None = None,
    decimal: str | None = None,
    bins: int | Sequence[int] | None = None,
    exposure: str | None = None,
    weights: Any = None,
    test: Any = None,
    dtype: DTypeLike | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    offline: bool | None = None,
) -> Split:
    """Load a data set and divide it into a standardised training and test part.

    A table is a text file with a header line (separated by comma, semicolon, tab or bar; plain, ``.gz``,
    ``.bz2`` or ``.xz``), a Parquet file, or a data frame. The type of each column is inferred:
    numbers, with decimal points or commas, with or without a unit; dates, as days since the first one; text
    of few levels, as one 0/1 column per level. Named sets are looked for in ``data_dir`` (as
    ``<name>.csv.gz``, ``<name>.csv`` or ``<name>.npz``, those of images also as IDX files in a folder
    ``<name>``), among the sets bundled with scikit-learn, and on OpenML. Nothing is dropped, assumed or
    changed without a sentence in ``Split.notes``; docs/tables.md gives the rules.

    Parameters
    ----------
    name
        A known name (see ``known_names``), the path of a table, that of an .npz file with the arrays X and Y,
        or a data frame.
    target
        Target column, or several; a column ``y`` is the default. For events, the columns of their places.
    task
        "regression", "binary", "multiclass", "ordinal", "counts", or "events": places on a line or in the
        plane, one row each, which are counted in bins and become counts with exposures. None keeps the task
        of a named set; for other data, words and two distinct values are classes, all else is regression.
    seed
        Seed of the random split.
    test_fraction
        Share of the test part, in [0, 1); 0 leaves it empty. Classes keep their proportions.
    split
        "random", "published" (for sets that have a published split), or None: the parts that the set comes in
        (MNIST, ``test=``), else random.
    standardise
        Shift and scale each input to mean 0 and standard deviation 1 over the training part; "common" uses
        one shift and one scale for all inputs, as for the pixels of an image. Targets keep their units.
    missing
        What to do with missing values: "error", "drop" the rows, fill in the training "mean" (and add a 0/1
        input for each column with gaps in the training part), or "keep" missing values of several targets as
        NaN, for a model that accepts them; ``["mean", "keep"]`` is one for inputs and the other for targets.
    drop, one_hot
        Columns to leave out; columns to encode as one 0/1 column per level, whatever they hold.
    categories
        For columns of ordered levels, and for an ordinal target, the levels from lowest to highest:
        ``{"size": ["S", "M", "L"]}``. They become 0, 1, ...
    dates
        "dmy", "mdy" or "ymd" for columns whose dates are ambiguous: ``{"day": "dmy"}``.
    decimal
        "." or ",": the decimal mark, if it is ambiguous.
    bins
        For events, how many bins along each axis, one number for all; by default 100 on a line, 20 by 20 in
        the plane.
    exposure
        For counts, the column of their exposures: the time, area or population in which each was counted. The
        task is then "counts", the column is not an input, and the model predicts a rate.
    weights
        A column, or numbers [N] from 0 beside the rows of the source: a row of weight w counts as w copies of
        it. That column is not an input. ``Split.weights`` has them for the likelihood (see
        `likelihoods.Weighted`) and for scores; rows of weight 0 are left out. Scales and means of inputs are
        weighted; the split is not.
    test
        Table of the test rows, with the columns of the first in any order.
    dtype
        Floating type of the arrays; None is ``gpflow.default_float()``.
    data_dir
        Folder of data files; None is the environment variable GPFLOW_EXT_DATA.
    offline
        Forbid downloads; None reads the environment variable GPFLOW_EXT_OFFLINE. Downloads are cached in
        GPFLOW_EXT_CACHE (or ~/.cache/gpflow_ext) and checked against their checksum on every read.

    Returns
    -------
    A ``Split``; ``train, test = load(...)`` unpacks it into pairs ``(X [N, D], Y [N, 1])``.

    Raises
    ------
    TableError
        A ``ValueError`` with ``problems``: everything that keeps a table from being used, each with its
        column, its rows and the arguments that would fix it.
    ValueError
        If an argument or a set is not usable; the message says what to do.
    ImportError
        If scikit-learn, or pyarrow for Parquet, is needed and not installed.
    ConnectionError
        If a download fails.
    """
    _check_arguments(seed, test_fraction, split, standardise)
    how = ways(missing)
    _check_columns(drop, one_hot, categories, dates, exposure)
    kind = _floating(dtype)
    target = _named(target)
    sizes = tuple(bins) if isinstance(bins, Sequence) else bins
    orders = {column: tuple(map(str, levels)) for column, levels in (categories or {}).items()}
    known = _task_with(exposure, check_task(task))
    raw = find(
        Request(
            name, target, task or known, tuple(drop), tuple(one_hot), orders, dict(dates or {}), decimal,
            sizes, exposure, weights, test, split, data_dir, offline,
        )
    )  # fmt: skip
    if weights is not None and not isinstance(weights, str):
        raw = replace(raw, weights=_numbers(weights, len(raw.X), raw.name))
    raw, kept, encoded = _prepared(raw, how, known, orders, kind)
    rows, row_notes = _divide(raw, encoded, split, test_fraction, seed)
    parts = raw.X[rows[0]], raw.X[rows[1]]
    counted = None if raw.weights is None else raw.weights[rows[0]]
    notes = [*raw.notes, *encoded.notes, *row_notes]
    if counted is not None:
        of = f" (column {weights})" if isinstance(weights, str) else ""
        notes.append(f"weights{of}: {len(counted)} training rows count as {counted.sum():.6g}")
    columns = raw.columns or tuple(map(Column, raw.feature_names))
    if "mean" in how:
        *filled, columns, filled_notes = fill_with_mean(*parts, columns, raw.name, counted)
        parts = filled[0], filled[1]
        notes += filled_notes
    treatment = Treatment(columns)
    names = treatment.input_names
    scaler = Scaler.identity(len(names))
    if standardise:
        common = standardise == "common"
        scaler = (Scaler.fit_common if common else Scaler.fit)(parts[0], counted)
        notes += note_constant(parts[0], names)
        with_what = "one mean and one deviation of all inputs" if common else "the mean and deviation"
        notes.append(f"inputs were standardised with {with_what} of the training part")
        for part in parts:  # in place: a second copy of the inputs may not fit into memory
            part -= scaler.mean
            part /= scaler.scale
    train, test_part = (
        (_cast(part, kind, raw.name), _cast(encoded.values[chosen], kind, raw.name))
        for part, chosen in zip(parts, rows, strict=True)
    )
    return Split(
        train=train,
        test=test_part,
        name=raw.name,
        task=encoded.task,
        feature_names=names,
        target=raw.target,
        labels=encoded.labels,
        scaler=scaler,
        seed=seed,
        sha256=raw.sha256,
        source=raw.source,
        notes=tuple(notes),
        rows=(kept[rows[0]], kept[rows[1]]),
        exposure=_beside(raw.exposure, rows, kind, raw.name),
        treatment=None if raw.columns is None else treatment,
        weights=_beside(raw.weights, rows, kind, raw.name),
    )


def _prepared(
    raw: Raw,
    missing: Ways,
    task: str | None,
    orders: Mapping[str, Sequence[str]],
    dtype: np.dtype[Any],
) -> tuple[Raw, Rows, EncodedTarget]:
    """Return the data without what models cannot take, the rows kept, the target; or all problems."""
    raw, counted = without_weightless(raw)
    problems = [*raw.problems, *too_large(raw, dtype)]
    problems += [*not_positive(raw, missing), *wrong_weights(raw, missing)]
    raw, kept, found = treat_missing(raw, missing)
    problems += found
    is_whole = not (np.any(raw.y == "") if raw.y.dtype == object else np.isnan(raw.y).any())
    encoded = None
    if is_whole or ("keep" in missing and not found):
        try:
            encoded = encode(raw, task or raw.task, orders.get(raw.target) or raw.order)
        except TableError as error:
            problems += [each for each in error.problems if each.column not in {p.column for p in problems}]
    if problems or encoded is None:
        raise TableError(raw.name, problems)
    return raw, counted[kept], encoded


def _check_arguments(
    seed: int,
    test_fraction: float,
    split: str | None,
    standardise: bool | str,
) -> None:
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed={seed!r} must be a whole number from 0.")
    if not isinstance(test_fraction, Real) or not 0.0 <= test_fraction < 1.0:
        raise ValueError(f"test_fraction={test_fraction!r} must lie in [0, 1); 0 leaves the test part empty.")
    if split not in (None, "random", "published"):
        raise ValueError(f"split={split!r} is unknown; use 'random', 'published' or None.")
    if standardise not in (True, False, "common"):
        raise ValueError(f"standardise={standardise!r} must be True, False or 'common'.")


def _check_columns(drop: Any, one_hot: Any, categories: Any, dates: Any, exposure: Any) -> None:
    """Raise ``ValueError`` unless what is said of columns names them as text, in lists and mappings."""
    if not all(_are_names(names) for names in (drop, one_hot)):
        raise ValueError("drop and one_hot take lists of column names, such as drop=['id'].")
    if categories is not None and not (
        _maps_names(categories) and all(map(_are_levels, categories.values()))
    ):
        raise ValueError(
            f"categories={categories!r} must have a list of levels for each column, such as "
            "{'size': ['S', 'M', 'L']}."
        )
    if dates is not None and not _maps_names(dates):
        raise ValueError(f"dates={dates!r} must have an order for each column, such as {{'day': 'dmy'}}.")
    if exposure is not None and not isinstance(exposure, str):
        raise ValueError(f"exposure={exposure!r} must be the name of a column, as text.")


def _are_levels(values: Any) -> bool:
    return isinstance(values, Collection) and not isinstance(values, str)


def _are_names(values: Any) -> bool:
    return _are_levels(values) and all(isinstance(name, str) for name in values)


def _maps_names(values: Any) -> bool:
    return isinstance(values, Mapping) and _are_names(values)


def _floating(dtype: DTypeLike | None) -> np.dtype[Any]:
    """Return the type of the arrays; whole numbers would cut off what is behind the point."""
    try:
        kind = np.dtype(default_float() if dtype is None else dtype)
    except TypeError as error:
        raise ValueError(f"dtype={dtype!r} is no type of NumPy: {error}.") from error
    if kind.kind != "f":
        raise ValueError(f"dtype={dtype!r} must be a floating type, such as 'float64'.")
    return kind


def _named(target: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return the target, or several, each once."""
    if target is None or isinstance(target, str):
        return target
    names = tuple(target) if isinstance(target, Iterable) else ()
    if not names or len(set(names)) < len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"target={target!r} must be the name of a column, as text, or several, each once.")
    return names


def _task_with(exposure: str | None, task: str | None) -> str | None:
    """Return the task of counts where there are exposures, which no other has."""
    if exposure is not None and task not in (None, "count"):
        raise ValueError(f"exposure={exposure!r} is for task='counts'; leave one of them out.")
    return "count" if exposure is not None else task


def _divide(
    raw: Raw, encoded: EncodedTarget, split: str | None, test_fraction: float, seed: int
) -> tuple[tuple[Rows, Rows], list[str]]:
    """Return the training and the test rows, by the parts of the source or at random."""
    if split == "published" and raw.test is None:
        raise ValueError(f"{raw.name!r} has no published split; use split='random'.")
    if raw.test is None or split == "random":
        classes = encoded.values[:, 0] if encoded.task in CLASSIFICATION else None
        return choose_rows(classes, len(raw.X), test_fraction, seed), []
    note = "the parts are those of the source: seed and test_fraction had no effect"
    return (np.flatnonzero(~raw.test), np.flatnonzero(raw.test)), [note]


def _cast(values: Floats, dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # told below, by name
        cast = values.astype(dtype, copy=False)
    if np.isinf(cast).any():
        raise ValueError(f"{name!r} holds values beyond the range of {dtype}; use a wider dtype.")
    return cast


def _beside(
    column: Floats | None, rows: tuple[Rows, Rows], dtype: np.dtype[Any], name: str
) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return the exposures or the weights of both parts, [N, 1] each."""
    if column is None:
        return None
    return _cast(column[rows[0], None], dtype, name), _cast(column[rows[1], None], dtype, name)


def _numbers(weights: Any, rows: int, name: str) -> Floats:
    """Return weights [N] that were given as an array; what kind of numbers they are is checked later."""
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"weights must be numbers, or the name of a column: {error}.") from error
    if found.shape not in ((rows,), (rows, 1)):
        raise ValueError(f"weights must be [{rows}], one for each row of {name}; the shape is {found.shape}.")
    return found.reshape(-1)
