"""The flags that commands share: of the data, of the kernel and of a run."""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpflow_ext.data.reading.problems import nearest

TASKS = ("binary", "multiclass", "ordinal", "counts", "regression", "events")
_UNKNOWN = re.compile(r"unrecognized arguments: (.*)", re.DOTALL)
_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)$")


class Parser(argparse.ArgumentParser):
    """A parser that answers a mistake in two lines: what is wrong, and where all flags are listed.

    Attributes
    ----------
    elsewhere
        Returns the flags that others take, with their names.
    """

    elsewhere: Callable[[], Mapping[str, Sequence[str]]] = staticmethod(dict)

    def error(self, message: str) -> NoReturn:
        """End with what is wrong."""
        strange = _UNKNOWN.fullmatch(message)
        if strange is not None:
            message = self._unknown(strange[1].split())
        choice = _CHOICE.search(message)
        if choice is not None:
            message += nearest(choice[1], re.split(r"[', ]+", choice[2]))
        self.exit(2, f"error: {message}\nsee {self.prog} --help\n")

    def _unknown(self, words: list[str]) -> str:
        """Return what is said of words that nothing takes."""
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if not flags:
            return f"nothing takes {' '.join(words)}"
        others = self.elsewhere()
        known = [*self._option_string_actions, *others]
        return "; ".join(
            f"{flag} is a flag of {', '.join(others[flag])}"
            if flag in others
            else f"there is no flag {flag}{nearest(flag, known)}"
            for flag in flags
        )


def parser(description: str, epilog: str, prog: str | None = None) -> Parser:
    """Return a parser whose help keeps its lines."""
    return Parser(
        prog=prog,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def positive(text: str) -> int:
    """Return a whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def seed(text: str) -> int:
    """Return a whole number from 0."""
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def above_zero(text: str) -> float:
    """Return a positive finite number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return value


def share(text: str) -> float:
    """Return a share of rows in [0, 1)."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 1")
    return value


def levels(text: str) -> tuple[str, list[str]]:
    """Return a column and its levels, the lowest first; a level with a comma is quoted as in a table."""
    column, equals, named = text.rpartition("=")
    words = next(csv.reader([named]), [""])
    if not equals or not column or "" in words:
        raise argparse.ArgumentTypeError(f"{text!r} is not COL=LOW,...,HIGH")
    return column, words


def order(text: str) -> tuple[str, str]:
    """Return a column and the order of day, month and year in it."""
    column, _, named = text.rpartition("=")
    if not column or named not in ("dmy", "mdy", "ymd"):
        raise argparse.ArgumentTypeError(f"{text!r} is not COL=dmy, COL=mdy or COL=ymd")
    return column, named


def task(text: str) -> str:
    """Return a task by its name in tables."""
    return "counts" if text == "count" else text


def add_data(
    new: argparse.ArgumentParser,
    default: str | None,
    *,
    required: bool = False,
    tasks: Sequence[str] = TASKS,
) -> None:
    """Add the flags of the data.

    Parameters
    ----------
    new
        The parser.
    default
        The data set that is taken where none is named.
    required
        Whether one must be named.
    tasks
        What the target may be: of ``TASKS``, or "several". Others are taken too, and refused by name later.
    """
    several = "several" in tasks
    data = new.add_argument_group("data")
    shown = f" (default: {default})" if default and not required else ""
    data.add_argument(
        "--data",
        default=None if required else default,
        required=required,
        metavar="NAME|FILE",
        help=f"a named data set, or a table with a header line{shown}",
    )
    data.add_argument(
        "--target",
        nargs="+",
        metavar="COL",
        help=("target columns" if several else "target column") + " of a table (default: the column y)",
    )
    if several:
        data.add_argument(
            "--scale-targets",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="standardise the targets on the training rows (default: yes)",
        )
    else:
        _add_task(data, tasks)
        if "counts" in tasks:
            _add_counts(data)
    _add_columns(data)
    _add_rows(data)


def _add_task(data: Any, tasks: Sequence[str]) -> None:
    counts = "counts" in tasks
    taken = [name for name in TASKS if name in tasks or (name == "events" and counts)]
    data.add_argument(
        "--task",
        type=task,
        choices=TASKS,
        metavar=f"{{{','.join(taken)}}}",
        help="what the target is; count is taken for counts (default: as it looks; whole numbers are counts only if "
        "you say so)"
        if counts
        else "what the target is (default: as it looks)",
    )


def _add_counts(data: Any) -> None:
    data.add_argument(
        "--bins",
        type=positive,
        nargs="+",
        metavar="B",
        help="with --task events: along each column of --target, in which they are counted (default: 100, or 20 by 20)",
    )
    data.add_argument(
        "--exposure",
        metavar="COL",
        help="column of the exposures of counts: the time, area or population in which each was counted",
    )


def _add_columns(data: Any) -> None:
    data.add_argument(
        "--weights",
        metavar="COL",
        help="column of the weights of rows: in training and scores a row of weight w counts as w copies of it",
    )
    data.add_argument("--drop", nargs="+", default=[], metavar="COL", help="columns to leave out")
    data.add_argument(
        "--one-hot", nargs="+", default=[], metavar="COL", help="numbers that are codes: 0 and 1 for each"
    )
    data.add_argument(
        "--categories",
        type=levels,
        nargs="+",
        default=[],
        metavar="COL=LOW,...,HIGH",
        help="columns of ordered levels, or an ordinal target, with the levels from the lowest; one with a comma in "
        '"double quotes"',
    )
    data.add_argument(
        "--dates",
        type=order,
        nargs="+",
        default=[],
        metavar="COL=dmy",
        help="how dates are written that could be read in two ways: dmy, mdy or ymd",
    )
    data.add_argument(
        "--decimal",
        choices=[".", ","],
        metavar="MARK",
        help="the mark before decimals, where it could be either '.' or ','",
    )
    data.add_argument(
        "--missing",
        choices=["error", "drop", "mean", "keep"],
        nargs="+",
        default=["error"],
        metavar="HOW",
        help="what to do with missing values: error, drop the rows, mean for inputs, keep for those of several targets, "
        "or mean keep for both (default: error)",
    )
    scaling = data.add_mutually_exclusive_group()
    scaling.add_argument("--raw", action="store_true", help="do not standardise the inputs")
    scaling.add_argument(
        "--common-scale",
        action="store_true",
        help="one shift and scale for all inputs, as for the pixels of an image (default: one for each)",
    )


def _add_rows(data: Any) -> None:
    data.add_argument(
        "--split",
        choices=["random", "published"],
        help="how to choose the test rows (default: as the set comes, else random)",
    )
    data.add_argument(
        "--test-fraction",
        type=share,
        default=0.2,
        metavar="SHARE",
        help="share of the rows to test on (default: %(default)s)",
    )
    data.add_argument("--seed", type=seed, default=0, help="of split and training (default: %(default)s)")


def add_kernel(new: argparse.ArgumentParser) -> None:
    """Add the flags of the kernel."""
    kernel = new.add_argument_group("kernel")
    kernel.add_argument(
        "--kernel",
        choices=["rbf", "matern52", "matern32"],
        default="rbf",
        help="covariance function (default: %(default)s)",
    )
    kernel.add_argument(
        "--lengthscale",
        type=above_zero,
        metavar="L",
        help="starting length scale (default: the square root of the number of inputs)",
    )
    kernel.add_argument(
        "--variance",
        type=above_zero,
        default=1.0,
        metavar="V",
        help="starting variance (default: %(default)s)",
    )
    kernel.add_argument("--ard", action="store_true", help="one length scale per input")
    kernel.add_argument(
        "--fixed", action="store_true", help="keep the hyperparameters at their starting values"
    )


def add_run(new: argparse.ArgumentParser) -> None:
    """Add the flags of a run."""
    run = new.add_argument_group("run")
    run.add_argument(
        "--steps", type=positive, metavar="N", help="number of steps at most (default: the recipe's)"
    )
    run.add_argument(
        "--starts",
        type=positive,
        metavar="N",
        help="starting points of the hyperparameters, of which the best goes on (default: the recipe's)",
    )
    run.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="folder for checkpoints; the same command resumes there"
    )
    run.add_argument(
        "--export", type=Path, metavar="DIR", help="write a SavedModel to DIR/<version>/ when done"
    )
    run.add_argument("--float32", action="store_true", help="compute in single precision")
    run.add_argument(
        "--xla",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="compile with XLA (default: on GPU and TPU)",
    )


def starts(options: argparse.Namespace) -> dict[str, int]:
    """Return the starting points as an option of `gpflow_ext.fit`, if the shell has named any."""
    return {} if options.starts is None else {"starts": options.starts}


def add_noise(group: Any) -> None:
    """Add the flag of the white noise to a group."""
    group.add_argument(
        "--noise",
        type=float,
        default=1e-3,
        metavar="V",
        help="starting variance of the white noise in the kernel, 0 for none (default: %(default)s)",
    )
