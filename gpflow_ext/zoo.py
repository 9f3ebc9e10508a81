"""Trained models by name: those of a folder, of the checkout, or of an address on the web.

A zoo is a folder with a folder for each model, as `export` writes them: ``NAME/VERSION/manifest.json``
and the files that the manifest lists with their hashes.
"""

from __future__ import annotations

import builtins
import hashlib
import http.client
import json
import os
import re
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpflow_ext.data.datasets.openml import cache_folder
from gpflow_ext.data.reading.problems import nearest

if TYPE_CHECKING:
    from gpflow_ext.persistence.exported import Exported

VARIABLE = "GPFLOW_EXT_ZOO"
_CHECKOUT = Path(__file__).resolve().parents[1] / "saved_models"
_NAME = re.compile(r"[^\W_][^/\\:\x00-\x1f]*(/[1-9][0-9]*)?")
_VERSION = re.compile(r"[1-9][0-9]*")
_HUB = re.compile(r"hf://(?P<repository>[\w.-]+/[\w.-]+?)(@(?P<revision>[\w./-]+))?/?")
_SECONDS = 60.0  # without a byte, after which a download fails


@dataclass(frozen=True)
class Model:
    """A model of a zoo, as its manifest describes it; nothing is verified until the model is loaded.

    Attributes
    ----------
    name, version
        Its folder, and the newest version in it.
    path
        The folder of that version.
    kind
        The class of the model.
    task, data
        What it predicts, and the name of the data that it was trained on.
    scores
        Metrics of held-out rows by name.
    inputs
        D, the number of inputs.
    size
        Bytes of all files.
    sha256
        SHA-256 of the manifest, which holds the hashes of all files; for ``load(sha256=...)``.
    """

    name: str
    version: int
    path: Path
    kind: str
    task: str
    data: str | None
    scores: Mapping[str, float]
    inputs: int
    size: int
    sha256: str


def list(folder: str | os.PathLike[str] | None = None) -> builtins.list[Model]:
    """Return the models of a zoo by their names.

    Parameters
    ----------
    folder
        A folder, or ``hf://owner/repository[@revision]``. By default that of the environment variable
        ``GPFLOW_EXT_ZOO``, or else ``saved_models`` of the checkout or of the working directory.

    Raises
    ------
    ValueError
        Where there is no such folder, a manifest cannot be read, or for an https address, which has no list.
    ImportError
        For a hub address without the extra ``hub``.
    """
    place = _place(folder)
    if isinstance(place, str) and not place.startswith("hf:"):
        raise ValueError(f"{place} cannot be listed: load its models by their names.")
    root = place if isinstance(place, Path) else _snapshot(place, "*/manifest.json")
    return [_describe(entry.name, version) for entry, version in _newest(root)]


def load(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    sha256: str | None = None,
    key: bytes | None = None,
) -> Exported:
    """Load a model of a zoo, after verifying the hashes of all its files and the form of its graph.

    Parameters
    ----------
    name
        Its folder, or ``NAME/VERSION``. The default is the newest version, or 1 at an https address.
    folder
        As for `list`, or the https address that the folders of the models are below. Downloads are kept in
        ``GPFLOW_EXT_CACHE`` (or ~/.cache/gpflow_ext), and verified again whenever they are loaded.
    sha256
        Hash of the manifest, `Model.sha256`: no other model is then accepted, whoever serves it.
    key
        A public Ed25519 key; the model must be signed with its private key.

    Raises
    ------
    ValueError
        If there is no such model, or it does not match its manifest, ``sha256`` or ``key``.
    ConnectionError
        If a download fails.
    ImportError
        For a hub address without the extra ``hub``.
    """
    version = find(name, folder, sha256=sha256)
    from gpflow_ext.persistence.exported import load_exported  # with TensorFlow, which takes seconds

    served = load_exported(version, key=key)
    _check_pin(name, served.manifest["manifest_sha256"], sha256)  # of what was verified
    return served


def find(name: str, folder: str | os.PathLike[str] | None = None, *, sha256: str | None = None) -> Path:
    """Return the folder of a version of a model, fetched if need be; it takes and raises what `load` does.

    Nothing is verified yet but the hash that the manifest names, if one is asked for.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"name must be that of a folder, or NAME/VERSION; got {name!r}.")
    version = _find(name, _place(folder))
    if sha256 is not None:
        _check_pin(name, _describe(name, version).sha256, sha256)
    return version


def _place(folder: str | os.PathLike[str] | None) -> Path | str:
    """Return a folder or an address."""
    given = folder if folder is not None else os.environ.get(VARIABLE)
    if given:
        if not isinstance(given, str | os.PathLike):
            raise ValueError(f"folder must be a folder or an address, as text; got {given!r}.")
        text = os.fsdecode(given)
        if text.startswith("hf:"):
            if not _HUB.fullmatch(text):
                raise ValueError(f"a hub address is hf://owner/repository[@revision]; got {text!r}.")
            return text
        if "://" in text:
            return _checked_address(text)
        if Path(text).expanduser().is_dir():
            return Path(text).expanduser()
        raise ValueError(f"there is no folder {text!r}.")
    for path in (_CHECKOUT, Path("saved_models")):
        if path.is_dir():
            return path
    raise ValueError(
        f"there is no zoo here: name a folder or an address, or set {VARIABLE}; the models that come with "
        "the package lie in saved_models/ of its checkout."
    )


def _checked_address(text: str) -> str:
    parts = urllib.parse.urlsplit(text)
    own = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and own):
        raise ValueError(f"an address must begin with https:// or hf://; got {text!r}.")
    if _port(parts) == 0:
        raise ValueError(f"the port of an address must be a number from 1 to 65535; got {text!r}.")
    return urllib.parse.urlunsplit(parts._replace(path=_quoted(parts.path))).rstrip("/")


def _port(parts: urllib.parse.SplitResult) -> int | None:
    """Return the port of an address, 0 for what is none."""
    try:
        return parts.port
    except ValueError:
        return 0


def _quoted(path: str) -> str:
    """Return a path with what an address cannot hold in its place, such as spaces, as %20; escapes stay."""
    return urllib.parse.quote(path, safe="/%:@!$&'()*+,;=~")


def _newest(root: Path) -> Iterator[tuple[Path, Path]]:
    """Yield the folder of each model and that of its newest version."""
    for entry in sorted(path for path in root.iterdir() if path.is_dir()):
        versions = _versions(entry)
        if versions:
            yield entry, max(versions, key=lambda version: int(version.name))


def _versions(entry: Path) -> builtins.list[Path]:
    """Return the folders of the versions of a model."""
    manifests = (path.parent for path in entry.glob("[1-9]*/manifest.json"))
    return [version for version in manifests if _VERSION.fullmatch(version.name)]


def _find(name: str, place: Path | str) -> Path:
    """Return the folder of a version, fetched if need be."""
    if isinstance(place, str) and not place.startswith("hf:"):
        return _fetch(name, place)
    head = name.partition("/")[0]
    root = place if isinstance(place, Path) else _snapshot(place, f"{head}/*")
    if "/" in name and (root / name / "manifest.json").is_file():
        return root / name
    found = {entry.name: version for entry, version in _newest(root)}
    if "/" in name and head in found:
        versions = ", ".join(sorted((version.name for version in _versions(root / head)), key=int))
        raise ValueError(f"{place} has no version {name.partition('/')[2]} of {head}; it has {versions}.")
    if name not in found:
        raise ValueError(
            f"{place} has no model {name!r}{nearest(head, found)}; it has {', '.join(found) or 'none'}."
        )
    return found[name]


def _read_manifest(version: Path) -> bytes:
    try:
        return (version / "manifest.json").read_bytes()
    except OSError as error:
        raise ValueError(f"{version} has no manifest.json that can be read: {error}.") from error


def _describe(name: str, version: Path) -> Model:
    try:
        about = json.loads(_read_manifest(version))
        return Model(
            name=name,
            version=int(about["version"]),
            path=version,
            kind=about["model"]["model"]["class"].rpartition(".")[2],
            task=about["task"],
            data=about["data"].get("name"),
            scores=about["metrics"],
            inputs=int(about["data"]["D"]),
            size=sum(file.stat().st_size for file in version.rglob("*") if file.is_file()),
            sha256=about["manifest_sha256"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{version / 'manifest.json'} is not that of an exported model ({error!r})."
        ) from error


def _check_pin(name: str, found: str, sha256: str | None) -> None:
    if sha256 not in (None, found):
        raise ValueError(f"{name} is another model than was asked for: SHA-256 {found}, not {sha256}.")


def _snapshot(address: str, pattern: str) -> Path:
    """Return the folder of a repository of the Hugging Face Hub, with the files that a pattern names."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError('a zoo on the hub needs pip install "gpflow-ext[hub]".') from error
    found = _HUB.fullmatch(address)
    assert found is not None
    return Path(snapshot_download(found["repository"], revision=found["revision"], allow_patterns=[pattern]))


def _fetch(name: str, address: str) -> Path:
    """Return the folder of a version of an address in the cache; each file is checked as it comes."""
    from gpflow_ext.persistence.verify.folder import LARGEST, MANIFEST

    name = name if "/" in name else f"{name}/1"
    place = hashlib.sha256(address.encode()).hexdigest()[:16]
    target = cache_folder() / "zoo" / place / name
    if (target / MANIFEST).is_file():
        return target
    if os.environ.get("GPFLOW_EXT_OFFLINE", "0") not in ("", "0"):
        raise ValueError(f"{name} of {address} is not in the cache, and GPFLOW_EXT_OFFLINE is set.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as folder:
        partial = Path(folder) / "whole"
        below = f"{address}/{urllib.parse.quote(name)}"
        content = _get(f"{below}/{MANIFEST}", LARGEST[MANIFEST], partial / MANIFEST)
        try:
            hashes = json.loads((partial / MANIFEST).read_bytes())["sha256"]
            strange = sorted(hashes.keys() - (set(LARGEST) - {MANIFEST}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{below}/{MANIFEST} is not that of an exported model.") from error
        if strange:
            raise ValueError(f"the manifest of {name} lists {strange[0]!r}, which no export writes.")
        for file, expected in hashes.items():
            content = _get(f"{below}/{file}", LARGEST[file], partial / file)
            if content != expected:
                raise ValueError(f"{file} of {name} is not what its manifest says: SHA-256 {content}.")
        _keep(partial, target)
    return target


def _keep(partial: Path, target: Path) -> None:
    """Move a version to its place in the cache, unless another process has meanwhile fetched it too."""
    try:
        partial.replace(target)
    except OSError:
        if not target.is_dir():
            raise


def _get(url: str, most: int, path: Path) -> str:
    """Write what is at an address to a file of at most so many bytes; return its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("xb") as file:
            _checked_address(answer.url)  # a redirection keeps to it
            while block := answer.read(1 << 20):
                size += len(block)
                if size > most:
                    raise ValueError(f"{url} has more than {most} bytes.")
                digest.update(block)
                file.write(block)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        raise ConnectionError(f"{url} could not be fetched: {error}.") from error
    return digest.hexdigest()
