"""Export the newest checkpoint of a training run as a SavedModel."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

import _cli

EPILOG = """\
example
  python scripts/train_vgp_kmm.py --data breast_cancer --run-dir runs/bc
  python scripts/export.py runs/bc saved_models/bc

The model is rebuilt from the flags in the run's run.json and restored from its newest checkpoint; the data
must still be where the run found them, because they are hashed and compared.
"""


def main() -> None:
    """Rebuild, restore, evaluate, export, verify."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path, help="the --run-dir of a training script")
    parser.add_argument(
        "target", type=Path, help="folder of the exported model; a new version is added to it"
    )
    options = parser.parse_args()
    saved = options.run_dir / _cli.RUN_FILE
    if not saved.is_file():
        raise ValueError(
            f"{options.run_dir} holds no {_cli.RUN_FILE}: name the --run-dir of a training script."
        )
    run = json.loads(saved.read_text(encoding="utf-8"))
    scripts = sorted(path.stem for path in Path(__file__).parent.glob("train_*.py"))
    if run.get("script") not in scripts:
        raise ValueError(
            f"{saved} names the script {run.get('script')!r}; the training scripts are {', '.join(scripts)}."
        )
    flags = argparse.Namespace(**run["arguments"])
    _cli.configure(flags)
    import gpflow_ext as gpx

    script = importlib.import_module(run["script"])
    split = script.load(flags)
    model = script.build(flags, split)
    flags.run_dir = options.run_dir
    step = script.fit(flags, model, split, steps=0).steps
    if step == 0:
        raise ValueError(f"{options.run_dir} holds no checkpoint: train first.")
    metrics = gpx.metrics.evaluate(model, split.test) if len(split.test[0]) else {}
    folder = gpx.export(model, options.target, data=split, metrics=metrics)
    gpx.verify(folder)
    print(f"exported step {step} to {folder}")


if __name__ == "__main__":
    _cli.run(main)
