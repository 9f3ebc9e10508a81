"""The flags of a run, kept beside its checkpoints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

RUN_FILE = "run.json"
_LATER: dict[str, Any] = {
    "one_hot": [],
    "categories": [],
    "dates": [],
    "decimal": None,
    "bins": None,
    "exposure": None,
    "float32": False,
}  # flags that older runs have not; fmt: skip


def save(options: argparse.Namespace, model: str) -> None:
    """Write the flags beside the checkpoints, so that the data of the run can be loaded again."""
    options.run_dir.mkdir(parents=True, exist_ok=True)
    plain = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    target = options.run_dir / RUN_FILE
    partial = target.with_suffix(".tmp")
    partial.write_text(json.dumps({"model": model, "arguments": plain}, indent=2) + "\n", encoding="utf-8")
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
