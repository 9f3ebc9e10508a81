"""Infer what each column of a table holds, with notes on assumptions, and problems where that fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from gpflow_ext.data.reading import cells, clock, date_forms, dates, units
from gpflow_ext.data.reading.cells import Floats, is_missing
from gpflow_ext.data.reading.hints import like_an_id, like_days, of_errors
from gpflow_ext.data.reading.marks import SPACE
from gpflow_ext.data.reading.problems import Problem, Remedy, drop, listed
from gpflow_ext.data.reading.table import Cells, Table, text
from gpflow_ext.data.reading.treatment import Column

_MAX_LEVELS = 50
_FEWEST = 10  # rows in which whole numbers that count them are no chance
_IDS = frozenset(
    ("id", "_id", "row", "rowid", "row_id", "index", "key", "no", "no.", "nr", "nr.", "number", "#")
)
MARKS = {",": "with a decimal comma", ",.": "with commas between thousands"}
DECIMAL = (Remedy("decimal", ","), Remedy("decimal", "."))


@dataclass(frozen=True)
class Asked:
    """The user's statements about columns; everything else is inferred."""

    one_hot: Sequence[str] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    dates: Mapping[str, str] = field(default_factory=dict)
    decimal: str | None = None


class Found(NamedTuple):
    """The columns that become inputs with their values [N, k], what was assumed, and what is wrong."""

    columns: tuple[Column, ...]
    values: tuple[Floats, ...]
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]


def infer(table: Table, names: Sequence[str], asked: Asked) -> Found:
    """Return what the named columns of a table hold."""
    columns, values = [], []
    notes: list[str] = []
    problems: list[Problem] = []
    for name in names:
        one = _One(name, table, table.column(name), asked)
        found = one.look()
        notes += [*one.notes, *of_errors(f"column {name}", table.column(name))]
        problems += one.problems
        if found is not None:
            columns.append(found[0])
            values.append(found[1])
    if len(columns) > 1:
        notes += [note for pair in zip(columns, values, strict=True) if (note := like_an_id(*pair))]
    return Found(tuple(columns), tuple(values), tuple(notes), tuple(problems))


def numbers(name: str, column: Cells, table: Table) -> tuple[Floats, list[Problem]]:
    """Return a column that must hold numbers, NaN where they are missing, and what is wrong with it."""
    if isinstance(column, np.ndarray):
        return column, []
    found, others = cells.numbers(column)
    if not others:
        return found, []
    what = (
        f"{table.place(others[0])}, column {name!r}: {column[others[0]]!r} is not a number "
        f"({len(others)} such cells in the column)"
    )
    remedies = (drop(name), Remedy("one_hot", [name]))
    return found, [Problem(what, name, tuple(others), remedies, "correct the file")]


def decimal_of(table: Table) -> str | None:
    """Return how the columns of a table are read of which some leave no doubt."""
    for readings, _ in table.marks:
        if readings in ((",",), (",.",)):
            return readings[0]
    return "," if table.comma_likely else None


def mark_of_plain(column: Sequence[str], table: Table, asked: str | None) -> str | None:
    """Return by which mark plain numbers are read: "," where their points stand between thousands.

    ``None`` where that is open, because commas stand before decimals elsewhere in the table.
    """
    if asked == "." or not cells.may_be_thousands(column):
        return "."
    return "," if asked == "," else (None if _commas_before_decimals(table) else ".")


def _commas_before_decimals(table: Table) -> bool:
    found = [readings for readings, _ in table.marks]
    if (",",) in found or (",.",) in found:
        return (",",) in found
    return table.comma_likely and not any(points for _, points in table.marks)


def doubtful_point(name: str, column: Sequence[str], table: Table) -> Problem:
    """Return the problem of numbers whose points may stand before decimals or between thousands."""
    row = next(row for row, cell in enumerate(column) if "." in cell)
    what = (
        f"{table.place(row)}, column {name!r}: the point of {column[row]!r} may stand before decimals or "
        "between thousands"
    )
    return Problem(what, name, (row,), DECIMAL)


def grouped_thousands(
    name: str, column: Sequence[str], table: Table, row: int, remedies: tuple[Remedy, ...]
) -> Problem:
    """Return the problem of numbers that are read as words because of what stands between their thousands."""
    place, cell = table.place(row), column[row]
    what = f"{place}, column {name!r}: {cell!r} has a mark between thousands that is no comma or point"
    return Problem(what, name, (row,), remedies, "write the numbers without")


class _One:
    """One column under inspection."""

    def __init__(self, name: str, table: Table, column: Cells, asked: Asked) -> None:
        self.name, self._table, self._column = name, table, column
        self._asked = asked
        self.notes: list[str] = []
        self.problems: list[Problem] = []

    def look(self) -> tuple[Column, Floats] | None:
        """Return the column and its values, or ``None`` where it is left out or cannot be used."""
        name, column = self.name, self._column
        if name in self._asked.categories:
            return self._ordinal(text(column), tuple(self._asked.categories[name]))
        if name in self._asked.one_hot:
            return self._one_hot(text(column), asked=True)
        if name in self._asked.dates:
            return self._date(text(column), self._asked.dates[name])
        if isinstance(column, np.ndarray):
            return self._plain(column)
        if name in self._table.levels:
            return self._ordinal(column, self._table.levels[name])
        if name in self._table.categories:
            return self._one_hot(column, asked=False)
        return self._of_text(column)

    def _of_text(self, column: Sequence[str]) -> tuple[Column, Floats] | None:
        found, others = cells.numbers(column)
        if others:
            return self._words(column, others)
        mark = mark_of_plain(column, self._table, self._asked.decimal)
        if mark == ",":
            return self._marked(column, (mark,))
        if mark == ".":
            return self._plain(found)
        self.problems.append(doubtful_point(self.name, column, self._table))
        return None

    def _words(self, column: Sequence[str], others: Sequence[int]) -> tuple[Column, Floats] | None:
        """Take a column that holds anything but plain numbers."""
        readings = cells.readings(column)
        if readings:
            return self._marked(column, readings)
        orders = date_forms.orders_of(column)
        if orders:
            return self._dated(column, orders)
        if clock.are_times(column):
            self.notes.append(f"column {self.name} was read as times of day, in hours since midnight")
            found = Column(self.name, "time")
            return found, found.values(column)
        bare, unit = units.measured(column)
        if unit:
            return self._measured(bare, unit)
        if order := date_forms.most_likely(column):
            return self._date(column, order)
        if clock.most_are_times(column) or clock.are_durations(column):
            self.problems.append(self._no_time(column))
            return None
        missing = sum(map(is_missing, column))
        if len(others) + missing < len(column):
            self.problems += numbers(self.name, column, self._table)[1]
            return None
        if (row := cells.grouped(column)) is not None:
            remedies = (drop(self.name), Remedy("one_hot", [self.name]))
            self.problems.append(grouped_thousands(self.name, column, self._table, row, remedies))
            return None
        if date_forms.resemble(column):
            self.problems.append(self._like_dates(column))
            return None
        return self._one_hot(column, asked=False)

    def _no_time(self, column: Sequence[str]) -> Problem:
        """Return the problem of durations, and of times of day with something else among them."""
        name, remedies = self.name, (drop(self.name), Remedy("one_hot", [self.name]))
        if clock.are_durations(column):
            cell = next(cell for cell in column if not is_missing(cell))
            what = f"column {name!r} holds durations, such as {cell!r}"
            return Problem(what, name, remedies=remedies, advice="write them as numbers, in seconds")
        gaps = np.fromiter(map(is_missing, column), bool, len(column))
        wrong = np.flatnonzero(np.isnan(clock.hours(column)) & ~gaps)
        row = int(wrong[0])
        what = f"{self._table.place(row)}, column {name!r}: {column[row]!r} is not a time of day"
        advice = f"{len(wrong)} such cells: correct them"
        return Problem(what, name, tuple(map(int, wrong)), remedies, advice)

    def _like_dates(self, column: Sequence[str]) -> Problem:
        cell = next(cell for cell in column if not is_missing(cell))
        what = (
            f"column {self.name!r} holds what looks like dates, such as {cell!r}, in no one form that is read"
        )
        remedies = (drop(self.name), Remedy("one_hot", [self.name]))
        return Problem(
            what, self.name, remedies=remedies, advice="write them as 2024-01-31 or 2024-01-31 15:30"
        )

    def _measured(self, column: Sequence[str], unit: str) -> tuple[Column, Floats] | None:
        """Take numbers that have had a unit."""
        found = self._of_text(column)
        if found is None:
            return None
        self.notes.append(f"column {self.name} was read as numbers in {unit}")
        return replace(found[0], unit=unit), found[1]

    def _plain(self, values: Floats) -> tuple[Column, Floats] | None:
        if not np.isnan(values).all():
            self.notes += like_days(self.name, values)
            return Column(self.name), values[:, None]
        what = f"column {self.name!r} has no value"
        self.problems.append(Problem(what, self.name, remedies=(drop(self.name),)))
        return None

    def _marked(self, column: Sequence[str], readings: Sequence[str]) -> tuple[Column, Floats] | None:
        """Take numbers with commas in them."""
        asked = {".": ",."}.get(self._asked.decimal or "", self._asked.decimal)
        mark = readings[0] if len(readings) == 1 else asked or decimal_of(self._table)
        if mark is None:
            row = next(row for row, cell in enumerate(column) if "," in cell)
            what = (
                f"{self._table.place(row)}, column {self.name!r}: the comma of {column[row]!r} may stand "
                "before decimals or between thousands"
            )
            self.problems.append(Problem(what, self.name, (row,), DECIMAL))
            return None
        self.notes.append(f"column {self.name} was read as numbers {MARKS[mark]}")
        found = Column(self.name, decimal=mark)
        return found, found.values(column)

    def _dated(self, column: Sequence[str], orders: Sequence[str]) -> tuple[Column, Floats] | None:
        """Take dates; where day and month could change places, points between them tell which comes first."""
        if len(orders) == 1:
            return self._date(column, orders[0])
        row = next(row for row, cell in enumerate(column) if not is_missing(cell))
        if "." in column[row].strip(SPACE)[:3]:
            return self._date(column, "dmy")
        what = (
            f"{self._table.place(row)}, column {self.name!r}: {column[row]!r} may have the day or the month "
            "first, and so all its dates"
        )
        remedies = tuple(Remedy("dates", {self.name: order}) for order in orders)
        self.problems.append(Problem(what, self.name, (row,), remedies))
        return None

    def _date(self, column: Sequence[str], order: str) -> tuple[Column, Floats] | None:
        day, seconds, valid = dates.parse(column, order)
        wrong = [row for row in np.flatnonzero(~valid) if not is_missing(column[row])]
        if wrong or not valid.any():
            row = wrong[0] if wrong else 0
            what = f"{self._table.place(row)}, column {self.name!r}: {column[row]!r} is not a date ({order})"
            advice = f"{len(wrong)} such cells: correct them"
            remedies = (drop(self.name), Remedy("one_hot", [self.name]))
            self.problems.append(Problem(what, self.name, tuple(map(int, wrong)), remedies, advice))
            return None
        origin = int((day + seconds // 86400.0)[valid].min())
        found = Column(self.name, "date", date_order=order, origin=origin)
        first = dates.text_of_day(origin)
        longer = "; of months and quarters the first day" * date_forms.are_longer_than_a_day(column, order)
        self.notes.append(f"column {self.name} was read as dates ({order}), in days since {first}{longer}")
        return found, found.values(column)

    def _ordinal(self, column: Sequence[str], levels: tuple[str, ...]) -> tuple[Column, Floats] | None:
        unknown = [
            row for row, cell in enumerate(column) if not is_missing(cell) and cell.strip(SPACE) not in levels
        ]
        if unknown or len(set(levels)) < max(2, len(levels)):
            others = sorted({column[row].strip(SPACE) for row in unknown})
            what = f"column {self.name!r} has the levels {listed(others)} besides {listed(levels)}"
            if not others:
                what = f"column {self.name!r} needs two or more levels, each once; got {listed(levels)}"
            advice = "name all levels, the lowest first"
            self.problems.append(Problem(what, self.name, tuple(unknown), (drop(self.name),), advice))
            return None
        found = Column(self.name, "ordinal", levels)
        self.notes.append(f"column {self.name} was encoded as 0 to {len(levels) - 1}: {listed(levels)}")
        return found, found.values(column)

    def _one_hot(self, column: Sequence[str], asked: bool) -> tuple[Column, Floats] | None:
        present = [cell.strip(SPACE) for cell in column if not is_missing(cell)]
        levels = tuple(sorted(set(present)))
        if not asked and len(levels) == 1:
            self.notes.append(f"column {self.name} holds {levels[0]!r} alone and is kept out of the inputs")
            return None
        if not self._encodable(levels, present, asked):
            return None
        found = Column(self.name, "one-hot", levels)
        self.notes.append(
            f"column {self.name} was encoded as {len(levels)} columns of 0 and 1, one per level"
        )
        return found, found.values(column)

    def _encodable(self, levels: Sequence[str], present: Sequence[str], asked: bool) -> bool:
        name, remedies = self.name, [drop(self.name)]
        if asked and not 2 <= len(levels) <= _MAX_LEVELS:
            what = f"one_hot: column {name!r} has {len(levels)} levels, 2 to {_MAX_LEVELS} can be encoded"
        elif not asked and len(levels) == len(present):
            what = f"column {name!r} holds text, such as {present[0]!r}, another in every row, as a name is"
            remedies.append(Remedy("one_hot", [name]))
        elif not asked and len(levels) > _MAX_LEVELS:
            what = (
                f"column {name!r} holds text, such as {present[0]!r}, of {len(levels)} levels, "
                f"of which {_MAX_LEVELS} can be encoded"
            )
        else:
            return True
        self.problems.append(Problem(what, name, remedies=tuple(remedies)))
        return False
