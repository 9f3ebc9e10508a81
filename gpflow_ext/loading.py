"""Load the model of a folder of checkpoints as its run left it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext import fitting, likelihoods, models
from gpflow_ext.persistence.rebuild import Rebuilt, rebuild
from gpflow_ext.sampling.sample import sample
from gpflow_ext.sampling.tuners import METHODS
from gpflow_ext.sampling.tuning import Setting
from gpflow_ext.svgp.early_stopping import EarlyStopping

__all__ = ["load_checkpoint"]
_MAY_BE_NAMED = fitting, likelihoods, models  # a record names classes of imported modules alone


def load_checkpoint(
    folder: str | os.PathLike[str], *, data: Any = None, classes: Sequence[Any] = ()
) -> BayesianModel:
    """Rebuild a model from the newest readable checkpoint in a folder, without the code that built it.

    `fit`, `sample` and `Checkpoints` leave a record of the model in their folder, as JSON and an ``.npz``:
    its objects by class and attributes, its training data and other constants. The model returned has
    the same parameters, priors, sites and predictions, bit for bit, and ``gpflow_ext.fit(model,
    checkpoint_dir=folder)`` continues where the run ended. A run with ``validation`` gives its best state,
    one that ended by a last pass through the data the model after it, a run of `sample` one that holds the
    draws.

    No code is loaded from the folder: only classes and functions of GPflow, gpflow_ext, TensorFlow's
    mathematics, TensorFlow Probability's bijectors and distributions, and ``classes`` are looked up.

    Parameters
    ----------
    folder
        The ``checkpoint_dir`` of the run.
    data
        Training data (X [N, D], Y [N, P]), if the arrays of the model exceed 256 MiB: the largest are then
        not stored, and those given are checked by their hashes. Otherwise not used.
    classes
        Your own classes and functions that are parts of the model, such as ``[MyKernel]``.

    Returns
    -------
    The model; the folder stays as it is, except for what an interrupted run left half written.

    Raises
    ------
    ValueError
        For a folder without checkpoints or with damaged files, an unknown class, a default float type
        other than that of the run, or data that are missing or differ. Also for a model that could not be
        recorded, such as one with a ``tf.data.Dataset`` or a lambda: the message says why. Build it
        yourself then; ``fit(model, checkpoint_dir=folder)`` restores it.

    Warns
    -----
    RuntimeWarning
        If later checkpoints are damaged.

    Examples
    --------
    >>> gpx.fit(model, checkpoint_dir="runs/one")
    >>> model = gpx.load_checkpoint("runs/one")  # in another process
    """
    found = rebuild(Path(folder), data, classes)
    for name, kind in found.manifest["trackables"].items():
        _AT_THE_END.get(kind, _leave)(found, name)
    return found.model


def _leave(found: Rebuilt, name: str) -> None:
    """Do nothing: most of what a run keeps is only needed to resume it."""


def _return_to_best(found: Rebuilt, name: str) -> None:
    """Return to the best state of a run with early stopping."""
    watch = EarlyStopping(lambda: float("nan"), found.model.trainable_variables, None)
    kept = tf.train.Checkpoint(**{name: watch})
    kept.restore(str(found.prefix)).assert_existing_objects_matched().expect_partial()
    watch.restore_best()


def _hold_draws(found: Rebuilt, name: str) -> None:
    """Hold the draws of a run of `sample`, which resumes and finds nothing left to draw."""
    if not hasattr(found.model, "assign_draws"):
        return
    settings = dict(found.manifest["training"])
    sample(
        found.model,
        found.step,
        tuner=_tuner(settings.pop("sampler")),
        tuning=json.loads(settings.pop("tuning")),
        checkpoint_dir=found.prefix.parent,
        progress=False,
        check=False,
        **settings,
    )


def _tuner(text: str) -> str | Setting:
    """Return a tuner from how a run records it."""
    if text in METHODS:
        return text
    values = dict(re.findall(r"(\w+)=([^,)]+)", text))
    return Setting(float(values["step_size"]), int(values["max_leapfrogs"]), float(values["walk"]))


_AT_THE_END: dict[str, Callable[[Rebuilt, str], None]] = {
    "EarlyStopping": _return_to_best,
    "Chains": _hold_draws,
}
