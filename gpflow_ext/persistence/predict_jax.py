"""Predict by a model exported with ``profile="stablehlo"`` with JAX alone, on its default device.

    python predict_jax.py MODEL/1 rows.csv          # a line of CSV to each row, in the units of the data
    python predict_jax.py MODEL/1 rows.csv 10       # ten joint draws of f at the rows

Copy this file where it is needed.
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


def read(folder: str | pathlib.Path, file: str) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """Return the function of a file, its weights on the device, and what is known of it."""
    jax.config.update("jax_enable_x64", True)  # else what is float64 becomes float32
    with np.load(pathlib.Path(folder, "weights.npz")) as arrays:
        about = json.loads(str(arrays["about"]))[file]
        weights = [jax.device_put(arrays[f"weight_{k}"]) for k in about["weights"]]
    artefact = pathlib.Path(folder, file).read_bytes()
    return jax.jit(program(artefact, about["inputs"], about["outputs"])), weights, about


def rows_of(inputs: Any, dtype: Any, width: int) -> Any:
    """Return inputs [n, D] or one row [D] as an array [n, D]."""
    rows = np.atleast_2d(np.asarray(inputs, dtype))
    if rows.ndim != 2 or (rows.shape[1] != width and rows.size):
        raise ValueError(f"inputs must have shape [n, {width}]; found {list(rows.shape)}")
    return rows.reshape(-1, width)


def load(folder: str | pathlib.Path) -> Callable[[Any], dict[str, Any]]:
    """Return a function of inputs [n, D] for any n that gives the outputs by name."""
    call, weights, about = read(folder, "model.stablehlo")
    dtype, (block, width) = about["inputs"][0]

    def predict(inputs: Any) -> dict[str, Any]:
        inputs = rows_of(inputs, dtype, width)
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


def load_sampler(folder: str | pathlib.Path) -> Callable[..., Any]:
    """Return a function of inputs [n, D], a number S and a seed: S joint draws of f, [S, n, P]."""
    call, weights, about = read(folder, "sample_joint.stablehlo")
    (dtype, (most, width)), (_, (block, _, outputs)) = about["inputs"][:2]

    def sample(inputs: Any, number: int = 1, seed: int = 0) -> Any:
        inputs = rows_of(inputs, dtype, width)
        if len(inputs) > most:
            raise ValueError(f"at most {most} rows can be drawn jointly; found {len(inputs)}")
        normals = np.random.default_rng(seed).standard_normal((number, len(inputs), outputs)).astype(dtype)
        rows = [(0, most - len(inputs)), (0, 0)]
        inputs = np.pad(inputs, rows, constant_values=np.nan)  # rows of NaN leave the others alone
        normals = np.pad(normals, [(0, -number % block), *rows])
        parts = [
            call(inputs, normals[first : first + block], *weights)[0] for first in range(0, number, block)
        ]
        return np.concatenate([np.asarray(part) for part in parts])[:number, : most - rows[0][1]]

    return sample


if __name__ == "__main__":
    table = np.genfromtxt(sys.argv[2], delimiter=",", ndmin=2)
    if len(sys.argv) > 3:
        drawn = load_sampler(sys.argv[1])(table, int(sys.argv[3]))
        found = {"draw": np.moveaxis(drawn, 0, 1)}
    else:
        found = load(sys.argv[1])(table)
    columns = {name: value.reshape(len(value), -1) for name, value in found.items()}
    print(",".join(f"{name}_{k}" for name, value in columns.items() for k in range(value.shape[1])))
    np.savetxt(
        sys.stdout, np.hstack([value.astype(float) for value in columns.values()]), "%.17g", delimiter=","
    )
