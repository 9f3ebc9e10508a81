"""The model that is served: a verified copy, loaded once, called from many threads."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpflow_ext.persistence.verify import verified_copy

from .calls import DEFAULT, Array
from .raw_rows import RAW, example_row


class ServedModel:
    """A SavedModel with its manifest.

    Parameters
    ----------
    path
        The newest version there is, or one version.
    key
        A public Ed25519 key by which it must be signed.

    Attributes
    ----------
    feature_names
        Names of the D inputs, or ``None``.
    tensors
        The tensor of each raw column by its name, or ``None`` where the model takes inputs alone.
    row, raw_row
        Inputs of a row, and about the same as a raw row by its tensors, or ``None``.

    Raises
    ------
    ValueError
        If it is not an exported model, or returns here what it did not return when it was exported.
    """

    def __init__(self, path: str | os.PathLike[str], key: bytes | None = None) -> None:
        import tensorflow as tf
        from google.protobuf import json_format
        from tensorflow.core.protobuf import saved_model_pb2

        begin = time.perf_counter()
        with verified_copy(path, key=key) as (copy, verified, manifest):
            self.folder: Path = verified.folder
            self.manifest: Mapping[str, Any] = manifest
            graph = saved_model_pb2.SavedModel.FromString((copy / "saved_model.pb").read_bytes())
            self._loaded = tf.saved_model.load(str(copy))
            with np.load(copy / "example.npz") as example:
                self._tensor = tf.constant
                self._warm_up(dict(example))
                self.row = [float(f"{value:.4g}") for value in example["inputs"][0]]
        self.name: str = manifest["name"]
        self.version = str(manifest["version"])
        self.signatures: Mapping[str, Any] = manifest["signatures"]
        self.feature_names: list[str] | None = manifest["data"]["feature_names"]
        columns = manifest.get("columns") or ()
        self.tensors = {column["name"]: column["tensor"] for column in columns} or None
        self.raw_row = example_row(columns, self.feature_names or (), self.row) if columns else None
        self.definitions: dict[str, Any] = {
            key: json_format.MessageToDict(
                graph.meta_graphs[0].signature_def[key], preserving_proto_field_name=True
            )
            for key in sorted(self.signatures)
        }
        self.seconds = time.perf_counter() - begin

    def _warm_up(self, example: Mapping[str, Array]) -> None:
        """Call the model for the first time, which is slow."""
        found = self._call(DEFAULT, {"inputs": example["inputs"]})["mean"]
        if not np.allclose(found, example["mean"], rtol=1e-5, atol=1e-6):
            raise ValueError(f"{self.folder} does not return here what it returned when it was exported")
        raw = self.manifest["signatures"].get(RAW)
        if raw is not None:  # a row of which everything is missing
            nothing = {"string": np.array([""], dtype=object), "float64": np.array([np.nan])}
            self._call(RAW, {key: nothing[spec["dtype"]] for key, spec in raw["inputs"].items()})

    def __call__(self, signature: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a signature."""
        return self._call(signature, arrays)

    def _call(self, signature: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
        tensors = {key: self._tensor(array) for key, array in arrays.items()}
        return {key: t.numpy() for key, t in self._loaded.signatures[signature](**tensors).items()}
