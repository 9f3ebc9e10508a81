"""The description of a model as plain JSON, which a checkpoint or an exported model is checked against."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import hashlib
import json
import math
import os
import platform
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from gpflow.quadrature import GaussianQuadrature

from gpflow_ext._version import __version__
from gpflow_ext.data.arguments import check_number, check_whole

from .durable import sync, sync_alone
from .verify.manifest import is_name

_SMALL = 16  # arrays up to this size are written out, longer ones as a hash
_INCIDENTAL = {"name", "parameters", "validate_args", "allow_nan_stats", "validate_event_size", "dtype"}


def describe(model: tf.Module, data: Sequence[Any] | None = None) -> dict[str, Any]:
    """Return everything that two models must share for the variables of one to mean the same in the other.

    Parameters
    ----------
    model
        Any GPflow model.
    data
        The training arrays, for example ``(X [N, D], Y [N, P])``; by default the ``data`` that the model
        holds.

    Returns
    -------
    A dictionary that ``json.dump`` accepts: ``versions``, ``dtype``, ``model`` (class and plain settings,
    with the kernel, likelihood, mean function and inducing variable nested), ``parameters`` (shape, dtype,
    transform, trainable and prior by dotted path, and of one with several paths the first) and ``data``
    (shapes and a SHA-256 hash, or ``None``).
    """
    parameters = gpflow.utilities.parameter_dict(model)
    floating = {p.dtype.name for p in parameters.values() if p.dtype.is_floating}
    arrays = getattr(model, "data", None) if data is None else data
    return plain(
        {
            "versions": versions(),
            "dtype": ", ".join(sorted(floating)) or np.dtype(gpflow.default_float()).name,
            "model": _structure(model),
            "parameters": _parameters(parameters),
            "data": None if arrays is None else _data(arrays),
        }
    )


def fixed_values(model: tf.Module) -> dict[str, Any]:
    """Return the parameters of kernels, likelihoods and mean functions that are not trained, by path.

    No run moves them, so that they are as the user has set them: a part of what the model is. Their last
    digits, which transforms on another machine may round otherwise, are left out.
    """
    kinds = (gpflow.kernels.Kernel, gpflow.likelihoods.Likelihood, gpflow.functions.MeanFunction)
    owners = [part for part in model.submodules if isinstance(part, kinds)]
    owned = {id(each) for part in owners for each in part.parameters}
    found = {path.lstrip("."): each for path, each in gpflow.utilities.parameter_dict(model).items()}
    fixed = {path: each for path, each in found.items() if id(each) in owned and not each.trainable}
    return {path: plain(_rounded(np.asarray(each))) for path, each in sorted(fixed.items())}


def _rounded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return floats without their last three digits."""
    if values.dtype.kind != "f":
        return values
    digits = np.finfo(values.dtype).precision - 3
    return np.reshape([float(f"{value:.{digits}g}") for value in values.ravel()], values.shape)


class AnotherRunError(ValueError):
    """What was saved belongs to another model or run."""


def check_same(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Check that two descriptions agree in everything but the versions.

    Raises
    ------
    AnotherRunError
        A ``ValueError`` that names every entry that differs, with the saved and the current value.
    """
    old, new = ({k: v for k, v in d.items() if k != "versions"} for d in (saved, current))
    differing = [
        f"  {where}: saved {_brief(a)}, current {_brief(b)}" for where, a, b in _differences(old, new)
    ]
    if differing:
        lines = "\n".join(differing)
        raise AnotherRunError(
            f"what was saved belongs to another model or run; these entries differ:\n{lines}\n"
            "Build the model as it was when it was saved, or start in an empty folder."
        )


def checked_name(name: str) -> str:
    """Return the name of an exported model, if it can be a part of the addresses of a server.

    Raises
    ------
    ValueError
        For one that is empty, has a slash or an unprintable character, or means a folder.
    """
    if not is_name(name):
        raise ValueError(
            f"name must be printable and without a slash, because it is a part of the address "
            f"/v1/models/NAME of a server; got {name!r}"
        )
    return name


def recorded(metrics: Any, intervals: Any, notes: Any, seed: Any) -> dict[str, Any]:
    """Return what the user tells of a model, in types that JSON has.

    Raises
    ------
    ValueError
        Unless metrics are numbers and intervals pairs of them, by name, notes text, and a seed whole.
    """
    for name, given in (("metrics", metrics), ("intervals", intervals)):
        if not isinstance(given, Mapping | None):
            raise ValueError(f"{name} must be a mapping from the name of a metric; got {given!r}")
    metrics, intervals = metrics or {}, intervals or {}
    check_number(**{f"metrics[{key!r}]": value for key, value in metrics.items()})
    for key, ends in intervals.items():
        if np.shape(ends) != (2,):
            raise ValueError(f"intervals[{key!r}] must be the two ends of an interval; got {ends!r}")
        check_number(**{f"intervals[{key!r}]": end for end in ends})
    notes = [notes] if isinstance(notes, str) else notes
    if not isinstance(notes, Sequence) or not all(isinstance(note, str) for note in notes):
        raise ValueError(f"notes must be text, or a list of it; got {notes!r}")
    if seed is not None:
        check_whole(seed=seed)
    return {
        "metrics": {key: float(value) for key, value in metrics.items()},
        "intervals": {key: [float(end) for end in ends] for key, ends in intervals.items()},
        "notes": list(notes),
        "seed": seed,
    }


def versions() -> dict[str, str]:
    """Return the versions of the package and of the libraries that decide what a saved model means."""
    return {
        "gpflow_ext": __version__,
        "gpflow": gpflow.__version__,
        "tensorflow": tf.__version__,
        "tensorflow_probability": tfp.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def sha256_arrays(arrays: Sequence[Any]) -> str:
    """Return one SHA-256 hash of the dtype, shape and bytes of several arrays."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def sha256_json(value: Any) -> str:
    """Return the SHA-256 hash of a JSON value in a canonical form."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file as ``write_text`` does."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; `ValueError` for one that cannot be read or holds something else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__} in place of a JSON object.")
    return found


def write_text(path: Path, text: str) -> None:
    """Write a text file as `replacing` does."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a file to write that takes the place of ``path`` in one step, whenever the process is killed."""
    partial = path.with_name(f"{path.name}.tmp")
    try:
        yield partial
        sync(partial)
        os.replace(partial, path)
        sync_alone(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def plain(value: Any) -> Any:
    """Return ``value`` in the types that JSON keeps, so that it equals what is read back."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)  # JSON has no NaN, and NaN differs from itself
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | tf.TensorShape):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, slice):
        return str(value)
    if isinstance(value, np.dtype | tf.DType):
        return value.name
    if isinstance(value, np.ndarray | tf.Tensor):
        return _array(np.asarray(value))
    return _qualified_name(value)


def _qualified_name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)  # functions name themselves
    return f"{named.__module__}.{named.__qualname__}"


def _array(array: np.ndarray[Any, Any]) -> Any:
    if array.size <= _SMALL:
        return plain(array.tolist())
    return {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": sha256_arrays([array])}


def _structure(module: tf.Module) -> dict[str, Any]:
    """Describe a module by its class, its plain public attributes and its sub-modules."""
    entries = {"class": _qualified_name(module)}
    if isinstance(module, gpflow.kernels.Kernel):
        entries["active_dims"] = plain(module.active_dims)
    for name, value in sorted(vars(module).items()):
        if name.startswith("_") or name == "data" or isinstance(value, tf.Variable | gpflow.Parameter):
            continue  # data and parameters have their own sections
        entries[name] = _attribute(value)
    return entries


def _attribute(value: Any) -> Any:
    if isinstance(value, tfp.bijectors.Bijector | tfp.distributions.Distribution):
        return _text(value)
    if isinstance(value, tf.Module):
        return _structure(value)
    if isinstance(value, list | tuple):
        return [_attribute(v) for v in value]
    if dataclasses.is_dataclass(value) or isinstance(value, GaussianQuadrature):
        return _settings(value)
    return plain(value)


def _settings(value: Any) -> Any:
    """Describe an object that is no module by its class and what it was given.

    Tensors are left out: their last digits may differ between machines.
    """
    if isinstance(value, type):
        return plain(value)
    given = {k: v for k, v in vars(value).items() if not k.startswith("_") and not tf.is_tensor(v)}
    return {"class": _qualified_name(value), **{k: _attribute(v) for k, v in sorted(given.items())}}


def _parameters(parameters: Mapping[str, gpflow.Parameter | tf.Variable]) -> dict[str, Any]:
    """Describe parameters by dotted path; one that several paths lead to tells the first of them."""
    found: dict[str, Any] = {}
    first: dict[int, str] = {}
    for path, parameter in sorted((path.lstrip("."), each) for path, each in parameters.items()):
        origin = first.setdefault(id(parameter), path)
        found[path] = _parameter(parameter) if origin == path else {"same_as": origin}
    return found


def _parameter(parameter: gpflow.Parameter | tf.Variable) -> dict[str, Any]:
    entry = {"shape": parameter.shape, "dtype": parameter.dtype.name, "trainable": parameter.trainable}
    if isinstance(parameter, gpflow.Parameter):
        entry["transform"] = _text(parameter.transform)
        if parameter.prior is not None:
            entry["prior"], entry["prior_on"] = _text(parameter.prior), parameter.prior_on
    return entry


def _text(value: Any) -> str:
    """Write a bijector or a distribution with the constants that it was built from."""
    if isinstance(value, tfp.bijectors.Bijector | tfp.distributions.Distribution):
        told = value.parameters  # None where a user's own bijector does not tell its arguments
        held = {k: v for k, v in vars(value).items() if not k.startswith("_")} if told is None else told
        given = {k: v for k, v in held.items() if k not in _INCIDENTAL and v is not None}
        inside = ", ".join(f"{k}={_text(v)}" for k, v in sorted(given.items()))
        return f"{type(value).__name__}({inside})" if inside else type(value).__name__
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tf.Variable | gpflow.Parameter):
        return f"variable{tuple(value.shape)}"  # its value is state, not configuration
    return str(plain(value))


def _data(arrays: Any) -> dict[str, Any]:
    leaves = [np.asarray(a) for a in tf.nest.flatten(arrays)]
    inputs = leaves[0]
    return {
        "N": inputs.shape[0],
        "D": inputs.shape[-1],
        "arrays": [f"{a.dtype.name}{list(a.shape)}" for a in leaves],
        "sha256": sha256_arrays(leaves),
    }


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted path, saved, current) where two JSON values differ, as high in the tree as they do."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            where = f"{path}.{key}" if path else key
            yield from _differences(old.get(key, "absent"), new.get(key, "absent"), where)
    elif old != new:
        yield path, old, new


def _brief(value: Any) -> str:
    return textwrap.shorten(json.dumps(value, ensure_ascii=False), 160, placeholder=" ...")
