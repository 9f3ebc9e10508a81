"""Read the four IDX files in which MNIST and sets of its form are published."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.reading.text import read_bytes

FILES = {
    "X_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "X_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
_BYTES = b"\0\0\x08"  # the head of an array of unsigned bytes


def read(folder: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """Return the arrays of `FILES`, plain or ``.gz``, in a folder, and the SHA-256 of all four files.

    Raises
    ------
    ValueError
        If files are missing, which are named, or one is not an array of bytes of the size that it states.
    """
    found = {key: _path(folder, name) for key, name in FILES.items()}
    missing = [FILES[key] for key, path in found.items() if path is None]
    if missing:
        raise ValueError(
            f"the folder {folder} lacks {', '.join(missing)}; put them there, as they are or with .gz."
        )
    arrays, hashes = {}, hashlib.sha256()
    for key, path in found.items():
        assert path is not None
        content, digest = read_bytes(path)
        arrays[key] = _array(content, path)
        hashes.update(bytes.fromhex(digest))
    return arrays, hashes.hexdigest()


def _path(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _array(content: bytes, path: Path) -> NDArray[Any]:
    """Return the array of an IDX file: its head, its number of axes, their lengths, and its bytes."""
    axes = content[3] if content[:3] == _BYTES and len(content) > 3 else 0
    start = 4 + 4 * axes
    if not axes or len(content) < start:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes; fetch it again.")
    shape = [int(size) for size in np.frombuffer(content, ">u4", axes, offset=4)]
    if len(content) - start != math.prod(shape):
        raise ValueError(
            f"{path} holds {len(content) - start} bytes after its head, which says {shape}; fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
