"""Download pinned OpenML tables, keep them in a cache, and trust neither without its checksum."""

from __future__ import annotations

import hashlib
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.catalogue import OpenML
from gpflow_ext.data.reading.cells import Floats

_OTHER_WAYS = (
    "set GPFLOW_EXT_DATA (or data_dir=) to a folder that holds the set as <name>.csv.gz or <name>.npz, "
    "or pass the path of a CSV file instead of a name"
)


class Parsed(NamedTuple):
    """A parsed table: inputs [N, D], targets [N] (numbers, or words as unicode), and the D input names."""

    X: Floats
    y: NDArray[Any]
    names: tuple[str, ...]

    def sha256(self) -> str:
        """Hash the content of the table, whatever the file format that it came in."""
        digest = hashlib.sha256(np.ascontiguousarray(self.X, "<f8").tobytes())
        words = self.y.dtype.kind == "U"
        digest.update("\n".join(self.y).encode() if words else np.ascontiguousarray(self.y, "<f8").tobytes())
        digest.update("\n".join(self.names).encode())
        return digest.hexdigest()


def cache_folder() -> Path:
    """Return the folder of downloaded tables: GPFLOW_EXT_CACHE, or ~/.cache/gpflow_ext."""
    chosen = os.environ.get("GPFLOW_EXT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "gpflow_ext"


def fetch(name: str, pin: OpenML, offline: bool | None) -> Parsed:
    """Return a pinned table from the cache, or else download, check and cache it.

    Raises
    ------
    ValueError
        If a checksum or the shape of the table is not the expected one, or ``offline`` forbids a download.
    ConnectionError
        If the download fails.
    """
    path = cache_folder() / f"openml-{pin.data_id}-v{pin.version}.npz"
    record = path.with_suffix(".sha256")
    if path.exists() and record.exists():
        parsed = _read(path)
        remedy = f"the cached file {path} has changed; delete it to download the table again"
        _verify(name, parsed, pin.sha256 or record.read_text().strip(), remedy)
        return parsed
    if offline is None:
        offline = os.environ.get("GPFLOW_EXT_OFFLINE", "0") not in ("", "0")
    if offline:
        raise ValueError(
            f"the set {name!r} is not in the cache {path.parent} and offline is set; {_OTHER_WAYS}."
        )
    try:
        parsed = download(pin)
    except (OSError, ValueError) as error:  # every network and parse error of the client is one of these
        raise ConnectionError(
            f"the set {name!r} (OpenML {pin.data_id}) could not be downloaded: {error}; {_OTHER_WAYS}."
        ) from error
    if parsed.X.shape != pin.shape:
        raise ValueError(
            f"OpenML {pin.data_id} ({name!r}) has shape {parsed.X.shape} where {pin.shape} was expected; "
            "it is not the pinned table and was not used."
        )
    if pin.sha256:
        _verify(name, parsed, pin.sha256, "the downloaded table is not the pinned one and was not used")
    _write(path, record, parsed)
    return parsed


def download(pin: OpenML) -> Parsed:
    """Fetch one table through scikit-learn's client, with its ARFF parser that needs no pandas."""
    try:
        from sklearn.datasets import fetch_openml
    except ImportError as error:
        raise ImportError("OpenML downloads need scikit-learn: pip install gpflow-ext[data].") from error
    bunch = fetch_openml(data_id=pin.data_id, as_frame=False, parser="liac-arff", cache=False)
    names = tuple(map(str, bunch.feature_names))
    X, y = np.array(bunch.data, np.float64), np.asarray(bunch.target)
    for name, levels in (bunch.categories or {}).items():
        # The parser gives the index of a nominal level; the level itself, where it is a number, is the value.
        column, values = names.index(name), np.asarray(levels).astype(np.float64)
        present = ~np.isnan(X[:, column])
        X[present, column] = values[X[present, column].astype(int)]
    return Parsed(X, y.astype(np.float64 if y.dtype.kind in "fiub" else str), names)


def _verify(name: str, parsed: Parsed, expected: str, remedy: str) -> None:
    seen = parsed.sha256()
    if seen != expected:
        raise ValueError(f"checksum of {name!r}: expected sha256 {expected}, found {seen}; {remedy}.")


def _read(path: Path) -> Parsed:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return Parsed(arrays["X"], arrays["y"], tuple(map(str, arrays["names"])))
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); delete it to download the table again."
        ) from error


def _write(path: Path, record: Path, parsed: Parsed) -> None:
    """Write the table, then its checksum, each renamed into place so that no reader sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.stem}.{os.getpid()}.part.npz")
    np.savez_compressed(partial, X=parsed.X, y=parsed.y, names=np.array(parsed.names, dtype=str))
    partial.replace(path)
    partial = record.with_name(f"{record.name}.{os.getpid()}.part")
    partial.write_text(parsed.sha256() + "\n")
    partial.replace(record)
