"""Files of text that are read and written piece by piece, compressed or not."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from gpflow_ext.data.reading.problems import TableError
from gpflow_ext.data.reading.text import BEGINNING, not_utf8

_PACKED: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_STANDARD = (Path("-"), Path("/dev/stdout"))


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


@contextlib.contextmanager
def reading(path: Path) -> Iterator[tuple[TextIO, Any]]:
    """Open a text file, compressed or not; the second is the raw file, which tells how far it was read."""
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(path.open("rb"))
        unpacked = _PACKED.get(path.suffix.lower())
        content: Any = raw if unpacked is None else stack.enter_context(unpacked(raw))
        # Spreadsheets write a mark of the encoding first.
        text = stack.enter_context(io.TextIOWrapper(content, encoding="utf-8-sig", newline=""))
        try:
            yield text, raw
        except UnicodeDecodeError as error:
            content.seek(0)
            raise TableError(str(path), [not_utf8(path, content.read(BEGINNING))]) from error
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            if unpacked is None or getattr(error, "errno", None) is not None:
                raise
            kind = path.suffix.lower()
            raise ValueError(f"{path} is not a complete {kind} file ({error}): compress it again.") from error


def check_folder(flag: str, folder: Path) -> None:
    """Raise ``OSError`` for a folder that cannot be written to or made, with the flag that names it."""
    there = next(above for above in (folder, *folder.absolute().parents) if above.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise OSError(f"{flag}: {there} is no folder that this user may write to.")


def is_stream(path: Path) -> bool:
    """Tell whether a path is standard output, such as "-", or is there already as a device or a pipe."""
    return path in _STANDARD or (path.exists() and not path.is_file() and not path.is_dir())


@contextlib.contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """Open a text file that gets its name when it is whole, or a stream, which keeps its own."""
    if path in _STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="strict", newline="")  # as of a file
        yield sys.stdout
        return
    if is_stream(path):
        with path.open("w", encoding="utf-8", newline="") as text:
            yield text
        return
    path = path.resolve()  # a link stays one
    partial = path.with_name(f"{path.name}.partial")
    opened: Any = _PACKED.get(path.suffix.lower(), open)
    try:
        with opened(partial, "wt", encoding="utf-8", newline="") as text:
            yield text
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
