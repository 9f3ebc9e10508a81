"""Predict every row of a table with an exported model, batch by batch: `gpflow-ext predict`."""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gpflow_ext.cli import flags
from gpflow_ext.cli.predicted import output_names, output_rows
from gpflow_ext.cli.run import import_tensorflow
from gpflow_ext.cli.streams import Progress, check_folder, is_stream, reading, writing
from gpflow_ext.cli.unseen import Unseen
from gpflow_ext.data.reading.cells import is_missing, is_number, text_of, to_number
from gpflow_ext.data.reading.frames import is_parquet, parquet_frames
from gpflow_ext.data.reading.text import separator_of
from gpflow_ext.data.reading.units import measured

TEXT = "Predict every row of a CSV or Parquet file with an exported model, batch by batch."
EPILOG = """\
examples
  gpflow-ext predict --model saved_models/wine_sparse_ep --data bottles.csv --out predictions.csv
  gpflow-ext predict --model saved_models/ill --data patients.csv.gz --out ill.csv.gz --keep id

The file needs a header line with the columns of the table that the model was trained on, in any order; their cells are read
as they were then: dates, words, units, decimal commas. Further columns are ignored, or copied with --keep. Where the model knows
no names, the columns that are not kept are its inputs in their order. Separators are comma, semicolon, tab or bar; .gz,
.bz2 and .xz are compressed; .parquet and .pq need the extra parquet. The predictions of several outputs are named by target: mean_height, mean_weight. A row that
lacks an input gets empty predictions and is_finite 0. A model of counts with exposures predicts the rate, which is the count
at exposure one; --exposure names the column of those of the file. Memory does not grow with the file. The output appears
under its name when it is whole.
"""


class Columns(NamedTuple):
    """Positions of columns in a line of the file; there may be no exposure."""

    width: int
    inputs: list[int]
    kept: list[int]
    exposure: int | None = None


class Batch(NamedTuple):
    """Some rows of the file: the cells to keep, those of the model's columns, their lines and exposures, if any."""

    kept: list[list[str]]
    cells: list[list[str]]
    lines: list[int]
    exposures: list[str]


def table_lines(text: TextIO, path: Path) -> tuple[Any, list[str], str]:
    """Return a reader of the rows of a file, its header and its separator, as tables to train on are read."""
    filled = itertools.dropwhile(lambda line: not line.strip(), text)
    first = next(filled, None)
    if first is None:
        raise ValueError(f"{path} has no header line with the names of its columns.")
    separator = separator_of(itertools.chain([first], filled))
    text.seek(0)
    lines = csv.reader(text, delimiter=separator, skipinitialspace=True)
    header = next(row for row in lines if row not in ([], [""]))
    return lines, [name.strip() for name in header], separator


def find_columns(
    header: Sequence[str], served: Any, keep: Sequence[str], path: Path, exposure: str | None = None
) -> Columns:
    """Return where the inputs of the model, or the columns of its table, the exposure and what is kept are."""
    for flag, named in (("--keep", keep), ("--exposure", [] if exposure is None else [exposure])):
        for name in named:
            if name not in header:
                raise ValueError(f"{flag}: {path} has no column {name!r}; it has {', '.join(header)}.")
    kept = [header.index(name) for name in keep]
    exposed = None if exposure is None else header.index(exposure)
    names, what = served.manifest["data"]["feature_names"], "inputs"
    if served.treatment is not None:
        names, what = [column.name for column in served.treatment.columns], "columns"
    if names is None:
        width = served.manifest["data"]["D"]
        inputs = [i for i in range(len(header)) if i not in kept and i != exposed]
        if len(inputs) != width:
            raise ValueError(
                f"the model has {width} inputs without names; {path} has {len(inputs)} columns that are not kept: "
                f"{', '.join(header[i] for i in inputs)}."
            )
        return Columns(len(header), inputs, kept, exposed)
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} of the model's {len(names)} {what}: {', '.join(missing[:10])}"
            f"{' ...' if len(missing) > 10 else ''}. Its columns are {', '.join(header[:10])}"
            f"{' ...' if len(header) > 10 else ''}."
        )
    doubled = sorted({name for name in names if header.count(name) > 1})
    if doubled:
        raise ValueError(f"{path} has several columns named {', '.join(doubled)}.")
    return Columns(len(header), [header.index(name) for name in names], kept, exposed)


def batches(lines: Any, columns: Columns, size: int, path: Path) -> Iterator[Batch]:
    """Yield ``size`` rows at a time."""
    batch = Batch([], [], [], [])
    for cells in lines:
        if not cells or (cells == [""] and columns.width > 1):
            continue
        if len(cells) != columns.width:
            raise ValueError(
                f"{path}, line {lines.line_num}: {len(cells)} cells, but the header has {columns.width} columns."
            )
        batch.kept.append([cells[i] for i in columns.kept])
        batch.cells.append([cells[i] for i in columns.inputs])
        batch.lines.append(lines.line_num)
        batch.exposures.extend([] if columns.exposure is None else [cells[columns.exposure]])
        if len(batch.lines) == size:
            yield batch
            batch = Batch([], [], [], [])
    if batch.lines:
        yield batch


def answers(served: Any, batch: Batch, names: Sequence[str], path: Path, frame: Any = None) -> dict[str, Any]:
    """Return the predictions of a batch: of raw rows where the model takes them, else of numbers.

    ``frame`` has the inputs of the rows where they are no text.
    """
    if served.treatment is None:
        rows = zip(batch.cells, batch.lines, strict=True)
        return served.predict([_numbers(row, line, names, path) for row, line in rows])
    try:
        cells = dict(zip(names, zip(*batch.cells, strict=True), strict=True)) if frame is None else frame
        return served.predict_raw(cells)
    except ValueError as error:
        problem = next((each for each in getattr(error, "problems", ()) if each.rows), None)
        if problem is None:
            raise
        row = problem.rows[0]
        cell = batch.cells[row][names.index(problem.column)]
        raise ValueError(
            f"{path}, line {batch.lines[row]}, column {problem.column!r}: {cell!r} is not a number."
        ) from None


def marks_of(treatment: Any, separator: str) -> tuple[str, ...]:
    """Return how exposures may be read, by `to_number`: other columns or semicolons decide about commas."""
    marks = {column.decimal for column in ([] if treatment is None else treatment.columns)} - {"."}
    if len(marks) == 1:
        return tuple(marks)
    return (".", ",") if separator == ";" else (".", ",", ",.")


def exposed(
    found: dict[str, Any], batch: Batch, marks: Sequence[str], name: str, path: Path
) -> dict[str, Any]:
    """Return predictions of counts at their exposures.

    There is no prediction where the exposure is missing, or so large that the moments of the count overflow.
    """
    import numpy as np

    from gpflow_ext.numerics.exposures import at_exposures

    read = zip(batch.exposures, batch.lines, strict=True)
    e = np.array([_exposure(cell, marks, f"{path}, line {line}, column {name!r}") for cell, line in read])
    mean, variance = found["mean"], found["variance"]
    with np.errstate(over="ignore"):
        expected, spread = at_exposures(mean, variance, e[:, None].astype(mean.dtype))
    ok = found["is_finite"] & (np.isfinite(expected) & np.isfinite(spread)).all(axis=1)
    return {"mean": expected, "variance": spread, "is_finite": ok}


def _exposure(cell: str, marks: Sequence[str], place: str) -> float:
    """Return an exposure as a number, NaN where it is missing."""
    if is_missing(cell):
        return float("nan")
    [bare], _ = measured([cell])
    plain = "." in marks and is_number(bare)
    read = (".",) if plain else [mark for mark in marks if is_number(bare, mark)]
    found = {to_number(bare, mark) for mark in read}
    if len(found) > 1:
        raise ValueError(f"{place}: the comma of {cell!r} may stand before decimals or between thousands.")
    if not found or not min(found) > 0.0:
        raise ValueError(f"{place}: {cell!r} is not a positive number.")
    return found.pop()


def _numbers(row: Sequence[str], line: int, names: Sequence[str], path: Path) -> list[float]:
    """Return cells as numbers, NaN where they are missing."""
    found = []
    for cell, name in zip(row, names, strict=True):
        try:
            found.append(float("nan") if is_missing(cell) else to_number(cell))
        except ValueError:
            raise ValueError(f"{path}, line {line}, column {name!r}: {cell!r} is not a number.") from None
    return found


def predict(
    served: Any,
    data: Path,
    out: Path,
    keep: Sequence[str],
    size: int,
    exposure: str | None = None,
    unseen: Unseen | None = None,
) -> tuple[int, int]:
    """Predict all rows of a file; return how many there are, and how many of them have missing inputs.

    ``unseen`` counts the words that the training rows had not.
    """
    rows = bad = 0
    strange = Unseen(served.treatment) if unseen is None else unseen
    predicted = _of_parquet if is_parquet(data) else _of_text
    with writing(out) as result:
        writer = csv.writer(result, lineterminator="\n")
        writer.writerow([*keep, *output_names(served)])
        for kept, found in predicted(served, data, keep, size, exposure, strange):
            writer.writerows([*k, *p] for k, p in zip(kept, output_rows(found), strict=True))
            rows += len(kept)
            bad += int((~found["is_finite"]).sum())
    return rows, bad


def _of_text(
    served: Any, data: Path, keep: Sequence[str], size: int, exposure: str | None, unseen: Unseen
) -> Iterator[tuple[list[list[str]], dict[str, Any]]]:
    """Yield the cells to keep and the predictions of each batch of a file of text."""
    with reading(data) as (text, raw), Progress(data) as progress:
        lines, header, separator = table_lines(text, data)
        columns = find_columns(header, served, keep, data, exposure)
        names = [header[i] for i in columns.inputs]
        marks = marks_of(served.treatment, separator)
        for batch in batches(lines, columns, size, data):
            found = answers(served, batch, names, data)
            unseen.count(names, batch.cells)
            yield batch.kept, found if exposure is None else exposed(found, batch, marks, exposure, data)
            progress.at(raw.tell())


def _of_parquet(
    served: Any, data: Path, keep: Sequence[str], size: int, exposure: str | None, unseen: Unseen
) -> Iterator[tuple[list[list[str]], dict[str, Any]]]:
    """Yield them of a Parquet file, whose numbers and dates are what they are in any model's text."""
    row = 0
    for frame in parquet_frames(data, size):
        header = [str(name).strip() for name in frame.columns]
        columns = find_columns(header, served, keep, data, exposure)
        names = [header[i] for i in columns.inputs]
        exposures = [] if columns.exposure is None else list(map(str, frame.iloc[:, columns.exposure]))
        lines = list(range(row + 1, row + len(frame) + 1))
        kept, cells = (_as_text(frame.iloc[:, which]) for which in (columns.kept, columns.inputs))
        batch = Batch(kept, cells, lines, exposures)
        found = answers(served, batch, names, data, frame.iloc[:, columns.inputs].set_axis(names, axis=1))
        unseen.count(names, cells)
        row += len(frame)
        yield kept, found if exposure is None else exposed(found, batch, (".",), exposure, data)


def _as_text(frame: Any) -> list[list[str]]:
    """Return the cells of a data frame as text, empty where they are missing."""
    columns = [[text_of(cell) for cell in frame.iloc[:, place]] for place in range(frame.shape[1])]
    return [[column[row] for column in columns] for row in range(len(frame))]


def _had_exposures(served: Any) -> bool:
    """Tell whether a model of counts was trained with exposures, which are a column of its targets."""
    targets = served.manifest["signatures"]["predict_log_density"]["inputs"]["targets"]
    return bool(served.manifest["task"] == "count" and targets["shape"][1] == 2)


def parser(prog: str | None = "gpflow-ext predict") -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser(TEXT, EPILOG, prog)
    new.add_argument("--model", type=Path, required=True, metavar="DIR", help="an exported model")
    new.add_argument("--data", type=Path, required=True, metavar="FILE", help="the inputs: CSV or Parquet")
    new.add_argument(
        "--out", type=Path, required=True, metavar="FILE.csv", help="what to write, - for standard output"
    )
    new.add_argument("--keep", nargs="+", default=[], metavar="COL", help="columns to copy")
    new.add_argument(
        "--exposure",
        metavar="COL",
        help="column of exposures: of a model of counts (default: one for each row)",
    )
    new.add_argument(
        "--batch-size",
        type=flags.positive,
        default=1000,
        metavar="B",
        help="rows at a time (default: %(default)s)",
    )
    return new


def main(arguments: Sequence[str] | None = None, prog: str | None = "gpflow-ext predict") -> None:
    """Predict from the command line."""
    options = parser(prog).parse_args(arguments)
    if is_stream(options.data):
        raise ValueError(f"--data {options.data} is read twice: write the table to a file, and name that.")
    if not options.data.is_file():
        raise FileNotFoundError(f"there is no file {options.data}.")
    if not options.model.is_dir():
        raise FileNotFoundError(f"there is no exported model in {options.model}.")
    _check_out(options.out, options.data)
    if not is_parquet(options.data):
        with reading(options.data) as (text, _):
            table_lines(text, options.data)
    import_tensorflow()
    import gpflow_ext as gpx

    served = gpx.load_exported(options.model)
    if options.exposure is not None and served.manifest["task"] != "count":
        raise ValueError(
            f"--exposure is for models of counts; the task of this one is {served.manifest['task']}."
        )
    data, out, keep, unseen = options.data, options.out, options.keep, Unseen(served.treatment)
    rows, bad = predict(served, data, out, keep, options.batch_size, options.exposure, unseen)
    said = [f"{rows} rows predicted, {out}", str(unseen)]
    if options.exposure is None and _had_exposures(served):
        said.append(
            "the means are rates, counts at exposure one: --exposure COL multiplies by a column of the file"
        )
    if bad:
        said.append(
            f"{bad} of them have inputs that are missing, infinite, no date or an unknown level: their predictions "
            "are empty, is_finite is 0"
        )
    print("\n".join(filter(None, said)), file=sys.stderr if is_stream(out) else sys.stdout)


def _check_out(out: Path, data: Path) -> None:
    """Raise an error for what predictions cannot be written to, before anything is computed."""
    if out.exists() and out.samefile(data):
        raise ValueError("--out must be another file than --data.")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent} for --out.")
    if out.is_dir() or is_parquet(out):
        what = "a folder" if out.is_dir() else "no name of a text file"
        raise ValueError(
            f"--out {out} is {what}: predictions are written as CSV, such as to predictions.csv."
        )
    if not is_stream(out):
        check_folder(f"--out {out}", out.resolve().parent)
