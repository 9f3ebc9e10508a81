"""How a command ends: one message instead of a traceback, in the words of the shell."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn

TRACEBACK = "GPFLOW_EXT_TRACEBACK"
_SPELT = {"categories": "--categories", "data_dir": "GPFLOW_EXT_DATA", "standardise": "--raw"}
_FLAGS = ("target", "task", "drop", "missing", "one_hot", "test_fraction", "split", "seed", "exposure")
_NAMES = "|".join((*_FLAGS, *_SPELT))
_LIST = re.compile(rf"\b({_NAMES})=\[([^\]]*)\]")
_VALUE = re.compile(rf"\b({_NAMES})=(?:'([^']*)'|\"([^\"]*)\"|(\d[\w.]*))")
_BARE = re.compile(rf"(?<![-\w])({_NAMES})=(?!\w)")


def quiet() -> None:
    """Keep TensorFlow's remarks on its own start to itself; a value that is set stays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def run(main: Callable[[], None]) -> None:
    """Call ``main``; print a wrong input, or an interruption, as one message instead of a traceback."""
    quiet()
    try:
        main()
    except KeyboardInterrupt as error:
        _fail(str(error) or "Interrupted.", 130)
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except (ValueError, OSError, ImportError, NotImplementedError) as error:
        if os.environ.get(TRACEBACK):
            raise
        _fail(f"error: {in_flags(str(error))}\n(set {TRACEBACK}=1 to see where)", 2)


def in_flags(message: str) -> str:
    """Return a message about Python's arguments as one about the flags of the same names."""

    def several(found: re.Match[str]) -> str:
        return f"{_flag(found[1])} {found[2].replace(',', '')}".replace("'", "").replace('"', "")

    def one(found: re.Match[str]) -> str:
        value = next(part for part in found.groups()[1:] if part is not None)
        return f"{_flag(found[1])} {_quoted(value)}"

    message = _LIST.sub(several, message)
    message = _VALUE.sub(one, message)
    return _BARE.sub(lambda found: _flag(found[1]), message)


def _flag(name: str) -> str:
    return _SPELT.get(name, f"--{name.replace('_', '-')}")


def _quoted(value: str) -> str:
    return value if re.fullmatch(r"[\w.:/+-]+", value) else f"'{value}'"


def _fail(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)
