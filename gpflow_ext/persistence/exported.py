"""Load an exported model and predict with NumPy arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import make_exact
from gpflow_ext.data.arguments import check_seed
from gpflow_ext.data.reading.treatment import Treatment

from .verify import read_manifest, verified_copy, version_folder
from .verify.columns import COUNTS, RAW, RAW_COUNTS

Array = np.ndarray[Any, Any]


def load_exported(path: str | os.PathLike[str], *, verify: bool = True, key: bytes | None = None) -> Exported:
    """Load an exported model: the newest version at ``path``, or one version ``path/<version>``.

    It is copied once into a private folder of this user, verified and loaded from there, so what runs is
    what was verified.

    Parameters
    ----------
    path
        The folder of the model, or of one version.
    verify
        Whether to verify it; `False` runs whatever is in the folder.
    key
        A public Ed25519 key by whose private half the model must be signed; see ``verify``.

    Raises
    ------
    ValueError
        If there is no exported model, or it is not what an export writes (see ``verify``).
    """
    folder = version_folder(path)
    if not verify:
        if key is not None:
            raise ValueError("key= is for verifying: leave out verify=False")
        return Exported(folder, read_manifest(folder), tf.saved_model.load(str(folder)))
    with verified_copy(folder, key=key) as (copy, _, manifest):
        return Exported(folder, manifest, tf.saved_model.load(str(copy)))


class Exported:
    """An exported model. Inputs are in the units of the data and are cast to the dtype of the model.

    Attributes
    ----------
    path
        The folder of the version.
    manifest
        What the export recorded: versions, task, signatures, metrics, data, hashes.
    labels
        Names of the classes in order, or ``None``.
    treatment
        How raw columns become inputs, or ``None`` where the model was exported without its table.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], loaded: Any) -> None:
        self.path = folder
        self.manifest = manifest
        self.labels: tuple[str, ...] | None = tuple(self.manifest["labels"] or ()) or None
        columns = self.manifest.get("columns")
        self.treatment = None if columns is None else Treatment.from_plain(columns)
        if manifest["dtype"] == "float32":
            make_exact()
        self._loaded = loaded
        self._signatures = loaded.signatures

    def __repr__(self) -> str:
        told = self.manifest
        what = f"version {told['version']}, {told['task']}, {told['data']['D']} inputs"
        return f"Exported({told['name']!r}, {what})"

    def predict(self, X: Any, exposure: Any = None) -> dict[str, Array]:
        """Predict y at inputs [N, D].

        A model of counts that was trained with exposures gives counts at the ``exposure`` [N], and without
        it the rates, which are the counts at exposure one.

        Returns
        -------
        ``mean`` and ``variance`` of y [N, P] and ``is_finite`` [N]; for a classifier also ``probabilities``
        [N, K], ``class`` [N] and, if the labels are known, ``label`` [N]. A row whose inputs are not
        finite has NaN, class -1 and an empty label.
        """
        inputs = self._cast("X", X, self.manifest["data"]["D"])
        if exposure is None:
            return _with_text(self._call("serving_default", inputs=inputs))
        return self._call(COUNTS, inputs=inputs, exposure=self._exposures(exposure, len(inputs)))

    def predict_raw(self, rows: Any, exposure: Any = None) -> dict[str, Array]:
        """Predict y at raw rows of the table that the model was trained on.

        A word that no training row had is 0 in all inputs of its column; see docs/tables.md for other cells.

        Parameters
        ----------
        rows
            A data frame or a row of it, a mapping from column to cells, a list of mappings from column to
            cell, or the path of a table; see `Treatment.inputs` for what cells may hold. Other columns are
            ignored.
        exposure
            [N], as of ``predict``.

        Returns
        -------
        What ``predict`` returns.

        Raises
        ------
        ValueError
            If the model was exported without its table, columns are missing, or cells that must be numbers
            are not (`TableError`).
        """
        if self.treatment is None:
            raise ValueError(
                "this model was exported without its table: use predict, or export it with data="
            )
        cells = self.treatment.cells(rows)
        tensors = {column["tensor"]: cells[column["name"]] for column in self.manifest["columns"]}
        if exposure is None:
            return _with_text(self._call(RAW, **tensors))
        rows = len(next(iter(tensors.values())))
        return self._call(RAW_COUNTS, **tensors, exposure=self._exposures(exposure, rows))

    def predict_f(self, X: Any) -> dict[str, Array]:
        """Predict ``mean`` and ``variance`` of the latent functions, [N, P] each, at inputs [N, D]."""
        return self._call("predict_f", inputs=self._cast("X", X, self.manifest["data"]["D"]))

    def predict_outputs(self, X: Any, outputs: Any) -> dict[str, Array]:
        """Predict ``mean`` and ``variance`` of y for some of many outputs [B], [N, B] each, at inputs [N, D].

        Raises
        ------
        ValueError
            If the model can only predict all outputs, or it has no such output.
        """
        signature = self.manifest["signatures"].get("predict_outputs")
        if signature is None:
            raise ValueError("this model has no signature for some of its outputs: use predict")
        numbers = np.asarray(outputs)
        width = self.manifest["signatures"]["predict_f"]["outputs"]["mean"]["shape"][1]
        if numbers.ndim != 1 or not np.isin(numbers, np.arange(width)).all():
            raise ValueError(f"outputs must be a list of numbers from 0 to {width - 1}; found {outputs}")
        inputs = self._cast("X", X, self.manifest["data"]["D"])
        return self._call("predict_outputs", inputs=inputs, outputs=numbers.astype(np.int32))

    def sample(self, X: Any, seed: int) -> Array:
        """Return functions drawn from the posterior at inputs [N, D], [S, N, P].

        The same seed gives the same functions, whatever the inputs; S was chosen at the export.

        Raises
        ------
        ValueError
            If the model was exported without ``num_samples``, or the seed is not a whole number of 32 bits.
        """
        if "sample" not in self.manifest["signatures"]:
            raise ValueError("this model was exported without functions: export it with num_samples=")
        check_seed(seed)
        inputs = self._cast("X", X, self.manifest["data"]["D"])
        found = self._call("sample", inputs=inputs, seed=np.array([seed], np.int32))
        return found["samples"].transpose(1, 0, 2)

    def predict_log_density(self, X: Any, Y: Any) -> Array:
        """Return the log predictive density [N] of targets [N, P] at inputs [N, D]; classes are indices.

        Raises
        ------
        ValueError
            If the shapes do not fit, or a class is not one of the model's.
        """
        signature = self.manifest["signatures"]["predict_log_density"]["inputs"]
        inputs = self._cast("X", X, self.manifest["data"]["D"])
        targets = self._cast("Y", Y, signature["targets"]["shape"][1])
        if len(inputs) != len(targets):
            raise ValueError(f"X and Y must have as many rows; found {len(inputs)} and {len(targets)}")
        probabilities = self.manifest["signatures"]["serving_default"]["outputs"].get("probabilities")
        if probabilities is not None:
            _check_classes(targets, probabilities["shape"][1])
        return self._call("predict_log_density", inputs=inputs, targets=targets)["log_density"]

    def _exposures(self, exposure: Any, rows: int) -> Array:
        """Return positive numbers [N, 1]."""
        if COUNTS not in self.manifest["signatures"]:
            raise ValueError("exposure is for models of counts that were trained with exposures")
        column = self._cast("exposure", np.asarray(exposure).reshape(-1, 1), 1)
        if len(column) != rows or not (np.isfinite(column) & (column > 0.0)).all():
            raise ValueError(f"exposure must be {rows} positive numbers, one for each row")
        return column

    def _call(self, name: str, /, **arrays: Array) -> dict[str, Array]:
        outputs = self._signatures[name](**{key: tf.constant(array) for key, array in arrays.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    def _cast(self, name: str, values: Any, width: int | None) -> Array:
        dtype = self.manifest["dtype"]
        try:
            array = np.asarray(values)
            cast = array.astype(dtype, casting="same_kind" if array.dtype.kind == "f" else "safe")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} must hold real numbers that fit {dtype}: {error}") from error
        if cast.ndim != 2 or (width is not None and cast.shape[1] != width):
            expected = f"[N, {'P' if width is None else width}]"
            raise ValueError(
                f"{name} must have shape {expected}; found {list(cast.shape)}. One row is {name}[None, :]"
            )
        return cast


def _with_text(outputs: dict[str, Array]) -> dict[str, Array]:
    if "label" in outputs:
        outputs["label"] = np.char.decode(outputs["label"].astype(bytes), "utf-8")
    return outputs


def _check_classes(targets: Array, classes: int | None) -> None:
    known = np.arange(classes) if classes is not None else np.unique(np.abs(np.round(targets)))
    strange = np.setdiff1d(targets[np.isfinite(targets)], known)
    if strange.size:
        raise ValueError(f"Y must hold class indices 0 to {known[-1]}; found {strange[:5].tolist()}")
