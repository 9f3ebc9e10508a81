"""Folders and files of exported models that are not what an export writes."""

from __future__ import annotations

import io
import os
import shutil
import socket
import zipfile

import numpy as np
import pytest
from hostile import Edited
from tensorflow.core.protobuf import tensor_bundle_pb2

import gpflow_ext as gpx
from gpflow_ext.persistence.verify import folder as folders
from gpflow_ext.persistence.verify.tables import _entries

INDEX = "variables/variables.index"
VALUES = "variables/variables.data-00000-of-00001"


@pytest.fixture
def copy(exported, tmp_path):
    return shutil.copytree(exported, tmp_path / "1")


def refused(folder, match):
    with pytest.raises(ValueError, match=match):
        gpx.verify(folder)
    with pytest.raises(ValueError, match=match):
        gpx.load_exported(folder)


def _link(copy, name):
    moved = copy.parent / "moved"
    (copy / name).rename(moved)
    (copy / name).symlink_to(moved)


def _socket(copy):
    here = os.getcwd()
    os.chdir(copy)  # its path may be no longer than about a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("socket")
    finally:
        os.chdir(here)


def _device(copy):
    try:
        os.mknod(copy / "null", 0o666 | 0o020000, os.makedev(1, 3))
    except OSError:
        pytest.skip("only the super-user makes devices")


def _fifo(copy, name):
    (copy / name).unlink()
    os.mkfifo(copy / name)


def _large(copy, name, size):
    with (copy / name).open("ab") as file:
        file.truncate(size)  # takes no room on the disk


STRANGERS = {
    "link to a file": (lambda c: _link(c, "saved_model.pb"), "'saved_model.pb' is a symbolic link"),
    "link to the values": (lambda c: _link(c, VALUES), "is a symbolic link"),
    "link to a folder": (lambda c: _link(c, "variables"), "'variables' is a symbolic link"),
    "link to the root": (lambda c: (c / "root").symlink_to("/"), "'root' is a symbolic link"),
    "link to nowhere": (lambda c: (c / "x").symlink_to("nowhere"), "'x' is a symbolic link"),
    "FIFO": (lambda c: os.mkfifo(c / "pipe"), "'pipe' is a FIFO"),
    "FIFO for the manifest": (lambda c: _fifo(c, "manifest.json"), "'manifest.json' is a FIFO"),
    "FIFO for the values": (lambda c: _fifo(c, VALUES), "is a FIFO"),
    "socket": (_socket, "'socket' is a socket"),
    "device": (_device, "'null' is a device"),
    "hidden file": (lambda c: (c / ".hidden").write_bytes(b""), "'.hidden' is not a file that an export writes"),
    "library": (lambda c: (c / "evil.so").write_bytes(b""), "'evil.so' is not a file"),
    "graph as text": (lambda c: (c / "saved_model.pbtxt").write_bytes(b""), "'saved_model.pbtxt' is not a file"),
    "graph in parts": (lambda c: (c / "saved_model.cpb").write_bytes(b""), "'saved_model.cpb' is not a file"),
    "Keras": (lambda c: (c / "keras_metadata.pb").write_bytes(b""), "'keras_metadata.pb' is not a file"),
    "asset": (lambda c: _write(c / "assets" / "x"), "'assets/x' is not a file"),
    "warm-up": (lambda c: _write(c / "assets.extra" / "tf_serving_warmup_requests"), "'assets.extra' is a folder"),
    "second shard": (lambda c: _write(c / "variables" / "variables.data-00001-of-00002"), "is not a file"),
    "folder of a file's name": (lambda c: _folder(c, "MODEL_CARD.md"), "'MODEL_CARD.md' is a folder"),
    "name of two lines": (lambda c: (c / "a\nb").write_bytes(b""), r"'a\\nb' is not a file"),
    "onnx of another profile": (lambda c: (c / "model.onnx").write_bytes(b""), "model.onnx is not in the manifest"),
    "no manifest": (lambda c: (c / "manifest.json").unlink(), "it has no manifest.json"),
    "no graph": (lambda c: (c / "saved_model.pb").unlink(), "saved_model.pb is missing"),
    "no variables": (lambda c: shutil.rmtree(c / "variables"), "variables.index is missing"),
    "no card": (lambda c: (c / "MODEL_CARD.md").unlink(), "MODEL_CARD.md is missing"),
    "large manifest": (lambda c: _large(c, "manifest.json", 1 << 40), "at most 4194304 are read"),
    "large graph": (lambda c: _large(c, "saved_model.pb", 1 << 40), "at most 33554432 are read"),
    "large index": (lambda c: _large(c, INDEX, 1 << 40), "at most 4194304 are read"),
    "large values": (lambda c: _large(c, VALUES, 1 << 40), "at most 68719476736 are read"),
    "values larger than their index": (lambda c: _large(c, VALUES, 1 << 35), "the variables have 34359738368 bytes"),
    "large example": (lambda c: _large(c, "example.npz", 1 << 40), "at most 67108864 are read"),
    "large fingerprint": (lambda c: _large(c, "fingerprint.pb", 1 << 40), "at most 4096 are read"),
    "large card": (lambda c: _large(c, "MODEL_CARD.md", 1 << 40), "at most 4194304 are read"),
    "changed card": (lambda c: _large(c, "MODEL_CARD.md", 9), "MODEL_CARD.md has changed"),
    "changed values": (lambda c: _flip(c / VALUES), "variables.data-00000-of-00001 has changed"),
}  # fmt: skip


def _write(file):
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"")


def _folder(copy, name):
    (copy / name).unlink()
    (copy / name).mkdir()


def _flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_plain_file_of_an_export_is_refused(copy, name):
    make, reason = STRANGERS[name]
    make(copy)
    refused(copy, reason)


def test_many_strangers_are_not_all_told(copy):
    for i in range(1000):
        (copy / f"stranger_{i}").write_bytes(b"")
    with pytest.raises(ValueError, match="stranger") as error:
        gpx.verify(copy)
    assert str(error.value).count("is not a file") == 10


def test_a_link_to_a_version_is_refused(copy, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "7").symlink_to(copy)
    refused(tmp_path / "model", "it is a symbolic link")
    assert gpx.verify(copy).folder == copy


def test_a_file_that_grows_is_not_read_on(copy, monkeypatch):
    """As it would if it were written to at the same time."""
    sizes = folders._entries

    def smaller(folder):
        for name, status in sizes(folder):
            values = list(status)
            values[6] -= name == VALUES
            yield name, os.stat_result(values)

    monkeypatch.setattr(folders, "_entries", smaller)
    refused(copy, "the variables have|grows while it is read")


def test_an_unreadable_folder_is_told_in_a_sentence(copy, monkeypatch):
    def fail(*arguments):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(folders.os, "open", fail)
    with pytest.raises(ValueError, match=r"cannot be read or copied: .*Input/output error"):
        gpx.verify(copy)


def table(entries):
    """A table of one block without shared parts of keys, as `_entries` reads it."""

    def varint(value):
        out = b""
        while value > 127:
            out, value = out + bytes([value & 127 | 128]), value >> 7
        return out + bytes([value])

    def block(pairs):
        body = b"".join(b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs)
        return body + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")

    first = block(entries)
    second = block([(b"~", varint(0) + varint(len(first)))])
    place = len(first) + 5
    footer = varint(0) + varint(0) + varint(place) + varint(len(second))
    magic = (0xDB4775248B80FB57).to_bytes(8, "little")
    return first + b"\0" * 5 + second + b"\0" * 5 + footer.ljust(40, b"\0") + magic


def _entry(name, **fields):
    def edit(entries):
        entry = tensor_bundle_pb2.BundleEntryProto.FromString(entries[name])
        for key, value in fields.items():
            if key == "shape":
                del entry.shape.dim[:]
                for size in value:
                    entry.shape.dim.add(size=size)
            else:
                setattr(entry, key, value)
        entries[name] = entry.SerializeToString()

    return edit


FIRST, TEXT = b"variables_read/0/.ATTRIBUTES/VARIABLE_VALUE", b"_CHECKPOINTABLE_OBJECT_GRAPH"
INDICES = {
    "giant shape": (_entry(FIRST, shape=[10**6, 10**6]), "in another type, shape or place"),
    "giant size": (_entry(FIRST, size=10**12), "in another type, shape or place"),
    "another type": (_entry(FIRST, dtype=1), "in another type, shape or place"),
    "another place": (_entry(FIRST, offset=10**9), "in another type, shape or place"),
    "another shard": (_entry(FIRST, shard_id=1), "in another type, shape or place"),
    "giant text": (_entry(TEXT, shape=[10**9]), "in another type, shape or place"),
    "a variable more": (lambda e: e.update(evil=b"") or e.update({b"evil": e.pop("evil")}), "names other variables"),
    "a variable less": (lambda e: e.pop(FIRST), "names other variables"),
    "more shards": (lambda e: e.update({b"": b"\x08\x02"}), "names other variables"),
    "no protobuf": (lambda e: e.update({FIRST: b"\xff"}), "not an index of variables"),
}  # fmt: skip


@pytest.mark.parametrize("name", INDICES)
def test_an_index_of_other_variables_is_refused(exported, tmp_path, name):
    model = Edited(exported, tmp_path / "model")
    entries = dict(_entries((model.folder / INDEX).read_bytes()))
    (model.folder / INDEX).write_bytes(table(sorted(entries.items())))
    gpx.verify(model.seal())  # the table itself is good
    edit, reason = INDICES[name]
    edit(entries)
    (model.folder / INDEX).write_bytes(table(sorted(entries.items())))
    refused(model.seal(), reason)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 47, b"\xff" * 48, b"\xff" * 40 + b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"]
)
def test_what_is_no_index_is_refused(exported, tmp_path, content):
    model = Edited(exported, tmp_path / "model")
    (model.folder / INDEX).write_bytes(content)
    refused(model.seal(), "not an index of variables")


def archive(arrays, compression=zipfile.ZIP_STORED):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as opened:
        for name, content in arrays.items():
            opened.writestr(f"{name}.npy", content)
    return stream.getvalue()


def _edited(name, old, new):
    def edit(arrays):
        assert old in arrays[name]
        arrays[name] = arrays[name].replace(old, new)
        return archive(arrays)

    return edit


EXAMPLES = {
    "no archive": (lambda a: b"PK", "example.npz"),
    "compressed": (lambda a: archive(a, zipfile.ZIP_DEFLATED), "compressed"),
    "an array more": (lambda a: archive({**a, "evil": a["mean"]}), "does not hold the inputs and the outputs"),
    "an array less": (lambda a: archive({k: a[k] for k in a if k != "mean"}), "does not hold the inputs"),
    "giant shape": (_edited("mean", b"(5, 1), }      ", b"(500000000, 1),}"), "something other than arrays|another size"),
    "objects": (_edited("mean", b"'<f8'", b"'|O' "), "something other than arrays"),
    "deep header": (lambda a: archive({**a, "mean": a["mean"][:10] + b"(" * 1000}), "something other than arrays"),
    "empty": (lambda a: archive({**a, "mean": b""}), "something other than arrays"),
    "other rows": (lambda a: archive({**a, "mean": _npy(np.zeros((4, 1)))}), "each output n rows"),
    "other width": (lambda a: archive({**a, "inputs": _npy(np.zeros((5, 4)))}), r"the shape \[n, 3\]"),
}  # fmt: skip


def _npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_of_something_else_is_refused(exported, tmp_path, name):
    model = Edited(exported, tmp_path / "model")
    file = model.folder / "example.npz"
    with zipfile.ZipFile(file) as opened:
        arrays = {member.removesuffix(".npy"): opened.read(member) for member in opened.namelist()}
    edit, reason = EXAMPLES[name]
    file.write_bytes(edit(arrays))
    refused(model.seal(), reason)


@pytest.mark.parametrize("content", [b"\xff", b"\x0a", b"\xfa\x7f\x01x"])
def test_what_is_no_fingerprint_is_refused(exported, tmp_path, content):
    model = Edited(exported, tmp_path / "model")
    (model.folder / "fingerprint.pb").write_bytes(content)
    refused(model.seal(), "fingerprint")
