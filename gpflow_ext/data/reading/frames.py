"""Take a table from a data frame, or by pandas from a Parquet file."""

from __future__ import annotations

import datetime
import decimal
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpflow_ext.data.reading.cells import text_of
from gpflow_ext.data.reading.dates import is_date, written
from gpflow_ext.data.reading.problems import Problem, TableError, drop
from gpflow_ext.data.reading.table import Cells, Table, beside, check_names
from gpflow_ext.data.reading.text import read_bytes

PARQUET = (".parquet", ".pq")
_CELLS = str | bool | int | float | decimal.Decimal | datetime.time | datetime.timedelta | np.generic
_ENGINES = "reading Parquet needs pyarrow: pip install gpflow-ext[parquet] ({error})"


def is_frame(value: object) -> bool:
    """Tell whether a value is a data frame, without importing pandas."""
    return hasattr(value, "columns") and hasattr(value, "iloc")


def as_frame(value: Any) -> Any:
    """Return a table of polars or pyarrow as what its ``to_pandas`` makes, and all else as it is."""
    convert = getattr(value, "to_pandas", None)
    return value if convert is None or is_frame(value) else convert()


def as_row(value: Any) -> Any:
    """Return a row of a data frame, a series of pandas, as a mapping by column, and all else as it is."""
    return value.to_dict() if hasattr(value, "iloc") and not is_frame(value) else value


def column_names(frame: Any, name: str = "frame") -> list[str]:
    """Return the names of the columns of a data frame as text.

    Raises
    ------
    TableError
        If the columns have names of several levels.
    """
    levels = getattr(frame.columns, "nlevels", 1)
    if levels > 1:
        advice = (
            "give each column one name, as frame.columns = ['_'.join(map(str, c)) for c in frame.columns]"
        )
        raise TableError(name, [Problem(f"its columns have names of {levels} levels", advice=advice)])
    return [text_of(column) for column in frame.columns]


def is_parquet(path: Path) -> bool:
    """Tell whether a file is Parquet, by its name."""
    return path.suffix.lower() in PARQUET


def read_parquet(path: Path, least_rows: int = 2) -> Table:
    """Read a Parquet file.

    Raises
    ------
    TableError
        If it is not such a file, and as `from_frame`.
    ImportError
        Without pandas or pyarrow.
    """
    content, digest = read_bytes(path)
    import pandas as pd

    try:
        frame = pd.read_parquet(io.BytesIO(content))
    except ImportError as error:
        raise ImportError(_ENGINES.format(error=error)) from error
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise TableError(str(path), [Problem(f"it is not a complete Parquet file ({error})")]) from error
    return from_frame(frame, path.name, digest, least_rows)


def parquet_frames(path: Path, size: int) -> Iterator[Any]:
    """Yield so many rows of a Parquet file at a time, as data frames; whole numbers with gaps stay whole.

    Raises
    ------
    ImportError
        Without pandas or pyarrow.
    ValueError
        If it is not such a file.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError(_ENGINES.format(error=error)) from error
    try:
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(size):
            yield batch.to_pandas(integer_object_nulls=True)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a complete Parquet file ({error}).") from error


def from_frame(frame: Any, name: str = "frame", sha256: str | None = None, least_rows: int = 2) -> Table:
    """Take the columns of a data frame; its index is left out.

    ``problems`` of the table are those of columns that hold other cells than numbers, text, dates or levels.

    Raises
    ------
    TableError
        If it has no columns, too few rows, or columns that are unnamed, repeated or named by several levels.
    """
    names = column_names(frame, name)
    problems: list[Problem] = []
    if not names or len(frame) < least_rows:
        problems.append(
            Problem(f"it has {len(frame)} rows and {len(names)} columns; it needs at least {least_rows} rows")
        )
    strange: list[Problem] = []
    columns: list[Cells] = []
    levels: dict[str, tuple[str, ...]] = {}
    categories, notes = set(), list[str]()
    for number, column in enumerate(names):
        series = frame.iloc[:, number]
        cells, wrong = _cells(series)
        columns.append(cells)
        if wrong:
            first = series.iloc[wrong[0]]
            seen = type(first).__name__
            what = f"column {column!r} is neither number, text nor date (a {seen} in row {wrong[0] + 1})"
            advice = "give the middle of each interval, its .mid" if hasattr(first, "mid") else ""
            strange.append(Problem(what, column, tuple(wrong), (drop(column),), advice))
        if not wrong and _are_durations(series):
            notes.append(f"column {column} holds durations, and was read in seconds")
        ordered = getattr(series.dtype, "ordered", None)  # of categories alone
        if ordered is not None and not any(map(is_date, series.dtype.categories)):
            if ordered:
                levels[column] = tuple(map(text_of, series.dtype.categories))
            else:
                categories.add(column)
    aside = beside(names, columns)
    problems = [*check_names(names, aside), *problems]
    if problems:
        raise TableError(name, problems)
    digest = sha256 or _sha256(names, columns)
    found = Table(
        name,
        tuple(names),
        tuple(columns),
        digest,
        levels=levels,
        categories=frozenset(categories),
        notes=tuple(notes),
        problems=tuple(strange),
    )
    return found.without(aside)


def _are_durations(series: Any) -> bool:
    """Tell whether a column holds durations of pandas or of Python."""
    found = series.dtype.kind == "m" or isinstance(series.dropna().iloc[:1].squeeze(), datetime.timedelta)
    return bool(found)


def _cells(series: Any) -> tuple[Cells, list[int]]:
    """Return the cells of a column: numbers where they are, else text; and the rows that hold neither."""
    if series.dtype.kind in "fiu":  # NumPy's and pandas' own, that have missing values
        return series.to_numpy(dtype=np.float64, na_value=np.nan), []
    are_levels = getattr(series.dtype, "ordered", None) is not None  # of whatever kind, as intervals
    text, wrong = [], []
    for row, value in enumerate(series):
        cell = text_of(value)
        if cell and is_date(value):
            cell = written(value, "ymd")
        elif cell and not are_levels and not isinstance(value, _CELLS):
            wrong.append(row)
        text.append(cell)
    return text, wrong


def _sha256(names: Sequence[str], columns: Sequence[Cells]) -> str:
    digest = hashlib.sha256("\n".join(names).encode())
    for cells in columns:
        digest.update(cells.tobytes() if isinstance(cells, np.ndarray) else "\n".join(cells).encode())
    return digest.hexdigest()
