"""The model card: what an exported model is, for the person who finds the folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_CARD = """# {name}, version {version}

{notes}| | |
|---|---|
| task | {task} |
| model | {model}, {likelihood} likelihood |
| data | {data} |
| classes | {labels} |
| dtype | {dtype} |
| profile | {profile} |
{columns}| seed | {seed} |
| holds training inputs | {holds} |
| written with | {versions} |

## Metrics

{metrics}

## Signatures

Inputs are in the units of the data: standardisation is inside the graph.

{signatures}

A row with an input that is not finite gets NaN (class -1) and `is_finite` false; the other rows are not
affected.

## Loading

With TensorFlow alone, in this folder:

```python
import numpy as np, tensorflow as tf
served = tf.saved_model.load(".").signatures["serving_default"]
example = np.load("example.npz")
print(served(inputs=tf.constant(example["inputs"]))["mean"], example["mean"])
```

With gpflow_ext, which also checks the hashes in `manifest.json`:

```python
import gpflow_ext
print(gpflow_ext.load_exported(".").predict(X))
```
"""
_ONNX = """
With ONNX Runtime:

```python
import numpy as np, onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
print(session.run(["mean"], {{"inputs": np.load("example.npz")["inputs"]}}))
```
"""
_STABLEHLO = """
With JAX alone, by `gpflow_ext/persistence/predict_jax.py`, which needs nothing else of the package:

```python
import numpy as np, predict_jax
print(predict_jax.load(".")(np.load("example.npz")["inputs"])["mean"])
```
"""
_ELSEWHERE = {"portable": _ONNX, "stablehlo": _STABLEHLO}  # in another runtime
_HOLDS = {
    True: "yes: do not share this model if the training data are confidential",
    False: "no",
    None: "unknown (the training data were not given to the export); inducing points can be training rows",
}


def model_card(manifest: Mapping[str, Any]) -> str:
    """Return the text of ``MODEL_CARD.md`` for the manifest of an exported model."""
    model = manifest["model"]["model"]
    versions = manifest["versions"]
    card = _CARD + _ELSEWHERE.get(manifest["profile"], "")
    return card.format(
        name=manifest["name"],
        version=manifest["version"],
        notes="".join(f"{note}\n\n" for note in manifest["notes"]),
        task=manifest["task"],
        model=model["class"],
        likelihood=model["likelihood"]["class"].rpartition(".")[2],
        data=_data(manifest["data"]),
        labels=_or_dash(", ".join(manifest["labels"] or ())),
        dtype=manifest["dtype"],
        profile=manifest["profile"],
        columns=_columns(manifest.get("columns")),
        seed=_or_dash(manifest["seed"]),
        holds=_HOLDS[manifest["holds_training_inputs"]],
        versions=", ".join(f"{library} {version}" for library, version in sorted(versions.items())),
        metrics=_metrics(manifest["metrics"], manifest["intervals"]),
        signatures="\n".join(_signature(name, s) for name, s in sorted(manifest["signatures"].items())),
    )


def _or_dash(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _data(data: Mapping[str, Any]) -> str:
    size = (
        f"{data['N']} training rows, {data['D']} inputs" if data["N"] is not None else f"{data['D']} inputs"
    )
    parts = [data["name"], data["source"], size, data["sha256"] and f"SHA-256 {data['sha256']}"]
    return "; ".join(str(part) for part in parts if part)


def _columns(columns: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the line that tells what a raw row holds."""
    if columns is None:
        return ""
    told = (f"{column['name']} ({', '.join(_about(column))})".replace("|", "\\|") for column in columns)
    return f"| raw row | {', '.join(told)} |\n"


def _about(column: Mapping[str, Any]) -> list[str]:
    unit = column.get("unit")  # not in manifests of older versions
    return [f"number in {unit}" if unit else column["kind"], *column["levels"]]


def _metrics(metrics: Mapping[str, Any], intervals: Mapping[str, Any]) -> str:
    if not metrics:
        return "None were given to the export."
    rows = "\n".join(
        f"| {name} | {value:.4g} | {_interval(intervals.get(name))} |" for name, value in metrics.items()
    )
    return f"| metric | value | 95 % interval |\n|---|---|---|\n{rows}"


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.4g} to {ends[1]:.4g}"


def _signature(name: str, signature: Mapping[str, Mapping[str, Any]]) -> str:
    sides = (
        ", ".join(f"`{k}` {v['dtype']} {json.dumps(v['shape'])}" for k, v in signature[side].items())
        for side in ("inputs", "outputs")
    )
    return f"- `{name}`: {' -> '.join(sides)}"
