"""Each model's training strategy end to end: `fit` chooses the recipe, runs it, reports and checkpoints."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.ep.recipe import expectation_propagation
from gpflow_ext.gprn.recipe import regression_network
from gpflow_ext.kmm.recipe import coordinate_ascent
from gpflow_ext.laplace.recipe import local_quadratic
from gpflow_ext.models import VGPKMM, GPJaakkola, GPLaplace, GPRNTensor, GPTaylor, SparseEP, SVGPRobustMax
from gpflow_ext.persistence import Checkpoints
from gpflow_ext.sampling.sample import gaussian_approximation, sample
from gpflow_ext.svgp.recipe import stochastic_variational
from gpflow_ext.svgp.svi import svi_classification, svi_fg, svi_lbfgsb, svi_natural, svi_sag
from gpflow_ext.svgp.vi_means import vi_means
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.gradient_descent import gradient_descent
from gpflow_ext.training.loop import Callback, FitResult, Trail, iterate
from gpflow_ext.training.recipe import Recipe
from gpflow_ext.training.scale import scale_failure
from gpflow_ext.training.workers import start

__all__ = [
    "Recipe",
    "coordinate_ascent",
    "expectation_propagation",
    "fit",
    "gaussian_approximation",
    "gradient_descent",
    "local_quadratic",
    "regression_network",
    "sample",
    "stochastic_variational",
    "svi_classification",
    "svi_fg",
    "svi_lbfgsb",
    "svi_natural",
    "svi_sag",
    "vi_means",
]

_RECIPES: dict[type[BayesianModel], Callable[..., Recipe]] = {
    VGPKMM: coordinate_ascent,
    GPLaplace: local_quadratic,
    GPJaakkola: local_quadratic,
    GPTaylor: local_quadratic,
    SparseEP: expectation_propagation,
    SVGPRobustMax: stochastic_variational,
    GPRNTensor: regression_network,
}

_NAMED: dict[str, Callable[..., Recipe]] = {
    "vi_means": vi_means,
    "svi_natural": svi_natural,
    "svi_lbfgsb": svi_lbfgsb,
    "svi_fg": svi_fg,
    "svi_sag": svi_sag,
    "svi_classification": svi_classification,
}


def fit(
    model: BayesianModel,
    data: Any = None,
    *,
    recipe: str | None = None,
    steps: int | None = None,
    tolerance: float | None = None,
    monitor: Callable[[int], None] | None = None,
    checkpoint_dir: str | os.PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool | None = None,
    seed: int = 0,
    jit_compile: bool | None = None,
    strategy: tf.distribute.Strategy | None = None,
    **options: Any,
) -> FitResult:
    """Train a model by its paper's method; any other GPflow model by gradient steps.

    Parameters
    ----------
    model
        `VGPKMM` trains by `coordinate_ascent`, `GPLaplace`, `GPJaakkola` and `GPTaylor` by `local_quadratic`,
        `SparseEP` by `expectation_propagation`, `SVGPRobustMax` by `stochastic_variational`, `GPRNTensor` by
        `regression_network`; `SGPMCFreeForm` is sampled, see `sample`. All others train by
        `gradient_descent`; their further keyword arguments go into ``options``.
    data
        Training data (X [N, D], Y [N, P]) or a ``tf.data.Dataset`` of minibatches, for a model that does
        not hold its data.
    recipe
        Another strategy than the model's own, for GPflow's models: ``"vi_means"`` for ``GPR`` and ``SGPR``;
        ``"svi_natural"``, ``"svi_lbfgsb"``, ``"svi_fg"``, ``"svi_sag"``, ``"svi_classification"`` for
        ``SVGP``; see the functions of these names in `gpflow_ext.fit`.
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
    strategy
        A ``tf.distribute`` strategy among whose devices or machines `SparseEP` deals its data and
        `SVGPRobustMax` its minibatches; see `gpflow_ext.distribute`. Of several workers the chief alone
        shows progress, calls ``monitor`` and writes checkpoints.

    Returns
    -------
    The trace of the objective and why the run ended.

    Raises
    ------
    ValueError
        For data or options that do not fit the model, or a checkpoint of another model.
    NotImplementedError
        For ``strategy`` with a model that cannot be distributed.
    gpflow_ext.distribute.WorkerLostError
        When another worker died: restart all of them.

    Warns
    -----
    UserWarning
        Where a kernel at the end relates no two inputs, or does not tell them apart: the scale of the inputs
        and the length scales do not go together.
    """
    if checkpoint_every < 1:
        raise ValueError(f"`checkpoint_every` must be at least 1; got {checkpoint_every}.")
    build = _chosen(model, recipe)
    if strategy is not None:
        if build not in (expectation_propagation, stochastic_variational):
            raise NotImplementedError(
                f"`strategy` is for SparseEP and SVGPRobustMax; {type(model).__name__} trains on one device."
            )
        options["strategy"] = strategy
    plan = build(model, data, seed=seed, jit_compile=jit_compile, **options)
    steps = plan.steps if steps is None else steps
    if steps < 0:
        raise ValueError(f"`steps` must not be negative; got {steps}.")
    shards = plan.shards
    chief = shards is None or shards.is_chief
    tolerance = plan.tolerance if tolerance is None else tolerance
    with contextlib.ExitStack() as stack:
        if shards is not None:
            stack.enter_context(shards.watched())
        callbacks: list[Callback] = []
        if monitor is not None:
            callbacks += [_gatherer(plan), *([lambda step, _: monitor(step)] if chief else [])]
        checkpoints: Checkpoints | None = None
        trail = Trail()

        def restore() -> int:
            nonlocal checkpoints
            if checkpoint_dir is None:
                return 0
            checkpoints = Checkpoints(
                checkpoint_dir,
                model,
                training=plan.settings,
                data=plan.data,
                trail=trail,
                **plan.trackables,
            )
            return checkpoints.restore_latest() or 0

        shared = [steps, tolerance, checkpoint_every, monitor is None, checkpoint_dir is None]
        first_step = start(plan, model, trail, restore, {"arguments": shared})
        if checkpoint_dir is not None:
            callbacks.append(_saver(plan, checkpoints, checkpoint_every))
        shown = progress if chief else False
        callbacks.append(
            stack.enter_context(progress_bar.bar(type(model).__name__, steps, first_step, shown, plan.report))
        )
        result = iterate(
            plan.update,
            plan.variables,
            steps=steps,
            first_step=first_step,
            tolerance=tolerance,
            monotone=plan.monotone,
            callbacks=callbacks,
            trail=trail,
            settled=plan.settled,
        )
        plan.gather()
    if checkpoints is not None and result.steps > max(checkpoints.steps, default=0):
        checkpoints.save(result.steps)
    plan.finish()
    failure = scale_failure(model, data) if chief else None
    if failure is not None:
        warnings.warn(failure, stacklevel=2)
    return result


def _chosen(model: BayesianModel, recipe: str | None) -> Callable[..., Recipe]:
    if recipe is None:
        return next((r for cls, r in _RECIPES.items() if isinstance(model, cls)), gradient_descent)
    if recipe not in _NAMED:
        raise ValueError(f"`recipe` must be one of {', '.join(_NAMED)}, or None; got {recipe!r}.")
    return _NAMED[recipe]


def _gatherer(recipe: Recipe) -> Callback:
    return lambda step, _: recipe.gather()


def _saver(recipe: Recipe, checkpoints: Checkpoints | None, every: int) -> Callback:
    """Return the callback that saves; without checkpoints it only sends the chief what it has to save."""

    def save(step: int, _: float) -> None:
        if step % every == 0:
            recipe.gather()
            if checkpoints is not None:
                checkpoints.save(step)

    return save
