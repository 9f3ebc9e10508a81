"""The page of help at /: what this server takes and answers, for this model, in plain HTML."""

from __future__ import annotations

import html
import json
import shlex
import urllib.parse
from collections.abc import Mapping
from typing import Any

from .limits import Limits
from .model import ServedModel
from .raw_rows import RAW, RAW_COUNTS

_ENDPOINTS = """\
GET  /healthz                                   200 once the model is loaded, verified and warmed up
GET  /v1/models/{name}                          the version that is served, and its state
GET  /v1/models/{name}/metadata                 signatures, and the manifest: data, labels, scores
POST /v1/models/{name}:predict                  many rows; also /v1/models/{name}/versions/{version}:predict
POST /predict                                   one row by the names of its inputs or columns
GET  /metrics                                   for Prometheus; also /monitoring/prometheus/metrics"""

_COUNTS = """mean is the rate, the count at exposure one; at other exposures:
{"signature_name": "predict_counts", "instances": [{"inputs": [...], "exposure": [2.5]}, ...]}
{"signature_name": "predict_raw_counts", "instances": [{"COLUMN": ..., "exposure": 2.5}, ...]} of raw rows
POST /predict takes "exposure" beside the names"""


def curl(model: ServedModel, address: str) -> str:
    """Return a command that asks the server at an address for a row, a raw one where there is one."""
    body: dict[str, Any] = {"instances": [model.row if model.raw_row is None else model.raw_row]}
    if model.raw_row is not None:
        body["signature_name"] = RAW
    name = urllib.parse.quote(model.name)
    return f"curl -d {shlex.quote(json.dumps(body))} {shlex.quote(f'{address}/v1/models/{name}:predict')}"


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
        ("Calls", _ENDPOINTS.format(name=urllib.parse.quote(model.name), version=model.version)),
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
        *([("Counts", _COUNTS)] if "predict_counts" in model.signatures else []),
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
    if signature == RAW_COUNTS:
        return "columns, exposure"
    return "columns" if signature == RAW else ", ".join(inputs)


def _raw(model: ServedModel) -> str:
    """Return how to send rows of the table itself."""
    told = ", ".join(f"{name} ({tensor})" for name, tensor in (model.tensors or {}).items())
    return (
        f"columns (tensors): {told}\n"
        "null stands for a cell that is missing\n"
        "a word that no training row had is predicted as none of the known ones of its column, "
        'and named: {"predictions": [...], "unseen": {COLUMN: [WORD, ...]}}\n'
        "a level that an ordered column lacks, and what is no date or time, give is_finite false"
    )
