"""Treat values that models cannot use: too large, missing or constant; each treatment returns a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.raw import Raw
from gpflow_ext.data.datasets.split import Floats, Rows, Split
from gpflow_ext.data.float_type import largest
from gpflow_ext.data.reading.problems import Problem, Remedy, TableError, drop, listed
from gpflow_ext.data.reading.treatment import Column

MISSING = ("error", "drop", "mean", "keep")
BOTH = ["mean", "keep"]
Ways = frozenset[str]


def ways(missing: Any) -> Ways:
    """Return what to do with missing values, as a set of words: one of ``MISSING``, or ``BOTH``.

    Raises
    ------
    ValueError
        For anything else.
    """
    words = [missing] if isinstance(missing, str) else missing
    known = isinstance(words, list | tuple) and all(word in MISSING for word in words)
    if not known or not (len(set(words)) == 1 or set(words) == set(BOTH)):
        raise ValueError(
            f"missing={missing!r} is unknown; use one of {', '.join(map(repr, MISSING))}, or {BOTH!r}."
        )
    return frozenset(words)


def too_large(raw: Raw, dtype: np.dtype[Any]) -> list[Problem]:
    """Return the columns that hold infinite inputs, or targets of a floating type without a finite square."""
    problems = []
    of_inputs = (
        raw.X,
        raw.feature_names,
        np.finfo(np.float64).max,
    )  # they are standardised before they are cast
    for values, names, most in (of_inputs, (raw.y, raw.target.split(", "), largest(dtype))):
        if values.dtype == object:
            continue
        beyond = np.abs(values) > most
        for column in np.flatnonzero(beyond.any(axis=0)):
            name, rows = names[min(column, len(names) - 1)], np.flatnonzero(beyond[:, column])
            first, more = values[rows[0], column], "" if len(rows) == 1 else f" ({len(rows)} such cells)"
            held = "infinite" if np.isinf(first) else f"{first:g}, whose square would be infinite"
            what = f"{raw.place(rows[0])}, column {name!r} is {held}{more}"
            remedies = (drop(name),) if name in raw.feature_names else ()
            problems.append(Problem(what, name, _ints(rows), remedies, "correct or remove the row"))
    return problems


def not_positive(raw: Raw, missing: Ways) -> list[Problem]:
    """Return which exposures are not positive finite numbers; only inputs are ever filled with a mean."""
    if raw.exposure is None:
        return []
    wrong = ~((raw.exposure > 0.0) & np.isfinite(raw.exposure))
    rows = np.flatnonzero(wrong if "mean" in missing else wrong & ~np.isnan(raw.exposure))
    if not rows.size:
        return []
    what = (
        f"{raw.place(rows[0])}, column {raw.exposure_name!r} is {raw.exposure[rows[0]]:g}: an exposure is a "
        f"positive number ({rows.size} such cells)"
    )
    return [Problem(what, raw.exposure_name, _ints(rows), advice="correct or remove the row")]


def wrong_weights(raw: Raw, missing: Ways) -> list[Problem]:
    """Return which weights are not finite numbers from 0, or that all are 0; see `not_positive`."""
    if raw.weights is None:
        return []
    name = raw.weights_name
    if not raw.weights.any():
        return [Problem(f"the weight {name!r} is 0 in every row", name, advice="name another column")]
    wrong = ~((raw.weights >= 0.0) & np.isfinite(raw.weights))
    rows = np.flatnonzero(wrong if "mean" in missing else wrong & ~np.isnan(raw.weights))
    if not rows.size:
        return []
    what = (
        f"{raw.place(rows[0])}, the weight {name!r} is {raw.weights[rows[0]]:g}: a weight is a number from 0 "
        f"({rows.size} such cells)"
    )
    return [Problem(what, name, _ints(rows), advice="correct or remove the row")]


def without_weightless(raw: Raw) -> tuple[Raw, Rows]:
    """Leave out the rows of weight 0, which count as no copy; return the data and the rows kept."""
    everything = np.arange(len(raw.X))
    if raw.weights is None or not raw.weights.any() or raw.weights.all():
        return raw, everything
    kept = np.flatnonzero(raw.weights)
    note = f"{len(everything) - len(kept)} rows of weight 0 are left out"
    return _thinned(raw, kept, note), kept


def treat_missing(raw: Raw, missing: Ways) -> tuple[Raw, Rows, list[Problem]]:
    """Find or drop rows with missing values; return the data, the rows that were kept, and problems.

    With "mean" inputs keep their NaN: the mean is that of a training part not yet chosen.
    """
    names, in_X = _gaps(raw)
    in_y = _absent(raw).any(axis=1)
    affected = np.flatnonzero(in_y | in_X.any(axis=1))
    everything = np.arange(len(in_y))
    if not affected.size:
        return raw, everything, []
    columns = [name for name, hit in zip(names, in_X.any(axis=0), strict=True) if hit]
    columns += _lacking(raw)
    if "keep" in missing and _several(raw) and ("mean" in missing or not in_X.any()):
        notes = [f"{int(np.isnan(raw.y).sum())} missing targets are kept as NaN"] if in_y.any() else []
        return replace(raw, notes=(*raw.notes, *notes)), everything, []
    if missing & {"error", "keep"}:
        return raw, everything, [_refused(raw, names, in_X, in_y, affected, missing)]
    if "mean" in missing:
        return raw, everything, [_no_target(raw, in_y)] if in_y.any() else []
    return _drop_rows(raw, affected, columns)


def _gaps(raw: Raw) -> tuple[Sequence[str], NDArray[np.bool_]]:
    """Return the names of the raw columns, or of the inputs where there are none, and their gaps [N, C].

    Exposures and weights come last.
    """
    names, in_X = list(raw.feature_names), np.isnan(raw.X)
    if raw.columns is not None:
        widths = [len(column.input_names) for column in raw.columns]
        in_X = in_X[:, np.cumsum([0, *widths])[: len(widths)]]
        names = [column.name for column in raw.columns]
    if raw.exposure is not None:
        names, in_X = [*names, raw.exposure_name], np.column_stack([in_X, np.isnan(raw.exposure)])
    if raw.weights is not None:
        names, in_X = [*names, raw.weights_name], np.column_stack([in_X, np.isnan(raw.weights)])
    return names, in_X


def _several(raw: Raw) -> bool:
    """Tell whether there are several targets, all numbers."""
    return raw.y.dtype != object and raw.y.ndim == 2 and raw.y.shape[1] > 1


def _absent(raw: Raw) -> NDArray[np.bool_]:
    """Return which targets are missing, [N, P]."""
    absent = raw.y == "" if raw.y.dtype == object else np.isnan(raw.y)
    return np.reshape(absent, (len(raw.X), -1))


def _target_names(raw: Raw) -> list[str]:
    """Return the name of each target, P."""
    names, width = raw.target.split(", "), _absent(raw).shape[1]
    return names if len(names) == width else [raw.target] * width


def _lacking(raw: Raw, rows: Any = slice(None)) -> list[str]:
    """Return the names of the targets that are missing in any of the rows."""
    hits = np.atleast_2d(_absent(raw)[rows]).any(axis=0)
    return [name for name, hit in zip(_target_names(raw), hits, strict=True) if hit]


def _refused(
    raw: Raw,
    names: Sequence[str],
    in_X: NDArray[np.bool_],
    in_y: NDArray[np.bool_],
    affected: Rows,
    missing: Ways,
) -> Problem:
    first = affected[0]
    columns = [name for name, hit in zip(names, in_X.any(axis=0), strict=True) if hit]
    columns += _lacking(raw)
    column = names[int(np.argmax(in_X[first]))] if in_X[first].any() else _lacking(raw, first)[0]
    number = in_X.sum() + _absent(raw).sum()
    what = (
        f"{number} values are missing in {affected.size} rows (columns: {listed(columns)}), "
        f"the first in {raw.place(first)}, column {column!r}"
        f"{' (to keep them is for several targets)' if 'keep' in missing else ''}"
    )
    beside = sum(column is not None for column in (raw.exposure, raw.weights))
    filled = not in_y.any() and not in_X[:, len(names) - beside :].any()  # inputs alone
    remedies = [Remedy("missing", "drop"), *([Remedy("missing", "mean")] if filled else [])]
    if in_y.any() and _several(raw):
        remedies.append(Remedy("missing", BOTH if in_X.any() else "keep"))
    return Problem(what, columns[0] if len(columns) == 1 else None, _ints(affected), tuple(remedies))


def _no_target(raw: Raw, in_y: Rows) -> Problem:
    rows = np.flatnonzero(in_y)
    what = (
        f"missing='mean' fills inputs only, and the target {raw.target!r} is missing in {raw.place(rows[0])} "
        f"({rows.size} such rows)"
    )
    kept = [Remedy("missing", BOTH)] if _several(raw) else []
    return Problem(what, raw.target, _ints(rows), (Remedy("missing", "drop"), *kept))


def _drop_rows(raw: Raw, dropped: Rows, columns: Sequence[str]) -> tuple[Raw, Rows, list[Problem]]:
    kept = np.delete(np.arange(len(raw.X)), dropped)
    if kept.size < 2:
        what = f"missing='drop' leaves {kept.size} of {len(raw.X)} rows (missing: {listed(columns)})"
        inputs = [name for name in columns if name not in _target_names(raw)]
        remedies = (Remedy("missing", "mean"), *([Remedy("drop", inputs)] if inputs else []))
        return raw, np.arange(len(raw.X)), [Problem(what, remedies=remedies)]
    places = listed([raw.place(row) for row in dropped])
    note = f"{dropped.size} rows with missing {listed(columns)} were dropped ({places})"
    return _thinned(raw, kept, note), kept, []


def _thinned(raw: Raw, kept: Rows, note: str) -> Raw:
    """Return some of the rows, with a note on the others."""
    return replace(
        raw,
        X=raw.X[kept],
        y=raw.y[kept],
        exposure=None if raw.exposure is None else raw.exposure[kept],
        weights=None if raw.weights is None else raw.weights[kept],
        test=None if raw.test is None else raw.test[kept],
        place=lambda row: raw.place(kept[row]),
        notes=(*raw.notes, note),
    )


class Filled(NamedTuple):
    """Both parts without gaps, the columns with what fills them, and what was done."""

    train: Floats
    test: Floats
    columns: tuple[Column, ...]
    notes: tuple[str, ...]


def fill_with_mean(
    train: Floats,
    test: Floats,
    columns: Sequence[Column],
    table: str,
    weights: Floats | None = None,
) -> Filled:
    """Replace NaN by the training mean of each input, and add an input for each column with training gaps.

    That input is 1 where a cell of the column was missing, else 0; these inputs come after the others. A
    training row of weight w, of ``weights`` [N], counts as w copies of it.
    """
    notes, filled = [], []
    flags: tuple[list[Floats], list[Floats]] = ([], [])
    problems: list[Problem] = []
    start = 0
    for column in columns:
        mine = slice(start, start + len(column.input_names))
        start = mine.stop
        parts = train[:, mine], test[:, mine]
        gaps = [np.isnan(part[:, 0]) for part in parts]
        if gaps[0].all():
            what = f"column {column.name!r} has no value in the training part"
            problems.append(Problem(what, column.name, remedies=(drop(column.name),)))
            continue
        # One input at a time, on its own: the mean of a column is that of its numbers in their order.
        known = parts[0][~gaps[0]].T
        means = tuple(
            float(cells.mean() if weights is None else np.average(cells, weights=weights[~gaps[0]]))
            for cells in map(np.ascontiguousarray, known)
        )
        for part, gap in zip(parts, gaps, strict=True):
            part[gap] = means
        filled.append(replace(column, fill=means, flagged=bool(gaps[0].any())))
        if filled[-1].flagged:
            for flag, gap in zip(flags, gaps, strict=True):
                flag.append(gap.astype(np.float64)[:, None])
        number = int(gaps[0].sum() + gaps[1].sum())
        if number:
            notes.append(_filled_note(column, number, means, filled[-1].flagged))
    if problems:
        raise TableError(table, problems)
    whole = [np.concatenate([part, *flag], axis=1) for part, flag in zip((train, test), flags, strict=True)]
    return Filled(whole[0], whole[1], tuple(filled), tuple(notes))


def _filled_note(column: Column, number: int, means: Sequence[float], flagged: bool) -> str:
    shown = ", ".join(f"{mean:.6g}" for mean in means[:4]) + (", ..." if len(means) > 4 else "")
    flag = f"; the input '{column.name} is missing' tells where" if flagged else ""
    return f"{number} missing values of {column.name} were set to its training mean {shown}{flag}"


def note_constant(train: Floats, names: Sequence[str]) -> list[str]:
    """Return notes on the columns that take a single value over the training part."""
    constant = np.flatnonzero(np.ptp(train, axis=0) == 0.0)
    if constant.size == 0:
        return []
    if constant.size == 1:
        column = constant[0]
        return [
            f"column {names[column]} is constant ({train[0, column]}): kept, centred to 0 by standardising"
        ]
    names = listed([names[column] for column in constant])
    return [f"{constant.size} columns are constant: kept, centred to 0 by standardising ({names})"]


def _ints(rows: Rows) -> tuple[int, ...]:
    return tuple(map(int, rows))


def without_missing_tests(split: Split) -> Split:
    """Return the data without the test rows that have no score, as a target is missing; a note says so."""
    X, Y = split.test
    whole = ~np.isnan(Y).any(axis=1)
    if whole.all():
        return split
    exposure, weights = (
        None if pair is None else (pair[0], pair[1][whole]) for pair in (split.exposure, split.weights)
    )
    note = f"{np.sum(~whole)} test rows with missing targets are left out of the scores"
    return replace(
        split,
        test=(X[whole], Y[whole]),
        rows=(split.rows[0], split.rows[1][whole]),
        exposure=exposure,
        weights=weights,
        notes=(*split.notes, note),
    )
