"""Read the files of a data folder or of the user: CSV tables, event times, published splits, npz arrays."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets import tables
from gpflow_ext.data.datasets.catalogue import KNOWN, SPLIT_FILES, Known
from gpflow_ext.data.datasets.raw import WHERE_FILES_ARE, Raw, Request, check_columns, without
from gpflow_ext.data.datasets.tables import Floats


def _choose_targets(request: Request, known: Known, names: Sequence[str], path: Path) -> tuple[str, ...]:
    target = request.target or next(iter(known.targets), "y")
    if request.target is None and target not in names:
        raise ValueError(
            f"target= is needed: {path.name} has no column {target!r}; choose one of {', '.join(names)}."
        )
    targets = (target,) if isinstance(target, str) else target
    check_columns("target", targets, names)
    return targets


def from_csv(path: Path, request: Request, known: Known) -> Raw:
    """Read a CSV table, with a second one as test part where ``test`` is given."""
    table = tables.read_table(path)
    if known.bins:
        return _from_events(path, table, known)
    if len(table.names) == 1:
        raise ValueError(
            f"{path} has one column, {table.names[0]!r}; at least one input and a target are needed "
            "(the separators comma, semicolon and tab are recognised)."
        )
    digest = table.sha256
    if request.test is not None:
        second = tables.read_table(Path(request.test), least_rows=1)
        if second.names != table.names:
            raise ValueError(
                f"test={str(request.test)!r} has the columns {', '.join(second.names)}; "
                f"{path.name} has {', '.join(table.names)}: they must be the same, in the same order."
            )
        table = replace(table, second=second)
        digest = hashlib.sha256((digest + second.sha256).encode()).hexdigest()
    targets = _choose_targets(request, known, table.names, path)
    target = targets[0]
    check_columns("drop", request.drop, table.names)
    check_columns("one_hot", request.one_hot, table.names)
    for name in targets:
        if name in (*request.drop, *request.one_hot):
            raise ValueError(f"the target {name!r} cannot be in drop or one_hot; take it out.")
    marker = known.published[0] if known.published else ""
    aside = [*known.targets, *known.exclude, known.exposure or "", marker]
    excluded = [name for name in table.names if name in aside and name not in targets]
    X, names, notes = _inputs(table, targets, excluded, request)
    columns = [_target(table, name, request.task) for name in targets]
    raw = Raw(
        name=path.name,
        X=X,
        y=columns[0] if len(columns) == 1 else _several(targets, columns),
        feature_names=names,
        target=", ".join(targets),
        source=f"{path.name}; licence as stated: {known.licence}",
        sha256=digest,
        task=known.targets.get(target),
        labels=known.labels if target == next(iter(known.targets), None) else None,
        exposure=_optional(table, known.exposure),
        place=table.place,
        notes=(*known.notes, *notes),
    )
    if table.second is not None:
        return replace(raw, test=np.arange(len(table)) >= len(table.lines))
    if known.published and request.split == "published":
        marks = tables.numbers(marker, table.column(marker), table.place)
        return replace(raw, test=np.asarray(marks == known.published[1]))
    return raw


def _inputs(
    table: tables.Table, targets: Sequence[str], excluded: Sequence[str], request: Request
) -> tuple[Floats, tuple[str, ...], tuple[str, ...]]:
    """Return the inputs [N, D] of a table, their names, and notes on what was left out or encoded."""
    columns: list[Floats] = []
    names: list[str] = []
    notes = [f"column {name} is kept out of the inputs" for name in excluded]
    notes += [f"column {name} was dropped as asked" for name in request.drop]
    for name in table.names:
        if name in (*targets, *excluded, *request.drop):
            continue
        if name in request.one_hot:
            coded, levels = tables.indicators(name, table.column(name))
            columns += list(coded.T)
            names += levels
            notes.append(f"column {name} was encoded as {len(levels)} columns of 0 and 1, one per level")
        else:
            columns.append(tables.numbers(name, table.column(name), table.place))
            names.append(name)
    if not columns:
        raise ValueError(
            f"{table.path} has no input left beside the target {', '.join(targets)!r}; drop fewer columns."
        )
    return np.stack(columns, axis=1), tuple(names), tuple(notes)


def _target(table: tables.Table, name: str, task: str | None) -> NDArray[Any]:
    """Return the target as numbers [N, 1], or as words [N] where they are classes."""
    cells = [cell.strip() for cell in table.column(name)]
    present = [cell for cell in cells if not tables.is_missing(cell)]
    words = [cell for cell in present if not tables.is_number(cell)]
    if not words:
        return tables.numbers(name, cells, table.place)[:, None]
    if len(words) < len(present) and task not in ("binary", "multiclass"):
        raise ValueError(
            f"{table.place(cells.index(words[0]))}, target {name!r}: {words[0]!r} is not a number, as other "
            "cells are; correct it, or pass task='multiclass' to take every value as a class."
        )
    return np.array(["" if tables.is_missing(cell) else cell for cell in cells], dtype=object)


def _several(names: Sequence[str], columns: Sequence[NDArray[Any]]) -> Floats:
    """Return numeric targets side by side, [N, P]."""
    for name, column in zip(names, columns, strict=True):
        if column.dtype == object:
            raise ValueError(
                f"several targets must hold numbers; {name!r} holds words such as {column[0]!r}."
            )
    return np.concatenate(columns, axis=1)


def _optional(table: tables.Table, name: str | None) -> Floats | None:
    if not name or name not in table.names:
        return None
    return tables.numbers(name, table.column(name), table.place)


def _from_events(path: Path, table: tables.Table, known: Known) -> Raw:
    """Count event times in equal bins: inputs are the bin centres, exposures the bin width."""
    times = tables.numbers("date", table.column("date"), table.place)
    counts, edges = np.histogram(times, bins=known.bins or 1)
    width = (edges[-1] - edges[0]) / counts.size
    return Raw(
        path.name,
        X=(edges[:-1] + edges[1:])[:, None] / 2,
        y=counts[:, None].astype(np.float64),
        feature_names=("date",),
        target="events",
        source=f"{path.name}; licence as stated: {known.licence}",
        sha256=table.sha256,
        task="count",
        exposure=np.full(counts.size, width),
        notes=(f"{times.size} event times were counted in {counts.size} bins of width {width:.4g}",),
    )


def from_split_files(name: str, folder: Path | None, request: Request) -> Raw:
    """Read a published split: two files without header, the label in the last column, positive means 1."""
    if folder is None:
        raise ValueError(
            f"split='published' of {name!r} is read from two files in splits/; {WHERE_FILES_ARE}."
        )
    stem, labels = SPLIT_FILES[name]
    parts, hashes = [], hashlib.sha256()
    for ending in ("tra", "tst"):
        path = folder / "splits" / f"{stem}-{ending}.csv"
        content, _ = tables.read_bytes(path)
        try:
            parts.append(np.loadtxt(content.decode().splitlines(), delimiter=",", ndmin=2))
        except ValueError as error:
            raise ValueError(f"{path} is not a table of numbers ({error}); fetch it again.") from error
        hashes.update(content)
    values = np.concatenate(parts)
    names = tuple(f"x{column + 1:02d}" for column in range(values.shape[1] - 1))
    raw = Raw(
        name,
        X=values[:, :-1],
        y=(values[:, -1:] > 0).astype(np.float64),
        feature_names=names,
        target="y",
        source=f"splits/{stem}; licence as stated: {KNOWN[name].licence}",
        sha256=hashes.hexdigest(),
        task="binary",
        labels=labels,
        test=np.arange(len(values)) >= len(parts[0]),
    )
    return without(raw, request)


def from_npz(path: Path, request: Request, known: Known) -> Raw:
    """Read arrays X (or the set's own name for them) and y or Y, or X_train, y_train, X_test, y_test."""
    _, digest = tables.read_bytes(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a file of plain arrays ({error}); write it with numpy.savez."
        ) from error
    test = None
    if "X_train" in arrays:
        sizes = [len(_take(arrays, f"X_{part}", path)) for part in ("train", "test")]
        for key in ("X", "y"):
            arrays[key] = np.concatenate([_take(arrays, f"{key}_{part}", path) for part in ("train", "test")])
        test = np.arange(sum(sizes)) >= sizes[0]
    outputs = "Y" if "Y" in arrays else "y"
    X, y = _take(arrays, known.inputs, path), _take(arrays, outputs, path).astype(np.float64)
    if len(X) != len(y) or not len(y):
        raise ValueError(
            f"{path}: {known.inputs} has {len(X)} rows and {outputs} {len(y)}; they must be equal."
        )
    X, y = X.reshape(len(y), -1) / known.divisor, y.reshape(len(y), -1)
    if request.split == "published" and known.published:
        test = _take(arrays, known.published[0], path) == known.published[1]
    raw = Raw(
        path.name,
        X=X,
        y=y % 2 if known.parity else y,
        feature_names=tuple(f"x{column + 1:02d}" for column in range(X.shape[1])),
        target=outputs,
        source=f"{path.name}; licence as stated: {known.licence}",
        sha256=digest,
        task=next(iter(known.targets.values()), None),
        labels=known.labels,
        test=test,
        notes=known.notes,
    )
    return without(raw, request)


def _take(arrays: dict[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    if key not in arrays:
        raise ValueError(f"{path} holds the arrays {', '.join(arrays)}; it needs {key!r} too.")
    return arrays[key]
