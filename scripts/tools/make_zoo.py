"""Train, score and export the models of the zoo; write the table of what is there and TensorFlow Serving's list."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from .. import _cli
from . import zoo_data
from .zoo_models import LARGER, MODELS, Chosen

EPILOG = """\
examples
  python -m scripts.tools.make_zoo                        all models, into saved_models/
  python -m scripts.tools.make_zoo wine_sparse_ep         one of them

Each model is what one command of `gpflow-ext train` gives; its card names the command. A model replaces the one of the
same name when it is whole and verified. The data are bundled with scikit-learn or lie in the folder of GPFLOW_EXT_DATA,
except for those that are made and written to runs/zoo: see scripts/tools/zoo_data.py.

Models of more than 4 MB are not in the repository. They go into runs/zoo/larger and the archive runs/zoo/larger.tar.
"""
LARGEST = 4_000_000  # bytes of a model, all files together
ARCHIVED = Path("runs/zoo/larger")
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

{larger} are larger than 4 MB and not in the repository: `make zoo` puts them into `runs/zoo/larger`, which
`gpx.zoo.load` reads, and into the archive `runs/zoo/larger.tar`.

Made by `make zoo`, which also writes this page. A SavedModel is a program: load only what you trust, and check it first.

```python
import gpflow_ext as gpx

print(gpx.verify("saved_models/wine_sparse_ep"))  # hashes of all files, operations of the graph
served = gpx.load_exported("saved_models/wine_sparse_ep")
print(served.predict([[13.2, 1.8, 2.4, 16.0, 100.0, 2.8, 3.0, 0.3, 2.0, 5.6, 1.1, 3.2, 1065.0]])["label"])
```

More consumers, from `saved_model_cli` to TensorFlow Serving: [docs/serving.md](../docs/serving.md).
"""


class Trained(NamedTuple):
    """A trained model, the data, and notes for its card."""

    model: Any
    exported: Any  # the model, or what knows its data
    split: Any
    notes: list[str]


def make(name: str, target: Path) -> Path:
    """Train, score, export and verify one model; it replaces the old one at the end."""
    import gpflow_ext as gpx

    recipe = (MODELS | LARGER)[name]
    begin = time.process_time()
    trained = _chosen(recipe) if isinstance(recipe, Chosen) else _by_command(recipe.command)
    seconds = time.process_time() - begin
    split = trained.split
    notes = [
        f"Made by `make zoo`, or alone by `python -m scripts.tools.make_zoo {name}`: {trained.notes[0]}.",
        f"Trained on {len(split.train[0])} rows in {max(1.0, seconds):.0f} CPU seconds, first compilation included; "
        f"scored on the other {len(split.test[0])} rows.",
        *_baseline(split),
        *trained.notes[1:],
        f"Limits. {recipe.limits}",
        *(f"{note[0].upper()}{note[1:]}." for note in split.notes),
    ]
    with tempfile.TemporaryDirectory(dir=target, prefix=".new-") as new:
        folder = gpx.export(
            trained.exported,
            Path(new) / name,
            data=split if trained.exported is trained.model else None,
            metrics=gpx.metrics.evaluate(trained.model, split.test),
            intervals=gpx.metrics.intervals(trained.model, split.test),
            notes=notes,
        )
        gpx.verify(folder)
        if name in MODELS and size(folder) > LARGEST:
            raise ValueError(
                f"{name} has {size(folder)} bytes, more than {LARGEST}: take fewer inducing points."
            )
        shutil.rmtree(target / name, ignore_errors=True)
        folder.parent.replace(target / name)
    return target / name


def _by_command(command: str) -> Trained:
    """Train as the command line does, on data that are made first where they are made here."""
    import gpflow
    import numpy as np

    from gpflow_ext.cli import kernels, kinds, train, training

    kind, *flags = shlex.split(os.path.expandvars(command))
    module, options = kinds.KINDS[kind].load(), train.options_of(kind, flags)
    gpflow.config.set_default_float(np.float64)
    source = zoo_data.made(options.data)
    kernels.configure(options)
    split = training.load(module, options)
    if source is not None:
        split = dataclasses.replace(split, source=source)
    model = module.build(options, split)
    result = training.fit(module, options, model, split, options.steps)
    how = f"it trains as `gpflow-ext train --model {command}` does"
    return Trained(model, model, split, [how, *_ending(result)])


def _chosen(recipe: Chosen) -> Trained:
    """Let `gpflow_ext.auto` choose."""
    import gpflow
    import numpy as np

    import gpflow_ext as gpx

    gpflow.config.set_default_float(np.float64)
    split = gpx.datasets.load(recipe.data, seed=0)
    best = gpx.auto(split, budget=recipe.seconds, seed=0, progress=False)
    return Trained(best.model, best, best.split, ["`gpflow_ext.auto` has chosen it", best.why])


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
    from gpflow_ext.prediction import baselines

    linear = baselines.scores(split).get("linear model")
    if linear is None:
        return []
    error = "error" if "error" in linear else "rmse"
    return [f"A linear model on the same rows: {error} {linear[error]:.3g}, nlpd {linear['nlpd']:.3g}."]


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
    return README.format(table="\n".join(rows), larger=" and ".join(f"`{name}`" for name in LARGER))


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
    known = [*MODELS, *LARGER]
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which models (default: all of {', '.join(known)})"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("saved_models"), help="folder of the zoo (default: %(default)s)"
    )
    options = parser.parse_args()
    for name in _cli.named(parser, options.names, known):
        begin = time.perf_counter()
        target = ARCHIVED if name in LARGER else options.out
        target.mkdir(parents=True, exist_ok=True)
        folder = make(name, target)
        print(f"{folder}: {size(folder) / 1000:.0f} kB, {time.perf_counter() - begin:.0f} seconds")
    if all((options.out / name).is_dir() for name in MODELS):
        (options.out / "README.md").write_text(readme(options.out), encoding="utf-8")
        SERVING.write_text(serving_config(), encoding="utf-8")
    if all((ARCHIVED / name).is_dir() for name in LARGER):
        print(archive(ARCHIVED))


def archive(folder: Path) -> Path:
    """Write the models of a folder into one file beside it."""
    path = folder.with_name(f"{folder.name}.tar")
    with tarfile.open(path, "w") as file:
        for name in sorted(LARGER):
            file.add(folder / name, name)
    return path


if __name__ == "__main__":
    _cli.run(main)
