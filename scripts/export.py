"""Export the newest checkpoint of a training run as a SavedModel."""

from __future__ import annotations

import argparse
from pathlib import Path

import _cli

EPILOG = """\
example
  python scripts/train_vgp_kmm.py --data breast_cancer --run-dir runs/bc
  python scripts/export.py runs/bc saved_models/bc

The model is rebuilt from what lies beside the run's checkpoints. The data of its flags, in run.json, must still be
where the run found them: the exported model holds their scaling, and its card the scores of the test rows.
"""


def main() -> None:
    """Rebuild, evaluate, export, verify."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, help="the --run-dir of a training script")
    parser.add_argument(
        "target", type=Path, help="folder of the exported model; a new version is added to it"
    )
    options = parser.parse_args()
    flags = _cli.saved_arguments(options.run_dir)
    _cli.configure(flags)
    import gpflow_ext as gpx

    split = _cli.load(flags, flags.task)
    model = gpx.load_checkpoint(options.run_dir / "checkpoints", data=split.train)
    metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    folder = gpx.export(model, options.target, data=split, metrics=metrics)
    gpx.verify(folder)
    print(f"exported to {folder}")


if __name__ == "__main__":
    _cli.run(main)
