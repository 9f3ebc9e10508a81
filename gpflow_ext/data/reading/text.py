"""Read a file of text into columns of cells, naming the lines where that fails.

The cells are taken apart by the standard library: pandas fills short rows with empty cells, and says nothing.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import io
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gpflow_ext.data.reading.cells import is_missing, is_number
from gpflow_ext.data.reading.problems import LISTED, Problem, TableError, listed
from gpflow_ext.data.reading.table import Table, beside, check_names

_KINDS = {  # by the bytes with which files begin
    b"\x1f\x8b": ("gzip", "name it {name}.gz"),
    b"BZh": ("bzip2", "name it {name}.bz2"),
    b"\xfd7zXZ": ("xz", "name it {name}.xz"),
    b"PAR1": ("Parquet", "name it {name}.parquet"),
    b"PK\x03\x04": ("a zip or a workbook", "save its table as CSV"),
    b"\xd0\xcf\x11\xe0": ("an old workbook", "save its table as CSV"),
    b"\xff\xfe": ("UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("UTF-16", "save it as UTF-8"),
}
BEGINNING = max(map(len, _KINDS))  # bytes that tell the kind of a file
_SEPARATORS = ",;\t|"
_LOOKED_AT = 20  # rows, to find the separator
_OPEN: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
SUFFIXES = tuple(kind + packed for kind in (".csv", ".tsv", ".txt", ".data") for packed in ("", *_OPEN))


def read_bytes(path: Path) -> tuple[bytes, str]:
    """Return the (decompressed) content of a file and the SHA-256 of the file on disk."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}; check the path.") from error
    digest = hashlib.sha256(content).hexdigest()
    packed = path.suffix.lower()
    if packed in _OPEN:
        try:
            content = _OPEN[packed](content)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            kind = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}[packed]
            raise ValueError(f"{path} is not a complete {kind} file ({error}); compress it again.") from error
    return content, digest


def read_text(path: Path, least_rows: int = 2) -> Table:
    """Read a table of text with a header line, compressed or not.

    The separator is the one of comma, semicolon, tab and bar that divides the first rows into equally many
    cells; of several not the comma, which may stand before decimals, and of others the one of most cells.

    Raises
    ------
    TableError
        If the file is empty, not UTF-8, has no header, too few data rows, unnamed or repeated columns, or
        rows of another length than the header.
    """
    content, digest = read_bytes(path)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TableError(str(path), [not_utf8(path, content[:BEGINNING], error.start)]) from error
    if not text.strip():
        raise TableError(str(path), [Problem("it is empty", advice="write a header line and data rows")])
    separator = separator_of(io.StringIO(text.lstrip("\r\n"), newline=""))
    rows, lines = _rows(text, separator, path)
    names = [cell.strip() for cell in rows[0]]
    if re.fullmatch("(?i)sep=.?", names[0]):
        what = f"its first line, {names[0]}, tells Excel the separator and is no header"
        raise TableError(str(path), [Problem(what, advice="take that line out")])
    ragged = _comments(rows, lines) or _ragged(rows, lines, len(names))
    columns = () if ragged else tuple(zip(*rows[1:], strict=True))
    aside = beside(names, columns) if columns else {}
    problems = _header_problems(names) or check_names(names, aside)
    if len(rows) <= least_rows:
        problems.append(
            Problem(f"it has {len(rows) - 1} data rows below its header; it needs at least {least_rows}")
        )
    if problems or ragged:
        raise TableError(str(path), [*problems, *ragged])
    found = Table(path.name, tuple(names), columns, digest, tuple(lines[1:]), comma_likely=separator == ";")
    return found.without(aside)


def not_utf8(path: Path, beginning: bytes, byte: int | None = None) -> Problem:
    """Return what a file is that has a byte that is no UTF-8, by the bytes with which it begins."""
    known = (kind for start, kind in _KINDS.items() if beginning.startswith(start))
    kind, advice = next(known, ("", "save it as UTF-8"))
    place = "" if byte is None else f" (byte {byte})"
    what = f"it is {kind} and not UTF-8 text" if kind else f"it is not UTF-8 text{place}"
    return Problem(what, advice=advice.format(name=path.name))


def separator_of(lines: Iterable[str]) -> str:
    """Return the separator of a table by its first lines; see `read_text`."""
    sample = list(itertools.islice(lines, _LOOKED_AT + 1))

    def rank(mark: str) -> tuple[bool, bool, int]:
        try:
            widths = [len(row) for row in csv.reader(sample, delimiter=mark, skipinitialspace=True) if row]
        except csv.Error:
            return False, False, 0
        divides = len(set(widths)) == 1 and widths[0] > 1
        return divides, divides and mark != ",", widths[0]

    return max(_SEPARATORS, key=rank)


def _rows(text: str, separator: str, path: Path) -> tuple[list[list[str]], list[int]]:
    """Split text into rows of cells, leaving out blank lines, with the line on which each row ends."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    try:
        for row in reader:
            if row not in ([], [""]):
                rows.append(row)
                lines.append(reader.line_num)
    except csv.Error as error:
        raise TableError(str(path), [Problem(f"line {reader.line_num}: {error}")]) from error
    return rows, lines


def _header_problems(names: Sequence[str]) -> list[Problem]:
    if not all(is_number(name) or is_missing(name) for name in names):
        return []
    seen = listed(names, 4)
    what = f"it has no header: its first line holds only numbers ({seen})"
    return [Problem(what, advice="add a line with the column names")]


def _comments(rows: Sequence[Sequence[str]], lines: Sequence[int]) -> list[Problem]:
    """Return the problem of lines that begin with a mark of comments and have other cells than most."""
    width = max(map(len, rows))
    found = [row for row, cells in enumerate(rows) if len(cells) != width and cells[0][:1] in ("#", "%")]
    if not found:
        return []
    told = listed([f"line {lines[row]}" for row in found])
    what = f"comments are no part of a table: {told}"
    return [Problem(what, rows=tuple(row - 1 for row in found if row), advice="take these lines out")]


def _ragged(rows: Sequence[Sequence[str]], lines: Sequence[int], width: int) -> list[Problem]:
    wrong = [row for row, cells in enumerate(rows) if len(cells) != width]
    if not wrong:
        return []
    told = "; ".join(f"line {lines[row]}: {len(rows[row])} cells" for row in wrong[:LISTED])
    more = f"; ... {len(wrong)} rows in all" if len(wrong) > LISTED else ""
    return [
        Problem(
            f"{told} where the header has {width} columns{more}",
            rows=tuple(row - 1 for row in wrong),
            advice="complete the rows, or quote cells that contain the separator",
        )
    ]
