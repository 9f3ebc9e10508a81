"""Read a table from where it is: a file of text or Parquet, or a data frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpflow_ext.data.reading.frames import from_frame, is_frame, is_parquet, read_parquet
from gpflow_ext.data.reading.table import Table
from gpflow_ext.data.reading.text import read_text


def read_table(source: Any, least_rows: int = 2) -> Table:
    """Read a file of text or Parquet, or take a data frame."""
    if is_frame(source):
        return from_frame(source, least_rows=least_rows)
    path = Path(source).expanduser()
    return (read_parquet if is_parquet(path) else read_text)(path, least_rows)
