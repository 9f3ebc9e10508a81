"""The manifest of an exported model: its exact form, its hash of itself, its signature."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .columns import check_columns
from .folder import DRAWS, LARGEST, MANIFEST, ONNX, REQUIRED, STABLEHLO, WEIGHTS
from .signing import is_signed, sign

FORMAT = 2
_HASH, _SIGNATURE = "manifest_sha256", "ed25519"
_DEEPEST = 64  # brackets within brackets
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)  # and whole strings, closed or not


class _Leaf(NamedTuple):
    what: str
    fits: Callable[[Any], bool]


class _Maybe(NamedTuple):
    """The same, or null."""

    of: _Spec


class _Absent(NamedTuple):
    """The same, or no such key."""

    of: _Spec


class _List(NamedTuple):
    of: _Spec
    length: int | None = None


class _Named(NamedTuple):
    """An object whose keys are names."""

    of: _Spec


_Spec = _Leaf | _Maybe | _Absent | _List | _Named | dict[str, "_Spec"]


def is_name(value: Any) -> bool:
    """Tell whether a value can name a model in the addresses of a server."""
    return (
        isinstance(value, str) and value not in ("", ".", "..") and "/" not in value and value.isprintable()
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _matching(what: str, pattern: str) -> _Leaf:
    return _Leaf(what, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def _one_of(*values: str) -> _Leaf:
    return _Leaf(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


_TEXT = _Leaf("a text", lambda value: isinstance(value, str))
_COUNT = _Leaf("a whole number, 0 or more", _is_count)
_WHOLE = _Leaf("a whole number", lambda value: _is_count(value) or (isinstance(value, int) and value < 0))
_NUMBER = _Leaf("a number", _is_number)
_SCORE = _Leaf("a number", lambda value: _is_number(value) or value in ("nan", "inf", "-inf"))
_YES_OR_NO = _Leaf("true or false", lambda value: isinstance(value, bool))
_SHA256 = _matching("a SHA-256 hash", "[0-9a-f]{64}")
_OBJECT = _Leaf("an object", lambda value: isinstance(value, dict))
_CLASS = _Leaf("an object with a class", lambda v: isinstance(v, dict) and isinstance(v.get("class"), str))
_TENSORS = _Named({"dtype": _TEXT, "shape": _List(_Maybe(_COUNT))})
_ONE_OR_MORE = _Leaf(
    "a text or a list of texts",
    lambda v: isinstance(v, str) or (isinstance(v, list) and all(isinstance(each, str) for each in v)),
)
_COLUMN: dict[str, _Spec] = {
    "name": _TEXT,
    "tensor": _matching("a name of a tensor", "[A-Za-z][A-Za-z0-9_]*"),
    "kind": _one_of("number", "date", "time", "one-hot", "ordinal"),
    "levels": _List(_TEXT),
    "decimal": _one_of(".", ",", ",."),
    "unit": _Absent(_TEXT),
    "date_order": _one_of("", "ymd", "dmy", "mdy"),
    "origin": _WHOLE,
    "fill": _List(_NUMBER),
    "flagged": _YES_OR_NO,
}
_SCHEMA: dict[str, _Spec] = {
    "format": _COUNT,
    "name": _Leaf("a name in an address", is_name),
    "version": _COUNT,
    "profile": _one_of("exact", "cached", "portable", "stablehlo"),
    "created": _matching("a time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"),
    "versions": _Named(_TEXT),
    "config_sha256": _SHA256,
    "dtype": _one_of("float16", "float32", "float64"),
    "task": _TEXT,
    "model": {"dtype": _TEXT, "model": _CLASS, "parameters": _Named(_OBJECT), "data": _Maybe(_OBJECT)},
    "signatures": _Named({"inputs": _TENSORS, "outputs": _TENSORS}),
    "labels": _Maybe(_List(_TEXT)),
    "data": {
        "name": _Maybe(_TEXT),
        "source": _Maybe(_TEXT),
        "sha256": _Maybe(_TEXT),
        "feature_names": _Maybe(_List(_TEXT)),
        "target": _Maybe(_ONE_OR_MORE),
        "N": _Maybe(_COUNT),
        "D": _COUNT,
    },
    "columns": _Absent(_List(_COLUMN)),
    "seed": _Maybe(_WHOLE),
    "metrics": _Named(_SCORE),
    "intervals": _Named(_List(_SCORE, 2)),
    "notes": _List(_TEXT),
    "holds_training_inputs": _Maybe(_YES_OR_NO),
    "difference_from_model": _NUMBER,
    "difference_of_onnx": _Maybe(_NUMBER),
    "difference_of_stablehlo": _Absent(_NUMBER),
    "sha256": _Named(_SHA256),
    _SIGNATURE: _Maybe(_matching("128 hexadecimal digits", "[0-9a-f]{128}")),
    _HASH: _SHA256,
}


def sealed(manifest: Mapping[str, Any], key: bytes | None = None) -> bytes:
    """Return the bytes of ``manifest.json``: with its hash of itself and, with a private key, signed."""
    bare = {name: value for name, value in manifest.items() if name not in (_HASH, _SIGNATURE)}
    whole = {**bare, _SIGNATURE: None if key is None else sign(_text(bare), key)}
    return _text({**whole, _HASH: _sha256(_text(whole))})


def parse(content: bytes) -> dict[str, Any]:
    """Return the manifest that is written in ``content``.

    Raises
    ------
    ValueError
        If it is not exactly what an export writes, naming the key that is missing, strange, or of another
        type; if its hash of itself is not its own; if its entries contradict each other.
    """
    manifest = _json(content)
    if manifest.get("format") != FORMAT:
        raise ValueError(
            f"{MANIFEST} has the format {str(manifest.get('format'))[:20]!a}, not {FORMAT}: another version "
            "of gpflow_ext wrote it; export the model again with this one"
        )
    _check(manifest, _SCHEMA, "")
    without = {name: value for name, value in manifest.items() if name != _HASH}
    if _sha256(_text(without)) != manifest[_HASH]:
        raise ValueError(f"{MANIFEST} has been edited: it is not the one of its {_HASH}")
    if _text(manifest) != content:
        raise ValueError(f"{MANIFEST} has been edited: it is not written as an export writes it")
    _check_sense(manifest)
    return manifest


def check_signature(manifest: Mapping[str, Any], key: bytes) -> None:
    """Check that the manifest was signed with the private half of an Ed25519 key."""
    if manifest[_SIGNATURE] is None:
        raise ValueError(f"{MANIFEST} is not signed: export it with sign=, or verify it without key=")
    bare = {name: value for name, value in manifest.items() if name not in (_HASH, _SIGNATURE)}
    if not is_signed(_text(bare), bytes.fromhex(manifest[_SIGNATURE]), key):
        raise ValueError(f"{MANIFEST} was not signed with the private half of this key")


def _text(value: Any) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _json(content: bytes) -> dict[str, Any]:
    if len(content) > LARGEST[MANIFEST]:
        raise ValueError(f"{MANIFEST} has {len(content)} bytes; at most {LARGEST[MANIFEST]} are read")
    try:
        text = content.decode()
        _check_depth(text)
        value = json.loads(text, parse_constant=_refuse_constant)
        _text(value)  # a lone surrogate has no bytes
    except ValueError as error:
        raise ValueError(f"no readable {MANIFEST}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"no readable {MANIFEST}: it must be an object")
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        if depth > _DEEPEST:
            raise ValueError(f"it nests deeper than {_DEEPEST}")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check(value: Any, spec: _Spec, where: str) -> None:
    if isinstance(spec, _Maybe):
        if value is not None:
            _check(value, spec.of, where)
    elif isinstance(spec, _Absent):
        _check(value, spec.of, where)
    elif isinstance(spec, _Leaf):
        if not spec.fits(value):
            raise _wrong(where, spec.what, value)
    elif isinstance(spec, _List):
        if not isinstance(value, list) or spec.length not in (None, len(value)):
            raise _wrong(where, "a list" if spec.length is None else f"a list of {spec.length}", value)
        for i, each in enumerate(value):
            _check(each, spec.of, f"{where}[{i}]")
    else:
        _check_object(value, spec, where)


def _check_object(value: Any, spec: _Named | dict[str, _Spec], where: str) -> None:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    specs = dict.fromkeys(value, spec.of) if isinstance(spec, _Named) else spec
    for name in [*specs, *value]:
        path = ascii(f"{where}.{name}".lstrip("."))[1:-1]
        if name not in value:
            if isinstance(specs[name], _Absent):
                continue
            raise ValueError(f"{MANIFEST} lacks {path}")
        if name not in specs:
            raise ValueError(f"{MANIFEST} has {path[:80]!a}, which an export does not write")
        _check(value[name], specs[name], path)


def _wrong(where: str, what: str, value: Any) -> ValueError:
    return ValueError(f"{where} in {MANIFEST} must be {what}; found {str(value)[:60]!a}")


def _check_sense(manifest: Mapping[str, Any]) -> None:
    """Check what the entries say of each other."""
    data, names = manifest["data"], frozenset(manifest["sha256"])
    portable = manifest["profile"] == "portable"
    features = data["feature_names"]
    if features is not None and len(features) != data["D"]:
        raise ValueError(f"data.feature_names in {MANIFEST} has {len(features)} names for {data['D']} inputs")
    if "columns" in manifest:
        check_columns(manifest["columns"], data["D"], features)
    missing, strange = REQUIRED - {MANIFEST} - names, names - (LARGEST.keys() - {MANIFEST})
    if missing or strange:
        raise ValueError(f"sha256 in {MANIFEST} lacks {sorted(missing)} or has {sorted(strange)[:5]!a}")
    if (ONNX in names) != portable or (manifest["difference_of_onnx"] is not None) != portable:
        raise ValueError(f"profile in {MANIFEST} is {manifest['profile']}, which {ONNX} contradicts")
    lowered = manifest["profile"] == "stablehlo"
    if {STABLEHLO in names, WEIGHTS in names, "difference_of_stablehlo" in manifest} != {lowered}:
        raise ValueError(f"profile in {MANIFEST} is {manifest['profile']}, which {STABLEHLO} contradicts")
    if (DRAWS in names) != (lowered and "sample_joint" in manifest["signatures"]):
        raise ValueError(f"signatures in {MANIFEST} are others than {DRAWS} tells")
    if not manifest["intervals"].keys() <= manifest["metrics"].keys():
        raise ValueError(f"intervals in {MANIFEST} has scores that metrics has not")
    model = json.dumps(manifest["model"], sort_keys=True).encode()
    if _sha256(model) != manifest["config_sha256"]:
        raise ValueError(f"config_sha256 in {MANIFEST} is not the hash of model")
