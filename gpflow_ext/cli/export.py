"""Export the newest checkpoint of a training as a SavedModel: `gpflow-ext export`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gpflow_ext.cli import flags, kernels, report, runs, tables, training

TEXT = "Export the newest checkpoint of a training as a SavedModel."
EPILOG = """\
example
  gpflow-ext train --data breast_cancer --run-dir runs/bc
  gpflow-ext export runs/bc saved_models/bc

The model is rebuilt from what lies beside the run's checkpoints. The data of its flags, in run.json, must still be
where the run found them, unchanged: the exported model holds their scaling, and its card the scores of the test rows.
"""


def parser(prog: str | None = "gpflow-ext export") -> argparse.ArgumentParser:
    """Return the parser."""
    new = flags.parser(TEXT, EPILOG, prog)
    new.add_argument("run_dir", type=Path, help="the --run-dir of a training")
    new.add_argument("target", type=Path, help="folder of the exported model; a new version is added to it")
    return new


def main(arguments: Sequence[str] | None = None, prog: str | None = "gpflow-ext export") -> None:
    """Rebuild, evaluate, export, verify."""
    options = parser(prog).parse_args(arguments)
    saved = runs.saved(options.run_dir)
    split = tables.load(saved, saved.task)
    runs.check(options.run_dir, split)
    kernels.configure(saved)
    import gpflow_ext as gpx

    model = gpx.load_checkpoint(options.run_dir / "checkpoints", data=split.train)
    folder = training.export(model, split, saved, options.target)
    gpx.verify(folder)
    print(f"exported to {folder}")
    report.after_export(options.target, saved.data, saved.exposure)
