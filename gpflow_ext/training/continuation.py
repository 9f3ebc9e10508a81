"""What a run by small steps leaves for the next `fit` of its model: lengths, optimiser and minibatches.

Without it each `fit` would begin at the first step lengths, with an optimiser that remembers nothing, and on
the minibatches of the first pass: several short runs would do less than a long one. The next run goes on from
it if it has the same options, and the model and its data are as this run has left them.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import tensorflow as tf

from gpflow_ext.persistence.manifest import describe, plain, sha256_arrays, sha256_json
from gpflow_ext.training.gradient import Minibatches
from gpflow_ext.training.loop import FitResult, Status
from gpflow_ext.training.recipe import Plan

_SOUND = (Status.CONVERGED, Status.MAX_STEPS, Status.OUT_OF_TIME, Status.STOPPED_EARLY, Status.INTERRUPTED)


class _Left(NamedTuple):
    """What a run has left."""

    of: str  # a hash of the run's settings, the model and the data
    variables: list[tf.Variable]  # that a checkpoint would hold beside those of the model
    order: Any  # an iterator over the rows of minibatches, if there is one


_LEFT: weakref.WeakKeyDictionary[tf.Module, _Left] = weakref.WeakKeyDictionary()


def leave(model: tf.Module, plan: Plan, result: FitResult) -> None:
    """Keep what a later run of the model may go on from, as long as there is the model.

    Parameters
    ----------
    model, plan
        What was trained, and how.
    result
        How the run has ended.
    """
    if _goes_on(plan) and result.status in _SOUND:
        variables = _variables(model, plan)
        _LEFT[model] = _Left(_identity(model, plan, variables), variables, _order(plan))


def take_up(model: tf.Module, plan: Plan) -> None:
    """Let a plan go on from what the last run of its model has left, if that fits it."""
    left = _LEFT.pop(model, None)
    if left is None or not _goes_on(plan):
        return
    variables = _variables(model, plan)
    if left.of != _identity(model, plan, variables):
        return
    for variable, last in zip(variables, left.variables, strict=True):
        variable.assign(last)
    if left.order is not None:
        plan.trackables["batches"].order = left.order
    plan.solver.start()


def _goes_on(plan: Plan) -> bool:
    """Tell whether a plan is one by small steps, on one device: others leave nothing that helps."""
    return plan.period > 0 and plan.shards is None


def _identity(model: tf.Module, plan: Plan, kept: list[tf.Variable]) -> str:
    """Return a hash of all that two runs must share: the settings, the model with its values, the data.

    So do the kinds of what they keep, where settings do not tell optimisers of a user's own apart.
    """
    values = sha256_arrays([variable.numpy() for variable in model.variables])
    kinds = [(variable.dtype, variable.shape) for variable in kept]
    return sha256_json(plain([plan.settings, kinds, describe(model, plan.data), values]))


def _variables(model: tf.Module, plan: Plan) -> list[tf.Variable]:
    """Return the variables of a plan that are not the model's."""
    own = {id(variable) for variable in model.variables}
    parts = [part for _, part in sorted(plan.trackables.items())]
    held = [[part] if isinstance(part, tf.Variable) else getattr(part, "variables", ()) for part in parts]
    return [variable for each in held for variable in each if id(variable) not in own]


def _order(plan: Plan) -> Any:
    batches = plan.trackables.get("batches")
    return batches.order if isinstance(batches, Minibatches) else None
