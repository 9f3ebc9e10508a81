"""Check an exported model, or take a private copy of it that is checked."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow.core.protobuf import fingerprint_pb2

from .folder import (
    EXAMPLE,
    FINGERPRINT,
    GRAPH,
    INDEX,
    MANIFEST,
    VALUES,
    Files,
    read_file,
    read_files,
    version_folder,
)
from .graph import Graph, check_graph
from .manifest import check_signature, parse
from .tables import check_example, check_index


class Verified(NamedTuple):
    """What was checked: the folder of the version, how many files, and which operations the graph holds."""

    folder: Path
    files: int
    operations: tuple[str, ...]


def verify(path: str | os.PathLike[str], *, key: bytes | None = None) -> Verified:
    """Check that an exported model is exactly of the form that an export writes, and only computes.

    It is checked as it lies there: who can write to the folder can change it afterwards. `verified_copy` and
    ``load_exported`` leave no such time.

    Parameters
    ----------
    path
        An exported model (its newest version is taken) or one version of it.
    key
        A public Ed25519 key, PEM or 32 bytes: the model must be signed by its private half. Without it
        nothing shows who exported the model, because all hashes could have been written anew.

    Raises
    ------
    ValueError
        Naming the file, the entry of the manifest or the operation that does not belong there.
    ImportError
        For a key without the extra ``sign``.
    """
    return _examine(version_folder(path), key)[0]


@contextlib.contextmanager
def verified_copy(
    path: str | os.PathLike[str], *, key: bytes | None = None
) -> Iterator[tuple[Path, Verified, dict[str, Any]]]:
    """Give a private copy of a model: its folder, what `verify` returns, and the manifest.

    It is gone after the context. Each file is read once, into the copy and through the checks: what is loaded
    from the copy is what was checked, whatever happens to the model's own folder meanwhile.

    Raises
    ------
    ValueError, ImportError
        As `verify`.
    """
    folder = version_folder(path)
    with tempfile.TemporaryDirectory(prefix="gpflow_ext-") as private:
        copy = Path(private) / "model"
        verified, manifest = _examine(folder, key, copy)
        yield copy, verified, manifest


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of one version, checked by itself alone."""
    with _naming(folder):
        return parse(read_file(folder, MANIFEST))


def _examine(folder: Path, key: bytes | None, copy: Path | None = None) -> tuple[Verified, dict[str, Any]]:
    with _naming(folder):
        files = read_files(folder, copy)
        if MANIFEST not in files.contents:
            raise ValueError(f"it has no {MANIFEST}")
        manifest = parse(files.contents[MANIFEST])
        if key is not None:
            check_signature(manifest, key)
        _check_hashes(files, manifest["sha256"])
        graph = check_graph(files.contents[GRAPH])
        _check_agreement(manifest, graph)
        check_index(files.contents[INDEX], graph.variables, files.sizes[VALUES])
        served = manifest["signatures"]["serving_default"]
        check_example(files.contents[EXAMPLE], manifest["data"]["D"], served["outputs"])
        _check_fingerprint(files.contents.get(FINGERPRINT))
    return Verified(folder, len(files.hashes) - 1, graph.operations), manifest


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{folder} cannot be read: {error}") from error
    except ValueError as error:
        raise ValueError(f"{folder} is not what was exported: {error}") from error


def _check_hashes(files: Files, expected: Mapping[str, str]) -> None:
    found = {name: value for name, value in files.hashes.items() if name != MANIFEST}
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name} is not in the manifest" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name} has changed (SHA-256 {found[name][:12]}..., in the manifest {expected[name][:12]}...)"
        for name in sorted(found.keys() & expected.keys())
        if found[name] != expected[name]
    ]
    if problems:
        raise ValueError("; ".join(problems))


def _check_agreement(manifest: Mapping[str, Any], graph: Graph) -> None:
    """Check what the manifest says of the graph."""
    if manifest["signatures"] != graph.signatures:
        raise ValueError(f"signatures in {MANIFEST} are not those of the graph")
    width, dtype = manifest["data"]["D"], manifest["dtype"]
    for name, signature in graph.signatures.items():
        if signature["inputs"].get("inputs") != {"shape": [None, width], "dtype": dtype}:
            raise ValueError(
                f"data.D or dtype in {MANIFEST} is not that of signature {name}: {width}, {dtype}"
            )
    outputs, labels = graph.signatures["serving_default"]["outputs"], manifest["labels"]
    if (labels is not None) != ("label" in outputs):
        raise ValueError(f"labels in {MANIFEST} are there, or not, unlike those of the graph")
    if labels is not None:
        classes = outputs.get("probabilities", {"shape": [None]})["shape"][-1]
        if classes not in (None, len(labels)) or tuple(map(str.encode, labels)) not in graph.texts:
            raise ValueError(f"labels in {MANIFEST} are not those of the graph")


def _check_fingerprint(content: bytes | None) -> None:
    if content is None:
        return
    fingerprint = fingerprint_pb2.FingerprintDef()
    try:
        fingerprint.ParseFromString(content)
    except Exception as error:  # the protobuf implementations raise different classes
        raise ValueError(f"{FINGERPRINT} is no fingerprint: {error}") from error
    fingerprint.DiscardUnknownFields()
    if fingerprint.ByteSize() != len(content):
        raise ValueError(f"{FINGERPRINT} holds more than a fingerprint")
