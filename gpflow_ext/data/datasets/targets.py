"""Turn a target column into what a likelihood expects: numbers, classes from 0, or counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.raw import Raw
from gpflow_ext.data.reading.cells import Floats
from gpflow_ext.data.reading.problems import Problem, Remedy, TableError, listed

TASKS = ("binary", "multiclass", "ordinal", "count", "regression")
SYNONYMS = {"counts": "count", "events": "count"}
CLASSIFICATION = ("binary", "multiclass", "ordinal")
_FEW = 20  # a whole-numbered regression target with so few distinct values may be meant as classes
_LEAST_ROWS = 5  # of each of many classes in the mean
_INEXACT = 2.0**53  # from which on whole numbers are rounded
_MOST_LABELS = 12  # that a sentence lists


class EncodedTarget(NamedTuple):
    """An encoded target: values [N, P], its task, the class names in class order, and what was done."""

    values: Floats
    task: str
    labels: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


def check_task(task: str | None) -> str | None:
    """Return the task in this package's words."""
    if task is None or (isinstance(task, str) and (task in TASKS or task in SYNONYMS)):
        return SYNONYMS.get(task or "", task)
    known = ", ".join((*TASKS, *SYNONYMS))
    raise ValueError(f"task={task!r} is unknown; choose one of {known}, or None to infer it.")


def _spelt(task: str | None) -> str:
    """Return a task as users are told of it, with the word that tables and the shell have for counts."""
    return repr("counts" if task == "count" else task)


def encode(raw: Raw, task: str | None, order: Sequence[str] | None = None) -> EncodedTarget:
    """Encode a target without missing values.

    Parameters
    ----------
    raw
        Its ``y`` is numbers [N, P], or words [N] (dtype object); ``labels`` are class names, where ``y``
        holds class numbers [N, 1] already.
    task
        One of ``TASKS``, or None to infer it: words and two distinct values are classes, all else is
        regression.
    order
        The classes, the lowest first: the task is then ordinal.

    Raises
    ------
    TableError
        If the target takes one value only, or does not suit the task.
    """
    y, name, labels = raw.y, raw.target, raw.labels
    if y.dtype == object:
        return _encode_words(raw, task, order)
    are_classes = task in CLASSIFICATION or (task is None and y.shape[1] == 1 and len(np.unique(y)) <= 2)
    if are_classes and (np.abs(y) >= _INEXACT).any():
        what = f"target {name!r} holds classes with numbers from 2^53, which have no exact floating number"
        _refuse(raw, what, advice="put a letter before them, so that they are words")
    if np.all(y == y[0]):
        kind = "class" if labels or task in CLASSIFICATION else "value"
        _refuse(raw, f"target {name!r} has one {kind} only ({_text(y[0, 0])}): nothing can be learnt from it")
    if y.shape[1] > 1:
        if task not in (None, "regression"):
            what = f"task={_spelt(task)} takes one output, target {name!r} has {y.shape[1]}"
            _refuse(raw, what, Remedy("task", "regression"))
        return EncodedTarget(y, "regression", None)
    if labels is not None and task in (None, *CLASSIFICATION):
        return _check_numbered(raw, task, labels)
    return _encode_numbers(raw, task)


def _encode_words(raw: Raw, task: str | None, order: Sequence[str] | None) -> EncodedTarget:
    words, name = raw.y.astype(str), raw.target
    if task in ("count", "regression"):
        _refuse(raw, f"task={_spelt(task)} needs a numeric target, {name!r} holds words such as {raw.y[0]!r}")
    labels = tuple(map(str, np.unique(words)))
    if len(labels) == 1:
        _refuse(raw, f"target {name!r} has one class only ({labels[0]!r}): nothing can be learnt from it")
    if order is not None:
        unknown = sorted(set(labels) - set(order))
        if unknown:
            _refuse(raw, f"target {name!r} has the classes {listed(unknown)} besides {listed(tuple(order))}")
        labels, task = tuple(order), task or "ordinal"
    elif task == "ordinal":
        what = (
            f"task='ordinal' needs the words of target {name!r} from the lowest to the highest (below they "
            "are in the order of the alphabet)"
        )
        _refuse(raw, what, Remedy("categories", {name: list(labels)}))
    place = {label: number for number, label in enumerate(labels)}
    index = np.array([place[word] for word in words])
    return _classes(raw, index, task, labels, (_encoded(name, labels),))


def _encode_numbers(raw: Raw, task: str | None) -> EncodedTarget:
    values, name = raw.y, raw.target
    distinct, index = np.unique(values[:, 0], return_inverse=True)
    if task in CLASSIFICATION or (task is None and len(distinct) == 2):
        labels = tuple(map(_text, distinct))
        numbered = np.array_equal(distinct, np.arange(len(distinct)))
        return _classes(raw, index, task, labels, () if numbered else (_encoded(name, labels),))
    whole = np.array_equal(distinct, np.round(distinct))
    if task == "count":
        wrong = np.flatnonzero((values[:, 0] < 0) | (values[:, 0] != np.round(values[:, 0])))
        if wrong.size:
            what = (
                f"task='counts' needs whole numbers from 0; {raw.place(wrong[0])}, target {name!r} is "
                f"{_text(values[wrong[0], 0])} ({wrong.size} such cells)"
            )
            _refuse(raw, what, Remedy("task", "regression"), rows=wrong)
    if task is None and whole and len(distinct) <= _FEW:
        note = f"target {name!r} takes {len(distinct)} whole values and was taken as regression; "
        return EncodedTarget(values, "regression", None, (note + "pass task= if they are classes or counts",))
    notes = () if task else (f"target {name!r} holds numbers: the task is regression",)
    return EncodedTarget(values, task or "regression", None, notes)


def _check_numbered(raw: Raw, task: str | None, labels: tuple[str, ...]) -> EncodedTarget:
    wrong = np.flatnonzero(~np.isin(raw.y[:, 0], np.arange(len(labels))))
    if wrong.size:
        what = (
            f"{raw.place(wrong[0])}, target {raw.target!r} is {_text(raw.y[wrong[0], 0])}: "
            f"the classes are numbered 0 to {len(labels) - 1}"
        )
        _refuse(raw, what, rows=wrong)
    return _classes(raw, raw.y[:, 0], task, labels, ())


def _classes(
    raw: Raw, index: NDArray[Any], task: str | None, labels: tuple[str, ...], notes: tuple[str, ...]
) -> EncodedTarget:
    if task == "binary" and len(labels) != 2:
        shown = listed(labels, _MOST_LABELS)
        what = f"task='binary' needs two classes, target {raw.target!r} has {len(labels)}: {shown}"
        _refuse(raw, what, Remedy("task", "multiclass"))
    inferred = "binary" if len(labels) == 2 else "multiclass"
    notes = (*notes, *_scarce(raw, task, len(labels)))
    if task is None and raw.labels is None:
        notes = (*notes, f"target {raw.target!r} takes {len(labels)} values: the task is {inferred}")
    return EncodedTarget(index.astype(np.float64).reshape(-1, 1), task or inferred, labels, notes)


def _scarce(raw: Raw, task: str | None, number: int) -> tuple[str, ...]:
    """Return a note on many classes of few rows each; refuse them unless the task was given."""
    rows = len(raw.y)
    if number <= _FEW or rows >= _LEAST_ROWS * number:
        return ()
    what = f"target {raw.target!r} has {number} classes in {rows} rows, too few to tell them apart"
    if task is None and raw.labels is None:
        _refuse(raw, what, Remedy("task", "multiclass"), advice="merge rare classes, or name another target")
    if raw.y.dtype == object:
        return (what,)
    return (f"{what}; if it is a quantity, pass task='regression', or task='counts' for counts",)


def _encoded(name: str, labels: tuple[str, ...]) -> str:
    shown = listed(labels, _MOST_LABELS)
    return f"the labels {shown} of target {name!r} were encoded as 0 to {len(labels) - 1} in this order"


def names_of(values: Any) -> list[str]:
    """Return labels [N] or [N, 1] as a split names them: whole numbers without a point, all else as text."""
    found = np.ravel(values).tolist()
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in found]
    return [_text(value) if number else str(value) for value, number in zip(found, numbers, strict=True)]


def values_of(labels: Sequence[str], given: Any = None) -> NDArray[Any]:
    """Return what `names_of` has named so, [K]: values of ``given`` [N], else numbers if all are such."""
    if given is not None:
        values = np.ravel(np.asarray(given)).tolist()
        found = dict(zip(names_of(values), values, strict=True))
        return np.array([found.get(label, label) for label in labels])
    try:
        numbers = np.array(labels, float)
    except ValueError:
        return np.array(labels)
    if names_of(numbers) != list(labels):
        return np.array(labels)
    return numbers.astype(int) if (numbers == np.round(numbers)).all() else numbers


def _text(value: float) -> str:
    return repr(int(value)) if float(value).is_integer() else repr(float(value))


def _refuse(
    raw: Raw, what: str, *remedies: Remedy, advice: str = "", rows: NDArray[Any] | None = None
) -> NoReturn:
    numbers = () if rows is None else tuple(map(int, rows))
    raise TableError(raw.name, [Problem(what, raw.target, numbers, remedies, advice)])
