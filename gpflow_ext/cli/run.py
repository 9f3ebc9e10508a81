"""How a command ends: one message instead of a traceback, in the words of the shell."""

from __future__ import annotations

import csv
import dataclasses
import datetime  # noqa: F401  # NumPy's import of it in C turns an interruption into an ImportError
import importlib
import io
import logging
import os
import re
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

TRACEBACK = "GPFLOW_EXT_TRACEBACK"
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_KERAS = "TF_USE_LEGACY_KERAS"
_START = re.compile(r"I\d{4} |WARNING: All log messages before|To enable the following instructions")
_NO_GPU = re.compile(r"E\d{4} .*failed call to cuInit")  # not worth a line where there is no GPU
_SPELT = {"data_dir": "GPFLOW_EXT_DATA"}
_FLAGS = (
    "target",
    "task",
    "drop",
    "missing",
    "one_hot",
    "test_fraction",
    "split",
    "seed",
    "categories",
    "dates",
    "decimal",
    "bins",
    "exposure",
    "weights",
    "steps",
    "starts",
    "minibatch_size",
)
_MARKS = (".", ",")  # would be read as those of the sentence
_NAMES = "|".join((*_FLAGS, *_SPELT))
_LIST = re.compile(rf"\b({_NAMES})=\[([^\]]*)\]")
_VALUE = re.compile(rf"\b({_NAMES})=(?:'([^']*)'|\"([^\"]*)\"|(\d[\w.]*))")
_BARE = re.compile(rf"(?<![-\w])(?:({_NAMES})=(?!\w)|`({_NAMES})=?`)")
_IN_SHELL = {  # what a training says that ended early or was interrupted, and one in the folder of another
    "`fit` the model again to go on from there": "Give more --steps; with --run-dir the same command goes on from "
    "where it ended",
    "Another `fit` goes on.": "With --run-dir the same command would go on from there.",
    "With `checkpoint_dir` the same call would go on": "With --run-dir the same command would go on",
    "The same call resumes": "The same command resumes",
    "Build the model as it was when it was saved, or start in an empty folder.": "Give the flags of that run, or "
    "another --run-dir.",
}


def quiet() -> None:
    """Silence TensorFlow's messages about its own start; a level that the user has set stays."""
    os.environ.setdefault(LEVEL, "2")
    logging.getLogger("tensorflow").propagate = False  # it has a handler of its own: each line once


def import_tensorflow() -> None:
    """Import TensorFlow; print what it says meanwhile once, without what `quiet` keeps back.

    Two of its libraries write the same lines before they look at any level. With it comes the Keras that
    TensorFlow Probability needs: Keras 3 would import scikit-learn and Matplotlib too, where they are.
    """
    if "tensorflow" in sys.modules:
        return
    os.environ.setdefault(_KERAS, "1")
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as said:
        os.dup2(said.fileno(), 2)
        try:
            config = getattr(importlib.import_module("tensorflow"), "config", None)
            if config is not None:
                config.list_physical_devices()  # says where a library of CUDA finds no GPU
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            said.seek(0)
            lines = dict.fromkeys(said.read().decode(errors="replace").splitlines())
            hidden = [_START] if os.environ.get(LEVEL, "0") != "0" else []
            hidden += [] if any(Path("/dev").glob("nvidia[0-9]*")) else [_NO_GPU]
            shown = [line for line in lines if not any(one.match(line) for one in hidden)]
            sys.stderr.write("".join(f"{line}\n" for line in shown))


def run(main: Callable[[], None]) -> None:
    """Call ``main``; print a wrong input, or an interruption, as one message instead of a traceback."""
    quiet()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of a terminal that has not every letter
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            main()
    except KeyboardInterrupt as error:
        _fail(in_flags(str(error)) or "Interrupted.", 130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (ValueError, OSError, ImportError, NotImplementedError) as error:
        if os.environ.get(TRACEBACK):
            raise
        if hasattr(error, "said"):  # of a table, with what would mend it
            _fail(f"error: {in_flags_of_table(error)}{_all_at_once(error)}", 2)
        where = "" if _says_all(error) else f"\n(set {TRACEBACK}=1 to see where)"
        _fail(f"error: {in_flags(_said(error))}{where}", 2)


def _says_all(error: Exception) -> bool:
    """Tell whether this package has raised an error, with what is wrong and the fix, or a file is to blame."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    own = frame.f_globals.get("__name__", "").partition(".")[0] in ("gpflow_ext", "scripts")
    return own or getattr(error, "filename", None) is not None


def _said(error: Exception) -> str:
    """Return the message of an error, of the system's as a sentence without its number."""
    reason, file = getattr(error, "strerror", None), getattr(error, "filename", None)
    if reason is None:
        return str(error)
    return reason if file is None else f"{file} cannot be read or written: {reason}."


def in_flags_of_table(error: Any) -> str:
    """Return the problems of a table with the flags that would mend them."""
    worded = [
        dataclasses.replace(each, what=in_flags(each.what), advice=in_flags(each.advice))
        for each in error.problems
    ]
    return type(error)(error.table, worded).said(spelt)


def spelt(remedy: Any) -> str:
    """Return an argument of ``datasets.load`` and its value as a flag."""
    value = remedy.value
    if isinstance(value, Mapping):
        parts = [f"{key}={each if isinstance(each, str) else _line(each)}" for key, each in value.items()]
    else:
        parts = [value] if isinstance(value, str) else list(value)
    return f"{_flag(remedy.argument)} {' '.join(_quoted(str(part)) for part in parts)}"


def _line(words: Iterable[object]) -> str:
    """Return words as a line of a table, those with commas in quotes."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(words)
    return line.getvalue()


def _all_at_once(error: Any) -> str:
    """Return the first remedies of several problems as the flags of one command."""
    first = [problem.remedies[0] for problem in error.problems if problem.remedies]
    if len(first) < 2 or len(first) < len(error.problems):
        return ""
    flags: dict[str, list[str]] = {}
    for remedy in first:
        flag, _, values = spelt(remedy).partition(" ")
        flags.setdefault(flag, []).append(values)
    joined = " ".join(f"{flag} {' '.join(dict.fromkeys(values))}" for flag, values in flags.items())
    return f"\nall at once, if that is meant: {joined}"


def in_flags(message: str) -> str:
    """Return a message about Python's arguments as one about the flags of the same names."""

    def several(found: re.Match[str]) -> str:
        return f"{_flag(found[1])} {found[2].replace(',', '')}".replace("'", "").replace('"', "")

    def one(found: re.Match[str]) -> str:
        value = next(part for part in found.groups()[1:] if part is not None)
        return f"{_flag(found[1])} {_quoted(value)}"

    for said, meant in _IN_SHELL.items():
        message = message.replace(said, meant)
    message = _VALUE.sub(one, _LIST.sub(several, message))
    return _BARE.sub(lambda found: _flag(found[1] or found[2]), message)


def _flag(name: str) -> str:
    return _SPELT.get(name, f"--{name.replace('_', '-')}")


def _quoted(value: str) -> str:
    return f"'{value}'" if value in _MARKS else shlex.quote(value)


def _show_warning(message: Warning | str, *where: object, **more: object) -> None:
    """Print a warning without the place in the code, which is nothing to the reader of a shell."""
    print(f"warning: {in_flags(str(message))}", file=sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)
