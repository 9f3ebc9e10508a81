"""Checks of the raw columns in a manifest, and of the tensors that take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .folder import MANIFEST

RAW = "predict_raw"
RAW_COUNTS = "predict_raw_counts"
COUNTS = "predict_counts"  # the signature of counts at exposures
_LEVELS = ("one-hot", "ordinal")


def check_columns(columns: Sequence[Mapping[str, Any]], width: int, features: Sequence[str] | None) -> None:
    """Check that columns make the inputs of the model, and that each says what its kind needs and no more."""
    for key in ("name", "tensor"):
        if len({column[key] for column in columns}) != len(columns):
            raise ValueError(f"columns in {MANIFEST} has two of one {key}")
    for number, column in enumerate(columns):
        levels, fill = column["levels"], column["fill"]
        fits = (
            (len(set(levels)) == len(levels) >= 2) == (column["kind"] in _LEVELS)
            and (column["kind"] in _LEVELS or not levels)
            and (column["date_order"] != "") == (column["kind"] == "date")
            and (column["decimal"] == "." or column["kind"] == "number")
            and (not column.get("unit") or column["kind"] == "number")
            and (column["origin"] == 0 or column["kind"] == "date")
            and len(fill) in (0, len(_inputs(column)))
            and (fill or not column["flagged"])
        )
        if not fits:
            raise ValueError(f"columns[{number}] in {MANIFEST} contradicts its kind, {column['kind']}")
    names = [name for column in columns for name in _inputs(column)]
    names += [f"{column['name']} is missing" for column in columns if column["flagged"]]
    if len(names) != width or names != features:
        raise ValueError(f"columns in {MANIFEST} make other inputs than data has")


def check_raw(
    columns: Sequence[Mapping[str, Any]] | None, signatures: Mapping[str, Any], texts: frozenset[Any]
) -> None:
    """Check that the signature of raw rows is there with the columns, and takes them and their levels."""
    signature = signatures.get(RAW)
    if (signature is None) != (columns is None):
        raise ValueError(f"only one of the columns in {MANIFEST} and the signature {RAW} is there")
    if signature is None or columns is None:
        if RAW_COUNTS in signatures:
            raise ValueError(f"the signature {RAW_COUNTS} is there without {RAW}")
        return
    kinds = {c["tensor"]: "float64" if c["kind"] == "number" else "string" for c in columns}
    expected = {name: {"shape": [None], "dtype": kind} for name, kind in kinds.items()}
    if signature["inputs"] != expected or signature["outputs"] != signatures["serving_default"]["outputs"]:
        raise ValueError(f"columns in {MANIFEST} are not those of the signature {RAW}")
    of_counts = signatures.get(RAW_COUNTS)
    if of_counts is not None:
        counts = signatures.get(COUNTS, {"inputs": {}, "outputs": None})
        expected["exposure"] = counts["inputs"].get("exposure")
        if of_counts["inputs"] != expected or of_counts["outputs"] != counts["outputs"]:
            raise ValueError(f"columns in {MANIFEST} are not those of the signature {RAW_COUNTS}")
    for column in columns:
        if column["levels"] and tuple(map(str.encode, column["levels"])) not in texts:
            raise ValueError(f"levels of {column['name']!a} in {MANIFEST} are not those of the graph")


def _inputs(column: Mapping[str, Any]) -> list[str]:
    name = column["name"]
    return [f"{name}={level}" for level in column["levels"]] if column["kind"] == "one-hot" else [name]
