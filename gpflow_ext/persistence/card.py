"""The model card: what an exported model is, for the person who finds the folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CARD = """# {name}, version {version}

{notes}{facts}

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
    card = _CARD + _ELSEWHERE.get(manifest["profile"], "")
    return card.format(
        name=manifest["name"],
        version=manifest["version"],
        notes="".join(f"{note}\n\n" for note in manifest["notes"]),
        facts=_table(("", ""), _facts(manifest)),
        metrics=_metrics(manifest["metrics"], manifest["intervals"]),
        signatures="\n".join(_signature(name, s) for name, s in sorted(manifest["signatures"].items())),
    )


def _facts(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    model, columns = manifest["model"]["model"], manifest.get("columns")
    likelihood = model["likelihood"]["class"].rpartition(".")[2]
    versions = (f"{library} {version}" for library, version in sorted(manifest["versions"].items()))
    return [
        ("task", manifest["task"]),
        ("model", f"{model['class']}, {likelihood} likelihood"),
        ("data", _data(manifest["data"])),
        ("classes", _or_dash(", ".join(manifest["labels"] or ()))),
        ("dtype", manifest["dtype"]),
        ("profile", manifest["profile"]),
        *([] if columns is None else [("raw row", _columns(columns))]),
        ("seed", _or_dash(manifest["seed"])),
        ("holds training inputs", _HOLDS[manifest["holds_training_inputs"]]),
        ("written with", ", ".join(versions)),
    ]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join((_row(header), "|---" * len(header) + "|", *map(_row, rows)))


def _row(cells: Sequence[str]) -> str:
    """Return a row of a table: a bar in a cell would end it, and a line break the row."""
    escaped = (" ".join(cell.splitlines()).replace("\\", "\\\\").replace("|", "\\|") for cell in cells)
    return "".join(f"| {cell} " if cell else "| " for cell in escaped) + "|"


def _or_dash(value: Any) -> str:
    return "-" if value in (None, "") else str(value)


def _data(data: Mapping[str, Any]) -> str:
    size = (
        f"{data['N']} training rows, {data['D']} inputs" if data["N"] is not None else f"{data['D']} inputs"
    )
    parts = [data["name"], data["source"], size, data["sha256"] and f"SHA-256 {data['sha256']}"]
    return "; ".join(str(part) for part in parts if part)


def _columns(columns: Sequence[Mapping[str, Any]]) -> str:
    """Return what a raw row holds."""
    return ", ".join(f"{column['name']} ({', '.join(_about(column))})" for column in columns)


def _about(column: Mapping[str, Any]) -> list[str]:
    unit = column.get("unit")  # not in manifests of older versions
    return [f"number in {unit}" if unit else column["kind"], *column["levels"]]


def _metrics(metrics: Mapping[str, Any], intervals: Mapping[str, Any]) -> str:
    if not metrics:
        return "None were given to the export."
    rows = ((name, f"{value:.4g}", _interval(intervals.get(name))) for name, value in metrics.items())
    return _table(("metric", "value", "95 % interval"), rows)


def _interval(ends: Sequence[float] | None) -> str:
    return "-" if ends is None else f"{ends[0]:.4g} to {ends[1]:.4g}"


def _signature(name: str, signature: Mapping[str, Mapping[str, Any]]) -> str:
    sides = (
        ", ".join(f"`{k}` {v['dtype']} {json.dumps(v['shape'])}" for k, v in signature[side].items())
        for side in ("inputs", "outputs")
    )
    return f"- `{name}`: {' -> '.join(sides)}"
