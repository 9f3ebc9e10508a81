"""Train, score and export the models of the zoo; write the table of what is there and TensorFlow Serving's list."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from .. import _cli
from .zoo_models import MODELS, WAVES

EPILOG = """\
examples
  python -m scripts.tools.make_zoo                        all models, into saved_models/
  python -m scripts.tools.make_zoo wine_sparse_ep         one of them

Each model is what one command of `gpflow-ext train` gives; its card names the command. A model replaces the one of the
same name when it is whole and verified. The data are bundled with scikit-learn or lie in the folder of GPFLOW_EXT_DATA,
except for those of the regression network, which are drawn from such a network and written to runs/zoo/waves.csv.
"""
LARGEST = 4_000_000  # bytes of a model, all files together
SERVING = Path(__file__).resolve().parents[1] / "tf_serving" / "models.config"
SERVED = """# The models of the zoo, for TensorFlow Serving: --model_config_file=/config/models.config, the zoo mounted at /models.
# The newest version of each is served; a new export is taken up without a restart. Written by `make zoo`.
model_config_list {{
{models}
}}
"""
README = """# The zoo

Trained models to load, to serve, or to compare your own with. Each folder holds one version: a SavedModel that
needs only TensorFlow, `MODEL_CARD.md` with data, scores, signatures and how to make it again, `manifest.json` with
the hash of every file, and `example.npz` with a few synthetic inputs and what the model must return for them.

{table}

Scores are of held-out rows, with 95 % intervals for the choice of those rows; cards name those of a linear model on the
same rows. Every model is small and trained in a few minutes at most: an example of its class, not a benchmark result.

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
    import gpflow
    import numpy as np

    import gpflow_ext as gpx
    from gpflow_ext.cli import kernels, kinds, train, training

    recipe = MODELS[name]
    kind, *flags = shlex.split(os.path.expandvars(recipe.command))
    module, options = kinds.KINDS[kind].load(), train.options_of(kind, flags)
    gpflow.config.set_default_float(np.float64)
    kernels.configure(options)
    split = _data(module, options)
    model = module.build(options, split)
    begin = time.process_time()
    result = training.fit(module, options, model, split, options.steps)
    seconds = time.process_time() - begin
    metrics = gpx.metrics.evaluate(model, split.test)
    notes = [
        f"Made by `make zoo`, or alone by `python -m scripts.tools.make_zoo {name}`: it trains as "
        f"`gpflow-ext train --model {recipe.command}` does.",
        f"Trained on {len(split.train[0])} rows in {max(1.0, seconds):.0f} CPU seconds, first compilation included; "
        f"scored on the other {len(split.test[0])} rows.",
        *_baseline(split),
        *_ending(result),
        f"Limits. {recipe.limits}",
        *(f"{note[0].upper()}{note[1:]}." for note in split.notes),
    ]
    with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as new:
        folder = gpx.export(
            model,
            Path(new) / name,
            data=split,
            metrics=metrics,
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


def _data(module: Any, options: argparse.Namespace) -> Any:
    """Return the data; those of the network are drawn first."""
    from gpflow_ext.cli import training

    if options.data == str(WAVES):
        write_waves()
    split = training.load(module, options)
    if options.data == str(WAVES):
        source = "drawn by scripts/tools/make_zoo.py; licence: CC0, as all it draws"
        split = dataclasses.replace(split, source=source)
    return split


def _ending(result: Any) -> list[str]:
    """Return how the training ended: what the result of a fit remarks, or the diagnostics of draws."""
    import gpflow_ext as gpx

    if isinstance(result, gpx.Draws):
        found = result.diagnose()
        return [
            f"{result.num_chains} chains of {result.num_draws} draws: R-hat at most {found.worst_rhat:.3f}, "
            f"bulk ESS at least {found.min_ess:.0f}."
        ]
    return [result.status.value, *result.notes]


def _baseline(split: Any) -> list[str]:
    """Return a sentence with the scores of a linear model on the same rows."""
    from ..benchmarks.defaults_peers import measure, peers
    from ..benchmarks.defaults_tables import LINEAR, part_of

    part = part_of(split, split.task)
    linear = peers(part).get(LINEAR)
    if linear is None:
        return []
    found = measure(linear, part)
    error = "error" if split.task in ("binary", "multiclass", "ordinal") else "rmse"
    return [f"A linear model on the same rows: {error} {found['error']:.3g}, nlpd {found['nlpd']:.3g}."]


def size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def readme(target: Path) -> str:
    """Return the page of the zoo, from the manifests of its models."""
    rows = [
        "| model | class | data | test scores | inputs | holds training inputs | kB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in MODELS:
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


def serving_config() -> str:
    """Return the list of the zoo's models that TensorFlow Serving reads."""
    entry = (
        '  config {{\n    name: "{0}"\n    base_path: "/models/{0}"\n    model_platform: "tensorflow"\n  }}'
    )
    return SERVED.format(models="\n".join(entry.format(name) for name in sorted(MODELS)))


def main() -> None:
    """Make the models that are named."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.tools.make_zoo",
        description=__doc__,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which models (default: all of {', '.join(MODELS)})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("saved_models"), help="folder of the zoo (default: %(default)s)"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(MODELS)
    if unknown:
        raise ValueError(
            f"no model of the zoo is named {', '.join(sorted(unknown))}; there are {', '.join(MODELS)}."
        )
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or MODELS:
        begin = time.perf_counter()
        folder = make(name, options.out)
        print(f"{folder}: {size(folder) / 1000:.0f} kB, {time.perf_counter() - begin:.0f} seconds")
    if all((options.out / name).is_dir() for name in MODELS):
        (options.out / "README.md").write_text(readme(options.out), encoding="utf-8")
        SERVING.write_text(serving_config(), encoding="utf-8")


if __name__ == "__main__":
    _cli.run(main)
