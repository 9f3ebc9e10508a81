"""The graph that makes inputs of raw rows: what `Treatment.inputs` does, in operations of TensorFlow.

No table is looked up: a level is compared with each level of its column, so that nothing has to be
initialised and the graph touches no file.
"""

from __future__ import annotations

import datetime
import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.data.reading import cells, clock, dates
from gpflow_ext.data.reading.treatment import Column, Treatment

NAME = "predict_raw"
COUNTS = "predict_raw_counts"
_RESERVED = frozenset(("self", "args", "kwargs", "exposure"))  # of what takes the tensors by their names
_MOST_COLUMNS = 256  # of numbers alone, that get a tensor each
_ROWS = 12  # that an export tries


def tensor_names(names: Sequence[str]) -> list[str]:
    """Return a name for the tensor of each column: its own, where letters, digits and _ make it up.

    Others get _ for what is not allowed; names that differ in case alone get a number, for TensorFlow.
    """
    found: list[str] = []
    for name in names:
        stem = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or "column"
        if not stem[0].isalpha():
            stem = f"column_{stem}"
        if keyword.iskeyword(stem) or stem in _RESERVED:
            stem = f"{stem}_column"
        taken = {other.lower() for other in found}
        number = next(n for n in range(1, len(names) + 2) if _numbered(stem, n).lower() not in taken)
        found.append(_numbered(stem, number))
    return found


def _numbered(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}_{number}"


def describe(treatment: Treatment) -> list[dict[str, Any]]:
    """Return the columns as a manifest has them, with the names of their tensors."""
    columns = treatment.plain()
    names = tensor_names([column["name"] for column in columns])
    return [{**column, "tensor": name} for column, name in zip(columns, names, strict=True)]


def raw_signature(
    treatment: Treatment, predict: Any, dtype: tf.DType, further: Sequence[tf.TensorSpec] = ()
) -> tuple[Callable[..., dict[str, tf.Tensor]], list[tf.TensorSpec]]:
    """Return the function of raw columns [N] each, to be traced with the specifications that come along.

    Parameters
    ----------
    treatment
        How the columns become inputs.
    predict
        The concrete function of inputs [N, D], and of what is ``further``.
    dtype
        The dtype of the inputs.
    further
        Specifications of tensors that are passed on as they are.
    """
    names = tensor_names([column.name for column in treatment.columns])

    def predict_raw(*tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        columns, others = tensors[: len(names)], tensors[len(names) :]
        outputs: dict[str, tf.Tensor] = predict(tf.cast(_inputs(treatment, columns), dtype), *others)
        return outputs

    # Other names than the tensors', which TensorFlow would write in small letters.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(f"column{number}", kind) for number in range(len(names) + len(further))]
    vars(predict_raw)["__signature__"] = inspect.Signature(parameters)
    dtypes = (tf.string if column.is_text else tf.float64 for column in treatment.columns)
    specs = [tf.TensorSpec([None], each, name) for each, name in zip(dtypes, names, strict=True)]
    return predict_raw, [*specs, *further]


def treatment_of(data: Any, width: int) -> Treatment | None:
    """Return how the columns of data became inputs, or ``None`` where there is no signature for them.

    Raises
    ------
    ValueError
        If they make another number of inputs than the model takes, or data are not what `datasets.load`
        returns.
    """
    if data is not None and not any(hasattr(data, name) for name in ("train", "task")):  # split, estimator
        raise ValueError(
            f"data must be what datasets.load returns; got a {type(data).__name__}: leave it out"
        )
    treatment: Treatment | None = getattr(data, "treatment", None)
    if treatment is None:
        return None
    if len(treatment.input_names) != width:
        raise ValueError(
            f"the columns of data make {len(treatment.input_names)} inputs, and the model takes {width}: "
            "leave out data=, or train the model on all of them"
        )
    if len(treatment.columns) > _MOST_COLUMNS and treatment.is_plain:
        return None  # a tensor for each would take long to trace, and the row is that of the inputs
    return treatment


def check_alike(treatment: Treatment, signatures: Mapping[str, Any]) -> None:
    """Raise a ``ValueError`` unless the graph makes the same of raw rows as `Treatment.inputs`."""
    raw = _trial(treatment)
    tensors = dict(zip(tensor_names(list(raw)), map(tf.constant, raw.values()), strict=True))
    found, predict = signatures[NAME](**tensors), signatures["serving_default"]
    [spec] = predict.structured_input_signature[0]
    for key, value in predict(tf.constant(treatment.inputs(raw), spec.dtype)).items():
        same = value.numpy() == found[key].numpy()
        if value.dtype.is_floating:
            same = np.isclose(value, found[key], rtol=1e-6, atol=0.0, equal_nan=True)
        if not np.all(same):
            raise ValueError(
                f"the exported graph makes other inputs of raw rows than data does, by its {key}"
            )


def _trial(treatment: Treatment) -> dict[str, np.ndarray[Any, Any]]:
    """Return raw columns that hold what rows may hold: all levels, dates, gaps, and what is not known."""
    first = datetime.date(2000, 1, 1)
    found: dict[str, Any] = {}
    for column in treatment.columns:
        if column.kind == "number":
            centre = column.fill[0] if column.fill else 1.0
            values: list[Any] = [None, *(centre * (1 + k / _ROWS) for k in range(_ROWS - 1))]
        elif column.kind == "date":
            days = [first + datetime.timedelta(days=37 * k) for k in range(_ROWS - 7)]
            written = [dates.written(day, column.date_order) for day in days]
            plain = ["2001Q3", "3 March 2001, 12:05 am", "Sept 2001", "2001-02-03T04:05"]
            values = ["", "31.02.2000", f"{written.pop()}T01:30-03:30", *plain, *written, "soon"]
        elif column.kind == "time":
            later = [f"{1 + 5 * k % 12}:{7 * k % 60:02d}" for k in range(_ROWS - 5)]
            values = ["", "24:00", "12:30:15.5 am", "12 am", f"{later.pop()} PM", *later, "noon"]
        else:
            values = ["n/a", "no such level", *np.resize(column.levels, _ROWS - 2)]
        found[column.name] = values
    return treatment.cells(found)


def _inputs(treatment: Treatment, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    parts, flags = [], []
    for column, tensor in zip(treatment.columns, tensors, strict=True):
        bare = tf.strings.strip(tensor) if column.is_text else tensor
        gaps = tf.strings.regex_full_match(bare, cells.MISSING) if column.is_text else tf.math.is_nan(bare)
        values = _values(column, bare, gaps)  # [N, k]
        if column.fill:
            values = tf.where(gaps[:, None], tf.constant(column.fill, tf.float64), values)
        parts.append(values)
        flags += [tf.cast(gaps, tf.float64)[:, None]] if column.flagged else []
    return tf.concat([*parts, *flags], axis=1)


def _values(column: Column, bare: tf.Tensor, gaps: tf.Tensor) -> tf.Tensor:
    if column.kind == "number":
        return bare[:, None]
    nan = tf.constant(np.nan, tf.float64)
    if column.kind == "date":
        return _days(column, bare)[:, None]
    if column.kind == "time":
        return _hours(bare)[:, None]
    known = tf.equal(bare[:, None], tf.constant(list(column.levels)))  # [N, levels]
    coded = tf.cast(known, tf.float64)
    if column.kind == "one-hot":
        return tf.where(gaps[:, None], nan, coded)
    place = tf.reduce_sum(coded * np.arange(len(column.levels), dtype=np.float64), axis=1, keepdims=True)
    return tf.where(tf.reduce_any(known, axis=1, keepdims=True) & ~gaps[:, None], place, nan)


def _days(column: Column, bare: tf.Tensor) -> tf.Tensor:
    """Return the days since the origin of the column, NaN where a cell is not a date."""
    pattern = dates.PATTERNS[column.date_order]
    for other, text in dates.REWRITTEN[column.date_order]:
        bare = tf.strings.regex_replace(bare, other, text)
    fits = tf.strings.regex_full_match(bare, pattern)
    stand_in = dates.written(datetime.date(2000, 1, 1), column.date_order)
    safe, part = _parts(bare, fits, pattern, stand_in)
    in_year, number, name, in_month = dates.groups(column.date_order)
    year, month = part(in_year, tf.int64), part(number, tf.int64) + _month(safe, pattern, name)
    day_or_first = tf.strings.regex_replace(
        tf.strings.regex_replace(safe, pattern, rf"0\{in_month}"), "^0$", "1"
    )
    day = tf.strings.to_number(day_or_first, tf.int64)
    morning, afternoon = (tf.cast(tf.strings.regex_full_match(safe, half), tf.int64) for half in dates.HALVES)
    hour, minute, second = part(5, tf.int64), part(6, tf.int64), part(7, tf.float64)
    behind = tf.cast(tf.strings.regex_full_match(safe, dates.BEHIND), tf.int64)
    halved, offset = morning + afternoon, (part(8, tf.int64), part(9, tf.int64))
    valid = fits & dates.is_valid(year, month, day, (hour, minute, second, halved), offset)
    of_day = clock.of_day(hour, halved, afternoon)
    seconds = 60.0 * tf.cast(dates.minutes(of_day, minute, 1 - 2 * behind, offset), tf.float64) + second
    since = tf.cast(dates.julian_day(year, month, day) - column.origin, tf.float64) + seconds / 86400.0
    return tf.where(valid, since, tf.constant(np.nan, tf.float64))


def _month(safe: tf.Tensor, pattern: str, group: int) -> tf.Tensor:
    """Return the number of the month that a group names, 0 where it is empty."""
    name = tf.strings.regex_replace(safe, pattern, rf"0\{group}")
    for stem, number in dates.MONTHS.items():
        name = tf.strings.regex_replace(name, f"(?i)^0{stem}.*$", str(number))
    return tf.strings.to_number(name, tf.int64)


def _hours(bare: tf.Tensor) -> tf.Tensor:
    """Return the hours since midnight, NaN where a cell is not a time of day."""
    fits = tf.strings.regex_full_match(bare, clock.PATTERN)
    safe, part = _parts(bare, fits, clock.PATTERN, "0:00")
    hour, minute, second = part(1, tf.int64) + part(5, tf.int64), part(2, tf.int64), part(3, tf.float64)
    half = tf.strings.regex_replace(safe, clock.PATTERN, r"\4\6")
    named = (tf.strings.regex_full_match(half, letters) for letters in ("[AaPp]", "[Pp]"))
    halved, afternoon = (tf.cast(each, tf.int64) for each in named)
    valid = fits & clock.is_valid(hour, minute, second, halved)
    whole = tf.cast(clock.of_day(hour, halved, afternoon), tf.float64)
    since = whole + clock.share_of_an_hour(tf.cast(minute, tf.float64), second)
    return tf.where(valid, since, tf.constant(np.nan, tf.float64))


def _parts(
    bare: tf.Tensor, fits: tf.Tensor, pattern: str, stand_in: str
) -> tuple[tf.Tensor, Callable[[int, tf.DType], tf.Tensor]]:
    """Return cells without those that do not fit, and the function that takes a group of them as numbers."""
    safe = tf.where(fits, bare, stand_in)  # a text that is not a number would end the call

    def part(group: int, kind: tf.DType) -> tf.Tensor:  # 0 before it, for what may be absent
        return tf.strings.to_number(tf.strings.regex_replace(safe, pattern, rf"0\{group}"), kind)

    return safe, part
