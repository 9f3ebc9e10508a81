"""Conversion of raw columns to the inputs of a model, stored with a split and with an exported model."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading import cells, clock, dates, units
from gpflow_ext.data.reading.cells import Floats
from gpflow_ext.data.reading.frames import as_frame, as_row, column_names, is_frame
from gpflow_ext.data.reading.marks import SPACE
from gpflow_ext.data.reading.problems import Problem, TableError, listed
from gpflow_ext.data.reading.source import read_table

Kind = Literal["number", "date", "time", "one-hot", "ordinal"]
Cells = Any  # numbers [N], or a sequence of N texts


@dataclass(frozen=True)
class Column:
    """One raw column and the inputs that are made of it.

    Parameters
    ----------
    name
        As the table has it.
    kind
        A "number" stays itself; a "date" becomes the days since the first one, a "time" of day the hours
        since midnight; "one-hot" makes a column of 0 and 1 for each level, all 0 for an unknown level;
        "ordinal" gives the position of the level, from 0.
    levels
        Levels of a category.
    decimal
        How the cells of a number are read if they are text, as `to_number` takes it.
    unit
        What stands before or after the number in cells that are text, such as "€" or "kg".
    date_order
        "ymd", "dmy" or "mdy", for a date.
    origin
        The Julian day number from which a date is counted.
    fill
        Value of each input for a missing cell; empty if a missing cell makes the row non-finite.
    flagged
        Whether a 0/1 input marks the cells that were missing.
    """

    name: str
    kind: Kind = "number"
    levels: tuple[str, ...] = ()
    decimal: str = "."
    unit: str = ""
    date_order: str = ""
    origin: int = 0
    fill: tuple[float, ...] = ()
    flagged: bool = False

    @property
    def is_text(self) -> bool:
        """Whether a served model takes its cells as text."""
        return self.kind != "number"

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its inputs, except for the one that marks missing cells."""
        if self.kind == "one-hot":
            return tuple(f"{self.name}={level}" for level in self.levels)
        return (self.name,)

    def missing(self, column: Cells) -> NDArray[np.bool_]:
        """Tell which cells are missing, [N]."""
        if isinstance(column, np.ndarray) and column.dtype.kind == "f":
            return np.isnan(column)
        if self.kind == "number":
            return np.isnan(self.values(column)[:, 0])
        return np.fromiter(map(cells.is_missing, column), bool, len(column))

    def values(self, column: Cells) -> Floats:
        """Return its inputs [N, k], NaN where a cell is missing, or no date, time or known ordinal level."""
        if self.kind == "number":
            if isinstance(column, np.ndarray) and column.dtype.kind == "f":
                return column[:, None].astype(np.float64, copy=False)
            bare = [units.without(cell, self.unit) for cell in column] if self.unit else column
            return cells.numbers(bare, self.decimal)[0][:, None]
        if self.kind == "date":
            return dates.days_since(column, self.date_order, self.origin)[:, None]
        if self.kind == "time":
            return clock.hours(column)[:, None]
        place = {level: float(number) for number, level in enumerate(self.levels)}
        codes = np.array([place.get(cell.strip(SPACE), np.nan) for cell in column])[:, None]
        if self.kind == "ordinal":
            return codes
        coded = np.equal(codes, np.arange(len(self.levels))).astype(np.float64)
        coded[self.missing(column)] = np.nan
        return coded


@dataclass(frozen=True)
class Treatment:
    """How the raw columns of a table become inputs [N, D], before they are standardised."""

    columns: tuple[Column, ...]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the D inputs: those of the columns in order, then those that mark missing cells."""
        names = [name for column in self.columns for name in column.input_names]
        return (*names, *(f"{column.name} is missing" for column in self.columns if column.flagged))

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers that become inputs as they are."""
        return all(column.kind == "number" and not column.fill for column in self.columns)

    def inputs(self, rows: Any) -> Floats:
        """Return the inputs [N, D] of raw rows.

        Parameters
        ----------
        rows
            A data frame or a row of it, a mapping from column to cells, a list of mappings from column to
            cell, or the path of a table. Other columns are ignored.

        Returns
        -------
        Inputs in the units of the table. A missing cell gets the column's fill, or makes its row NaN. A text
        that is not a date, or not a known level of an ordinal column, makes its row NaN whatever the fill. An
        unknown level of a one-hot column has 0 in all its inputs.

        Raises
        ------
        TableError
            For missing columns, and cells that must be numbers and are not.
        """
        raw = self.cells(rows)
        parts, flags = [], []
        for column in self.columns:
            values, gaps = column.values(raw[column.name]), column.missing(raw[column.name])
            if column.fill:
                values = np.where(gaps[:, None], column.fill, values)
            parts.append(values)
            flags += [gaps.astype(np.float64)[:, None]] if column.flagged else []
        return np.concatenate([*parts, *flags], axis=1)

    def cells(self, rows: Any) -> dict[str, NDArray[Any]]:
        """Return the columns of raw rows as a served model takes them: numbers, or text, [N] each."""
        given = _by_column(rows, [column.name for column in self.columns])
        found: dict[str, NDArray[Any]] = {}
        problems: list[Problem] = []
        for column in self.columns:
            values = given[column.name]
            if column.is_text:
                found[column.name] = np.array([_text(value, column) for value in values], dtype=object)
            elif getattr(getattr(values, "dtype", None), "kind", "O") in ("f", "i", "u"):
                found[column.name] = np.asarray(values, np.float64)
            else:
                found[column.name], wrong = _numbers(list(values), column)
                problems += [] if wrong is None else [wrong]
        problems += [
            Problem(f"column {name!r} must have one cell for each row; its shape is {column.shape}", name)
            for name, column in found.items()
            if column.ndim != 1
        ]
        lengths = {name: len(column) for name, column in found.items()}
        if len(set(lengths.values())) > 1:
            problems.append(Problem(f"the columns have not as many rows each: {lengths}"))
        if problems:
            raise TableError("rows", problems)
        return found

    def plain(self) -> list[dict[str, Any]]:
        """Return the columns in types that JSON has."""
        return [
            {**asdict(c), "levels": list(c.levels), "fill": [float(value) for value in c.fill]}
            for c in self.columns
        ]

    @classmethod
    def from_plain(cls, columns: Sequence[Mapping[str, Any]]) -> Treatment:
        """Return the treatment that was written by ``plain``; what else was written there is ignored."""
        fields = Column.__dataclass_fields__
        given = [{key: value for key, value in each.items() if key in fields} for each in columns]
        return cls(
            tuple(
                Column(**{**each, "levels": tuple(each["levels"]), "fill": tuple(each["fill"])})
                for each in given
            )
        )


def _by_column(rows: Any, names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    rows = as_row(as_frame(rows))
    if isinstance(rows, str | os.PathLike):
        table = read_table(rows, least_rows=1)
        table.check_cells(names)
        rows = {name: table.column(name) for name in table.names}
    if not is_frame(rows) and not isinstance(rows, Mapping):
        rows = [as_row(row) for row in rows] if isinstance(rows, Iterable) else [rows]
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(
                "rows must be a data frame, a mapping of columns, a list of mappings, or a path; the type is "
                f"{type(rows[0]).__name__}"
            )
        rows = [_named(row) for row in rows]
        lacking = [name for name in names if any(name not in row for row in rows)]
        return {name: [row[name] for row in rows] for name in _there(names, lacking, rows[0] if rows else ())}
    if is_frame(rows):
        return _of_frame(rows, names)
    rows = _named(rows)
    lacking = [name for name in names if name not in rows]
    found = {name: rows[name] for name in _there(names, lacking, rows)}
    if any(isinstance(cell, str) or not hasattr(cell, "__len__") for cell in found.values()):
        return {name: [cell] for name, cell in found.items()}  # one row
    return found


def _named(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return a mapping by the names that a table has, as for `_of_frame`."""
    return row if all(isinstance(key, str) for key in row) else {cells.text_of(k): v for k, v in row.items()}


def _of_frame(frame: Any, names: Sequence[str]) -> Mapping[str, Sequence[Any]]:
    """Return columns by the names that a table has, which are text; those of a frame may be numbers."""
    there = column_names(frame, "rows")
    lacking = [name for name in names if name not in there]
    doubled = [name for name in names if there.count(name) > 1]
    if doubled:
        raise TableError("rows", [Problem(f"several columns are named {listed(doubled)}")])
    return {name: frame.iloc[:, there.index(name)] for name in _there(names, lacking, there)}


def _there(names: Sequence[str], lacking: Sequence[str], there: Any) -> Sequence[str]:
    if lacking:
        what = (
            f"the columns {listed(lacking)} are not there; there are {listed([str(name) for name in there])}"
        )
        raise TableError("rows", [Problem(what)])
    return names


def _text(value: Any, column: Column) -> str:
    found = cells.text_of(value)
    if not found or isinstance(value, str):
        return found
    if dates.is_date(value):
        found = dates.written(value, column.date_order or "ymd")
    if column.kind in ("date", "time") or found in column.levels:
        return found
    same = [level for level in column.levels if _is_level(value, level)]
    return same[0] if len(same) == 1 else found


def _is_level(value: Any, level: str) -> bool:
    """Tell whether a value is that of a level as a file has it, such as TRUE, 01, 2.0 or 2024-01-31."""
    if dates.is_date(value):
        own, other = dates.days_since([dates.written(value, "ymd"), level], "ymd", 0)
        return bool(own == other)
    if isinstance(value, bool | np.bool_):
        return level.lower() == str(value).lower()
    if isinstance(value, int | float | np.number) and cells.is_number(level):
        return cells.to_number(level) == float(value)
    return False


def _numbers(values: list[Any], column: Column) -> tuple[Floats, Problem | None]:
    """Return a column of numbers and of text that holds numbers, and what is wrong with it."""
    numbers, wrong = np.full(len(values), np.nan), []
    for row, value in enumerate(values):
        try:
            if isinstance(value, str):
                bare = units.without(value, column.unit)
                numbers[row] = np.nan if cells.is_missing(bare) else cells.to_number(bare, column.decimal)
            elif cells.text_of(value):
                numbers[row] = float(cells.in_seconds(value))
        except (TypeError, ValueError, OverflowError):
            wrong.append(row)
    if not wrong:
        return numbers, None
    what = (
        f"row {wrong[0]}, column {column.name!r}: {values[wrong[0]]!r} is not a number "
        f"({len(wrong)} such cells)"
    )
    return numbers, Problem(what, column.name, tuple(wrong))
