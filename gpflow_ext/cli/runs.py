"""The flags of a run, kept beside its checkpoints."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
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


def save(options: argparse.Namespace, model: str, sha256: str | None = None) -> None:
    """Write the flags, and the hash of the data, beside the checkpoints, so that these data can be loaded again."""
    if options.run_dir.is_file():
        raise ValueError(f"--run-dir {options.run_dir} is a file: name a folder.")
    check_folder(f"--run-dir {options.run_dir}", options.run_dir)
    options.run_dir.mkdir(parents=True, exist_ok=True)
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    content = {"model": model, "sha256": sha256, "arguments": plain}
    _write(options.run_dir / RUN_FILE, json.dumps(content, indent=2) + "\n")


@contextmanager
def recorded(options: argparse.Namespace, model: str, sha256: str) -> Iterator[None]:
    """Save the flags of a run, if it has a folder; where it is refused, those of the run that is there come back."""
    if options.run_dir is None:
        yield
        return
    file = options.run_dir / RUN_FILE
    before = file.read_text(encoding="utf-8") if file.is_file() else None
    save(options, model, sha256)
    try:
        yield
    except Exception:
        if before is not None:
            _write(file, before)
        raise


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
