"""Read a CSV file into columns of text and turn them into numbers, naming line and column when that fails."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Place = Callable[[int], str]  # says where a row is found in its source

_MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})
_MAX_LEVELS = 50


@dataclass(frozen=True)
class Table:
    """Columns of text cells with the line of the file that each row came from."""

    path: str
    names: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    lines: tuple[int, ...]
    sha256: str
    second: Table | None = None  # a file with the test rows, appended to this one's

    def __len__(self) -> int:
        return len(self.lines) + (0 if self.second is None else len(self.second))

    def column(self, name: str) -> tuple[str, ...]:
        """Return the cells of one column, those of the second file behind those of the first."""
        own = self.columns[self.names.index(name)]
        return own if self.second is None else own + self.second.column(name)

    def place(self, row: int) -> str:
        """Say where a row stands, as a line of its file counted from 1."""
        if row >= len(self.lines) and self.second is not None:
            return f"{self.second.place(row - len(self.lines))} of {self.second.path}"
        return f"line {self.lines[row]}"


def to_number(cell: str) -> float:
    """Return the number that a cell holds, infinities included; what is one in Python alone, as 1_0, is none.

    Raises
    ------
    ValueError
        If it is no number.
    """
    if "_" in cell or not cell.isascii():
        raise ValueError(f"{cell!r} is no number")
    return float(cell)


def is_number(cell: str) -> bool:
    """Tell whether a cell reads as a number."""
    try:
        to_number(cell)
    except ValueError:
        return False
    return True


def is_missing(cell: str) -> bool:
    """Tell whether a cell is empty or holds one of the usual marks of a missing value."""
    return cell.strip().lower() in _MISSING


def read_bytes(path: Path) -> tuple[bytes, str]:
    """Return the (decompressed) content of a file and the SHA-256 of the file as it lies on the disk."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}; check the path.") from error
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} is not a complete gzip file ({error}); compress it again.") from error
    return content, digest


def read_table(path: Path, least_rows: int = 2) -> Table:
    """Read a CSV file (plain or gzip; separated by comma, semicolon or tab) with a header line.

    Raises
    ------
    ValueError
        If the file is missing, empty, not UTF-8, has no header, too few data rows, unnamed or repeated
        columns, or a row of another length than the header.
    """
    content, digest = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    if not text.strip():
        raise ValueError(f"{path} is empty; it needs a header line and data rows.")
    rows, lines = _rows(text, path)
    names = _header(rows[0], path)
    if len(rows) <= least_rows:
        raise ValueError(
            f"{path} has {len(rows) - 1} data rows below its header; it needs at least {least_rows}."
        )
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise ValueError(
                f"{path}, line {line}: {len(row)} cells where the header has {len(names)} columns; "
                "complete the row, or quote cells that contain the separator."
            )
    columns = tuple(zip(*rows[1:], strict=True))
    return Table(path.name, names, columns, tuple(lines[1:]), digest)


def _rows(text: str, path: Path) -> tuple[list[list[str]], list[int]]:
    """Split text into rows of cells, leaving out blank lines, with the line on which each row ends."""
    first = text.lstrip("\r\n").splitlines()[0]
    delimiter = max(",;\t", key=lambda mark: len(next(csv.reader([first], delimiter=mark))))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row not in ([], [""]):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}.") from error
    return rows, lines


def _header(cells: Sequence[str], path: Path) -> tuple[str, ...]:
    names = tuple(cell.strip() for cell in cells)
    if all(is_number(name) or not name for name in names):
        raise ValueError(
            f"{path} has no header: its first line holds only numbers ({', '.join(names[:4])}, ...); "
            "add a line with the column names."
        )
    if "" in names:
        raise ValueError(
            f"{path}: column {names.index('') + 1} has no name in the header; name it, or take it "
            "out of the file (a row index is often written this way)."
        )
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"{path}: the header repeats {', '.join(map(repr, repeated))}; column names must differ "
            "(is the first line really a header?)."
        )
    return names


def numbers(name: str, cells: Sequence[str], place: Place) -> Floats:
    """Convert a column of cells to numbers [N], with NaN for missing cells."""
    try:
        return np.fromiter(map(to_number, cells), np.float64, len(cells))
    except ValueError:  # a missing cell or a word: look at the cells one by one
        pass
    values = np.full(len(cells), np.nan)
    bad = []
    for row, cell in enumerate(cells):
        if is_number(cell):
            values[row] = to_number(cell)
        elif not is_missing(cell):
            bad.append(row)
    if not bad:
        return values
    if np.all(np.isnan(values)):
        raise ValueError(
            f"column {name!r} holds text, such as {cells[bad[0]]!r}, not numbers; encode it, pass "
            f"one_hot=[{name!r}] for one 0/1 column per level, or leave it out with drop=[{name!r}]."
        )
    raise ValueError(
        f"{place(bad[0])}, column {name!r}: {cells[bad[0]]!r} is not a number ({len(bad)} such cells in the "
        f"column); correct the file, or leave the column out with drop=[{name!r}]."
    )


def indicators(name: str, cells: Sequence[str]) -> tuple[Floats, tuple[str, ...]]:
    """Encode a column by one 0/1 column per level [N, levels]; a missing cell is NaN in all of them."""
    stripped = [cell.strip() for cell in cells]
    levels = sorted({cell for cell in stripped if not is_missing(cell)})
    if not 2 <= len(levels) <= _MAX_LEVELS:
        raise ValueError(
            f"one_hot: column {name!r} has {len(levels)} levels, 2 to {_MAX_LEVELS} can be encoded; "
            f"leave it out with drop=[{name!r}]."
        )
    index = {level: float(number) for number, level in enumerate(levels)}
    codes = np.array([index.get(cell, np.nan) for cell in stripped])[:, None]
    coded = np.where(np.isnan(codes), np.nan, codes == np.arange(len(levels)))
    return coded, tuple(f"{name}={level}" for level in levels)
