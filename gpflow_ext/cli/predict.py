"""Predict every row of a CSV file with an exported model, batch by batch: `gpflow-ext predict`."""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gpflow_ext.cli import flags
from gpflow_ext.cli.run import import_tensorflow

TEXT = "Predict every row of a CSV file with an exported model, batch by batch."
EPILOG = """\
examples
  gpflow-ext predict --model saved_models/wine_sparse_ep --data bottles.csv --out predictions.csv
  gpflow-ext predict --model saved_models/ill --data patients.csv.gz --out ill.csv.gz --keep id

The file needs a header line with the names of the model's inputs, in any order; further columns are ignored, or copied
with --keep. Where the model knows no names, the columns that are not kept are its inputs in their order. Separators are
comma, semicolon or tab; .gz is compressed. An empty cell, NA or nan is a missing input: its row gets empty predictions
and is_finite 0. Memory does not grow with the file. The output appears under its name when it is whole.
"""
MISSING = {"", "na", "nan", "n/a", "null"}


class Columns(NamedTuple):
    """Where in a line of the file things are."""

    width: int
    inputs: list[int]
    kept: list[int]


class Progress:
    """Shows how much of a file was read, in bytes, where standard error is a terminal."""

    def __init__(self, path: Path) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._bar = Progress(console=console, disable=not console.is_terminal)
        self._task = self._bar.add_task(path.name, total=path.stat().st_size)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def at(self, position: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=position)


def delimiter(line: str, path: Path) -> str:
    """Return the separator of a header line."""
    if not line.strip():
        raise ValueError(f"{path} has no header line with the names of its columns.")
    return max(",;\t", key=line.count)


def find_columns(header: Sequence[str], served: Any, keep: Sequence[str], path: Path) -> Columns:
    """Return where the inputs of the model and the columns to keep are."""
    doubled = {name for name in header if header.count(name) > 1}
    names, width = served.manifest["data"]["feature_names"], served.manifest["data"]["D"]
    for name in keep:
        if name not in header:
            raise ValueError(f"--keep: {path} has no column {name!r}; it has {', '.join(header)}.")
    kept = [header.index(name) for name in keep]
    if names is None:
        inputs = [i for i in range(len(header)) if i not in kept]
        if len(inputs) != width:
            raise ValueError(
                f"the model has {width} inputs without names; {path} has {len(inputs)} columns that are not kept: "
                f"{', '.join(header[i] for i in inputs)}."
            )
        return Columns(len(header), inputs, kept)
    missing = [name for name in names if name not in header]
    if missing:
        raise ValueError(
            f"{path} lacks {len(missing)} of the model's {width} inputs: {', '.join(missing[:10])}"
            f"{' ...' if len(missing) > 10 else ''}. Its columns are {', '.join(header[:10])}"
            f"{' ...' if len(header) > 10 else ''}."
        )
    if doubled & set(names):
        raise ValueError(f"{path} has several columns named {', '.join(sorted(doubled & set(names)))}.")
    return Columns(len(header), [header.index(name) for name in names], kept)


def number(cell: str, line: int, name: str, path: Path) -> float:
    """Return a cell as a number, NaN where it is missing; what is one in Python alone, as 1_0, is none."""
    if cell.strip().lower() in MISSING:
        return float("nan")
    try:
        if "_" in cell or not cell.isascii():
            raise ValueError
        return float(cell)
    except ValueError:
        raise ValueError(f"{path}, line {line}, column {name!r}: {cell!r} is no number.") from None


def batches(
    lines: Any, header: Sequence[str], columns: Columns, size: int, path: Path
) -> Iterator[tuple[list[list[str]], list[list[float]]]]:
    """Yield the kept cells and the inputs of ``size`` rows at a time."""
    kept: list[list[str]] = []
    rows: list[list[float]] = []
    for cells in lines:
        if not cells:
            continue
        if len(cells) != columns.width:
            raise ValueError(
                f"{path}, line {lines.line_num}: {len(cells)} cells, but the header has {columns.width} columns."
            )
        rows.append([number(cells[i], lines.line_num, header[i], path) for i in columns.inputs])
        kept.append([cells[i] for i in columns.kept])
        if len(rows) == size:
            yield kept, rows
            kept, rows = [], []
    if rows:
        yield kept, rows


def output_names(served: Any) -> list[str]:
    """Return the columns that the model adds."""
    outputs = served.manifest["signatures"]["serving_default"]["outputs"]
    if "class" not in outputs:
        ends = (
            [""]
            if outputs["mean"]["shape"][1] == 1
            else [f"_{k}" for k in range(outputs["mean"]["shape"][1])]
        )
        return [*(f"mean{end}" for end in ends), *(f"variance{end}" for end in ends), "is_finite"]
    classes = served.labels or range(outputs["probabilities"]["shape"][1])
    return [
        "class",
        *(["label"] if "label" in outputs else []),
        *(f"probability_{c}" for c in classes),
        "is_finite",
    ]


def output_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what the model adds to each row; empty where it predicts nothing."""
    parts = ["class", "label", "probabilities"] if "class" in found else ["mean", "variance"]
    arrays = [found[part] for part in parts if part in found]
    for i, ok in enumerate(found["is_finite"]):
        cells = [cell for array in arrays for cell in (array[i].ravel() if array.ndim > 1 else [array[i]])]
        yield [*(str(cell) if ok else "" for cell in cells), str(int(ok))]


@contextlib.contextmanager
def reading(path: Path) -> Iterator[tuple[TextIO, Any]]:
    """Open a text file, compressed or not; the second is the raw file, which tells how far it was read."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        content: Any = stack.enter_context(gzip.open(raw)) if path.suffix == ".gz" else raw
        # Spreadsheets write a mark of the encoding first.
        yield stack.enter_context(io.TextIOWrapper(content, encoding="utf-8-sig", newline="")), raw


@contextlib.contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a text file that gets its name when it is whole."""
    partial = path.with_name(f"{path.name}.partial")
    opened: Any = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(partial, "wt", encoding="utf-8", newline="") as text:
            yield text
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def predict(served: Any, data: Path, out: Path, keep: Sequence[str], size: int) -> tuple[int, int]:
    """Predict all rows of a file; return how many there are, and how many of them have missing inputs."""
    rows = bad = 0
    with reading(data) as (text, raw), Progress(data) as progress, writing(out) as result:
        separator = delimiter(text.readline(), data)
        text.seek(0)
        lines = csv.reader(text, delimiter=separator)
        header = [name.strip() for name in next(lines)]
        columns = find_columns(header, served, keep, data)
        writer = csv.writer(result, lineterminator="\n")
        writer.writerow([*keep, *output_names(served)])
        for kept, inputs in batches(lines, header, columns, size, data):
            found = served.predict(inputs)
            writer.writerows([*k, *p] for k, p in zip(kept, output_rows(found), strict=True))
            rows += len(inputs)
            bad += int((~found["is_finite"]).sum())
            progress.at(raw.tell())
    return rows, bad


def parser(prog: str | None = "gpflow-ext predict") -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser(TEXT, EPILOG, prog)
    new.add_argument("--model", type=Path, required=True, metavar="DIR", help="an exported model")
    new.add_argument("--data", type=Path, required=True, metavar="FILE.csv", help="the inputs")
    new.add_argument("--out", type=Path, required=True, metavar="FILE.csv", help="what to write")
    new.add_argument("--keep", nargs="+", default=[], metavar="COL", help="columns to copy")
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
    if not options.data.is_file():
        raise FileNotFoundError(f"there is no file {options.data}.")
    if not options.model.is_dir():
        raise FileNotFoundError(f"there is no exported model in {options.model}.")
    if options.out.exists() and options.out.samefile(options.data):
        raise ValueError("--out must be another file than --data.")
    if not options.out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {options.out.parent} for --out.")
    with reading(options.data) as (text, _):
        delimiter(text.readline(), options.data)
    import_tensorflow()
    import gpflow_ext as gpx

    served = gpx.load_exported(options.model)
    rows, bad = predict(served, options.data, options.out, options.keep, options.batch_size)
    print(f"{rows} rows predicted, {options.out}")
    if bad:
        print(f"{bad} of them have missing or infinite inputs: their predictions are empty, is_finite is 0")
