"""A model as plain JSON: each object once, by its class and its state, the arrays beside it in an ``.npz``.

The values of variables are not there: a checkpoint holds them. Nothing is pickled.
"""

from __future__ import annotations

import inspect
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from .known import CONSTRUCTED, hides, is_foreign, is_own, name_of
from .manifest import replacing, sha256_arrays, write_text
from .verify import sha256_file

RECORD, ARRAYS = "model.json", "model.npz"
FORMAT = 1
LARGEST = 2**28  # bytes of arrays that are stored; of a model with more the largest are left out

_NAMES = {"_name", "_name_scope"}  # of tf.Module, made again by it
FORMS = {"tensor": tf.Tensor, "array": np.ndarray, "scalar": np.generic}  # what an array is in the model
_KINDS = "biufcUS"  # of the arrays that an .npz holds without pickle


class Unwritable(ValueError):
    """Error of a model that holds something which cannot be recorded."""


def write_record(folder: Path, model: tf.Module) -> dict[str, str]:
    """Write the record of a model and its arrays into a folder; return the SHA-256 hashes of both files.

    If a model cannot be recorded, its record says why.

    Parameters
    ----------
    folder
        An existing folder.
    model
        Any GPflow model.
    """
    try:
        content, arrays = describe_objects(model)
    except Unwritable as error:
        content, arrays = {"reason": str(error)}, {}
    with replacing(folder / ARRAYS) as partial, partial.open("wb") as file:
        np.savez(file, **arrays)
    header = {"format": FORMAT, "float": np.dtype(gpflow.default_float()).name}
    write_text(folder / RECORD, json.dumps({**header, **content}, ensure_ascii=False) + "\n")
    return {name: sha256_file(folder / name) for name in (RECORD, ARRAYS)}


def describe_objects(model: tf.Module) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the objects of a model in the types of JSON, and the arrays to store, by their SHA-256 hash.

    Raises
    ------
    Unwritable
        Naming the attribute that holds what cannot be written down, and why it cannot.
    """
    writer = _Writer(model)
    root = writer.value(model, "model")
    return {"model": root, "objects": writer.objects}, _fitting(writer.arrays)


def _fitting(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays but the largest, as many as take no more than `LARGEST` bytes together."""
    kept, total = {}, 0
    for name, array in sorted(arrays.items(), key=lambda item: item[1].nbytes):
        total += array.nbytes
        if total <= LARGEST:
            kept[name] = array
    return kept


def _given(built: Any) -> dict[str, Any]:
    """Return the arguments of a bijector's or a distribution's constructor that are not its defaults."""
    defaults = inspect.signature(type(built).__init__).parameters
    return {n: v for n, v in built.parameters.items() if n not in defaults or v is not defaults[n].default}


class _Writer:
    """Writes values; an object that is met again is a reference to the first time."""

    def __init__(self, model: tf.Module) -> None:
        self.objects: list[Any] = []
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._numbers: dict[int, int] = {}
        self._met: list[Any] = []  # keeps identities unique
        tracked = tf.train.TrackableView(model).descendants()
        self._saved = {id(each) for each in tracked}

    def value(self, value: Any, path: str) -> Any:
        """Return what stands for a value."""
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"kind": "float", "of": str(value)}
        if isinstance(value, os.PathLike):
            return os.fspath(value)
        if isinstance(value, slice):
            return {"kind": "slice", "of": self._values((value.start, value.stop, value.step), path)}
        if isinstance(value, tf.DType):
            return {"kind": "dtype", "of": value.name}
        if isinstance(value, tf.TensorShape):
            return {"kind": "shape", "of": None if value.rank is None else value.as_list()}
        if isinstance(value, list | tuple | Mapping):
            return self._container(value, path)
        if isinstance(value, type) or inspect.isroutine(value):
            return self._named(value, path)
        return {"kind": "object", "of": self._object(value, path)}

    def _values(self, values: Any, path: str) -> list[Any]:
        return [self.value(each, f"{path}[{number}]") for number, each in enumerate(values)]

    def _container(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, Mapping):
            pairs = [[self.value(k, path), self.value(v, f"{path}[{k!r}]")] for k, v in value.items()]
            return {"kind": "dict", "of": pairs}
        if isinstance(value, list):
            return {"kind": "list", "of": self._values(value, path)}
        kind = value.__class__  # TensorFlow wraps the tuples that a module holds
        if kind is tuple:
            return {"kind": "tuple", "of": self._values(value, path)}
        if not hasattr(kind, "_fields"):
            raise Unwritable(f"{path} is a {kind.__qualname__}, which is not a plain tuple")
        return {"kind": "fields", "class": name_of(kind), "of": self._values(value, path)}

    def _named(self, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, type) and ("<" in value.__qualname__ or inspect.ismethod(value)):
            raise Unwritable(f"{path} is {value.__qualname__}, a function that has no name of its own")
        return {"kind": "named", "of": name_of(value)}

    def _object(self, value: Any, path: str) -> int:
        """Return the number of an object."""
        if id(value) not in self._numbers:
            self._numbers[id(value)] = number = len(self.objects)
            self._met.append(value)
            self.objects.append(None)
            self.objects[number] = self._describe(value, path)
        return self._numbers[id(value)]

    def _describe(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, gpflow.Parameter):
            return self._parameter(value, path)
        if isinstance(value, tf.Variable):
            return self._variable(value, path)
        if isinstance(value, tf.Tensor | np.ndarray | np.generic):
            return self._array(value, path)
        if isinstance(value, CONSTRUCTED):
            if value.parameters is None:
                raise Unwritable(
                    f"{path} is a {type(value).__qualname__}, which does not tell its arguments: its "
                    "constructor must give `parameters=dict(...)` to that of its base"
                )
            given = self._state(_given(value), path)
            return {"kind": "built", "class": self._class(value, path), "arguments": given}
        return {"kind": "module", **self._module(value, path)}

    def _class(self, value: Any, path: str) -> str:
        kind = type(value)
        writable = is_own(kind) or isinstance(value, tf.Module)
        if not writable or (is_foreign(kind) and not is_own(kind)):
            raise Unwritable(f"{path} is a {kind.__module__}.{kind.__qualname__}, which has no plain state")
        return name_of(kind)

    def _state(self, attributes: Mapping[str, Any], path: str) -> dict[str, Any]:
        return {name: self.value(value, f"{path}.{name}") for name, value in attributes.items()}

    def _module(self, value: Any, path: str) -> dict[str, Any]:
        kind = self._class(value, path)
        state = {n: v for n, v in vars(value).items() if n not in _NAMES and not n.startswith("_self_")}
        hidden = next((name for name in state if hides(type(value), name)), None)
        if hidden is not None:
            raise Unwritable(f"{path}.{hidden} stands before what its class calls so")
        name = value.name if isinstance(value, tf.Module) else None
        return {"class": kind, "name": name, "state": self._state(state, path)}

    def _parameter(self, value: gpflow.Parameter, path: str) -> dict[str, Any]:
        if type(value) is not gpflow.Parameter:
            raise Unwritable(f"{path} is a {type(value).__qualname__}, not a plain gpflow.Parameter")
        return {
            "kind": "parameter",
            "name": value.name,
            "constrained_shape": value.shape.as_list(),
            "variable": self._variable(value.unconstrained_variable, path),
            "transform": self.value(value.transform, f"{path}.transform"),
            "prior": self.value(value.prior, f"{path}.prior"),
            "prior_on": value.prior_on.value,
        }

    def _variable(self, value: tf.Variable, path: str) -> dict[str, Any]:
        if id(value) not in self._saved:
            raise Unwritable(f"{path} is a variable that checkpoints do not hold: set it as an attribute")
        return {
            "kind": "variable",
            "name": value.name.partition(":")[0],
            "dtype": value.dtype.name,
            "shape": tf.shape(value).numpy().tolist(),
            "declared_shape": None if value.shape.rank is None else value.shape.as_list(),
            "trainable": value.trainable,
        }

    def _array(self, value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, tf.Tensor) and not hasattr(value, "numpy"):
            raise Unwritable(f"{path} is a tensor of a graph, which has no value")
        array = np.asarray(value)
        if array.dtype.kind not in _KINDS:
            raise Unwritable(f"{path} is an array of {array.dtype}, which needs pickle")
        digest = sha256_arrays([array])
        self.arrays[digest] = array
        form = next(name for name, kind in FORMS.items() if isinstance(value, kind))
        return {
            "kind": "array",
            "as": form,
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "sha256": digest,
        }
