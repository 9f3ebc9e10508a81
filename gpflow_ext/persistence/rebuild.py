"""Rebuild a model from the record beside its checkpoints, without the program that made it.

Nothing is imported because a file names it, and no function is called: objects are made empty and given their
attributes; only parameters, bijectors and distributions go through their constructors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gpflow
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from .checkpoint import MANIFEST, model_of, newest_readable, prefix_of, readable_folder, steps_in
from .known import CONSTRUCTED, Known, hides
from .manifest import read_json, sha256_arrays
from .record import ARRAYS, FORMAT, FORMS, RECORD
from .verify import sha256_file

_INSTEAD = "Build the model yourself, as it was, and call gpx.fit(model, checkpoint_dir=...)."


class Rebuilt(NamedTuple):
    """A model, and the checkpoint that its values are from."""

    model: tf.Module
    step: int
    prefix: Path
    manifest: Mapping[str, Any]


def rebuild(folder: Path, data: Any = None, classes: Iterable[Any] = ()) -> Rebuilt:
    """Return the model of a folder of checkpoints at the newest of them that can be read; nothing is written.

    Parameters
    ----------
    folder
        What `Checkpoints` wrote.
    data
        Arrays that are too large to be stored, in any nest.
    classes
        The user's own classes and functions.

    Raises
    ------
    ValueError
        See `gpflow_ext.load_checkpoint`.
    """
    if not folder.is_dir() or not steps_in(folder):
        raise ValueError(f"{folder} holds no checkpoint: name the folder that was given as checkpoint_dir.")
    readable_folder(folder)
    manifest = read_json(folder / MANIFEST)
    _check_files(folder, manifest)
    record = read_json(folder / RECORD)
    if record.get("format") != FORMAT:
        raise ValueError(
            f"{folder / RECORD} has format {record.get('format')!r}, this version of gpflow_ext reads "
            f"{FORMAT}: use the version that the manifest names."
        )
    if "reason" in record:
        raise ValueError(f"{folder} has no model that can be rebuilt: {record['reason']}. {_INSTEAD}")
    _check_float(record.get("float"))
    step, damaged = newest_readable(folder)
    for later, reason in damaged.items():
        warnings.warn(
            f"the checkpoint of step {later} cannot be read ({reason}); restored step {step} instead",
            RuntimeWarning,
            stacklevel=3,
        )
    model = _Reader(record, _stored(folder / ARRAYS), data, Known(classes)).model()
    _restore(model, model_of(folder, step))
    return Rebuilt(model, step, prefix_of(folder, step), manifest)


def _check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    expected = manifest.get("record")
    if not isinstance(expected, dict) or not {RECORD, ARRAYS} <= expected.keys():
        raise ValueError(f"{folder / MANIFEST} names no {RECORD}: an older version wrote it. {_INSTEAD}")
    for name in (RECORD, ARRAYS):
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name} is missing. {_INSTEAD}")
        if sha256_file(folder / name) != expected[name]:
            raise ValueError(f"{folder / name} is damaged: its hash is not that of the manifest. {_INSTEAD}")


def _check_float(name: Any) -> None:
    current = np.dtype(gpflow.default_float()).name
    if name != current:
        raise ValueError(
            f"the model computes in {name}, GPflow's default is {current}: call "
            f"gpflow.config.set_default_float({name!r}) first."
        )


def _stored(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged zip raises different classes
        raise ValueError(f"{path} cannot be read: {error}") from error


def _restore(model: tf.Module, prefix: Path) -> None:
    """Give a model the values of a checkpoint, which must hold all of its variables and no others of it."""
    checkpoint = tf.train.Checkpoint(model=model)
    view = tf.train.CheckpointView(str(prefix))
    _, unmatched, missing = view.diff(checkpoint)
    within, todo = set(), [view.children(0).get("model")]
    while todo:
        node = todo.pop()
        if node is not None and node not in within:
            within.add(node)
            todo += view.children(node).values()
    strangers = within.intersection(unmatched)
    if missing or strangers:
        raise ValueError(
            f"{prefix} is not of the model in {RECORD}: it lacks {len(missing)} of its objects and holds "
            f"{len(strangers)} others, as when the model is changed between checkpoints. {_INSTEAD}"
        )
    checkpoint.read(str(prefix)).assert_existing_objects_matched().expect_partial()


class _Refused(ValueError):
    """The record cannot be followed, for a reason that is named."""


class _Reader:
    """Makes the objects of a record, each once."""

    def __init__(
        self,
        record: Mapping[str, Any],
        stored: Mapping[str, npt.NDArray[Any]],
        data: Any,
        known: Known,
    ) -> None:
        self._record, self._stored, self._known = record, stored, known
        self._data = [] if data is None else [np.asarray(leaf) for leaf in tf.nest.flatten(data)]
        self._made: dict[int, Any] = {}
        self._begun: set[int] = set()
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "float": lambda node: float(node["of"]),
            "slice": lambda node: slice(*self._values(node)),
            "dtype": lambda node: tf.as_dtype(node["of"]),
            "shape": lambda node: tf.TensorShape(node["of"]),
            "dict": lambda node: {self.value(k): self.value(v) for k, v in node["of"]},
            "list": self._values,
            "tuple": lambda node: tuple(self._values(node)),
            "fields": self._fields,
            "named": lambda node: self._find(node["of"]),
            "object": lambda node: self._object(node["of"]),
        }
        self._objects: dict[str, Callable[[Any], Any]] = {
            "parameter": self._parameter,
            "variable": self._variable,
            "array": self._array,
            "built": self._construct,
        }

    def model(self) -> tf.Module:
        """Return the model, its variables at any values."""
        try:
            found = self.value(self._record["model"])
        except _Refused:
            raise
        except Exception as error:  # a forged record can raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"{RECORD} does not describe a model: {reason}") from error
        if not isinstance(found, gpflow.models.BayesianModel):
            raise ValueError(f"{RECORD} does not describe a model, but an object of {type(found).__name__}.")
        return found

    def value(self, node: Any) -> Any:
        """Return what a node stands for."""
        return self._kinds[node["kind"]](node) if isinstance(node, dict) else node

    def _values(self, node: Any) -> list[Any]:
        return [self.value(each) for each in node["of"]]

    def _find(self, name: str) -> Any:
        try:
            return self._known.find(name)
        except ValueError as error:
            raise _Refused(f"{RECORD}: {error}") from None

    def _fields(self, node: Any) -> Any:
        kind = self._find(node["class"])
        if not (isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
            raise _Refused(f"{RECORD}: {node['class']} is not a named tuple.")
        return tuple.__new__(kind, self._values(node))

    def _object(self, number: int) -> Any:
        if number not in self._made:
            if number in self._begun:
                raise _Refused(f"{RECORD}: object {number} is a part of itself.")
            self._begun.add(number)
            node = self._record["objects"][number]
            if node["kind"] == "module":
                self._made[number] = made = self._empty(node)
                self._fill(made, node["state"])
            else:
                self._made[number] = self._objects[node["kind"]](node)
        return self._made[number]

    def _empty(self, node: Any) -> Any:
        """Return an object of a class before its constructor."""
        kind = self._find(node["class"])
        if not isinstance(kind, type) or issubclass(kind, CONSTRUCTED):
            raise _Refused(f"{RECORD}: {node['class']} is not a class of objects with plain state.")
        made: Any = object.__new__(kind)
        if isinstance(made, tf.Module):
            tf.Module.__init__(made, node["name"])
        return made

    def _fill(self, made: Any, state: Mapping[str, Any]) -> None:
        for name, node in state.items():
            if not name.isidentifier() or name.startswith(("__", "_self_")) or hides(type(made), name):
                raise _Refused(f"{RECORD}: {name!r} is not an attribute of {type(made).__name__}.")
            setattr(made, name, self.value(node))

    def _construct(self, node: Any) -> Any:
        kind = self._find(node["class"])
        if not (isinstance(kind, type) and issubclass(kind, CONSTRUCTED)):
            raise _Refused(f"{RECORD}: {node['class']} is neither a bijector nor a distribution.")
        return kind(**{name: self.value(each) for name, each in node["arguments"].items()})

    def _parameter(self, node: Any) -> gpflow.Parameter:
        inner, transform = node["variable"], self.value(node["transform"])
        unknown = None in inner["declared_shape"]
        start = tf.cast(tf.fill(inner["shape"], 0.5), inner["dtype"])  # inside the domain of any transform
        return gpflow.Parameter(
            transform.forward(start),
            transform=transform,
            prior=self.value(node["prior"]),
            prior_on=node["prior_on"],
            trainable=inner["trainable"],
            dtype=tf.as_dtype(inner["dtype"]),
            name=node["name"],
            unconstrained_shape=inner["declared_shape"] if unknown else None,
            constrained_shape=node["constrained_shape"] if unknown else None,
        )

    def _variable(self, node: Any) -> tf.Variable:
        return tf.Variable(
            tf.zeros(node["shape"], node["dtype"]),
            trainable=node["trainable"],
            name=node["name"],
            shape=tf.TensorShape(node["declared_shape"]),
        )

    def _array(self, node: Any) -> Any:
        array = self._stored.get(node["sha256"])
        array = self._given(node) if array is None else array
        if node["as"] not in FORMS or sha256_arrays([array]) != node["sha256"]:
            raise _Refused(f"{RECORD}: an array of {ARRAYS} has another hash than the record says.")
        if node["as"] == "tensor":
            return tf.constant(array)
        return array.copy() if node["as"] == "array" else array[()]

    def _given(self, node: Any) -> npt.NDArray[Any]:
        """Return an array that is not stored, from the data given."""
        for leaf in self._data:
            if list(leaf.shape) == node["shape"]:
                found = leaf.astype(node["dtype"], copy=False)
                if sha256_arrays([found]) == node["sha256"]:
                    return found
        raise _Refused(
            f"an array of the model, {np.dtype(node['dtype']).name}{node['shape']}, is too large to be "
            f"stored beside the checkpoints, and none of `data` is the same: the {len(self._data)} given are "
            f"{[f'{leaf.dtype.name}{list(leaf.shape)}' for leaf in self._data]}. Give the training data "
            "themselves: load_checkpoint(folder, data=(X, Y))."
        )
