"""The flags of a run, kept beside its checkpoints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpflow_ext.cli.streams import check_folder

RUN_FILE = "run.json"
_LATER: dict[str, Any] = {
    "one_hot": [],
    "categories": [],
    "dates": [],
    "decimal": None,
    "bins": None,
    "exposure": None,
    "weights": None,
    "float32": False,
}  # flags that older runs have not; fmt: skip

_BEGIN = {"lengthscale", "variance", "noise", "node_lengthscale", "epsilon", "starts"}  # values to start from
_FREE = {"steps", "run_dir", "export", "xla", "model", "robust", "task", "tensorboard", "test_every"}


def save(options: argparse.Namespace, model: str, sha256: str | None = None) -> None:
    """Write the flags, and the hash of the data, beside the checkpoints, so that these data can be loaded again."""
    options.run_dir.mkdir(parents=True, exist_ok=True)
    content = {"model": model, "sha256": sha256, "arguments": _plain(options)}
    _write(options.run_dir / RUN_FILE, json.dumps(content, indent=2) + "\n")


@contextmanager
def recorded(options: argparse.Namespace, model: str, sha256: str) -> Iterator[None]:
    """Save the flags of a run, if it has a folder; where it is refused, those of the run that is there come back.

    It is refused with the flags that differ from that run, also those of values to start from: these would have
    no effect any more. So is a folder that another training uses, is a file or cannot be written to.
    """
    if options.run_dir is None:
        yield
        return
    if options.run_dir.is_file():
        raise ValueError(f"--run-dir {options.run_dir} is a file: name a folder.")
    check_folder(f"--run-dir {options.run_dir}", options.run_dir)
    from gpflow_ext.persistence.durable import alone

    busy = (
        f"--run-dir {options.run_dir}: another training is running there. Wait for its end, or name another."
    )
    with alone(options.run_dir, busy), _as_recorded(options, model, sha256):
        yield


@contextmanager
def _as_recorded(options: argparse.Namespace, model: str, sha256: str) -> Iterator[None]:
    file = options.run_dir / RUN_FILE
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    begun = any((options.run_dir / "checkpoints").glob("*.index"))
    changed = _changed(before, options, model, sha256) if before and begun else {}
    if not _BEGIN.isdisjoint(changed):
        raise _another(options.run_dir, changed)
    save(options, model, sha256)
    try:
        yield
    except Exception as error:
        if before is not None:
            _write(file, before)
        from gpflow_ext.persistence.manifest import AnotherRunError

        if changed and isinstance(error, AnotherRunError):
            raise _another(options.run_dir, changed) from error
        raise


def _another(run_dir: Path, changed: Mapping[str, str]) -> ValueError:
    return ValueError(
        f"{run_dir} holds a run of other flags or data: {'; '.join(changed.values())}. Give those of that run, or "
        "another --run-dir."
    )


def _changed(before: str, options: argparse.Namespace, model: str, sha256: str) -> dict[str, str]:
    """Return what is said of each flag that is not as in the run that is there, and of a table that has changed."""
    try:
        known = json.loads(before)
        old, other = {**_LATER, **known["arguments"]}, known["model"]
    except (ValueError, KeyError, TypeError):
        return {}
    now = json.loads(json.dumps(_plain(options)))
    said = {
        key: f"--{key.replace('_', '-')} was {_word(old[key])} and is {_word(value)}"
        for key, value in now.items()
        if key not in _FREE and key in old and old[key] != value
    }
    if other != model:
        said["model"] = f"--model was {other} and is {model}"
    if known.get("sha256") not in (None, sha256) and "data" not in said:
        said["data"] = f"{options.data} has changed"
    return said


def _word(value: Any) -> str:
    if value is None or value is False or value == []:
        return "not given"
    if value is True:
        return "given"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}


def check(run_dir: Path, split: Any) -> None:
    """Raise ``ValueError`` for data that have changed since the run: their scaling would be another."""
    known = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8")).get("sha256")  # older runs have none
    if known not in (None, split.sha256):
        raise ValueError(
            f"{split.name} has changed since the training in {run_dir}, whose scaling is that of the old rows: "
            "put these back, or train anew in an empty folder."
        )


def _write(target: Path, text: str) -> None:
    partial = target.with_suffix(".tmp")
    partial.write_text(text, encoding="utf-8")
    partial.replace(target)


def saved(run_dir: Path) -> argparse.Namespace:
    """Return the flags of a run, as its folder holds them."""
    file = run_dir / RUN_FILE
    if not file.is_file():
        raise ValueError(f"{run_dir} holds no {RUN_FILE}: name the --run-dir of a training.")
    try:
        arguments = json.loads(file.read_text(encoding="utf-8"))["arguments"]
        return argparse.Namespace(**{**_LATER, **arguments, "task": arguments["task"]})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file} does not hold the flags of a run ({error!r}): run its training once more."
        ) from error
