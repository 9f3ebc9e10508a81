"""Durable writing: it survives a loss of power, and an error says why it failed and what is left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # on Windows, where exports to one path do not wait for each other
    fcntl = None  # type: ignore[assignment]

import tensorflow as tf

_FAILURES = (
    OSError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnknownError,
    tf.errors.InternalError,
    tf.errors.PermissionDeniedError,
    tf.errors.NotFoundError,
    tf.errors.FailedPreconditionError,
    tf.errors.DataLossError,
    tf.errors.OutOfRangeError,  # of a file that may not grow
)


def sync(path: Path) -> None:
    """Make sure that a file, or a folder and all below it, is on the disk and not in memory alone."""
    if path.is_dir():
        for below in path.iterdir():
            sync(below)
    sync_alone(path)


def sync_alone(path: Path) -> None:
    """Do so for one file, or for the names in a folder."""
    if os.name == "nt" and path.is_dir():  # Windows opens no folder
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_target(path: Path) -> None:
    """Raise for a folder that cannot have versions: ``ValueError`` for a file, ``OSError`` if read-only."""
    if path.is_file() or (path / "saved_model.pb").exists():
        raise ValueError(f"{path} is a file or a single version: name a folder above versions")
    there = next(above for above in (path, *path.absolute().parents) if above.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise OSError(f"no model can be exported to {path}: {there} is no folder that this user may write to")


@contextlib.contextmanager
def told(what: str, folder: Path, kept: str) -> Iterator[None]:
    """Raise ``OSError`` for whatever fails in writing: what was written, where, why, and what is ``kept``."""
    try:
        yield
    except _FAILURES as error:
        reason = getattr(error, "strerror", None) or _said(error)
        number = getattr(error, "errno", None)
        said = f"{what} could not be written to {folder}: {reason}. {kept}"
        raise (OSError(said) if number is None else OSError(number, said)) from error


def _said(error: Exception) -> str:
    """Return the reason out of a message of TensorFlow's: "{{node}} path; reason [Op:name]"."""
    return str(error).splitlines()[0].rpartition("; ")[2].partition(" [Op:")[0]


@contextlib.contextmanager
def alone(path: Path, busy: str | None = None) -> Iterator[None]:
    """Make a folder and wait until no other process writes to it in this way; a killed one lets go.

    Raises
    ------
    ValueError
        If another process does, and ``busy`` is what to say then in place of waiting.
    """
    path.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX if busy is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(busy) from error
        except OSError:  # some network file systems have no locks
            pass
        yield
    finally:
        os.close(folder)
