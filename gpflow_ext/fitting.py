"""Training: `fit` chooses the recipe of a model, runs its plan, reports and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from gpflow.models import BayesianModel

from gpflow_ext.data import checks, held
from gpflow_ext.ep.recipe import ep
from gpflow_ext.features.twin import Twin
from gpflow_ext.gprn.recipe import gprn
from gpflow_ext.kmm.recipe import kmm
from gpflow_ext.laplace.recipe import jaakkola, laplace, taylor
from gpflow_ext.models import (
    VGPKMM,
    GPJaakkola,
    GPLaplace,
    GPRNTensor,
    GPTaylor,
    SGPMCFreeForm,
    SiteModel,
    SparseEP,
    SVGPRobustMax,
)
from gpflow_ext.persistence.checkpoint import Checkpoints
from gpflow_ext.svgp.dual_recipe import dual
from gpflow_ext.svgp.gpflow_models import gpflow_model
from gpflow_ext.svgp.recipe import robust_max
from gpflow_ext.svgp.svi import svi_classification, svi_fg, svi_lbfgsb, svi_natural, svi_sag
from gpflow_ext.svgp.vi_means import vi_means
from gpflow_ext.training import continuation
from gpflow_ext.training import progress as progress_bar
from gpflow_ext.training.deadline import Deadline, whole_steps
from gpflow_ext.training.distribute import hold_fixed, in_scope
from gpflow_ext.training.ends import FitWarning, bad_end, check_first_step, check_parameters
from gpflow_ext.training.findings import findings, noted
from gpflow_ext.training.gradient_descent import gradient_descent
from gpflow_ext.training.interrupts import Interrupts
from gpflow_ext.training.lbfgs_recipe import lbfgs_of_all
from gpflow_ext.training.loop import Callback, FitResult, Status, Trail, iterate
from gpflow_ext.training.memory import check_memory
from gpflow_ext.training.recipe import NoOptions, Plan, Recipe, Run, as_recipe, recipe, recipe_of, register
from gpflow_ext.training.rising import LastSteps
from gpflow_ext.training.scale import scale_failure
from gpflow_ext.training.site_recipe import site_inference
from gpflow_ext.training.workers import start


@recipe("sampled", NoOptions)
def sampled(model: BayesianModel, run: Run, options: NoOptions) -> Plan:
    """Refuse a model that is not trained."""
    raise ValueError(
        f"{type(model).__name__} is sampled, not trained: call gpflow_ext.sample(model), or "
        "gpflow_ext.gaussian_approximation(model) for its Gaussian approximation alone; "
        'fit(model, recipe="gradient_descent") climbs to the mode of V and the hyperparameters.'
    )


for _model, _recipe in (
    (BayesianModel, gpflow_model),
    (SiteModel, site_inference),
    (VGPKMM, kmm),
    (GPLaplace, laplace),
    (GPTaylor, taylor),
    (GPJaakkola, jaakkola),
    (SparseEP, ep),
    (SVGPRobustMax, robust_max),
    (GPRNTensor, gprn),
    (SGPMCFreeForm, sampled),
):
    register(_model, _recipe)

_BY_NAME: dict[str, Recipe] = {
    each.name: each
    for each in (
        kmm, laplace, taylor, jaakkola, ep, site_inference, robust_max, gprn, gpflow_model, lbfgs_of_all,
        gradient_descent,
        dual, vi_means, svi_natural, svi_lbfgsb, svi_fg, svi_sag, svi_classification,
    )
} | {"adam": gradient_descent}  # fmt: skip


def fit(
    model: BayesianModel,
    data: Any = None,
    *,
    recipe: str | Callable[..., Plan] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
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
    """Train a model by the method of its paper, or any other GPflow model by one that converges for it.

    ====================  ========================  ============================================
    model                 recipe                    its options, further arguments
    ====================  ========================  ============================================
    `VGPKMM`              ``"kmm"``                 `kmm.recipe.KMMOptions`
    `GPLaplace`           ``"laplace"``             `training.site_recipe.SiteOptions`
    `GPTaylor`            ``"taylor"``              the same
    `GPJaakkola`          ``"jaakkola"``            the same
    another `SiteModel`   ``"sites"``               the same
    `SparseEP`            ``"ep"``                  `ep.recipe.EPOptions`
    `SVGPRobustMax`       ``"robust_max"``          `svgp.recipe.RobustMaxOptions`
    `GPRNTensor`          ``"gprn"``                `gprn.recipe.GPRNOptions`
    any other             ``"gpflow"``              `svgp.gpflow_models.GPflowOptions`
    any                   ``"lbfgs"``               `training.lbfgs_recipe.LBFGSOptions`
    any                   ``"adam"``                `training.gradient_descent.GradientOptions`
    ``SVGP``              ``"dual"``                `svgp.dual_recipe.DualOptions`
    ``GPR``, ``SGPR``     ``"vi_means"``            `svgp.vi_means.MeansOptions`
    ``SVGP``              ``"svi_natural"``         `svgp.svi.NaturalOptions`
    ``SVGP``              ``"svi_lbfgsb"``          `svgp.svi.LBFGSBOptions`
    ``SVGP``              ``"svi_sag"``             `svgp.svi.MinibatchOptions`
    ``SVGP``              ``"svi_fg"``              `training.trials.StartOptions`
    ``SVGP``              ``"svi_classification"``  `svgp.svi.ClassificationOptions`
    ====================  ========================  ============================================

    `SGPMCFreeForm` is sampled, see `sample`.

    Parameters
    ----------
    model
        The model; its class decides the recipe, see `register`.
    data
        Training data (X [N, D], Y [N, P]) or a ``tf.data.Dataset`` of minibatches, for a model that does
        not hold its data.
    recipe
        A recipe other than the model's own: a name from the table, for models that it fits (the site methods
        ``"kmm"``, ``"laplace"``, ``"taylor"``, ``"jaakkola"`` and ``"ep"`` fit every site model whose
        likelihood allows it); a `Recipe`; or a function (model, `Run`, **options) -> `Plan`.
    steps
        Number of the last step, counting those before a restart. By default the recipe runs until it has
        settled. One by small steps looks for that after so many of them, 1,000 mostly, and goes on while the
        objective rises, without ``seconds`` for 60 at most; see `training.open_end`.
    seconds
        Wall-clock seconds after which no further step begins. A step of iterations of L-BFGS ends early then,
        as ``OUT_OF_TIME``, at the first iterate that follows, or in the graph after up to 50 evaluations. It
        counts as a step; a resumed run goes on from its best parameters, and tries no start that it has left
        out. One iteration is always made, and before it the functions are traced, however long that takes. Of
        trials of starts by small steps each has a tenth of the seconds. Steps of several workers are whole.
    tolerance
        Relative change of the objective below which training stops.
    monitor
        Called with the number of each step, for example a ``gpflow.monitor.Monitor``.
    checkpoint_dir
        Folder for checkpoints. If it holds one of the same model and settings, training resumes there
        and ends exactly as if it had never stopped. SIGINT and SIGTERM then end the run after the current
        step, with a checkpoint.
    checkpoint_every
        Steps between checkpoints; the last step is always saved.
    progress
        Show a progress bar; by default (``None``) only if standard error is a terminal.
    seed
        Seed of the minibatches, and of random starting points of the hyperparameters.
    jit_compile
        Compile with XLA; ``None`` means on GPU and TPU only, because XLA's Cholesky is slow on CPU.
    strategy
        A ``tf.distribute`` strategy. `SparseEP` shards its data over its devices or machines,
        `SVGPRobustMax` and the recipe ``"dual"`` their minibatches; a recipe of your own may too if it
        ``distributes``; see `gpflow_ext.distribute`. Of several workers only the chief shows progress, calls
        ``monitor`` and writes checkpoints.
    **options
        Options of the recipe: see its dataclass in the table.

    Returns
    -------
    The trace of the objective and why the run ended.

    Raises
    ------
    ValueError
        For data or options that do not fit the model, before any work is done and naming the right ones;
        for a start that is not finite, naming the parameter or the rows at fault; for a model that no recipe
        fits; for one whose matrices the memory of the machine cannot hold; for a checkpoint of another model;
        for a call inside ``strategy.scope()``.
    NotImplementedError
        For ``strategy`` with a model that cannot be distributed.
    gpflow_ext.distribute.WorkerLostError
        When another worker died: restart all of them.

    Warns
    -----
    FitWarning
        If the run ends ``NON_FINITE`` or ``DIVERGED``; it says which state was restored. Also if the
        recipe's own steps or seconds were over while the objective rose; of given ones the notes say it.
    UserWarning
        If a trained kernel correlates no two inputs, or cannot tell them apart: its length scales do not
        suit the scale of the inputs.
    """
    whole = {} if steps is None else {"steps": steps}
    checks.check_whole(seed=seed, checkpoint_every=checkpoint_every, **whole)
    given = {"seconds": seconds, "tolerance": tolerance}
    checks.check_number(**{name: value for name, value in given.items() if value is not None})
    checks.check_kind(tf.Module, model=model)
    checks.check_flag(progress=progress, jit_compile=jit_compile)
    if monitor is not None:
        checks.check_callable(monitor=monitor)
    if checkpoint_every < 1:
        raise ValueError(f"`checkpoint_every` must be at least 1; got {checkpoint_every}.")
    if steps is not None and steps < 0:
        raise ValueError(f"`steps` must not be negative; got {steps}.")
    if seconds is not None and not seconds > 0.0:
        raise ValueError(f"`seconds` must be positive; got {seconds}.")
    if tolerance is not None and math.isnan(tolerance):
        raise ValueError("`tolerance` must be a number; got nan.")
    if in_scope():
        raise ValueError("Call `fit` outside of `strategy.scope()`; it takes the strategy as `strategy`.")
    held.follow(model)
    held.refuse_trained(model)
    hold_fixed(model)
    check_parameters(model)
    if strategy is None and options.get("minibatch_size") is None:  # else each device has a part of them
        check_memory(model)
    twin = Twin(model, data)
    if "validation" in options:
        options["validation"] = twin.rows(options["validation"])
    seconds = math.inf if seconds is None else seconds
    shared = {"seed": seed, "jit_compile": jit_compile, "strategy": strategy, "seconds": seconds}
    plan = _chosen(model, recipe)(twin.model, twin.data, open_ended=steps is None, **shared, **options)
    twin.carry_back()
    chosen, steps = steps, plan.steps if steps is None else steps
    shards = plan.shards
    chief = shards is None or shards.is_chief
    tolerance = plan.tolerance if tolerance is None else tolerance
    with contextlib.ExitStack() as stack:
        if shards is not None:
            stack.enter_context(shards.watched())
        if shards is not None and shards.num_processes > 1:
            stack.enter_context(whole_steps())
        callbacks: list[Callback] = []
        if monitor is not None:
            callbacks += [lambda *_: plan.gather(), *([lambda step, _: monitor(step)] if chief else [])]
        checkpoints: Checkpoints | None = None
        trail, interrupts = Trail(plan.steps, plan.period), Interrupts()

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

        alike = [steps, tolerance, checkpoint_every, monitor is None, checkpoint_dir is None]
        first_step = start(plan, model, trail, restore, {"arguments": alike})
        if first_step and plan.rests and plan.solver.start().violation > plan.stationarity:
            trail.unsettle()  # a tighter one than that which the checkpoint has met
        if not first_step:
            continuation.take_up(model, plan)
        trail.end.resume(first_step)
        if prolonged := plan.is_open and chosen is None:
            steps = trail.end.look
        odd = findings(twin.model, twin.data)
        timed = prolonged or math.isfinite(seconds)
        last = LastSteps(model, steps, first_step=first_step, timed=timed, block=plan.period)
        callbacks += [*([trail.end] if plan.period else []), last]
        if checkpoint_dir is not None:
            stack.enter_context(interrupts)
            callbacks.append(_saver(plan, checkpoints, checkpoint_every))
        shown = progress if chief else False
        bar = progress_bar.bar(type(model).__name__, steps, first_step, shown, plan.report)
        callbacks.append(stack.enter_context(bar))
        deadline = Deadline(seconds)
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
            deadline=deadline,
            interrupted=lambda: bool(interrupts),
            rests=plan.rests,
            further=functools.partial(trail.end.further, deadline) if prolonged else None,
        )
        plan.gather()
    if result.status is Status.NON_FINITE and result.steps == 0:
        check_first_step(twin.model, twin.data)
    if checkpoints is not None and result.steps > max(checkpoints.steps, default=0):
        checkpoints.save(result.steps)
    interrupts.end(f"Interrupted after step {result.steps}. The same call resumes in {checkpoint_dir}.")
    if plan.finish() and checkpoints is not None:
        checkpoints.save_finished()
    continuation.leave(model, plan, result)
    slope = last.slope(result, deadline.has_cut, prolonged and math.isinf(seconds))
    notes = noted(slope, odd, findings(twin.model, twin.data))
    result = dataclasses.replace(result, starts=plan.tried(), notes=notes)
    if chief and slope and chosen is None and (result.status is Status.MAX_STEPS or math.isinf(seconds)):
        warnings.warn(slope, FitWarning, stacklevel=2)
    if chief and result.status in (Status.NON_FINITE, Status.DIVERGED, Status.STALLED):
        warnings.warn(bad_end(result, twin.model), FitWarning, stacklevel=2)
    elif chief and (failure := scale_failure(twin.model, twin.data)) is not None:
        warnings.warn(failure, stacklevel=2)
    return result


def _chosen(model: BayesianModel, recipe: str | Callable[..., Plan] | None) -> Recipe:
    if recipe is None:
        found = recipe_of(model)
        if found is None:
            raise ValueError(
                f"No recipe trains a {type(model).__name__}, which is not a GPflow BayesianModel: give one "
                "by `fit(recipe=...)` or gpflow_ext.register."
            )
        return found
    if callable(recipe):
        return as_recipe(recipe)
    if recipe not in _BY_NAME:
        raise ValueError(
            f"`recipe` must be one of {', '.join(_BY_NAME)}, a function (model, run, **options) -> Plan, or "
            f"None; got {recipe!r}."
        )
    return _BY_NAME[recipe]


def _saver(plan: Plan, checkpoints: Checkpoints | None, every: int) -> Callback:
    """Return the callback that saves; without checkpoints it only sends the chief what it has to save."""

    def save(step: int, _: float) -> None:
        if step % every == 0:
            plan.gather()
            if checkpoints is not None:
                checkpoints.save(step)

    return save
