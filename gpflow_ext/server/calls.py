"""Reads the body of a predict call, in rows or in columns, and writes the answer in the same layout.

https://www.tensorflow.org/tfx/serving/api_rest describes the dialect. Numbers of rows and widths are checked
before any number is looked at, and numbers before any array is made.
"""

from __future__ import annotations

import collections
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from .limits import ERRORS, Limits, RefusedError, shown
from .raw_rows import RAW, RAW_COUNTS, misnamed, read_raw, unseen

Array = npt.NDArray[Any]
Signatures = Mapping[str, Any]
"""Those of a manifest: for each the ``dtype`` and ``shape`` of its inputs and outputs, by name."""

DEFAULT = "serving_default"
_AROUND = 10  # brackets that hold no row


@dataclass(frozen=True)
class Call:
    """A signature, its arguments, and whether the answer is in columns."""

    signature: str
    arrays: Mapping[str, Array]
    columnar: bool

    @property
    def rows(self) -> int:
        """N."""
        return len(next(iter(self.arrays.values())))


def parse(body: bytes, limits: Limits) -> Any:
    """Return what a JSON document holds.

    Raises
    ------
    RefusedError
        400, if it is none, NaN and infinities are not numbers of JSON, or an object has a key twice: which of
        its values counts would be a guess. 422, if it has more brackets than the inputs and targets of as
        many rows as there may be: to parse them would take seconds.
    """
    if max(body.count(b"["), body.count(b"{")) > 2 * limits.rows + _AROUND:
        raise RefusedError(422, f"there are more rows than the {limits.rows} that the server takes in a call")
    try:
        return json.loads(body, parse_constant=_no_number, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RefusedError(400, f"the body is no JSON: {reason}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        [(key, times)] = collections.Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {shown(key)} is there {times} times")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def read(
    body: bytes, signatures: Signatures, limits: Limits, table: Sequence[Mapping[str, Any]] = ()
) -> Call:
    """Return the call that a body describes; ``table`` has the columns of raw rows, as a manifest has them.

    Raises
    ------
    RefusedError
        400 if it is no JSON, 422 if the model cannot answer it, with up to ten reasons.
    """
    request = parse(body, limits)
    if not isinstance(request, dict) or ("instances" in request) == ("inputs" in request):
        raise RefusedError(
            422, 'the body must be an object with either "instances" (rows) or "inputs" (columns)'
        )
    strange = sorted(set(request) - {"instances", "inputs", "signature_name"})
    if strange:
        raise RefusedError(422, f"unknown keys: {shown(strange)}")
    name = request.get("signature_name", DEFAULT)
    if not isinstance(name, str) or name not in signatures:
        raise RefusedError(422, f"signature_name must be one of {', '.join(signatures)}; got {shown(name)}")
    inputs, columnar = signatures[name]["inputs"], "inputs" in request
    if name in (RAW, RAW_COUNTS):
        with_exposure = RAW_COUNTS if name == RAW and RAW_COUNTS in signatures else None
        return Call(name, read_raw(request, inputs, limits, table, with_exposure), columnar)
    columns = (
        _columns(request, inputs)
        if columnar
        else _rows_as_columns(request, inputs, limits, name == DEFAULT and RAW in signatures)
    )
    arrays = {key: _array(key, columns[key], spec, limits) for key, spec in inputs.items()}
    lengths = {key: len(array) for key, array in arrays.items() if len(inputs[key]["shape"]) == 2}
    if len(set(lengths.values())) > 1:
        raise RefusedError(422, f"all inputs must have as many rows; found {lengths}")
    return Call(name, arrays, columnar)


def _columns(request: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    value = request["inputs"]
    return _named("inputs", value, inputs) if isinstance(value, dict) else _only("inputs", value, inputs)


def _rows_as_columns(
    request: Mapping[str, Any], inputs: Mapping[str, Any], limits: Limits, with_raw: bool
) -> Mapping[str, Any]:
    rows = request["instances"]
    if any(len(spec["shape"]) == 1 for spec in inputs.values()):
        raise RefusedError(422, 'this signature has an argument that holds for all rows: use "inputs"')
    _check_count("instances", rows, limits)
    if not isinstance(rows[0], dict):
        return _only("instances", rows, inputs)
    for i, row in enumerate(rows):
        if why := misnamed(row, inputs):
            hint = f'; rows of the table go with "signature_name": "{RAW}"' if with_raw else ""
            raise RefusedError(422, f"row {i} {why}{hint}")
    return {key: [row[key] for row in rows] for key in inputs}


def _named(what: str, value: Mapping[str, Any], inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    if value.keys() != inputs.keys():
        raise RefusedError(422, f"{what} must have {', '.join(inputs)}; found {shown(sorted(value))}")
    return value


def _only(what: str, value: Any, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(inputs) != 1:
        raise RefusedError(422, f"{what} of this signature must name {', '.join(inputs)}")
    return dict.fromkeys(inputs, value)


def _check_count(name: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, list) or not value:
        raise RefusedError(422, f"{name} must be a list of at least 1 row")
    if len(value) > limits.rows:
        raise RefusedError(
            422, f"{name} has {len(value)} rows; the server takes at most {limits.rows} in a call"
        )


def _array(name: str, value: Any, spec: Mapping[str, Any], limits: Limits) -> Array:
    """Return an argument of a signature, [N, D] or [B]."""
    _check_count(name, value, limits)
    width = spec["shape"][-1]
    if len(spec["shape"]) == 1:
        if width not in (None, len(value)):
            raise RefusedError(422, f"{name} must have length {width}; it has length {len(value)}")
        rows = [value]
    else:
        _check_widths(value, width)
        rows = value
    kinds = {int} if spec["dtype"].startswith("int") else {int, float}
    if not set(map(type, itertools.chain.from_iterable(rows))) <= kinds:
        what = "whole number" if kinds == {int} else "number"
        _refuse_where(rows, lambda number: type(number) not in kinds, f"is not a valid {what}")
    most = int(np.iinfo(spec["dtype"]).max if kinds == {int} else np.finfo(spec["dtype"]).max)
    try:
        with np.errstate(over="ignore"):
            array = np.array(value, np.int64 if kinds == {int} else np.float64)
            cast = array.astype(spec["dtype"])
    except OverflowError:
        _refuse_where(rows, lambda number: abs(number) > most, "is too large")
    if not np.isfinite(cast).all() or (kinds == {int} and (cast != array).any()):
        _refuse_where(rows, lambda number: abs(number) > most, "is too large")
    return cast


def _check_widths(rows: list[Any], width: int | None) -> None:
    """Refuse rows [N, D] that are no lists, or of another length than D; where D is open, than the first."""
    wrong = []
    for i, row in enumerate(rows):
        if not isinstance(row, list):
            wrong.append(f"row {i} is not a list of numbers")
        else:
            width = len(row) if width is None else width
            if len(row) != width:
                wrong.append(f"row {i} has {len(row)} inputs; the model takes {width}")
    if wrong:
        raise RefusedError(422, *wrong)


def _refuse_where(rows: list[list[Any]], is_wrong: Any, why: str) -> NoReturn:
    places = ((i, j, x) for i, row in enumerate(rows) for j, x in enumerate(row) if is_wrong(x))
    raise RefusedError(
        422, *(f"row {i}, column {j}: {shown(x)} {why}" for i, j, x in itertools.islice(places, ERRORS))
    )


def write(call: Call, outputs: Mapping[str, Array], table: Sequence[Mapping[str, Any]] = ()) -> bytes:
    """Return the answer as JSON: by rows, or by columns; an output that is alone has no name.

    Words of raw rows that training has not seen are beside the predictions, see `raw_rows.unseen`.
    """
    columns = {key: _plain(outputs[key]) for key in sorted(outputs)}
    [first, *others] = columns
    if call.columnar:
        answer: Any = {"outputs": columns if others else columns[first]}
    elif others:
        rows = zip(*columns.values(), strict=True)
        answer = {"predictions": [dict(zip(columns, row, strict=True)) for row in rows]}
    else:
        answer = {"predictions": columns[first]}
    strange = unseen(table, call.arrays) if call.signature in (RAW, RAW_COUNTS) else {}
    return json.dumps(answer | ({"unseen": strange} if strange else {}), allow_nan=False).encode()


def _plain(array: Array) -> Any:
    """Return an array as JSON has it: text instead of bytes, null instead of NaN."""
    if array.dtype == object:
        return [value.decode() for value in array]
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        plain = array.astype(object)
        plain[~np.isfinite(array)] = None
        return plain.tolist()
    return array.tolist()
