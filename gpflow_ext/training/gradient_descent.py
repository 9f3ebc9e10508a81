"""The recipe of every other GPflow model."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.models import SVGP, BayesianModel, ExternalDataTrainingLossMixin

from gpflow_ext.data import checks
from gpflow_ext.training import gradient, schedules
from gpflow_ext.training.optimizers import RATE, built
from gpflow_ext.training.options import refuse_unused
from gpflow_ext.training.recipe import Plan, Run, recipe
from gpflow_ext.training.schedules import Schedule, ScheduleOptions
from gpflow_ext.training.trials import StartOptions, tried


@dataclass(frozen=True)
class GradientOptions(ScheduleOptions, StartOptions):
    """Options of the recipe "gradient_descent", with those of `ScheduleOptions` and `StartOptions`.

    The rate of the default optimiser is constant by default: where it moves q too, that is far off for long.

    Attributes
    ----------
    optimizer
        A tf_keras optimiser, whose learning rate may be a schedule of its own; by default Adam with learning
        rate 0.01.
    minibatch_size
        Rows in a minibatch of arrays; all data by default.
    steps_per_call
        Steps on minibatches of arrays in one call of the compiled function, which is a single step of `fit`
        whose objective is their mean. The parameters after a number of minibatches are the same; the overhead
        of Python, and on a GPU the wait for the result, is paid once for all of them.
    """

    optimizer: Any = None
    minibatch_size: int | None = None
    steps_per_call: int = 1

    def __post_init__(self) -> None:
        """Check the ranges."""
        ScheduleOptions.__post_init__(self)
        StartOptions.__post_init__(self)
        gradient.check_per_call(self.steps_per_call, self.minibatch_size)
        if self.optimizer is not None:
            refuse_unused(self, schedules.OPTIONS, "give `optimizer` a schedule as its learning rate")


@recipe("gradient_descent", GradientOptions)
def gradient_descent(model: BayesianModel, run: Run, options: GradientOptions) -> Plan:
    """Return the plan that trains any GPflow model by a tf_keras optimiser; see `GradientOptions`."""
    if not model.trainable_variables:
        raise ValueError("The model has no trainable variables: nothing to fit. Use gpflow.set_trainable.")
    return tried(lambda: _plan(model, run, options), model, run, options.starts)


def _plan(model: BayesianModel, run: Run, options: GradientOptions) -> Plan:
    variables, size = model.trainable_variables, options.minibatch_size
    arrays, batches = training_data(model, run.data, size, run.seed)
    rate = options.falling(Schedule()).rate(RATE)
    optimizer = built(options.optimizer, variables, rate, model=model)
    source = batches
    if batches is None and arrays is not None:
        source = itertools.repeat(tuple(tf.constant(part) for part in arrays))
    solver = gradient.gradient_steps(
        model.training_loss, variables, optimizer, source, run.jit_compile, options.steps_per_call
    )
    return Plan(
        solver,
        [*model.variables, *solver.state],
        steps=gradient.first_look(options.steps_per_call),
        period=gradient.period(arrays, size, options.steps_per_call),
        tolerance=None,
        trackables={"optimizer": optimizer} | ({} if batches is None else {"batches": batches}),
        settings={
            "recipe": "gradient_descent",
            "optimizer": optimizer.get_config(),
            "minibatch_size": size,
            **({"steps_per_call": options.steps_per_call} if options.steps_per_call > 1 else {}),
            "seed": None if size is None else run.seed,
        },
        data=arrays,
    )


def training_data(
    model: BayesianModel, data: Any, minibatch_size: int | None, seed: int
) -> tuple[tuple[Any, Any] | None, Any | None]:
    """Return the arrays to train on, and the iterator over minibatches, each if there is one."""
    external = isinstance(model, ExternalDataTrainingLossMixin)
    if external != (data is not None):
        fix = "pass `data=(X, Y)`" if external else "call `fit(model)` without `data`"
        raise ValueError(
            f"{type(model).__name__} {'does not hold' if external else 'holds'} its data: {fix}."
        )
    if minibatch_size is not None and (data is None or isinstance(data, tf.data.Dataset)):
        raise ValueError("`minibatch_size` needs `data` as a pair of arrays.")
    if data is None:
        checks.check_held(model)
        return None, None
    if isinstance(data, tf.data.Dataset):
        check_weights(model, None, minibatches=True)
        _check_label_type(model, data)
        return None, iter(data)
    arrays = checks.check_data(data)
    checks.check_model_targets(model, arrays[1])
    if minibatch_size is None:
        check_weights(model, len(arrays[0]), minibatches=False)
        return arrays, None
    if not 1 <= minibatch_size <= len(arrays[0]):
        raise ValueError(
            f"`minibatch_size` must be from 1 to {len(arrays[0])}, the number of data; got {minibatch_size}."
        )
    check_weights(model, len(arrays[0]), minibatches=minibatch_size < len(arrays[0]))
    return arrays, gradient.Minibatches(arrays, minibatch_size, seed)


def _check_label_type(model: BayesianModel, data: tf.data.Dataset) -> None:
    """Raise ``ValueError`` for a dataset of floating labels for Softmax, which takes integers."""
    *_, targets = tf.nest.flatten(data.element_spec)
    likelihood = getattr(model, "likelihood", None)
    if isinstance(likelihood, gpflow.likelihoods.Softmax):
        checks.check_targets(likelihood, np.zeros((1, 1), targets.dtype.as_numpy_dtype))


def check_weights(model: BayesianModel, number: int | None, minibatches: bool) -> None:
    """Raise ``ValueError`` where the bound would weight the data wrongly.

    Parameters
    ----------
    model
        ``num_data=None`` of an ``SVGP`` is for all data at once.
    number
        Rows of the data, where they are known.
    minibatches
        Whether the bound sees some of them at a time.
    """
    if not isinstance(model, SVGP):
        return
    if model.num_data is None and minibatches:
        raise ValueError(
            f"the model has num_data=None, which takes each minibatch for all data: build it with num_data="
            f"{'N, the number of their rows' if number is None else number}."
        )
    if model.num_data is not None and number is not None and model.num_data != number:
        raise ValueError(
            f"the model has num_data={model.num_data}, but `data` has {number} rows: build it with "
            f"num_data={number}."
        )
