"""Check an exported model, or take a private copy of it that is checked."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow.core.protobuf import fingerprint_pb2

from .columns import RAW, RAW_COUNTS, check_raw
from .folder import (
    EXAMPLE,
    FINGERPRINT,
    GRAPH,
    INDEX,
    MANIFEST,
    VALUES,
    Reader,
    read_file,
    version_folder,
)
from .graph import Graph, check_graph
from .manifest import check_signature, parse
from .signing import public_key
from .tables import check_example, check_index


class Verified(NamedTuple):
    """Result of a check: the folder of the version, the number of files, and the operations of the graph."""

    folder: Path
    files: int
    operations: tuple[str, ...]


def verify(path: str | os.PathLike[str], *, key: bytes | None = None) -> Verified:
    """Check that an exported model has exactly the form that an export writes, and only computes.

    It is checked in place: anyone who can write to the folder can change it afterwards. `verified_copy` and
    ``load_exported`` leave no such gap.

    Parameters
    ----------
    path
        An exported model (its newest version is taken) or one version of it.
    key
        A public Ed25519 key, PEM or 32 bytes: the model must be signed by its private half. Without a key
        nothing proves who exported the model, since all hashes could have been rewritten.

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
    if key is not None:
        public_key(key)  # a wrong one is no fault of the folder
    with _naming(folder):
        reader = Reader(folder, copy)
        if MANIFEST not in reader.sizes:
            raise ValueError(f"it has no {MANIFEST}")
        manifest = parse(reader.read(MANIFEST))
        if key is not None:
            check_signature(manifest, key)
        hashes = manifest["sha256"]
        _check_names(reader.sizes.keys() - {MANIFEST}, hashes.keys())
        graph = check_graph(reader.read(GRAPH, hashes[GRAPH]))
        _check_agreement(manifest, graph)
        check_index(reader.read(INDEX, hashes[INDEX]), graph.variables, reader.sizes[VALUES])
        outputs = manifest["signatures"]["serving_default"]["outputs"]
        check_example(reader.read(EXAMPLE, hashes[EXAMPLE]), manifest["data"]["D"], outputs)
        if FINGERPRINT in hashes:
            _check_fingerprint(reader.read(FINGERPRINT, hashes[FINGERPRINT]))
        for name in sorted(hashes.keys() - {GRAPH, INDEX, EXAMPLE, FINGERPRINT}):
            reader.skim(name, hashes[name])
    return Verified(folder, len(hashes), graph.operations), manifest


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(f"{folder} cannot be read or copied: {error}") from error
    except ValueError as error:
        raise ValueError(f"{folder} is not what was exported: {error}") from error


def _check_names(found: Set[str], expected: Set[str]) -> None:
    problems = [f"{name} is missing" for name in sorted(expected - found)]
    problems += [f"{name} is not in the manifest" for name in sorted(found - expected)]
    if problems:
        raise ValueError("; ".join(problems))


def _check_agreement(manifest: Mapping[str, Any], graph: Graph) -> None:
    """Check what the manifest says of the graph."""
    if manifest["signatures"] != graph.signatures:
        raise ValueError(f"signatures in {MANIFEST} are not those of the graph")
    width, dtype = manifest["data"]["D"], manifest["dtype"]
    check_raw(manifest.get("columns"), graph.signatures, graph.texts)
    for name, signature in graph.signatures.items():
        if name not in (RAW, RAW_COUNTS) and signature["inputs"].get("inputs") != {
            "shape": [None, width],
            "dtype": dtype,
        }:
            raise ValueError(
                f"data.D or dtype in {MANIFEST} is not that of signature {name}: {width}, {dtype}"
            )
    outputs, labels = graph.signatures["serving_default"]["outputs"], manifest["labels"]
    if (labels is not None) != ("label" in outputs):
        raise ValueError(f"only one of {MANIFEST} and the graph has labels")
    if labels is not None:
        classes = outputs.get("probabilities", {"shape": [None]})["shape"][-1]
        if classes not in (None, len(labels)) or tuple(map(str.encode, labels)) not in graph.texts:
            raise ValueError(f"labels in {MANIFEST} are not those of the graph")


def _check_fingerprint(content: bytes) -> None:
    fingerprint = fingerprint_pb2.FingerprintDef()
    try:
        fingerprint.ParseFromString(content)
    except Exception as error:  # the protobuf implementations raise different classes
        raise ValueError(f"{FINGERPRINT} is not a fingerprint: {error}") from error
    fingerprint.DiscardUnknownFields()
    if fingerprint.ByteSize() != len(content):
        raise ValueError(f"{FINGERPRINT} holds more than a fingerprint")
