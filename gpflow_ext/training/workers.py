"""Start the workers of a ``tf.distribute`` strategy as one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from gpflow_ext.persistence.manifest import describe, plain, sha256_json
from gpflow_ext.training.distribute import Shards
from gpflow_ext.training.loop import Trail
from gpflow_ext.training.recipe import Plan


def start(
    plan: Plan,
    model: tf.Module,
    trail: Trail,
    restore: Callable[[], int],
    settings: Mapping[str, Any],
) -> int:
    """Return the number of steps already done, everything that the plan changes as the chief has it.

    Parameters
    ----------
    plan, model
        What is trained.
    trail
        What decides convergence.
    restore
        Reads the last checkpoint and returns its step, or 0; called by the chief.
    settings
        What else the workers must agree on, as plain values.

    Raises
    ------
    ValueError
        If the workers' models, data or settings differ, or the chief's checkpoint is another model's.
    """
    shards = plan.shards
    if shards is None or shards.num_processes == 1:
        return restore()
    _check_same_run(shards, {**describe(model), "recipe": plan.settings, "fit": settings})
    first, error = 0, None
    try:
        first = restore() if shards.is_chief else 0
    except Exception as raised:
        error = raised
    if shards.any(error is not None):
        raise error or RuntimeError("the chief could not restore the checkpoint: its own error tells why.")
    step = tf.Variable(first, dtype=tf.int64, trainable=False)
    shards.from_chief([step, *plan.variables, *trail.variables])
    return int(step)


def _check_same_run(shards: Shards, description: Mapping[str, Any]) -> None:
    """Compare 60 bits of a hash of the run with the chief's."""
    same = {key: value for key, value in description.items() if key != "versions"}
    own = int(sha256_json(plain(same))[:15], 16)
    chief = tf.Variable(own, dtype=tf.int64, trainable=False)
    shards.from_chief([chief])
    if shards.any(int(chief) != own):
        raise ValueError(
            "the workers differ in the model, the data or the arguments of `fit`: start all of them with the "
            "same script on the same data, every one with `checkpoint_dir` or none."
        )
