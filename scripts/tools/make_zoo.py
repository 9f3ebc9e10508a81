"""Train, score and export the models of the zoo, and write the table of what is there."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import shlex
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import _cli

EPILOG = """\
examples
  python -m scripts.tools.make_zoo                        all models, into saved_models/
  python -m scripts.tools.make_zoo wine_sparse_ep         one of them

Each model is what one command of a training script gives; its card names the command. A model replaces the one of the
same name when it is whole and verified. The data are bundled with scikit-learn, but for those of the regression network,
which are drawn from such a network and written to runs/zoo/waves.csv.
"""
WAVES = Path("runs/zoo/waves.csv")
ZOO = {
    "breast_cancer_vgp_kmm": "train_vgp_kmm --data breast_cancer --num-inducing 50",
    "digits_svgp_robustmax": "train_svgp_robustmax --data digits --common-scale --inducing 60 --steps 600",
    "wine_sparse_ep": "train_sparse_ep --data wine --inducing 40",
    "wine_sgpmc_freeform": "train_sgpmc_freeform --data wine --inducing 10 --tuner dual_averaging --steps 300",
    "waves_gprn_tensor": f"train_gprn_tensor --data {WAVES} --target y1 y2 y3 y4 --nodes 2",
    "breast_cancer_gp_laplace": "train_review --method laplace --data breast_cancer --inducing 60",
    "diabetes_sgpr": "train_review --method vi-means --data diabetes --inducing 50",
}
LARGEST = 1_000_000  # bytes of a model, all files together
README = """# The zoo

Trained models to load, to serve, or to compare your own with. Each folder holds one version: a SavedModel that
TensorFlow alone can load, `MODEL_CARD.md` with data, scores, signatures and how to make it again, `manifest.json` with
the hash of every file, and `example.npz` with a few synthetic inputs and what the model must return for them.

{table}

Scores are of held-out rows, with 95 % intervals for the choice of those rows. Every model is
small and trained in about a minute: an example of its class, no benchmark result.

Made by `make zoo`, which also writes this page. A SavedModel is a program: load only what you trust, and check it first.

```python
import gpflow_ext as gpx

print(gpx.verify("saved_models/wine_sparse_ep"))  # hashes of all files, operations of the graph
served = gpx.load_exported("saved_models/wine_sparse_ep")
print(served.predict([[13.2, 1.8, 2.4, 16.0, 100.0, 2.8, 3.0, 0.3, 2.0, 5.6, 1.1, 3.2, 1065.0]])["label"])
```

More consumers, from `saved_model_cli` to TensorFlow Serving: [docs/serving.md](../docs/serving.md).
"""


def write_waves() -> None:
    """Write four outputs of two waves, mixed by weights that change with the input, and noise."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = np.sort(rng.uniform(0.0, 10.0, 100))
    waves = np.stack([np.sin(2.0 * x), np.cos(1.3 * x)], axis=1)  # [N, 2]
    phases = rng.uniform(0.0, 2.0 * np.pi, (4, 2))
    weights = np.sin(0.3 * x[:, None, None] + phases)  # [N, 4, 2]
    Y = np.einsum("ndk,nk->nd", weights, waves) + 0.1 * rng.standard_normal((100, 4))
    WAVES.parent.mkdir(parents=True, exist_ok=True)
    table = np.column_stack([x, Y])
    np.savetxt(WAVES, table, fmt="%.6f", delimiter=",", header="x,y1,y2,y3,y4", comments="")


def make(name: str, target: Path) -> Path:
    """Train, score, export and verify one model; it replaces the old one at the end."""
    import gpflow_ext as gpx

    script_name, *flags = shlex.split(ZOO[name])
    script = importlib.import_module(f"..{script_name}", __package__)
    options = script.arguments().parse_args(flags)
    if str(WAVES) in flags:
        write_waves()
    split = script.load(options)
    if str(WAVES) in flags:
        split = dataclasses.replace(
            split, source="drawn by scripts/tools/make_zoo.py; licence: CC0, as all it draws"
        )
    model = script.build(options, split)
    script.fit(options, model, split, options.steps)
    notes = [
        f"Made by `make zoo`, or alone by `python -m scripts.tools.make_zoo {name}`: it trains as "
        f"`python scripts/{script_name}.py {shlex.join(flags)}` does.",
        f"Trained on {len(split.train[0])} rows, scored on the other {len(split.test[0])}.",
        *(f"{note[0].upper()}{note[1:]}." for note in split.notes),
    ]
    with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as new:
        folder = gpx.export(
            model,
            Path(new) / name,
            data=split,
            metrics=gpx.metrics.evaluate(model, split.test),
            intervals=gpx.metrics.intervals(model, split.test),
            notes=notes,
        )
        gpx.verify(folder)
        if size(folder) > LARGEST:
            raise ValueError(
                f"{name} has {size(folder)} bytes, more than {LARGEST}: take fewer inducing points."
            )
        shutil.rmtree(target / name, ignore_errors=True)
        folder.parent.replace(target / name)
    return target / name


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def readme(target: Path) -> str:
    """Return the page of the zoo, from the manifests of its models."""
    rows = [
        "| model | class | data | test scores | inputs | holds training inputs | kB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in ZOO:
        [folder] = (target / name).iterdir()
        rows.append(_row(name, folder, json.loads((folder / "manifest.json").read_text(encoding="utf-8"))))
    return README.format(table="\n".join(rows))


def _row(name: str, folder: Path, manifest: dict[str, Any]) -> str:
    data = manifest["data"]
    scores = []
    for metric, value in manifest["metrics"].items():
        ends = manifest["intervals"].get(metric)
        scores.append(f"{metric} {value:.3g}" + (f" ({ends[0]:.3g} to {ends[1]:.3g})" if ends else ""))
    cells = (
        f"[{name}]({name}/{folder.name}/MODEL_CARD.md)",
        manifest["model"]["model"]["class"].rpartition(".")[2],
        f"{data['name']}, {manifest['task']}",
        "; ".join(scores),
        str(data["D"]),
        {True: "yes", False: "no", None: "unknown"}[manifest["holds_training_inputs"]],
        f"{size(folder) / 1000:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Make the models that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.make_zoo",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which models (default: all of {', '.join(ZOO)})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("saved_models"), help="folder of the zoo (default: %(default)s)"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(ZOO)
    if unknown:
        raise ValueError(
            f"no model of the zoo is named {', '.join(sorted(unknown))}; there are {', '.join(ZOO)}."
        )
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or ZOO:
        begin = time.perf_counter()
        folder = make(name, options.out)
        print(f"{folder}: {size(folder) / 1000:.0f} kB, {time.perf_counter() - begin:.0f} seconds")
    if all((options.out / name).is_dir() for name in ZOO):
        (options.out / "README.md").write_text(readme(options.out), encoding="utf-8")


if __name__ == "__main__":
    _cli.run(main)
