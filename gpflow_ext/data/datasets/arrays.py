"""Read the files of arrays: published splits, npz archives, and the IDX files of sets like MNIST."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets import idx
from gpflow_ext.data.datasets.catalogue import KNOWN, SPLIT_FILES, Known
from gpflow_ext.data.datasets.raw import WHERE_FILES_ARE, Raw, Request, without
from gpflow_ext.data.reading.text import read_bytes


def from_split_files(name: str, folder: Path | None, request: Request) -> Raw:
    """Read a published split: two files without header, the label in the last column, positive means 1."""
    if folder is None:
        raise ValueError(
            f"split='published' of {name!r} is read from two files in splits/; {WHERE_FILES_ARE}."
        )
    stem, labels = SPLIT_FILES[name]
    parts, hashes = [], hashlib.sha256()
    for ending in ("tra", "tst"):
        path = folder / "splits" / f"{stem}-{ending}.csv"
        content, _ = read_bytes(path)
        try:
            parts.append(np.loadtxt(content.decode().splitlines(), delimiter=",", ndmin=2))
        except ValueError as error:
            raise ValueError(f"{path} is not a table of numbers ({error}); fetch it again.") from error
        hashes.update(content)
    values = np.concatenate(parts)
    names = tuple(f"x{column + 1:02d}" for column in range(values.shape[1] - 1))
    raw = Raw(
        name,
        X=values[:, :-1],
        y=(values[:, -1:] > 0).astype(np.float64),
        feature_names=names,
        target="y",
        source=f"splits/{stem}; licence as stated: {KNOWN[name].licence}",
        sha256=hashes.hexdigest(),
        task="binary",
        labels=labels,
        test=np.arange(len(values)) >= len(parts[0]),
    )
    return without(raw, request)


def from_npz(path: Path, request: Request, known: Known) -> Raw:
    """Read arrays X (or the set's own name for them) and y or Y, or X_train, y_train, X_test, y_test."""
    _, digest = read_bytes(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} is not a file of plain arrays ({error}); write it with numpy.savez."
        ) from error
    return _from_arrays(arrays, digest, path, request, known)


def from_idx(folder: Path, request: Request, known: Known) -> Raw:
    """Read a training and a test part from a folder of the four files ``idx.FILES``."""
    return _from_arrays(*idx.read(folder), folder, request, known)


def _from_arrays(
    arrays: dict[str, NDArray[Any]], digest: str, path: Path, request: Request, known: Known
) -> Raw:
    """Return a set whose arrays have the names of `from_npz`."""
    test = None
    if "X_train" in arrays:
        sizes = [len(_take(arrays, f"X_{part}", path)) for part in ("train", "test")]
        for key in ("X", "y"):
            arrays[key] = np.concatenate([_take(arrays, f"{key}_{part}", path) for part in ("train", "test")])
        test = np.arange(sum(sizes)) >= sizes[0]
    outputs = "Y" if "Y" in arrays else "y"
    X, y = _take(arrays, known.inputs, path), _take(arrays, outputs, path).astype(np.float64)
    if len(X) != len(y) or not len(y):
        raise ValueError(
            f"{path}: {known.inputs} has {len(X)} rows and {outputs} {len(y)}; they must be equal."
        )
    X, y = X.reshape(len(y), -1) / known.divisor, y.reshape(len(y), -1)
    if request.split == "published" and known.published:
        test = _take(arrays, known.published[0], path) == known.published[1]
    raw = Raw(
        path.name,
        X=X,
        y=y % 2 if known.parity else y,
        feature_names=tuple(f"x{column + 1:02d}" for column in range(X.shape[1])),
        target=outputs,
        source=f"{path.name}; licence as stated: {known.licence}",
        sha256=digest,
        task=next(iter(known.targets.values()), None),
        labels=known.labels,
        test=test,
        notes=known.notes,
    )
    return without(raw, request)


def _take(arrays: dict[str, NDArray[Any]], key: str, path: Path) -> NDArray[Any]:
    if key not in arrays:
        raise ValueError(f"{path} holds the arrays {', '.join(arrays)}; it needs {key!r} too.")
    return arrays[key]
