"""A table as it was found: columns of text or of numbers, how these are written, and where rows stand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading.cells import is_missing, may_be_thousands, numbers, readings, text_of
from gpflow_ext.data.reading.problems import Problem, TableError
from gpflow_ext.data.reading.units import measured

Place = Callable[[int], str]  # says where a row is found in its source
Cells = Sequence[str] | NDArray[np.float64]
_INDEX = ("", "Unnamed: 0")  # names that pandas and R write for row numbers, and that pandas reads there


class Marks(NamedTuple):
    """How numbers are written in a column of text, its unit left out."""

    readings: tuple[str, ...]  # see `cells.readings`
    points: bool  # whether the points of plain numbers can only stand before decimals


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of N cells: text, or numbers with NaN for what is missing.

    Parameters
    ----------
    name
        Name of the file, for messages.
    names, columns
        The columns in their order.
    sha256
        SHA-256 of the file or frame.
    lines
        The line of the file on which each row ends; None where rows have no lines.
    levels
        Levels in order, of columns whose source tells it.
    categories
        Columns of which the source tells that they are levels without an order.
    notes
        What reading has assumed or changed.
    comma_likely
        Whether decimal commas are likely, because semicolons stand between the cells.
    problems
        Of columns whose cells are neither numbers, text nor dates, such as lists; they may be left out.
    second
        A table with the test rows, which follow this one's.
    """

    name: str
    names: tuple[str, ...]
    columns: tuple[Cells, ...]
    sha256: str
    lines: tuple[int, ...] | None = None
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    categories: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    comma_likely: bool = False
    problems: tuple[Problem, ...] = ()
    second: Table | None = None

    @property
    def own_rows(self) -> int:
        """Rows of this table alone."""
        return len(self.columns[0])

    def __len__(self) -> int:
        return self.own_rows + (0 if self.second is None else len(self.second))

    @functools.cached_property
    def marks(self) -> tuple[Marks, ...]:
        """How each column of text writes its numbers: what tells of those that leave it open."""
        columns = map(self.column, self.names)
        bare = (measured(column)[0] for column in columns if not isinstance(column, np.ndarray))
        return tuple(map(_marks, bare))

    def check_cells(self, names: Iterable[str]) -> None:
        """Raise ``TableError`` for those of these columns, here and in the second table, with problems."""
        both = (*self.problems, *(self.second.problems if self.second else ()))
        wanted = set(names)
        if found := [each for each in both if each.column in wanted]:
            raise TableError(self.name, found)

    def column(self, name: str) -> Cells:
        """Return the cells of one column, those of the second table behind those of the first."""
        own = self.columns[self.names.index(name)]
        if self.second is None:
            return own
        other = self.second.column(name)
        if isinstance(own, np.ndarray) and isinstance(other, np.ndarray):
            return np.concatenate([own, other])
        return [*text(own), *text(other)]

    def without(self, aside: Mapping[int, str]) -> Table:
        """Return the table without the columns at some places, and with the notes that they have there."""
        kept = [place for place in range(len(self.names)) if place not in aside]
        return replace(
            self,
            names=tuple(self.names[place] for place in kept),
            columns=tuple(self.columns[place] for place in kept),
            notes=(*self.notes, *aside.values()),
        )

    def place(self, row: int) -> str:
        """Say where a row stands: a line of its file, or a row, counted from 1."""
        if self.second is not None and row >= self.own_rows:
            return f"{self.second.place(row - self.own_rows)} of {self.second.name}"
        return f"row {row + 1}" if self.lines is None else f"line {self.lines[row]}"


def _marks(cells: Sequence[str]) -> Marks:
    found = readings(cells)
    points = found == (".",) and any("." in cell for cell in cells) and not may_be_thousands(cells)
    return Marks(found, points)


def text(cells: Cells) -> Sequence[str]:
    """Return cells as text."""
    return [text_of(value) for value in cells] if isinstance(cells, np.ndarray) else cells


def beside(names: Sequence[str], columns: Sequence[Cells]) -> dict[int, str]:
    """Return the places of columns that are no part of a table, with a note on each.

    These are a first column without a name, with a whole number of its own in each row, as pandas and R
    number rows in a file; and columns with neither name nor cells, as spreadsheets write.
    """
    found = {}
    for place, (name, cells) in enumerate(zip(names, columns, strict=True)):
        if place == 0 and name in _INDEX and _are_row_numbers(cells):
            found[place] = "the first column numbers the rows and has no name: it is left out"
        elif not name and all(map(is_missing, text(cells))):
            found[place] = f"column {place + 1} has neither name nor cells: it is left out"
    return found


def _are_row_numbers(cells: Cells) -> bool:
    values, others = (cells, []) if isinstance(cells, np.ndarray) else numbers(cells)
    whole = not others and bool(np.all((values >= 0.0) & (values == np.round(values))))
    return whole and len(np.unique(values)) == len(values)


def check_names(names: Sequence[Any], aside: Container[int] = ()) -> list[Problem]:
    """Return what is wrong with the names of columns, those at some places left aside."""
    problems = []
    for number, name in enumerate(names):
        if number not in aside and (not isinstance(name, str) or not name):
            problems.append(
                Problem(
                    f"column {number + 1} has no name in the header",
                    advice="name it, or take it out of the file (a row index is often written this way)",
                )
            )
    repeated = sorted(
        {name for name in names if isinstance(name, str) and name and list(names).count(name) > 1}
    )
    for name in repeated:
        advice = "column names must differ (is the first line really a header?)"
        problems.append(Problem(f"the header repeats {name!r}", name, advice=advice))
    return problems
