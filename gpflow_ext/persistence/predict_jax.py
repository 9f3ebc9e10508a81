"""Predict by a model exported with ``profile="stablehlo"`` where there is JAX alone, on its default device.

    python predict_jax.py MODEL/1 rows.csv

prints a line of CSV to each row, columns in the units of the data. Copy this file where it is needed.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export


def program(artefact: bytes, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., Any]:
    """Return a StableHLO artefact as a function to compile; inputs and outputs are (dtype, shape) each."""
    specs = [
        [jax.ShapeDtypeStruct(tuple(shape), dtype) for dtype, shape in part] for part in (inputs, outputs)
    ]
    ins, outs = (tuple(jax.core.ShapedArray(each.shape, each.dtype) for each in part) for part in specs)
    fields: dict[str, Any] = {
        "fun_name": "program",
        "in_tree": jax.tree_util.tree_structure((tuple(specs[0]), {})),
        "in_avals": ins,
        "out_tree": jax.tree_util.tree_structure(tuple(specs[1])),
        "out_avals": outs,
        "in_shardings_hlo": (None,) * len(ins),
        "out_shardings_hlo": (None,) * len(outs),
        "_in_named_shardings": (None,) * len(ins),  # of later versions of JAX
        "_out_named_shardings": (None,) * len(outs),
        "nr_devices": 1,
        "platforms": ("cpu",),  # or any other: there is nothing of one in the program
        "ordered_effects": (),
        "unordered_effects": (),
        "disabled_safety_checks": (export.DisabledSafetyCheck.platform(),),
        "mlir_module_serialized": artefact,
        "calling_convention_version": export.maximum_supported_calling_convention_version,
        "module_kept_var_idx": tuple(range(len(ins))),
        "uses_global_constants": False,
        "_get_vjp": None,
    }
    names = (field.name for field in dataclasses.fields(export.Exported))
    given: dict[str, Any] = {name: fields.get(name) for name in names}  # what came later is off
    return export.Exported(**given).call


def load(folder: str | pathlib.Path) -> Callable[[Any], dict[str, Any]]:
    """Return a function of inputs [n, D] for any n that gives the outputs by name."""
    folder = pathlib.Path(folder)
    jax.config.update("jax_enable_x64", True)  # else what is float64 becomes float32
    with np.load(folder / "weights.npz") as arrays:
        about = json.loads(str(arrays["about"]))
        weights = [jax.device_put(arrays[f"weight_{k}"]) for k in range(len(arrays.files) - 1)]
    call = jax.jit(program((folder / "model.stablehlo").read_bytes(), about["inputs"], about["outputs"]))
    dtype, (block, width) = about["inputs"][0]

    def predict(inputs: Any) -> dict[str, Any]:
        inputs = np.asarray(inputs, dtype).reshape(-1, width)
        parts: list[Any] = []
        for first in range(
            0, max(len(inputs), 1), block
        ):  # each row alone decides its outputs: zeros fill a block
            rows = inputs[first : first + block]
            parts.append(call(np.pad(rows, [(0, block - len(rows)), (0, 0)]), *weights))
        joined = (
            np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True)
        )
        return {name: part[: len(inputs)] for name, part in zip(about["names"], joined, strict=True)}

    return predict


if __name__ == "__main__":
    found = load(sys.argv[1])(np.genfromtxt(sys.argv[2], delimiter=",", ndmin=2))
    columns = {name: value.reshape(len(value), -1) for name, value in found.items()}
    print(",".join(f"{name}_{k}" for name, value in columns.items() for k in range(value.shape[1])))
    np.savetxt(
        sys.stdout, np.hstack([value.astype(float) for value in columns.values()]), "%.17g", delimiter=","
    )
