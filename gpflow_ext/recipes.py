"""Each model's training strategy end to end: `fit` chooses the recipe, runs it, reports and checkpoints."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
from gpflow.keras import tf_keras
from gpflow.models import BayesianModel, ExternalDataTrainingLossMixin

from gpflow_ext import checks
from gpflow_ext import progress as progress_bar
from gpflow_ext.inference import gradient, kmm
from gpflow_ext.inference.loops import Callback, FitResult, Trail, Update, iterate
from gpflow_ext.models import VGPKMM
from gpflow_ext.persistence import Checkpoints


@dataclass(frozen=True)
class Recipe:
    """A training strategy bound to a model, ready to run.

    Attributes
    ----------
    update
        One step.
    variables
        All that the update changes.
    steps, tolerance
        Defaults of `fit`.
    monotone
        Whether the objective can only rise.
    trackables
        What a checkpoint must hold besides the model.
    settings
        What a resumed run must share, as plain values.
    data
        Training data that the model does not hold.
    """

    update: Update
    variables: Sequence[tf.Variable]
    steps: int
    tolerance: float | None
    monotone: bool
    trackables: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    data: tuple[Any, Any] | None = None


def fit(
    model: BayesianModel,
    data: Any = None,
    *,
    steps: int | None = None,
    tolerance: float | None = None,
    monitor: Callable[[int], None] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    **options: Any,
) -> FitResult:
    """Train a model by its paper's method; any other GPflow model by gradient steps.

    Parameters
    ----------
    model
        `VGPKMM` trains by `coordinate_ascent`, all others by `gradient_descent`; their further keyword
        arguments go into ``options``.
    data
        Training data (X [N, D], Y [N, P]) or a ``tf.data.Dataset`` of minibatches, for a model that does
        not hold its data.
    steps
        Number of the last step, those before a restart included.
    tolerance
        Relative change of the objective below which training stops.
    monitor
        Called with the number of each step, for example a ``gpflow.monitor.Monitor``.
    checkpoint_dir
        Folder for checkpoints. Where it holds one of the same model and settings, training resumes there
        and ends exactly as if it had never stopped.
    checkpoint_every
        Steps between checkpoints; the last step is always saved.
    progress
        Show a progress bar; ``None`` does where standard error is a terminal.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only, because XLA's Cholesky is slow on CPU.

    Returns
    -------
    The trace of the objective and why the run ended.

    Raises
    ------
    ValueError
        For data or options that do not fit the model, or a checkpoint of another model.
    """
    if checkpoint_every < 1:
        raise ValueError(f"`checkpoint_every` must be at least 1; got {checkpoint_every}.")
    build = coordinate_ascent if isinstance(model, VGPKMM) else gradient_descent
    recipe = build(model, data, seed=seed, jit_compile=jit_compile, **options)
    steps = recipe.steps if steps is None else steps
    if steps < 0:
        raise ValueError(f"`steps` must not be negative; got {steps}.")
    with contextlib.ExitStack() as stack:
        callbacks: list[Callback] = []
        if monitor is not None:
            callbacks.append(lambda step, _: monitor(step))
        checkpoints, first_step, trail = None, 0, Trail()
        if checkpoint_dir is not None:
            checkpoints = Checkpoints(
                checkpoint_dir,
                model,
                training=recipe.settings,
                data=recipe.data,
                trail=trail,
                **recipe.trackables,
            )
            first_step = checkpoints.restore_latest() or 0
            callbacks.append(_saver(checkpoints, checkpoint_every))
        callbacks.append(
            stack.enter_context(progress_bar.bar(type(model).__name__, steps, first_step, progress))
        )
        result = iterate(
            recipe.update,
            recipe.variables,
            steps=steps,
            first_step=first_step,
            tolerance=recipe.tolerance if tolerance is None else tolerance,
            monotone=recipe.monotone,
            callbacks=callbacks,
            trail=trail,
        )
    if checkpoints is not None and result.steps > max(checkpoints.steps, default=0):
        checkpoints.save(result.steps)
    return result


def _saver(checkpoints: Checkpoints, every: int) -> Callback:
    def save(step: int, _: float) -> None:
        if step % every == 0:
            checkpoints.save(step)

    return save


def coordinate_ascent(
    model: VGPKMM,
    data: None = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    method: kmm.Method = "parallel",
    site_updates: int = 50,
    hyper_updates: int = 20,
    stationarity: float | None = None,
    block: int = 64,
    starts: int = 1,
) -> Recipe:
    """Return the recipe of Khan, Mohamed & Murphy (2012) for `VGPKMM`.

    With trainable hyperparameters a step is ``hyper_updates`` iterations of L-BFGS on the bound, the sites
    at their fixed point in each evaluation; without any it is one iteration of the fixed point (one sweep
    of Algorithm 1).

    Parameters
    ----------
    model
        The model, which holds its data.
    data
        Must be ``None``.
    seed
        Seed of the further starts.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    method
        ``"parallel"`` for the safeguarded parallel fixed point, ``"algorithm1"`` for the paper's sweep.
    site_updates
        Iterations of the fixed point in an evaluation, at most.
    hyper_updates
        Iterations of L-BFGS in a step.
    stationarity
        Largest violation of the fixed point, relative to 1 + λ, that counts as converged; 1e-5 in float64,
        1e-3 in float32.
    block
        Sites in a block of Algorithm 1; it does not change the iterates.
    starts
        Starting points of the hyperparameters: the model's own, and others with every positive parameter
        multiplied by a log-normal factor of deviation 2. The first step climbs from each and keeps the best.
    """
    if starts < 1:
        raise ValueError(f"`starts` must be at least 1; got {starts}.")
    if data is not None:
        raise ValueError(f"{type(model).__name__} holds its data: call `fit(model)` without `data`.")
    double = gpflow.default_float() == np.float64
    stationarity = (1e-5 if double else 1e-3) if stationarity is None else stationarity
    ascent = kmm.SiteAscent(model, method, block, jit_compile)
    hypers = model.trainable_variables
    settings: dict[str, Any] = {"recipe": "coordinate_ascent", "method": method}
    if hypers:
        update = kmm.alternating_update(
            ascent,
            model,
            hypers,
            site_updates=site_updates,
            hyper_updates=hyper_updates,
            stationarity=stationarity,
            jit_compile=jit_compile,
            starts=_further_starts(model, starts - 1, seed),
        )
        settings |= {
            "hyper_updates": hyper_updates,
            "site_updates": site_updates,
            "starts": starts,
            "seed": seed,
        }
    else:
        update = kmm.site_update(ascent, model, stationarity)
    return Recipe(
        update,
        [*model.variables, *ascent.point],
        steps=50 if hypers else 200,
        tolerance=1e-8 if double else 1e-5,
        monotone=True,
        trackables={"ascent": ascent},
        settings=settings,
    )


def _further_starts(model: BayesianModel, number: int, seed: int) -> list[list[tf.Tensor]]:
    """Return values for the model's trainable variables, its positive parameters multiplied at random."""
    rng = np.random.default_rng(seed)
    parameters = {id(p.unconstrained_variable): p for p in model.trainable_parameters}

    def moved(variable: tf.Variable) -> tf.Tensor:
        parameter = parameters[id(variable)]
        value = parameter.numpy()
        if parameter.transform is None or (value <= 0.0).any():
            return variable.read_value()
        factor = np.exp(2.0 * rng.standard_normal(value.shape)).astype(value.dtype)
        return parameter.transform.inverse(tf.constant(value * factor))

    return [[moved(variable) for variable in model.trainable_variables] for _ in range(number)]


def gradient_descent(
    model: BayesianModel,
    data: Any = None,
    *,
    seed: int = 0,
    jit_compile: bool | None = None,
    optimizer: Any | None = None,
    minibatch_size: int | None = None,
) -> Recipe:
    """Return the recipe that trains any GPflow model by a tf_keras optimiser.

    Parameters
    ----------
    model
        The model.
    data
        Training data for a model that does not hold them, else ``None``.
    seed
        Seed of the minibatches.
    jit_compile
        XLA; ``None`` means on GPU and TPU only.
    optimizer
        A tf_keras optimiser; Adam with learning rate 0.01 by default.
    minibatch_size
        Rows in a minibatch of arrays; all data by default.
    """
    variables = model.trainable_variables
    if not variables:
        raise ValueError("The model has no trainable variables: nothing to fit. Use gpflow.set_trainable.")
    optimizer = tf_keras.optimizers.Adam(0.01) if optimizer is None else optimizer
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise ValueError(
            f"`optimizer` must be a tf_keras optimiser (see gpflow.keras.tf_keras); got {type(optimizer)}."
        )
    optimizer.build(variables)
    arrays, batches = _training_data(model, data, minibatch_size, seed)
    loss = model.training_loss
    if batches is None and arrays is not None:
        loss = functools.partial(model.training_loss, tuple(tf.constant(part) for part in arrays))
    return Recipe(
        gradient.gradient_update(loss, variables, optimizer, batches, jit_compile),
        [*model.variables, *optimizer.variables],
        steps=1000,
        tolerance=None,
        monotone=False,
        trackables={"optimizer": optimizer} | ({} if batches is None else {"batches": batches}),
        settings={
            "recipe": "gradient_descent",
            "optimizer": optimizer.get_config(),
            "minibatch_size": minibatch_size,
            "seed": None if minibatch_size is None else seed,
        },
        data=arrays,
    )


def _training_data(
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
        return None, None
    if isinstance(data, tf.data.Dataset):
        return None, iter(data)
    arrays = checks.check_data(data)
    if minibatch_size is None:
        return arrays, None
    if not 1 <= minibatch_size <= len(arrays[0]):
        raise ValueError(
            f"`minibatch_size` must be from 1 to {len(arrays[0])}, the number of data; got {minibatch_size}."
        )
    return arrays, gradient.minibatches(arrays, minibatch_size, seed)
