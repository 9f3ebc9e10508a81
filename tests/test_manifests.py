"""The manifest of an exported model: each change is seen, what is malformed is named, a signature tells of whom it is."""

from __future__ import annotations

import copy
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

import hostile
import pytest
from hostile import Edited

import gpflow_ext as gpx
from gpflow_ext.persistence.verify import read_manifest, sealed

needs_signing = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="needs the extra sign"
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    for key, each in items or ():
        yield from leaves(each, (*path, key))
    if not items:
        yield path, value


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    *above, last = path
    for key in above:
        value = value[key]
    value[last] = new
    return value


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, str):
        return value[::-1] if value[::-1] != value else value + "x"
    return value + 1 if isinstance(value, int | float) else ["x"]


@pytest.fixture
def model(exported, tmp_path):
    return Edited(exported, tmp_path / "model")


def refused(model, match):
    for check in (gpx.verify, gpx.load_exported):
        with pytest.raises(ValueError, match=match):
            check(model.folder)


def write(model, text):
    (model.folder / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())


def dumped(manifest):
    return json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_every_value_that_is_edited_is_seen(model, record_property):
    found = list(leaves(model.manifest))
    for path, value in found:
        manifest = copy.deepcopy(model.manifest)
        put(manifest, path, other(value))
        write(model, dumped(manifest))
        with pytest.raises(ValueError, match="not what was exported"):
            gpx.verify(model.folder)
    record_property("edited values", len(found))
    write(model, dumped(model.manifest))
    assert gpx.verify(model.folder).files == 6


@pytest.mark.parametrize(
    ("begin", "end"), [(" ", "\n"), ("", ""), ("\ufeff", "\n"), ("", "\r\n"), ("", "\n\n")]
)
def test_white_space_that_is_edited_is_seen(model, begin, end):
    text = (model.folder / "manifest.json").read_text().rstrip("\n")
    write(model, begin + text + end)
    refused(model, r"manifest\.json")


def schema_paths(manifest: Any) -> list[tuple[str, ...]]:
    nested = ("data", "model")
    return [(key,) for key in manifest] + [(outer, key) for outer in nested for key in manifest[outer]]


def test_every_key_that_is_dropped_or_of_another_type_is_named(model, record_property):
    tries = 0
    for path in schema_paths(model.manifest):
        for wrong in (..., [[1]], {"x": {}}):
            manifest = copy.deepcopy(model.manifest)
            where = put(manifest, path, wrong)
            if wrong is ...:
                del where[path[-1]]
            write(model, dumped(manifest) if path[0] in ("manifest_sha256", "ed25519") else sealed(manifest))
            with pytest.raises(ValueError, match=re.escape(".".join(path)) + "|hash of model"):
                gpx.verify(model.folder)
            tries += 1
    record_property("keys dropped or mistyped", tries)


SENSELESS = {
    "another key": (lambda m: m.update(evil=1), "has 'evil'"),
    "another key inside": (lambda m: m["data"].update(evil=1), "has 'data.evil'"),
    "old format": (lambda m: m.update(format=1), "export the model again"),
    "new format": (lambda m: m.update(format=3), "export the model again"),
    "labels reversed": (lambda m: m["labels"].reverse(), "labels in manifest.json are not those"),
    "labels of others": (lambda m: m.update(labels=["a", "b"]), "labels in manifest.json are not those"),
    "a label more": (lambda m: m["labels"].append("x"), "labels in manifest.json are not those"),
    "no labels": (lambda m: m.update(labels=None), "only one of manifest.json and the graph has labels"),
    "width": (lambda m: m["data"].update(D=4), "data.D or dtype"),
    "dtype": (lambda m: m.update(dtype="float32"), "data.D or dtype"),
    "names of inputs": (lambda m: m["data"].update(feature_names=["a", "b"]), "2 names for 3 inputs"),
    "a signature less": (lambda m: m["signatures"].pop("predict_f"), "signatures in manifest.json"),
    "shape of an output": (
        lambda m: m["signatures"]["predict_f"]["outputs"]["mean"].update(shape=[None, 2]),
        "signatures in manifest.json",
    ),
    "portable": (lambda m: m.update(profile="portable"), "which model.onnx contradicts"),
    "stablehlo": (lambda m: m.update(profile="stablehlo"), "which model.stablehlo contradicts"),
    "difference of none": (lambda m: m.update(difference_of_stablehlo=0.0), "model.stablehlo contradicts"),
    "onnx": (lambda m: m.update(difference_of_onnx=0.0), "which model.onnx contradicts"),
    "interval of nothing": (lambda m: m["intervals"].update(x=[0.0, 1.0]), "scores that metrics has not"),
    "three ends": (lambda m: m["intervals"].update(error=[0.0, 1.0, 2.0]), r"intervals.error .* a list of 2"),
    "another model": (lambda m: m["model"]["model"].update(x=1), "config_sha256"),
    "a file of elsewhere": (lambda m: m["sha256"].update({"../outside": "0" * 64}), "sha256 in manifest.json"),
    "a name that is a path": (lambda m: m.update(name="../x"), "name in manifest.json must be a name in an"),
    "an empty name": (lambda m: m.update(name=""), "name in manifest.json must be a name in an address"),
    "no time": (lambda m: m.update(created="now"), "created in manifest.json must be a time"),
}  # fmt: skip


@pytest.mark.parametrize("name", SENSELESS)
def test_what_the_graph_or_another_entry_contradicts_is_refused(model, name):
    edit, reason = SENSELESS[name]
    edit(model.manifest)
    write(model, sealed(model.manifest))
    refused(model, reason)


NO_JSON = {
    "empty": b"",
    "no text": b"\xff\xfe",
    "half": b'{"format": 2',
    "list": b"[]",
    "number": b"1",
    "NaN": b'{"format": NaN}',
    "infinity": b'{"format": -Infinity}',
    "long number": b'{"format": ' + b"9" * 10_000 + b"}",
    "deep list": b'{"format": ' + b"[" * 1_000_000,
    "deep object": b'{"a": ' * 500_000,
    "many quotes": b'{"a": "' + rb"\"" * 1_000_000,
    "half of a letter": b'{"format": "\\ud800"}',
    "two keys": b'{"format": 2, "format": 2}',
    "large": b" " * (5 << 20),
}


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_manifest_is_refused_at_once(model, name):
    write(model, NO_JSON[name])
    refused(model, "manifest.json")
    with pytest.raises(ValueError, match=r"manifest\.json"):
        read_manifest(model.folder)


def test_a_manifest_without_its_hash_tells_what_to_do(model):
    """As those of earlier versions are."""
    manifest = {k: v for k, v in model.manifest.items() if k not in ("manifest_sha256", "ed25519")}
    write(model, dumped({**manifest, "format": 1}))
    refused(
        model, "has the format '1', not 2: another version of gpflow_ext wrote it; export the model again"
    )


def test_the_old_way_in_needs_a_manifest_too(model):
    assert gpx.load_exported(model.folder, verify=False).labels == ("ill", "well")
    write(model, "{}")
    with pytest.raises(ValueError, match="export the model again"):
        gpx.load_exported(model.folder, verify=False)


@pytest.fixture(scope="module", name="keys")
def _keys():
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    private = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem, raw = serialization.Encoding.PEM, serialization.Encoding.Raw
    public = private.public_key()
    return {
        "private": bytes(range(32)),
        "private PEM": private.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        "locked": private.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        ),
        "public": public.public_bytes(raw, serialization.PublicFormat.Raw),
        "public PEM": public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
    }


@needs_signing
def test_a_signature_tells_who_exported(keys, model, tmp_path):
    for private in ("private", "private PEM"):
        folder = gpx.export(hostile.small(), tmp_path / "signed", labels=["ill", "well"], sign=keys[private])
        for public in ("public", "public PEM"):
            assert gpx.verify(folder, key=keys[public]).folder == folder
        assert gpx.load_exported(folder, key=keys["public"]).labels == ("ill", "well")
        assert gpx.verify(folder).folder == folder
    stranger = bytes(31) + b"\1"
    signed = Edited(folder, tmp_path / "edited")
    signed.manifest["data"]["source"] = "elsewhere"
    for how in (None, stranger):  # who edits leaves no signature, or makes one with a key of his own
        write(signed, sealed(signed.manifest, how))
        gpx.verify(signed.folder)
        with pytest.raises(ValueError, match="not signed"):
            gpx.verify(signed.folder, key=keys["public"])
        with pytest.raises(ValueError, match="not signed"):
            gpx.load_exported(signed.folder, key=keys["public"])
    with pytest.raises(ValueError, match="is not signed: export it with sign="):
        gpx.verify(model.folder, key=keys["public"])


@needs_signing
def test_an_old_signature_does_not_hold_for_other_contents(keys, tmp_path):
    folder = gpx.export(hostile.small(), tmp_path / "signed", sign=keys["private"])
    signed = Edited(folder, tmp_path / "edited")
    kept = signed.manifest["ed25519"]
    signed.manifest["metrics"] = {"error": 0.0}
    whole = {**json.loads(sealed(signed.manifest)), "ed25519": kept}
    bare = {name: value for name, value in whole.items() if name != "manifest_sha256"}
    whole["manifest_sha256"] = hashlib.sha256(dumped(bare).encode()).hexdigest()
    write(signed, dumped(whole))
    gpx.verify(signed.folder)
    with pytest.raises(ValueError, match="was not signed with the private half"):
        gpx.verify(signed.folder, key=keys["public"])


@needs_signing
def test_a_wrong_key_is_named(keys, model, tmp_path):
    for wrong, reason in (
        ("text", "must be bytes"),
        (b"short", "Ed25519 PrivateKey"),
        (keys["public PEM"], "Ed25519 PrivateKey"),
        (keys["locked"], "unencrypted"),
    ):
        with pytest.raises(ValueError, match=f"sign must .*{reason}|sign .*{reason}"):
            gpx.export(hostile.small(), tmp_path / "m", sign=wrong)
    assert not (tmp_path / "m").exists()
    signed = gpx.export(hostile.small(), tmp_path / "m", sign=keys["private"])
    for wrong in (b"short", keys["private PEM"], 3):
        with pytest.raises(ValueError, match=r"^key must"):
            gpx.verify(signed, key=wrong)


def test_without_the_extra_the_error_names_it(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ImportError, match=r"gpflow-ext\[sign\]"):
        gpx.export(hostile.small(), tmp_path / "m", sign=bytes(32))
    model.manifest["ed25519"] = "0" * 128
    manifest = {**model.manifest}
    manifest.pop("manifest_sha256")
    manifest["manifest_sha256"] = hashlib.sha256(dumped(manifest).encode()).hexdigest()
    write(model, dumped(manifest))
    with pytest.raises(ImportError, match=r"gpflow-ext\[sign\]"):
        gpx.verify(model.folder, key=bytes(32))


def test_a_key_that_nobody_would_use_is_refused(exported):
    with pytest.raises(ValueError, match="leave out verify=False"):
        gpx.load_exported(exported, verify=False, key=bytes(32))
