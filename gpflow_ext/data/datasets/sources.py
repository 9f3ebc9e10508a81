"""Find a data set by name or path: a file, a folder, a bundled set, or OpenML."""

from __future__ import annotations

import difflib
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets import idx, openml
from gpflow_ext.data.datasets.arrays import from_idx, from_npz, from_split_files
from gpflow_ext.data.datasets.catalogue import BUNDLED, KNOWN, SPLIT_FILES, Known, known_names
from gpflow_ext.data.datasets.files import from_file
from gpflow_ext.data.datasets.raw import WHERE_FILES_ARE, Raw, Request, without
from gpflow_ext.data.reading.frames import PARQUET, as_frame, is_frame
from gpflow_ext.data.reading.text import SUFFIXES

_NOT_READ = (".xlsx", ".xls", ".ods", ".json", ".jsonl", ".feather", ".arrow", ".dta", ".pkl", ".zip", ".zst")
_OF_THE_USER = Known({}, "not stated (of the user)")


def find(request: Request) -> Raw:
    """Read the set that a request names: a frame, a file, a folder, a bundled set, OpenML, in this order.

    Raises
    ------
    ValueError
        If there is no such file or name (the known names are listed), or the file cannot be read.
    """
    if is_frame(frame := as_frame(request.name)):
        return from_file(frame, request, _OF_THE_USER)
    if not isinstance(request.name, str | os.PathLike):
        kind = type(request.name)
        raise ValueError(
            "load takes the name of a set, the path of a table or a data frame; got a "
            f"{kind.__module__}.{kind.__qualname__}."
        )
    name = os.fspath(request.name)
    if name.lower().endswith(_NOT_READ) and Path(name).expanduser().is_file():
        raise ValueError(
            f"{name} is neither text nor Parquet: save it as CSV, or give the data frame that pandas reads "
            "from it."
        )
    is_path = isinstance(request.name, Path) or os.sep in name
    if (is_path and not name.lower().endswith(".npz")) or name.lower().endswith((*SUFFIXES, *PARQUET)):
        return from_file(name, request, _OF_THE_USER)
    if name.lower().endswith(".npz"):
        return from_npz(Path(name).expanduser(), request, _OF_THE_USER)
    if request.test is not None:
        raise ValueError(
            "test= names a file of test rows; it goes with the path of a file or a frame, not a name."
        )
    folder = _folder(request)
    known = KNOWN.get(name)
    if request.split == "published" and name in SPLIT_FILES:
        return from_split_files(name, folder, request)
    stem = known.file or name if known else name
    for suffix in (".csv.gz", ".csv", ".npz"):
        path = folder / (stem + suffix) if folder else None
        if path and path.exists():
            entry = known or Known({}, "not stated")
            raw = from_npz(path, request, entry) if suffix == ".npz" else from_file(path, request, entry)
            return replace(raw, name=name)
    if known and known.idx and folder and (folder / stem).is_dir():
        return replace(from_idx(folder / stem, request, known), name=name)
    if name in BUNDLED:
        return _from_sklearn(name, request)
    if known and known.openml:
        return _from_openml(name, known, request)
    if known:
        files = f"{stem}.csv.gz or {stem}.npz"
        if known.idx:
            files += f", or from a folder {stem} with {', '.join(idx.FILES.values())}, plain or .gz"
        raise ValueError(f"the set {name!r} is read from {files}; {WHERE_FILES_ARE}.")
    close = difflib.get_close_matches(name, known_names(), n=3)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise ValueError(
        f"no data set is named {name!r}.{hint} Known names: {', '.join(known_names())}. "
        "A file of your own is named by its path, such as 'data.csv'."
    )


def _folder(request: Request) -> Path | None:
    chosen = request.data_dir or os.environ.get("GPFLOW_EXT_DATA")
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        given = "data_dir" if request.data_dir else "GPFLOW_EXT_DATA"
        raise ValueError(f"{given} is {str(folder)!r}, which is not a folder; correct it.")
    return folder


def _from_sklearn(name: str, request: Request) -> Raw:
    try:
        import sklearn
        from sklearn import datasets
    except ImportError as error:
        raise ImportError(f"the set {name!r} needs scikit-learn: pip install gpflow-ext[data].") from error
    options = {"scaled": False} if name == "diabetes" else {}  # its scaled form has seen the test rows
    bunch = getattr(datasets, f"load_{name}")(**options)
    X, y = np.asarray(bunch.data, np.float64), np.asarray(bunch.target, np.float64)
    task = BUNDLED[name]
    outputs = tuple(bunch.target_names) if y.ndim == 2 else ("y",)
    raw = Raw(
        name,
        X=X,
        y=y.reshape(len(y), -1),
        feature_names=tuple(map(str, bunch.feature_names)),
        target=", ".join(outputs),
        source=f"scikit-learn {sklearn.__version__}, load_{name}; licence as stated: none for the data",
        sha256=hashlib.sha256(X.tobytes() + y.tobytes()).hexdigest(),
        task=task,
        labels=None if task == "regression" else tuple(map(str, bunch.target_names)),
    )
    if request.target in outputs:
        column = outputs.index(request.target)
        raw = replace(raw, y=raw.y[:, [column]], target=outputs[column])
    return without(raw, request)


def _from_openml(name: str, known: Known, request: Request) -> Raw:
    pin = known.openml
    assert pin is not None
    parsed = openml.fetch(name, pin, request.offline)
    y: NDArray[Any] = parsed.y
    if pin.classes is not None:
        numbered = {word: float(number) for number, word in enumerate(pin.classes)}
        unknown = sorted({str(word) for word in y} - set(numbered))
        if unknown:
            raise ValueError(
                f"OpenML {pin.data_id} ({name!r}) has the labels {', '.join(unknown)} besides "
                f"{', '.join(pin.classes)}; it is not the expected table."
            )
        y = np.array([numbered[str(word)] for word in y])
    raw = Raw(
        name,
        X=parsed.X / known.divisor,
        y=(y % 2 if known.parity else y).reshape(-1, 1).astype(np.float64),
        feature_names=parsed.names,
        target=next(iter(known.targets)),
        source=f"OpenML {pin.data_id}, version {pin.version}; licence as stated: {known.licence}",
        sha256=parsed.sha256(),
        task=next(iter(known.targets.values())),
        labels=known.labels,
        test=None if pin.train_rows is None else np.arange(len(y)) >= pin.train_rows,
        notes=known.notes,
    )
    return without(raw, request)
