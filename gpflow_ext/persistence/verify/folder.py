"""The files of a version: which there may be, how large, and each read once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

_MIB = 1 << 20
MANIFEST, GRAPH, INDEX = "manifest.json", "saved_model.pb", "variables/variables.index"
VALUES, EXAMPLE, FINGERPRINT = "variables/variables.data-00000-of-00001", "example.npz", "fingerprint.pb"
CARD, ONNX = "MODEL_CARD.md", "model.onnx"
STABLEHLO, DRAWS, WEIGHTS = "model.stablehlo", "sample_joint.stablehlo", "weights.npz"
LARGEST = {  # bytes; nothing larger is read
    MANIFEST: 4 * _MIB,
    GRAPH: 32 * _MIB,
    INDEX: 4 * _MIB,
    VALUES: 65_536 * _MIB,
    EXAMPLE: 64 * _MIB,
    FINGERPRINT: 4096,
    CARD: 4 * _MIB,
    ONNX: 2048 * _MIB,
    STABLEHLO: 64 * _MIB,
    DRAWS: 64 * _MIB,
    WEIGHTS: 65_536 * _MIB,
}
REQUIRED = frozenset(LARGEST) - {FINGERPRINT, ONNX, STABLEHLO, DRAWS, WEIGHTS}
_COPIED = (GRAPH, INDEX, VALUES, FINGERPRINT, EXAMPLE)
_FOLDERS = ("assets", "variables")  # TensorFlow writes the first one empty
_MOST_PROBLEMS = 10
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Reader:
    """Reads each file of a version at most once, and only what an export writes.

    Parameters
    ----------
    folder
        The folder of the version.
    copy
        A new folder, into which goes what is read of the files that TensorFlow loads, and the example.

    Attributes
    ----------
    sizes
        The bytes of each file, by name.

    Raises
    ------
    ValueError
        Naming what an exported model does not hold: other names, links, devices, files that are too large.
    """

    def __init__(self, folder: Path, copy: Path | None = None) -> None:
        if folder.is_symlink():
            raise ValueError("it is a symbolic link: give the folder that it leads to")
        self._folder, self._copy = folder, copy
        self.sizes: dict[str, int] = {}
        problems: list[str] = []
        for name, status in _entries(folder):
            self.sizes[name] = status.st_size
            problem = _problem(name, status)
            problems += [] if problem is None else [problem]
            if len(problems) == _MOST_PROBLEMS:
                break
        if problems:
            raise ValueError("; ".join(problems))

    def read(self, name: str, sha256: str | None = None) -> bytes:
        """Return the bytes of a file, which must have the hash that is given."""
        kept: list[bytes] = []
        self._pass(name, sha256, kept.append)
        return b"".join(kept)

    def skim(self, name: str, sha256: str) -> None:
        """Check the hash of a file of any size."""
        self._pass(name, sha256, len)

    def _pass(self, name: str, sha256: str | None, take: Callable[[bytes], object]) -> None:
        digest = hashlib.sha256()
        with self._writing(name) as target:
            for block in _blocks(self._folder, name, self.sizes[name]):
                digest.update(block)
                take(block)
                if target is not None:
                    target.write(block)
        found = digest.hexdigest()
        if sha256 not in (None, found):
            raise ValueError(
                f"{name} has changed (SHA-256 {found[:12]}..., in the manifest {str(sha256)[:12]}...)"
            )

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[BinaryIO | None]:
        if self._copy is None or name not in _COPIED:
            yield None
            return
        (self._copy / name).parent.mkdir(parents=True, exist_ok=True)
        with (self._copy / name).open("xb") as stream:
            yield stream


def as_path(path: object) -> Path:
    """Return what a user gives as the path of a folder, or raise ``ValueError``."""
    if not isinstance(path, str | os.PathLike):
        raise ValueError(f"the path of a folder is needed; got {path!r}")
    return Path(path)


def version_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of one version: ``path`` itself, or the newest version below it."""
    folder = as_path(path)
    if (folder / MANIFEST).exists() or (folder / GRAPH).exists():
        return folder
    numbers = versions(folder)
    if not numbers:
        raise ValueError(
            f"{folder} holds no exported model: it has neither {GRAPH} nor a version folder 1, 2, ..."
        )
    return folder / str(numbers[-1])


def versions(path: Path) -> list[int]:
    """Return the version numbers of the exported model at ``path``, in increasing order."""
    if not path.is_dir():
        return []
    found = (p.name for p in path.iterdir() if p.name.isascii() and p.name.isdigit() and p.is_dir())
    return sorted(int(name) for name in found if name == str(int(name)))


def sha256_file(file: Path) -> str:
    """Return the SHA-256 hash of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(_MIB):
            digest.update(block)
    return digest.hexdigest()


def read_file(folder: Path, name: str) -> bytes:
    """Return the bytes of one file that an export writes, whatever else there is."""
    status = (folder / name).lstat()
    problem = _problem(name, status)
    if problem is not None:
        raise ValueError(problem)
    return b"".join(_blocks(folder, name, status.st_size))


def _entries(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield what is in the folder and in those of `_FOLDERS`, links not followed."""
    places = [""]
    for place in places:
        with os.scandir(folder / place) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if place + entry.name in _FOLDERS and stat.S_ISDIR(status.st_mode):
                    places.append(f"{entry.name}/")
                else:
                    yield place + entry.name, status


def _problem(name: str, status: os.stat_result) -> str | None:
    """Return what is wrong with an entry of the folder."""
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            return f"{name!a} is {kind}: an exported model holds plain files only"
    if name not in LARGEST:
        return f"{name!a} is not a file that an export writes"
    if status.st_size > LARGEST[name]:
        return f"{name} has {status.st_size} bytes; at most {LARGEST[name]} are read"
    return None


def _blocks(folder: Path, name: str, size: int) -> Iterator[bytes]:
    """Yield the bytes of a file that may change while it is read: never a link, or more than ``size``."""
    flags = os.O_RDONLY | sum(getattr(os, flag, 0) for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    with os.fdopen(os.open(folder / name, flags), "rb") as stream:
        problem = _problem(name, os.fstat(stream.fileno()))
        while problem is None and (block := stream.read(_MIB)):
            size -= len(block)
            problem = f"{name} grows while it is read" if size < 0 else None
            yield block
    if problem is not None:
        raise ValueError(problem)
