"""Turn a target column into what a likelihood expects: numbers, classes from 0, or counts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpflow_ext.data.datasets.tables import Floats, Place

TASKS = ("binary", "multiclass", "ordinal", "count", "regression")
CLASSIFICATION = ("binary", "multiclass", "ordinal")
_FEW = 20  # a whole-numbered regression target with so few distinct values may be meant as classes


class EncodedTarget(NamedTuple):
    """An encoded target: values [N, P], its task, the class names in class order, and what was done."""

    values: Floats
    task: str
    labels: tuple[str, ...] | None
    notes: tuple[str, ...] = ()


def encode(
    raw: NDArray[Any], name: str, task: str | None, labels: tuple[str, ...] | None, place: Place
) -> EncodedTarget:
    """Encode a target without missing values.

    Parameters
    ----------
    raw
        Numbers [N, P], or words [N] (dtype object).
    name
        Name of the target, for messages.
    task
        One of ``TASKS``, or None to infer it: words and two distinct values are classes, all else is
        regression.
    labels
        Class names, where ``raw`` holds class numbers [N, 1] already.
    place
        Says where a row is found.

    Raises
    ------
    ValueError
        If the target takes one value only, or does not suit the task.
    """
    if task is not None and task not in TASKS:
        raise ValueError(f"task={task!r} is unknown; choose one of {', '.join(TASKS)}, or None to infer it.")
    if raw.dtype == object:
        return _encode_words(raw, name, task)
    if np.all(raw == raw[0]):
        kind = "class" if labels or task in CLASSIFICATION else "value"
        raise ValueError(
            f"target {name!r} has one {kind} only ({_text(raw[0, 0])}); nothing can be learnt from it."
        )
    if raw.shape[1] > 1:
        if task not in (None, "regression"):
            raise ValueError(
                f"task={task!r} takes one output, target {name!r} has {raw.shape[1]}; use regression."
            )
        return EncodedTarget(raw, "regression", None)
    if labels is not None and task in (None, *CLASSIFICATION):
        return _check_numbered(raw, name, task, labels, place)
    return _encode_numbers(raw, name, task, place)


def _encode_words(words: NDArray[Any], name: str, task: str | None) -> EncodedTarget:
    if task in ("ordinal", "count", "regression"):
        raise ValueError(f"task={task!r} needs a numeric target, {name!r} holds words such as {words[0]!r}.")
    classes, index = np.unique(words.astype(str), return_inverse=True)
    labels = tuple(map(str, classes))
    if len(labels) == 1:
        raise ValueError(
            f"target {name!r} has one class only ({labels[0]!r}); nothing can be learnt from it."
        )
    return _classes(index, name, task, labels, (_encoded(name, labels),))


def _encode_numbers(values: Floats, name: str, task: str | None, place: Place) -> EncodedTarget:
    distinct, index = np.unique(values[:, 0], return_inverse=True)
    if task in CLASSIFICATION or (task is None and len(distinct) == 2):
        labels = tuple(map(_text, distinct))
        numbered = np.array_equal(distinct, np.arange(len(distinct)))
        return _classes(index, name, task, labels, () if numbered else (_encoded(name, labels),))
    whole = np.array_equal(distinct, np.round(distinct))
    if task == "count":
        wrong = np.flatnonzero((values[:, 0] < 0) | (values[:, 0] != np.round(values[:, 0])))
        if wrong.size:
            raise ValueError(
                f"task='count' needs whole numbers from 0; {place(wrong[0])}, target {name!r} is "
                f"{_text(values[wrong[0], 0])}."
            )
    if task is None and whole and len(distinct) <= _FEW:
        note = f"target {name!r} takes {len(distinct)} whole values and was taken as regression; "
        return EncodedTarget(values, "regression", None, (note + "pass task= if they are classes or counts",))
    return EncodedTarget(values, task or "regression", None)


def _check_numbered(
    values: Floats, name: str, task: str | None, labels: tuple[str, ...], place: Place
) -> EncodedTarget:
    wrong = np.flatnonzero(~np.isin(values[:, 0], np.arange(len(labels))))
    if wrong.size:
        raise ValueError(
            f"{place(wrong[0])}, target {name!r} is {_text(values[wrong[0], 0])}; "
            f"the classes are numbered 0 to {len(labels) - 1}."
        )
    return _classes(values[:, 0], name, task, labels, ())


def _classes(
    index: NDArray[Any], name: str, task: str | None, labels: tuple[str, ...], notes: tuple[str, ...]
) -> EncodedTarget:
    if task == "binary" and len(labels) != 2:
        raise ValueError(
            f"task='binary' needs two classes, target {name!r} has {len(labels)}: {_some(labels)}; "
            "use task='multiclass'."
        )
    inferred = "binary" if len(labels) == 2 else "multiclass"
    return EncodedTarget(index.astype(np.float64).reshape(-1, 1), task or inferred, labels, notes)


def _encoded(name: str, labels: tuple[str, ...]) -> str:
    return (
        f"the labels {_some(labels)} of target {name!r} were encoded as 0 to {len(labels) - 1} in this order"
    )


def _some(labels: tuple[str, ...], most: int = 12) -> str:
    return ", ".join(labels[:most]) + (f", ... ({len(labels)} in all)" if len(labels) > most else "")


def _text(value: np.float64) -> str:
    return repr(int(value)) if value == round(value) else repr(float(value))
