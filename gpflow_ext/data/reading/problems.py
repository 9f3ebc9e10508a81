"""The problems of a table, reported all at once, each with the arguments that would fix it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

LISTED = 20  # names and places in one sentence, at most


class Remedy(NamedTuple):
    """An argument of ``load`` and a value for it."""

    argument: str
    value: Any


def in_python(remedy: Remedy) -> str:
    """Return a remedy as a call in Python has it."""
    return f"{remedy.argument}={remedy.value!r}"


@dataclass(frozen=True)
class Problem:
    """One thing that keeps a table from being used.

    Parameters
    ----------
    what
        What is wrong and where, without a full stop.
    column
        The column, where it is one.
    rows
        The rows that it concerns, counted from 0 below the header.
    remedies
        Arguments, any one of which would fix it.
    advice
        What to do about the table itself.
    """

    what: str
    column: str | None = None
    rows: tuple[int, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    advice: str = ""

    def said(self, spell: Callable[[Remedy], str] = in_python) -> str:
        """Return the problem as a sentence; ``spell`` writes an argument in the words of the reader."""
        passed = " or ".join(spell(remedy) for remedy in self.remedies)
        advice = [self.advice] if self.advice else []
        todo = ", or ".join([*advice, *([f"pass {passed}"] if passed else [])])
        return f"{self.what}{'; ' if todo else ''}{todo}."


class TableError(ValueError):
    """Error of a table that cannot be used as it was asked for.

    Attributes
    ----------
    table
        The name of the table.
    problems
        All that was found, in the order of the columns.
    """

    def __init__(self, table: str, problems: Sequence[Problem]) -> None:
        self.table, self.problems = table, tuple(problems)
        super().__init__(self.said())

    def __reduce__(self) -> tuple[type[TableError], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.table, self.problems)

    def said(self, spell: Callable[[Remedy], str] = in_python) -> str:
        """Return all problems as text; ``spell`` writes an argument in the words of the reader."""
        sentences = [problem.said(spell) for problem in self.problems]
        if len(sentences) == 1:
            return f"{self.table}: {sentences[0]}"
        return "\n- ".join([f"{self.table} has {len(sentences)} problems:", *sentences])


def drop(column: str) -> Remedy:
    """Return the remedy that leaves a column out."""
    return Remedy("drop", [column])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question with the one of the known words that is spelt most like a word, or nothing."""
    plain = {_plain(each): each for each in reversed(list(known))}  # the first of those that are alike
    found = difflib.get_close_matches(_plain(word), plain, n=1)
    return f" (did you mean {plain[found[0]]}?)" if found else ""


def _plain(word: str) -> str:
    """Return a word without what is easily confused: capitals, hyphens and underscores."""
    return word.casefold().replace("-", "").replace("_", "")


def listed(items: Sequence[str], most: int = LISTED) -> str:
    """Return items as a sentence lists them."""
    return ", ".join(items[:most]) + (f", ... {len(items)} in all" if len(items) > most else "")
