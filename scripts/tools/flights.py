"""Make the set of the airline experiments from on-time records of the US Bureau of Transportation Statistics.

    python -m scripts.tools.flights 2008_*.zip --planes plane-data.csv --out data/airline_bts.csv.gz

Reads the monthly files of the Bureau, by either of its spellings of the columns, or the yearly ones of the Data Expo
2009, plain or compressed, and the register of planes, with a tail number and a year of manufacture in each line. Keeps
flights whose eight attributes and delay are known, of the months that --months names. With the folder of the result in
GPFLOW_EXT_DATA, `python -m scripts.experiments.sparse_ep --experiment airline` uses it, as the set "airline_bts".
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..shared.flights import ATTRIBUTES

COLUMNS = {  # what it is called here, and by the Bureau: lower case, without underscores
    "year": ("year",),
    "month": ("month",),
    "day_of_month": ("dayofmonth",),
    "day_of_week": ("dayofweek",),
    "tail": ("tailnum", "tailnumber"),
    "air_time": ("airtime",),
    "distance": ("distance",),
    "dep_time": ("deptime",),
    "arr_time": ("arrtime",),
    "arr_delay": ("arrdelay",),
}
CHUNK = 500_000  # rows held at once beside those that are kept


def flights(paths: Sequence[Path], planes: Path, months: Sequence[int]) -> pd.DataFrame:
    """Return the attributes, ``arr_delay`` in minutes and ``y``, 1 of a late arrival, of all flights of some months.

    Raises
    ------
    ValueError
        If a file lacks a column, or no flight is left.
    """
    years = manufactured(planes)
    kept = [chosen(rows[rows["month"].isin(months)], years) for path in paths for rows in records(path)]
    found = pd.concat(kept, ignore_index=True)
    if found.empty:
        raise ValueError(
            f"no flight of the months {', '.join(map(str, months))} has all attributes; see --months."
        )
    return found


def records(path: Path) -> Iterator[pd.DataFrame]:
    """Yield the rows of a file in chunks, by our names of the columns."""
    options: dict[str, Any] = {"encoding": "latin-1", "low_memory": False}
    with opened(path) as file:
        names = renamed(pd.read_csv(file, nrows=0, **options).columns, path)
    with opened(path) as file:
        for rows in pd.read_csv(file, usecols=list(names), chunksize=CHUNK, **options):
            yield rows.rename(columns=names)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Within, a table to read: a file, or the only one in an archive of the Bureau, which holds a page on it too."""
    if path.suffix.lower() != ".zip":
        yield path
        return
    with zipfile.ZipFile(path) as archive:
        tables = [name for name in archive.namelist() if name.lower().endswith(".csv")]
        if len(tables) != 1:
            raise ValueError(f"{path} holds {len(tables)} tables (.csv); name files with one.")
        with archive.open(tables[0]) as file:
            yield file


def renamed(head: Sequence[str], path: Path) -> dict[str, str]:
    """Return our name of each column of a file that is needed."""
    plain = {name.replace("_", "").lower(): name for name in reversed(list(head))}
    found = {
        own: next((plain[each] for each in theirs if each in plain), None) for own, theirs in COLUMNS.items()
    }
    missing = [own for own, theirs in found.items() if theirs is None]
    if missing:
        raise ValueError(
            f"{path} has no column for {', '.join(missing)}; it has {', '.join(map(str, head))}."
        )
    return {str(theirs): own for own, theirs in found.items()}


def manufactured(path: Path) -> pd.Series[Any]:
    """Return the year of manufacture by tail number."""
    register = pd.read_csv(path, encoding="latin-1", dtype=str)
    lower = {name.lower(): name for name in register.columns}
    missing = {"tailnum", "year"} - set(lower)
    if missing:
        raise ValueError(f"{path} has no column {' and no column '.join(sorted(missing))}.")
    years = pd.to_numeric(register[lower["year"]], errors="coerce")
    years.index = pd.Index(register[lower["tailnum"]].str.strip())
    years = years[years > 1900]
    return years[~years.index.duplicated()]


def chosen(rows: pd.DataFrame, years: pd.Series[Any]) -> pd.DataFrame:
    """Return the attributes and the delay of the flights for which they are known."""
    tail = rows["tail"].astype(str).str.strip()
    numbers = rows.drop(columns="tail").apply(pd.to_numeric, errors="coerce")
    numbers["plane_age"] = numbers["year"] - tail.map(years)
    for name in ("dep_time", "arr_time"):
        numbers[name] = (
            numbers[name] // 100 * 60 + numbers[name] % 100
        )  # hours and minutes are written as hhmm
    new = numbers[[*ATTRIBUTES, "arr_delay"]].dropna()
    new = new[new["plane_age"] >= 0].round().astype(int)
    return new.assign(y=(new["arr_delay"] > 0).astype(int))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.tools.flights", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", type=Path, nargs="+", help="on-time records, CSV, plain or compressed")
    parser.add_argument("--planes", type=Path, required=True, metavar="FILE", help="the register of planes")
    parser.add_argument(
        "--months",
        type=int,
        nargs="+",
        default=[1, 2, 3, 4],
        metavar="M",
        help="default: 1 2 3 4, those of the paper",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.csv.gz")
    options = parser.parse_args(arguments)
    try:
        found = flights(options.files, options.planes, options.months)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    found.to_csv(options.out, index=False)
    print(f"{len(found):,} flights, {found['y'].mean():.1%} of them late, in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
