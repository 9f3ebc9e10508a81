"""The page of help at /: what this server takes and answers, for this model, in plain HTML."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

from .limits import Limits
from .model import ServedModel
from .raw_rows import RAW

_ENDPOINTS = """\
GET  /healthz                                   200 once the model is loaded, verified and warmed up
GET  /v1/models/{name}                          the version that is served, and its state
GET  /v1/models/{name}/metadata                 signatures, and the manifest: data, labels, scores
POST /v1/models/{name}:predict                  many rows; also /v1/models/{name}/versions/{version}:predict
POST /predict                                   one row by the names of its inputs or columns
GET  /metrics                                   for Prometheus; also /monitoring/prometheus/metrics"""


def curl(model: ServedModel, address: str) -> str:
    """Return a command that asks the server at an address for a row of the model's example."""
    body = json.dumps({"instances": [model.row]})
    return f"curl -d '{body}' {address}/v1/models/{model.name}:predict"


def page(model: ServedModel, limits: Limits) -> str:
    """Return the page."""
    width = model.manifest["data"]["D"]
    signatures = "\n".join(
        f"{key:22s}{_arguments(key, about['inputs']):18s} -> {', '.join(about['outputs'])}"
        for key, about in model.signatures.items()
    )
    bounds = (
        f"{limits.rows} rows and {limits.bytes} bytes in a call, {limits.seconds:g} seconds for its answer, "
        f"{limits.connections} connections"
    )
    parts = (
        ("Calls", _ENDPOINTS.format(name=model.name, version=model.version)),
        ("Signatures", signatures),
        ("Inputs, in this order", ", ".join(model.feature_names or [f"input {i}" for i in range(width)])),
        ("Example", curl(model, "http://HOST")),
        *([("Raw rows", _raw(model))] if model.tensors is not None else []),
        (
            "Layouts",
            'rows      {"instances": [[...], ...]} gives {"predictions": [{...}, ...]}\n'
            'columns   {"inputs": [[...], ...]} gives {"outputs": {...}}\n'
            'several   {"signature_name": "predict_log_density", "inputs": {"inputs": ..., "targets": ...}}\n'
            'refusals  {"error": "..."}; null stands for a number that is not finite',
        ),
        ("At most", bounds),
    )
    text = "".join(f"<h2>{html.escape(title)}</h2><pre>{html.escape(part)}</pre>" for title, part in parts)
    title = html.escape(f"{model.name}, version {model.version}")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{title}</title><style>body{{font-family:sans-serif;margin:2em;max-width:60em}}"
        "pre{white-space:pre-wrap;background:#f4f4f4;padding:1em}</style>"
        f"<h1>{title}</h1>{text}</html>"
    )


def _arguments(signature: str, inputs: Mapping[str, Any]) -> str:
    return "columns" if signature == RAW else ", ".join(inputs)


def _raw(model: ServedModel) -> str:
    """Return how to send rows of the table itself, with a row whose cells are all missing."""
    cells = dict.fromkeys(model.signatures[RAW]["inputs"])
    body = json.dumps({"signature_name": RAW, "instances": [cells]})
    columns = ", ".join(f"{name} ({tensor})" for name, tensor in (model.tensors or {}).items())
    curl = f"curl -d '{body}' http://HOST/v1/models/{model.name}:predict"
    return f"columns (tensors): {columns}\n{curl}\nnull stands for a cell that is missing"
