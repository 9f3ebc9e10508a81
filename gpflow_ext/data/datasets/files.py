"""Read inputs and a target from a table, in a file or a data frame."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.catalogue import Known
from gpflow_ext.data.datasets.events import count_events
from gpflow_ext.data.datasets.raw import Raw, Request, check_columns
from gpflow_ext.data.datasets.targets import CLASSIFICATION
from gpflow_ext.data.reading import cells, clock, units
from gpflow_ext.data.reading.cells import Floats, is_missing
from gpflow_ext.data.reading.date_forms import most_likely, orders_of, resemble
from gpflow_ext.data.reading.dates import ORDERS
from gpflow_ext.data.reading.frames import as_frame, is_frame
from gpflow_ext.data.reading.hints import of_errors
from gpflow_ext.data.reading.inference import (
    DECIMAL,
    MARKS,
    Asked,
    Found,
    decimal_of,
    doubtful_point,
    grouped_thousands,
    infer,
    mark_of_plain,
    numbers,
)
from gpflow_ext.data.reading.marks import SPACE
from gpflow_ext.data.reading.problems import Problem, Remedy, TableError, listed
from gpflow_ext.data.reading.source import read_table
from gpflow_ext.data.reading.table import Table, text


def from_file(source: Any, request: Request, known: Known) -> Raw:
    """Read a table, with a second one as test part where ``test`` is given."""
    table = read_table(source)
    if request.test is not None:
        table = _with_test(table, request.test)
    _check_arguments(table, request)
    table.check_cells(name for name in table.names if name not in (*known.exclude, *request.drop))
    if known.bins or request.task == "events":
        return count_events(table, request, known)
    if request.bins is not None:
        raise ValueError(f"bins={request.bins!r} is for task='events'; leave it out.")
    if len(table.names) == 1:
        what = f"it has one column, {table.names[0]!r}; at least one input and a target are needed"
        advice = "comma, semicolon, tab and bar are recognised as separators"
        events = (Remedy("task", "events"),)  # the places of which may be all that is known
        raise TableError(table.name, [Problem(what, table.names[0], remedies=events, advice=advice)])
    targets = _choose_targets(request, known, table)
    marker = known.published[0] if known.published else ""
    exposure = request.exposure or known.exposure or ""
    aside = [*known.targets, *known.exclude, exposure, _weights_column(request), marker]
    excluded = [name for name in table.names if name in aside and name not in targets]
    raw = _assemble(table, targets, excluded, request, known)
    if table.second is not None:
        return replace(raw, test=np.arange(len(table)) >= table.own_rows)
    if known.published and request.split == "published":
        marks = _must_be_numbers(marker, table)
        return replace(raw, test=np.asarray(marks == known.published[1]))
    return raw


def _with_test(table: Table, source: Any) -> Table:
    source = as_frame(source)
    if not (is_frame(source) or isinstance(source, str | os.PathLike)):
        raise ValueError(f"test= takes the path of a table or a data frame; got {source!r}.")
    second = read_table(source, least_rows=1)
    if lacking := [name for name in table.names if name not in second.names]:
        what = f"test= lacks the columns {listed(lacking)} of {table.name}; it has {listed(second.names)}"
        raise TableError(second.name, [Problem(what)])
    further = [name for name in second.names if name not in table.names]
    notes = [f"columns of the test rows alone are left out: {listed(further)}"] if further else []
    digest = hashlib.sha256((table.sha256 + second.sha256).encode()).hexdigest()
    return replace(table, second=second, sha256=digest, notes=(*table.notes, *notes))


def _check_arguments(table: Table, request: Request) -> None:
    given = {name: tuple(getattr(request, name)) for name in ("drop", "one_hot", "categories", "dates")}
    for name in ("target", "exposure", "weights"):
        one = getattr(request, name)
        given[name] = (one,) if isinstance(one, str) else one if isinstance(one, tuple) else ()
    check_columns(table.name, given, table.names)
    wrong = {name: order for name, order in request.dates.items() if order not in ORDERS}
    if wrong:
        raise ValueError(f"dates={wrong!r}: the order of year, month and day is one of {', '.join(ORDERS)}.")
    if request.decimal not in (None, ".", ","):
        raise ValueError(f"decimal={request.decimal!r} must be '.' or ',', or None to find it out.")


def _choose_targets(request: Request, known: Known, table: Table) -> tuple[str, ...]:
    target = request.target or next(iter(known.targets), "y")
    if request.target is None and target not in table.names:
        what = f"target= is needed: there is no column {target!r}"
        remedies = (Remedy("target", table.names[-1]),)
        advice = f"choose one of {listed(table.names)}"
        raise TableError(table.name, [Problem(what, remedies=remedies, advice=advice)])
    targets = (target,) if isinstance(target, str) else target
    check_columns(table.name, {"target": targets}, table.names)
    if request.exposure in (*targets, *request.drop, *request.one_hot):
        raise ValueError(f"exposure={request.exposure!r} cannot be in target, drop or one_hot; take it out.")
    for name in targets:
        if name in (*request.drop, *request.one_hot, *request.dates):
            raise ValueError(f"the target {name!r} cannot be in drop, one_hot or dates; take it out.")
    return targets


def _assemble(
    table: Table, targets: Sequence[str], excluded: Sequence[str], request: Request, known: Known
) -> Raw:
    """Return inputs and targets with all that is wrong with them."""
    names = [name for name in table.names if name not in (*targets, *excluded, *request.drop)]
    asked = Asked(request.one_hot, request.categories, request.dates, request.decimal)
    found = infer(table, names, asked)
    exposure = _beside(table, request.exposure or known.exposure, "exposure", asked)
    weights = _weights(table, targets, request, asked)
    columns, problems, read = [], [*found.problems, *exposure.problems, *weights.problems], []
    for name in targets:
        column, wrong, how = _target(table, name, request)
        columns.append(column)
        problems += wrong
        read += [*how, *of_errors(f"target {name}", table.column(name))]
    if not found.values and not problems:
        what = f"there is no input left beside the target {listed(targets)!r}"
        problems.append(Problem(what, advice="drop fewer columns"))
    if len(targets) > 1:
        problems += _words_among(targets, columns)
    if problems and not all(column.dtype != object and len(column) for column in columns):
        columns = columns[:1]  # what is wrong with them is known
    aside = [name for name in excluded if name not in (request.exposure, request.weights)]
    notes = [*read, *(f"column {name} is kept out of the inputs" for name in aside)]
    notes += [f"column {name} was dropped as asked" for name in request.drop]
    if request.exposure is not None:
        notes.append(f"column {request.exposure} is the exposure of the counts: rates are predicted")
    target = targets[0]
    are_classes = target in table.categories and _are_many(columns[0])
    if are_classes and request.task is None:
        notes.append(f"target {target!r} holds categories: the task is multiclass")
    return Raw(
        name=table.name,
        X=np.concatenate([np.empty((len(table), 0)), *found.values], axis=1),
        y=columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1),
        feature_names=tuple(name for column in found.columns for name in column.input_names),
        target=", ".join(targets),
        source=f"{table.name}; licence as stated: {known.licence}",
        sha256=table.sha256,
        task=known.targets.get(target) or ("multiclass" if are_classes else None),
        labels=known.labels if target == next(iter(known.targets), None) else None,
        order=table.levels.get(target),
        exposure=exposure.values[0][:, 0] if exposure.values else None,
        exposure_name=request.exposure or known.exposure or "",
        weights=weights.values[0][:, 0] if weights.values else None,
        weights_name=_weights_column(request) or "weights",
        place=table.place,
        notes=(*known.notes, *table.notes, *notes, *found.notes),
        columns=found.columns,
        problems=tuple(problems),
    )


def _are_many(values: NDArray[Any]) -> bool:
    """Tell whether a target is more than two numbers, which are a regression unless they are categories."""
    return values.dtype != object and len(np.unique(values[~np.isnan(values)])) > 2


def _target(table: Table, name: str, request: Request) -> tuple[NDArray[Any], list[Problem], list[str]]:
    """Return the target as numbers [N, 1], or words [N] where they are classes, what is wrong, and notes."""
    column = table.column(name)
    order = request.categories.get(name, table.levels.get(name))
    if isinstance(column, np.ndarray) and order is None:
        return column[:, None], [], []
    words, unit = text(column), ""
    if order is None and request.task not in CLASSIFICATION:
        words, unit = units.measured(words)
    about = [f"target {name} was read as numbers in {unit}"] if unit else []
    values, others = cells.numbers(words)  # the rows that hold something else
    plain = mark_of_plain(words, table, request.decimal) if order is None and not others else ""
    if plain == ".":
        return values[:, None], [], about
    if plain is None:
        return values[:, None], [doubtful_point(name, words, table)], []
    readings = (plain,) if plain else () if order else cells.readings(words)
    if len(readings) == 2:
        mark = {".": ",."}.get(request.decimal or "", request.decimal) or decimal_of(table)
        readings = readings if mark is None else (mark,)
    if len(readings) == 1:
        note = f"target {name} was read as numbers {MARKS[readings[0]]}"
        return cells.numbers(words, readings[0])[0][:, None], [], [*about, note]
    problems = []
    if order is None and request.task not in CLASSIFICATION and _are_dates_or_times(words):
        what = f"target {name!r} holds dates or times, such as {words[0]!r}, which no model predicts"
        advice = "give the days or hours since a first one as numbers"
        problems.append(Problem(what, name, advice=advice))
    some_are_numbers = bool(np.isfinite(values).any())
    if readings:
        seen = words[others[0]]
        what = f"target {name!r}: the comma of {seen!r} may stand before decimals or between thousands"
        problems.append(Problem(what, name, remedies=DECIMAL))
    elif order is None and request.task not in CLASSIFICATION and (row := cells.grouped(words)) is not None:
        remedies = (Remedy("task", "multiclass"),)
        problems.append(grouped_thousands(name, words, table, row, remedies))
    elif order is None and some_are_numbers and request.task not in CLASSIFICATION:
        what = (
            f"{table.place(others[0])}, target {name!r}: {words[others[0]]!r} is not a number, as other "
            f"cells are ({len(others)} such cells)"
        )
        remedies = (Remedy("task", "multiclass"),)
        problems.append(Problem(what, name, tuple(others), remedies, "correct it"))
    classes = ["" if is_missing(cell) else cell.strip(SPACE) for cell in words]
    return np.array(classes, dtype=object), problems, []


def _are_dates_or_times(words: Sequence[str]) -> bool:
    kinds = (orders_of, most_likely, resemble, clock.are_times, clock.most_are_times, clock.are_durations)
    return any(kind(words) for kind in kinds)


def _words_among(names: Sequence[str], columns: Sequence[NDArray[Any]]) -> list[Problem]:
    """Return the targets that hold words, which several targets must not."""
    return [
        Problem(f"several targets must hold numbers; {name!r} holds words such as {column[0]!r}", name)
        for name, column in zip(names, columns, strict=True)
        if column.dtype == object
    ]


def _must_be_numbers(name: str, table: Table) -> Floats:
    values, problems = numbers(name, table.column(name), table)
    if problems:
        raise TableError(table.name, problems)
    return values


def _weights_column(request: Request) -> str:
    """Return the column of the weights, or nothing."""
    return request.weights if isinstance(request.weights, str) else ""


def _weights(table: Table, targets: Sequence[str], request: Request, asked: Asked) -> Found:
    """Return the weights of rows, if a column has them, which is there for nothing else."""
    name = _weights_column(request)
    others = {"target": targets, "drop": request.drop, "one_hot": request.one_hot}
    taken = [f"`{argument}`" for argument, names in others.items() if name in names]
    if not taken:
        return _beside(table, name, "weight", asked)
    what = f"column {name!r} cannot hold the weights: it is in {' and '.join(taken)} too"
    return Found((), (), (), (Problem(what, name, advice="name another column, or take it out there"),))


def _beside(table: Table, name: str | None, role: str, asked: Asked) -> Found:
    """Return exposures or weights, if the table has them, read as the numbers of inputs are."""
    if not name or name not in table.names:
        return Found((), (), (), ())
    found = infer(table, [name], asked)
    kinds = [column.kind for column in found.columns]
    if kinds == ["number"]:
        return found
    problems = [
        replace(each, remedies=tuple(remedy for remedy in each.remedies if remedy.argument == "decimal"))
        for each in found.problems
    ]
    what = f"the {role} {name!r} must hold numbers; it was read as {listed(kinds) or 'one text alone'}"
    return Found((), (), (), tuple(problems) or (Problem(what, name, advice="name another column"),))
