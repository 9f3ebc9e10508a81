"""Write a trained model as a SavedModel that TensorFlow alone can serve."""

from __future__ import annotations

import datetime
import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import gpflow
import numpy as np
import tensorflow as tf

from gpflow_ext.compiled import kernels
from gpflow_ext.data import arguments
from gpflow_ext.features.kernel import input_width
from gpflow_ext.likelihoods.classes import class_probabilities

from . import raw_rows, stablehlo
from .card import model_card
from .durable import alone, check_target, sync, sync_alone, told
from .manifest import checked_name, describe, plain, recorded, sha256_json
from .numbered import Raw, numbered_columns
from .portable import compare, libraries, to_onnx
from .serving import Profile, Served, build
from .verify import FORMAT, ONNX, as_path, sealed, sha256_file, verify, versions
from .verify.signing import sign as try_key

Array = np.ndarray[Any, Any]
_PARTIAL = ".partial-"
_EXAMPLE_ROWS = 5
_TRIED_ROWS = 200  # that a portable model is compared on


def export(
    model: Any,
    path: str | os.PathLike[str],
    *,
    profile: Profile = "cached",
    example: Any = None,
    scaler: Any = None,
    labels: Sequence[str] | None = None,
    data: Any = None,
    metrics: Mapping[str, float] | None = None,
    intervals: Mapping[str, tuple[float, float]] | None = None,
    seed: int | None = None,
    notes: str | Sequence[str] = (),
    name: str | None = None,
    sign: bytes | None = None,
    num_samples: int = 0,
) -> Path:
    """Export a model to ``path/<version>/`` and return that folder.

    The version is one above the highest there; none is ever overwritten. Everything is written into a
    temporary folder beside the versions and renamed at the end, so a version is whole or absent whenever the
    process is killed; the next export removes leftovers. Several exports to one path wait for each other.

    Signatures (inputs [None, D] in the units of the data): ``serving_default`` gives ``mean`` and
    ``variance`` of y, ``is_finite``, and for a classifier ``probabilities``, ``class`` and, with labels,
    ``label``. ``predict_f`` gives the moments of f. ``predict_log_density`` takes ``inputs`` and ``targets``
    [None, P]. ``predict_outputs``, if the posterior supports it, takes the ``outputs`` [None] to predict.
    ``predict_counts`` takes an ``exposure`` [None, 1]; without one, means of such counts are rates.
    ``sample``, with ``num_samples``, takes a ``seed`` [1] and gives ``samples`` [None, S, P]. If ``data`` was
    a table, ``predict_raw`` and ``predict_raw_counts`` take its columns as they are, one tensor [None] each.

    Parameters
    ----------
    model
        Any trained GPflow model, or a fitted estimator, which knows its scaling, labels and input names.
    path
        The folder of this model; its last part is the default name.
    profile
        "exact" is the graph that the model itself runs, including all factorisations. "cached" gives the same
        numbers faster: what does not depend on the inputs is computed once, at export. "portable" adds
        ``model.onnx``, the ``serving_default`` of the cached graph in the operators of ONNX, tested in ONNX
        Runtime and refused if it differs by more than 1e-7; it needs the extra ``onnx``. "stablehlo" adds
        ``model.stablehlo`` and ``weights.npz``, the same for XLA runtimes, without names of classes, tested
        in JAX (1e-9), and for a Gaussian posterior joint draws of f; it needs the extra ``stablehlo``.
    example
        Inputs in the units of the data, shape [n, D], stored with the expected outputs. By default a few
        synthetic rows are drawn around the mean: the example holds no training row unless it is given here.
        The graph of a dense model holds its training inputs; ``holds_training_inputs`` in the manifest says.
    scaler
        How the training inputs were standardised: an object with ``mean`` [D] and ``scale`` [D], or that
        pair. By default the scaler of ``data``, or none.
    labels
        Names of the classes in order; by default those of ``data``.
    data
        What the model was trained on, as ``datasets.load`` returns it. How its columns became inputs is
        stored in the manifest and the graph, except for purely numeric tables of more than 256 columns.
    metrics, intervals, seed, notes
        What to record in the manifest and on the model card; see ``metrics.evaluate``, ``metrics.intervals``.
    name
        Name of the model on its card and in the addresses of a server, so without a slash.
    sign
        A private Ed25519 key, PEM or 32 bytes: ``verify(path, key=...)`` with its public half shows that the
        model comes from the holder of the key. It needs the extra ``sign``.
    num_samples
        S, the number of functions of the signature ``sample``; by default there is no such signature.

    Raises
    ------
    ValueError
        If inputs, scaler, labels or name do not fit, predictions are not finite, or the profile cannot.
    OSError
        If nothing can be written there.
    ImportError
        For a profile or a key without the extra that it needs.
    """
    if profile not in get_args(Profile):
        raise ValueError(f"profile must be one of {', '.join(get_args(Profile))}; got {profile!r}")
    needed = {"portable": libraries, "stablehlo": stablehlo.library}
    needed.get(profile, lambda: None)()
    if sign is not None:
        try_key(b"", sign)
    model, scaler, labels, data = _parts(model, scaler, labels, data)
    record = recorded(metrics, intervals, notes, getattr(data, "seed", None) if seed is None else seed)
    path = as_path(path)
    name = checked_name(path.resolve().name if name is None else name)
    check_target(path)
    scaler = getattr(data, "scaler", None) if scaler is None else scaler
    mean, scale = _standardisation(model, scaler, example)
    raw = Raw(mean, scale, numbered_columns(model, len(mean)))
    inputs = _example(example, raw)
    X = (inputs - mean) / scale
    f = model.predict_f(X)
    probabilities = class_probabilities(model.likelihood, X, *f)
    classes = None if probabilities is None else int(probabilities.shape[1])
    labels = _labels(labels, data, classes)
    treatment = raw_rows.treatment_of(data, len(mean))
    served = build(model, mean, scale, labels, profile, treatment, num_samples)
    outputs, difference = _try(served, inputs, f)
    if treatment is not None:
        raw_rows.check_alike(treatment, served.signatures)
    others, differences = _translate(served, profile, raw)
    training = _training_inputs(model, data, mean.dtype)
    description = describe(model)
    manifest = {
        "format": FORMAT,
        "name": name,
        "profile": profile,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": description.pop("versions"),
        "config_sha256": sha256_json(description),
        "dtype": mean.dtype.name,
        "task": getattr(data, "task", None) or _task(model, classes),
        "model": description,
        "signatures": {key: _signature(s) for key, s in served.signatures.items()},
        "labels": labels,
        "data": _data(data, training, len(mean)),
        **record,
        "holds_training_inputs": _holds(served, training, [] if example is None else X),
        "difference_from_model": difference,
        "difference_of_onnx": None,
        **differences,
    }
    if treatment is not None:
        manifest["columns"] = raw_rows.describe(treatment)
    kept = f"The versions {versions(path)} are whole." if versions(path) else "There is no version yet."
    with told("The model", path, kept), alone(path):
        written = _write(path, served, plain(manifest), {"inputs": inputs, **outputs}, others, sign)
    kernels.forget()  # those of the variables that were folded, each of a size of its own
    return written


def _parts(model: Any, scaler: Any, labels: Any, data: Any) -> tuple[gpflow.models.GPModel, Any, Any, Any]:
    exported = getattr(model, "exported_parts", None)  # of an estimator
    if exported is None:
        arguments.check_kind(gpflow.models.GPModel, model=model)
        return model, scaler, labels, data
    if not all(part is None for part in (scaler, labels, data)):
        raise ValueError("scaler, labels and data are those of the estimator: leave them out")
    return exported()


def _translate(
    served: Served, profile: Profile, raw: Raw
) -> tuple[Callable[[Path], object], dict[str, float]]:
    """Return what writes the model for another runtime, tried on rows near and far, and how far it is off."""
    rows = np.random.default_rng(1).standard_normal((_TRIED_ROWS, len(raw.mean)))
    inputs = raw(rows * np.geomspace(0.1, 10.0, _TRIED_ROWS)[:, None])
    inputs[0, 0] = np.nan
    if profile == "portable":
        model = to_onnx(served.whole)
        parts = ({"inputs": part} for part in (inputs, inputs[:0], inputs[:1], inputs[-1:]))
        difference = max(compare(model, served.whole, part) for part in parts)
        return lambda folder: (folder / ONNX).write_bytes(model), {"difference_of_onnx": difference}
    if profile == "stablehlo":
        artefact = stablehlo.to_stablehlo(served.whole, served.signatures.get("sample_joint"))
        apart = raw(np.arange(-8.0, 8.0, 2.0)[:, None])
        worst = stablehlo.compare(artefact, served.signatures, inputs, apart)
        return artefact.write, {"difference_of_stablehlo": worst}
    return lambda _: None, {}


def _write(
    path: Path,
    served: Served,
    manifest: dict[str, Any],
    example: dict[str, Array],
    others: Callable[[Path], object],
    key: bytes | None,
) -> Path:
    version = max(versions(path), default=0) + 1
    manifest["version"] = version
    partial, final = path / f"{_PARTIAL}{uuid.uuid4().hex}", path / str(version)
    for litter in path.glob(f"{_PARTIAL}*"):
        shutil.rmtree(litter)
    try:
        # Nobody trains the served graph, so the gradients of its custom-gradient functions are left out.
        options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        tf.saved_model.save(served.module, str(partial), signatures=served.signatures, options=options)
        np.savez(partial / "example.npz", **example)
        others(partial)
        (partial / "MODEL_CARD.md").write_text(model_card(manifest), encoding="utf-8")
        files = (file for file in sorted(partial.rglob("*")) if file.is_file())
        manifest["sha256"] = {file.relative_to(partial).as_posix(): sha256_file(file) for file in files}
        (partial / "manifest.json").write_bytes(sealed(manifest, key))
        verify(partial)  # so that no version exists that load_exported would refuse
        sync(partial)
        _publish(partial, final)
        sync_alone(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _publish(partial: Path, final: Path) -> None:
    try:
        os.replace(partial, final)
    except OSError as error:  # without locks
        if not final.exists():
            raise
        raise ValueError(f"{final} was made by another export meanwhile: export again. ({error})") from error


def _standardisation(model: gpflow.models.GPModel, scaler: Any, example: Any) -> tuple[Array, Array]:
    """Return the mean and scale of the inputs, shape [D] each, in the dtype of the model."""
    parameters = gpflow.utilities.parameter_dict(model)
    dtypes = [p.dtype.as_numpy_dtype for p in parameters.values() if p.dtype.is_floating]
    dtype = dtypes[0] if dtypes else gpflow.default_float()
    width = input_width(model) or next(iter(np.shape(example)[-1:]), None)
    if scaler is None:
        if width is None:
            raise ValueError("the width of the inputs is not known: pass example= with rows of shape [n, D]")
        return np.zeros(width, dtype), np.ones(width, dtype)
    own = (getattr(scaler, name, None) for name in ("mean", "scale"))
    parts = [np.asarray(part) for part in (scaler if isinstance(scaler, tuple) else own)]
    if len(parts) != 2 or any(part.dtype.kind not in "biuf" for part in parts):
        raise ValueError(f"scaler must have a mean [D] and a scale [D], or be that pair; got {scaler!r}")
    mean, scale = (part.astype(dtype) for part in parts)
    if mean.ndim != 1 or mean.shape != scale.shape or (width is not None and len(mean) != width):
        raise ValueError(
            f"scaler must have mean and scale of shape [D] = [{width}]; found {mean.shape} and {scale.shape}"
        )
    if not (np.isfinite(mean).all() and np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError("scaler must have a finite mean and a finite, positive scale")
    return mean, scale


def _example(example: Any, raw: Raw) -> Array:
    if example is None:  # synthetic, because training rows may be confidential
        return raw(np.random.default_rng(0).standard_normal((_EXAMPLE_ROWS, len(raw.mean))))
    inputs = np.asarray(example, raw.mean.dtype)
    if inputs.ndim != 2 or inputs.shape[1] != len(raw.mean) or not np.isfinite(inputs).all():
        raise ValueError(
            f"example must be finite, of shape [n, D] = [n, {len(raw.mean)}]; its shape is {inputs.shape}"
        )
    return inputs


def _try(served: Served, inputs: Array, f: Sequence[tf.Tensor]) -> tuple[dict[str, Array], float]:
    """Return the example's outputs, and how far their f is from the live model's, ``f``."""
    batch = tf.constant(inputs)
    outputs = {k: v.numpy() for k, v in served.signatures["serving_default"](inputs=batch).items()}
    if not outputs["is_finite"].all():
        raise ValueError("the model's predictions are not finite: train it, or go back to a checkpoint")
    if "label" in outputs:
        outputs["label"] = np.char.decode(outputs["label"].astype(bytes), "utf-8")  # unicode needs no pickle
    ours = served.signatures["predict_f"](inputs=batch)
    live = {"mean": np.asarray(f[0]), "variance": np.asarray(f[1])}
    difference = max(float(np.abs(ours[k].numpy() - v).max(initial=0.0)) for k, v in live.items())
    size = max(1.0, *(float(np.abs(v).max(initial=0.0)) for v in live.values()))
    if difference > np.sqrt(np.finfo(inputs.dtype).eps) * size:
        raise ValueError(
            f"the exported graph differs from model.predict_f by {difference:.1e}: the model's posterior() "
            f"does not predict what the model predicts, or {inputs.dtype} is not precise enough for it"
        )
    return outputs, difference


def _labels(labels: Sequence[str] | None, data: Any, classes: int | None) -> list[str] | None:
    """Return the names of the classes, or ``None`` where the likelihood has none."""
    given = getattr(data, "labels", None) if labels is None else labels
    if classes is None and labels is not None:
        raise ValueError("labels were given, but the likelihood of this model has no classes: leave them out")
    if given is None or classes is None:
        return None
    if np.ndim(given) != 1:
        raise ValueError(f"labels must be a list, of the names of the classes in order; got {given!r}")
    names = [str(name) for name in given]
    if len(names) != classes:
        raise ValueError(f"labels must name the {classes} classes in order; found {len(names)}: {names}")
    return names


def _task(model: gpflow.models.GPModel, classes: int | None) -> str:
    kind = type(model.likelihood).__name__
    return f"{kind} observations" if classes is None else f"classification, {classes} classes"


def _signature(function: Any) -> dict[str, Any]:
    def specs(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {k: {"shape": t.shape.as_list(), "dtype": t.dtype.name} for k, t in sorted(tensors.items())}

    inputs = {spec.name: spec for spec in function.structured_input_signature[0]}
    return {"inputs": specs(inputs), "outputs": specs(function.structured_outputs)}


def _data(data: Any, training: Array | None, width: int) -> dict[str, Any]:
    known = {key: getattr(data, key, None) for key in ("name", "source", "sha256", "target")}
    names = getattr(data, "feature_names", None)
    known["feature_names"] = None if names is None else [str(name) for name in names]
    return {**known, "N": None if training is None else len(training), "D": width}


def _training_inputs(model: gpflow.models.GPModel, data: Any, dtype: Any) -> Array | None:
    for held in (getattr(model, "data", None), getattr(data, "train", None)):
        if isinstance(held, tuple | list):
            return np.asarray(held[0], dtype)
    return None


def _holds(served: Served, training: Array | None, example: Sequence[Array] | Array) -> bool | None:
    """Tell whether a row of the training inputs is in what is saved; ``None`` if that cannot be known."""
    if training is None:
        return None
    width = training.shape[-1]
    rows = {row.tobytes() for row in training}
    candidates = [
        a for a in served.sources if a.ndim >= 2 and a.shape[-1] == width and a.dtype == training.dtype
    ]
    if any(row.tobytes() in rows for a in candidates for row in a.reshape(-1, width)):
        return True
    # Standardising an example again rounds it, so it is compared with a tolerance.
    return any(np.isclose(training, row, rtol=1e-6, atol=1e-9).all(-1).any() for row in example)
